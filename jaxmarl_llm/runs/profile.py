"""The time of a step by part: a profiler's trace, read by the `jax.named_scope` that each operation stands in."""

from __future__ import annotations

import heapq
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax

from jaxmarl_llm.devices import hlo
from jaxmarl_llm.devices.scopes import SCOPES

STEP, LOGGING, OTHER, IDLE = "profiled step", "logging", "other", "idle"
ROWS = (*SCOPES, LOGGING, OTHER, IDLE)

Event = tuple[float, float, str]  # begin and end in nanoseconds, name

# a whole part of a path, bare or as in transpose(jvp(update))
SCOPE = re.compile(rf"(?<![^/(])({'|'.join(SCOPES)})(?![^/)])")


def scopes(text: str) -> dict[tuple[str, str], str]:
    """{(module, operation): scope} of a compiled program's text (`compiled.as_text()`).

    An operation's scope is the innermost of SCOPES in its path. Without one, it is the scope of the operation that
    calls its computation, such as a loop. XLA leaves some operations outside such loops without a path (a copy, a
    rewritten matrix product). They have the scope of an operation that they read, else of one that reads them. The rest
    is `other`.
    """
    module, computations, _ = hlo.read(text)
    every = [(where, operation) for where, inside in computations.items() for operation in inside]
    scope_of = {operation.name: inner[-1] for _, operation in every if (inner := SCOPE.findall(operation.path))}
    caller = {part: operation.name for _, operation in every for part in operation.called}
    reads = {operation.name: operation.operands for _, operation in every}
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for name, operands in reads.items():
        for other in operands:
            readers[other].append(name)
    for where, operation in reversed(every):  # a computation stands before the operation that runs it
        if operation.name not in scope_of and (scope := scope_of.get(caller.get(where, ""))):
            scope_of[operation.name] = scope
    bare = [operation.name for _, operation in every if not operation.path]  # operands first, then their readers
    for order, near in ((bare, reads), (bare[::-1], readers)):
        for name in order:
            if name not in scope_of and (
                scope := next((scope_of[n] for n in near.get(name, ()) if n in scope_of), None)
            ):
                scope_of[name] = scope
    return {(module, operation.name): scope_of.get(operation.name, OTHER) for _, operation in every}


def exclusive(events: Iterable[Event]) -> dict[str, float]:
    """Nanoseconds by name, every instant counted once: of the events that run then, for the one that began last.

    This is the innermost of nested events, and one of several events that run side by side on threads or devices.
    """
    ordered = sorted(events, key=lambda event: (event[0], -event[1]))
    spent: defaultdict[str, float] = defaultdict(float)
    running: list[tuple[int, float, str]] = []
    now = 0.0
    for i, (begin, end, name) in enumerate([*ordered, (math.inf, math.inf, "")]):
        while running and now < begin:
            _, until, latest = running[0]
            spent[latest] += max(0, min(until, begin) - now)
            now = max(now, min(until, begin))
            if until <= now:
                heapq.heappop(running)
        now = begin
        heapq.heappush(running, (-i, end, name))
    return spent


def breakdown(directory: str | os.PathLike[str], known: Mapping[tuple[str, str], str]) -> dict[str, float]:
    """Seconds by ROWS of the newest trace in a directory; they add up to the wall time of its STEP.

    `known` is the result of `scopes`; all other operations are `other`. The host marks with `TraceAnnotation` the STEP
    and in it LOGGING, which counts where no operation began after it. `idle` is when no operation ran: dispatch, memory
    being allocated, gaps. Raises ValueError if there is no trace, or no STEP in it.
    """
    files = sorted(Path(directory).glob("**/*.xplane.pb"), key=lambda file: file.stat().st_mtime_ns)
    if not files:
        raise ValueError(f"There is no trace in {directory}.")
    events = _events(jax.profiler.ProfileData.from_file(str(files[-1])), known)
    steps = [event for event in events if event[2] == STEP]
    if len(steps) != 1:
        raise ValueError(f"{files[-1]} holds {len(steps)} events {STEP!r}, not one.")
    begin, end, _ = steps[0]
    inside = [(max(a, begin), min(b, end), name) for a, b, name in events if a < end and b > begin and name != STEP]
    spent = exclusive([(begin, end, IDLE), *inside])
    return {name: spent.get(name, 0) / 1e9 for name in ROWS}


def _events(profile: jax.profiler.ProfileData, known: Mapping[tuple[str, str], str]) -> list[Event]:
    events: list[Event] = []
    operations, ended = [], {}
    for event in (event for plane in profile.planes for line in plane.lines for event in line.events):
        begin, end = event.start_ns, event.start_ns + event.duration_ns
        if event.name in (STEP, LOGGING):
            events.append((begin, end, event.name))
        elif "hlo_op" in (stats := dict(event.stats)):
            scope = known.get((str(stats["hlo_module"]), str(stats["hlo_op"])), OTHER)
            operations.append((begin, end, scope, stats.get("_p")))
        elif event.name.startswith("end: ") and "_c" in stats:  # on a CPU, when an operation's last thread was done
            ended[stats["_c"]] = begin
    return events + [(begin, max(end, ended.get(number, end)), scope) for begin, end, scope, number in operations]
