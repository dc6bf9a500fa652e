"""Reader of compiled programs as text (HLO): instructions, and the FLOPs, bytes and collectives of one execution.

XLA's cost analysis counts the body of a loop once; here it counts as often as it runs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "s64": 8, "u64": 8, "f64": 8}  # else 4
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "iota"}
BODIES = {"while", "conditional", "call", "async"}  # the instructions in their computations move the bytes
PARTLY = {"dynamic-slice", "gather", "slice"}  # read as many bytes as they return
WHOLLY = {"reduce", "dot", "scatter", "reduce-window", "sort"}  # may read more of an operand than they return

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_NAMED = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = ")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.-]+) = (\(.*?\)|[^\s(]\S*) ([\w-]+)\((.*?)\)(,.*)?$")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:to_apply|calls|body|condition|\w+_computations?)=\{?(%[\w.-]+(?:, %[\w.-]+)*)")
_PATH = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_HIDDEN = re.compile(r'custom_call_target="[^"]*(?:matmul|gemm|dot)', re.IGNORECASE)


@dataclasses.dataclass
class Work:
    """The work of one device. A collective's bytes are those of its result, summed over all its executions."""

    operations: float = 0.0  # FLOPs of matrix products, two per multiply-add
    moved: float = 0.0  # bytes that operations read and write; a fusion counts as one operation
    # {(kind, axes): (times, bytes)}
    collectives: dict[tuple[str, str], tuple[float, float]] = dataclasses.field(default_factory=dict)
    hidden: float = 0.0  # calls of a library's matrix products, whose FLOPs are not counted


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    kind: str
    operands: tuple[str, ...]
    number: str  # a parameter's index
    rest: str
    root: bool
    path: str  # the place in the source program, such as "jit(step)/update/while", or ""
    called: tuple[str, ...]  # the computations that the instruction runs


def read(text: str) -> tuple[str, dict[str, list[Instruction]], str]:
    """(the module's name, {computation: its instructions}, the entry computation) of a program's text.

    Raises ValueError for an instruction that cannot be parsed.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = inside = ""
    for line in text.splitlines():
        if begun := _COMPUTATION.match(line):
            inside = begun[2]
            computations[inside] = []
            entry = inside if begun[1] else entry
        elif match := _INSTRUCTION.match(line):
            root, name, shape, kind, operands, rest = match.groups("")
            names, path = tuple(re.findall(r"%([\w.-]+)", operands)), _PATH.search(rest)
            called = tuple(part[1:] for parts in _CALLED.findall(rest) for part in parts.split(", "))
            at = path[1] if path else ""
            computations[inside].append(Instruction(name, shape, kind, names, operands, rest, bool(root), at, called))
        elif _NAMED.match(line):
            raise ValueError(f"An instruction of a compiled program is not understood: {line.strip()[:200]}")
    return text.split(None, 2)[1].rstrip(","), computations, entry


def count_work(
    text: str,
    trips: Callable[[str], float],
    mesh: Mapping[str, int],
    phase: Callable[[str], str | None],
    first: str = "",
) -> dict[str, Work]:
    """{phase: work} of a compiled program's text (`compiled.as_text()`).

    `trips(path)` gives the iterations of a loop whose text does not state them. `phase(path)` gives the phase of an
    operation; None means the phase of its caller. `first` is the phase of the entry. A `switch` counts as its most
    expensive branch.
    """
    _, computations, entry = read(text)

    def visit(name: str, times: float, outer_phase: str, works: dict[str, Work], fused: bool = False) -> None:
        inside = {op.name: op for op in computations[name]}
        shapes = {op.name: op.shape for op in inside.values()}
        for op in inside.values():
            if op.kind.endswith(("-start", "-update")):
                continue  # the -done instruction counts: its shape is the result alone
            if op.kind.endswith("-done"):
                start = inside[op.operands[0]]
                op = dataclasses.replace(start, kind=start.kind.removesuffix("-start"), shape=op.shape)
            op_phase, kind = phase(op.path) or outer_phase, op.kind
            if kind == "while":
                known = _TRIPS.search(op.rest)
                n = float(known[1]) if known else trips(op.path)
                for part in op.called:
                    visit(part, times * n, op_phase, works)
            elif kind == "conditional":
                visit(max(op.called, key=size), times, op_phase, works)
            elif kind in ("fusion", "call", "async"):
                for part in op.called:
                    visit(part, times, op_phase, works, fused or kind == "fusion")
            elif kind == "dot":
                left, contracted = _sizes(shapes[op.operands[0]]), _CONTRACTED.search(op.rest)
                inner = [left[i] for i in _numbers(contracted[1])] if contracted else []
                works[op_phase].operations += times * 2 * math.prod(_sizes(op.shape)) * math.prod(inner)
            elif kind in COLLECTIVES:
                key = kind, axes(op.rest, mesh)
                before = works[op_phase].collectives.get(key, (0.0, 0.0))
                works[op_phase].collectives[key] = before[0] + times, before[1] + times * _bytes(op.shape)
            elif _HIDDEN.search(op.rest):
                works[op_phase].hidden += times
            if not fused and kind not in FREE | BODIES:
                fused_ops = computations[op.called[0]] if kind == "fusion" else []
                works[op_phase].moved += times * _bytes_moved(op, shapes, fused_ops)

    def size(branch: str) -> tuple[float, float]:
        alone: defaultdict[str, Work] = defaultdict(Work)
        visit(branch, 1.0, "", alone)
        return sum(work.operations for work in alone.values()), sum(work.moved for work in alone.values())

    works: defaultdict[str, Work] = defaultdict(Work)
    visit(entry, 1.0, first, works)
    return dict(works)


def _bytes_moved(op: Instruction, shapes: Mapping[str, str], inside: list[Instruction]) -> float:
    """Bytes that an instruction reads and writes; a slice or an update in place counts only its part."""
    if op.kind == "dynamic-update-slice":
        return 2 * _bytes(shapes[op.operands[1]])
    if op.kind in PARTLY:
        return 2 * _bytes(op.shape)
    total, written = _bytes(op.shape), ""
    limit = math.inf if not inside or any(x.kind in WHOLLY for x in inside) else total
    for last in inside:
        if last.root and last.kind == "dynamic-update-slice":
            shapes_inside = {x.name: x.shape for x in inside}
            total, written = 2 * _bytes(shapes_inside[last.operands[1]]), last.operands[0]
    parameters = {x.number: x.name for x in inside if x.kind == "parameter"}
    for place, operand in enumerate(op.operands):
        size = min(_bytes(shapes[operand]), limit)
        name = parameters.get(str(place), "")
        users = [x for x in inside if name in x.operands] if name else []
        if name and name == written:
            size = 0
        elif users and all(x.kind in PARTLY for x in users):
            size = min(size, sum(_bytes(x.shape) for x in users))
        total += size
    return total


def _sizes(shape: str) -> list[int]:
    return [int(size) for size in _SHAPE.search(shape)[2].split(",") if size]  # type: ignore[index]


def _bytes(shape: str) -> float:
    parts = _SHAPE.findall(shape)
    return sum(BYTES.get(kind, 4) * math.prod(int(n) for n in sizes.split(",") if n) for kind, sizes in parts)


def axes(attributes: str, mesh: Mapping[str, int]) -> str:
    """The mesh axes, such as "data+fsdp", that a collective's groups or pairs of devices span; "?" if none fit."""
    if pairs := re.search(r"source_target_pairs=\{([\d,{}]*)\}", attributes):
        ends = np.array(re.findall(r"(\d+),(\d+)\}", pairs[1]), int).T
        places = zip(mesh, *(np.unravel_index(side, tuple(mesh.values())) for side in ends), strict=True)
        return "+".join(name for name, source, target in places if (source != target).any())
    groups, names = _groups(attributes), [name for name, size in mesh.items() if size > 1]
    devices: np.ndarray = np.arange(math.prod(mesh.values())).reshape(tuple(mesh.values()))
    if groups is None or groups.size == 0:
        return "+".join(names) if groups is not None else "?"
    sought = {frozenset(group) for group in groups.tolist()}
    for count in range(1, len(names) + 1):
        for some in itertools.combinations(names, count):
            last = [list(mesh).index(name) for name in some]
            size = math.prod(mesh[name] for name in some)
            if {
                frozenset(g) for g in np.moveaxis(devices, last, range(-count, 0)).reshape(-1, size).tolist()
            } == sought:
                return "+".join(some)
    return "?"


def _groups(attributes: str) -> np.ndarray | None:
    """int [groups, devices] of `replica_groups` in any of XLA's three notations; empty: all devices; None: absent."""
    if listed := re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", attributes):
        rows = [[int(i) for i in row.split(",")] for row in re.findall(r"\{([\d,]+)\}", listed[1])]
        return np.array(rows, int)
    iota = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
    if tiled := re.search(rf"replica_groups=\[([\d,]+)\]<={iota}", attributes):
        return _iota(tiled[2], tiled[3]).reshape(_numbers(tiled[1]))
    named = re.search(rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({iota}\))? \{{([^}}]*)\}}", attributes)
    if named is None:
        return None
    names, sizes = re.findall(r"'(\w+)'=", named[1]), [int(size) for size in re.findall(r"=(\d+)", named[1])]
    some = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", named[4])
    for name, before, size in (part for part in some if part[1]):  # a part of an axis: split the axis around it
        at = names.index(name)
        names[at : at + 1] = "", name, ""
        sizes[at : at + 1] = int(before), int(size), sizes[at] // int(before) // int(size)
    ids = _iota(named[2], named[3]) if named[2] else np.arange(math.prod(sizes))
    last = [names.index(name) for name, _, _ in some]
    moved = np.moveaxis(ids.reshape(sizes), last, range(-len(last), 0))
    return moved.reshape(-1, math.prod(sizes[at] for at in last))


def _iota(sizes: str, order: str | None) -> np.ndarray:
    shape = _numbers(sizes)
    return np.arange(math.prod(shape)).reshape(shape).transpose(_numbers(order) if order else None)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)
