"""Placement of arrays on a mesh of devices: the only file that knows devices; all other code is for one device.

A mesh has three axes. Episodes and their rows of tokens are split over "data" and "fsdp" together. Weights, gradients
and optimiser states are split over "fsdp" and "tensor", by rules over paths. An update gathers the weights of one layer
at a time. In a rollout the weights stay in place and the few activations of a token move. Programs are compiled in
`with use(mesh)`. Without a mesh, or on one device, these functions change nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxmarl_llm.devices import distributed, surroundings

AXES = DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
ROWS = (DATA, FSDP)
Rule = tuple[tuple[str, ...], ...]  # for each of a leaf's last axes, the mesh's axes that split it
OUT_IN, IN_OUT = ((TENSOR,), (FSDP,)), ((FSDP,), (TENSOR,))
RULES: dict[str, Rule] = {  # {end of a leaf's path: rule}; leading axes (runs, layers) are not split
    r"embed_tokens(_per_layer)?|lm_head": ((TENSOR, FSDP), ()),
    r"(global_|wide_)?([qkv]|gate|up)_proj|in_proj_(qkv|z|a|b)|per_layer_input_gate": OUT_IN,
    r"(global_|wide_)?(o|down|out)_proj|per_layer_projection": IN_OUT,
    r"experts_(gate|up|down)": ((TENSOR, FSDP), (), ()),
    r"(global_)?([qkv]|gate|up)_proj_bias": ((TENSOR,),),
    r"((global_|wide_)?([qkv]|gate|up)_proj|in_proj_(qkv|z|a|b)|per_layer_input_gate)/a": ((), (FSDP,)),
    r"((global_|wide_)?([qkv]|gate|up)_proj|in_proj_(qkv|z|a|b)|per_layer_input_gate)/b": ((TENSOR,), ()),
    r"((global_|wide_)?(o|down|out)_proj|per_layer_projection)/a": ((), (TENSOR,)),
    r"((global_|wide_)?(o|down|out)_proj|per_layer_projection)/b": ((FSDP,), ()),
}


def mesh(axes: str = "", after: int = 0) -> Mesh:
    """The mesh of a text such as "data=2,fsdp=4"; an axis that is not named has size 1, "" is one device.

    It takes the first devices after skipping `after` of them.

    Raises ValueError for an unknown or repeated axis, a size below 1, or more devices than there are. With several
    processes the mesh must have all their devices.
    """
    sizes = counts(axes)
    available, count = jax.devices()[after:], math.prod(sizes.values())
    if count > len(available) or (jax.process_count() > 1 and count < len(available)):
        there = f"{len(available)} are {'left' if after else 'here'}"
        there += ", and several processes use all of theirs" * (jax.process_count() > 1)
        raise ValueError(f"A mesh of {count} devices was asked for ({axes or 'one device'}), but {there}.")
    result = jax.make_mesh(tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * 3, devices=available[:count])
    if count > 1 and jax.distributed.is_initialized() and available[0].platform == "cpu":
        _connect(result)
    return result


def _connect(mesh: Mesh) -> None:
    """Connects the groups of devices along all axes now, rather than at their first sum.

    At a first sum Gloo waits 30 seconds for the last device and then hangs. XLA waits 30 minutes for connected devices.
    """
    axes = [axis for axis in AXES if mesh.shape[axis] > 1]
    groups = [group for n in range(1, len(axes) + 1) for group in itertools.combinations(axes, n)]

    def add() -> jax.Array:
        position = jax.lax.axis_index(AXES)[None]
        return sum((jax.lax.psum(position, group) for group in groups), position)

    with distributed.mute_stdout():
        jax.block_until_ready(jax.jit(jax.shard_map(add, mesh=mesh, in_specs=(), out_specs=PartitionSpec(AXES)))())


def counts(axes: str) -> dict[str, int]:
    """{axis: devices} of the text of a mesh. Raises ValueError as `mesh` does, except for the number of devices."""
    given = [part.partition("=") for part in axes.replace(" ", "").split(",") if part]
    sizes = dict.fromkeys(AXES, 1) | {name: int(size) for name, _, size in given if size.isdecimal()}
    if any(name not in AXES or not size.isdecimal() or int(size) < 1 for name, _, size in given):
        raise ValueError(f"A mesh is written as data=2,fsdp=4,tensor=1, each a number from 1 on, got {axes!r}.")
    if len({name for name, _, _ in given}) < len(given):
        raise ValueError(f"A mesh names each axis once, got {axes!r}.")
    return sizes


def simulate(devices: int) -> None:
    """Simulates CPU devices in this process, to compile for. Raises ValueError if jax has already started."""
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
    except RuntimeError:
        raise ValueError("Devices must be simulated before jax is first used.") from None


def use(mesh: Mesh) -> contextlib.AbstractContextManager:
    """The context in which programs are compiled for the mesh. It is empty if the mesh is the first device alone."""
    alone = mesh.size == 1 and mesh.devices.item() == jax.devices()[0]
    return contextlib.nullcontext() if alone else jax.set_mesh(mesh)


def check_groups(mesh: Mesh, prompts: int) -> None:
    """Raises ValueError unless `prompts` (groups x model seats) is a multiple of the devices on data and fsdp."""
    parts = mesh.shape[DATA] * mesh.shape[FSDP]
    if prompts % parts:
        raise ValueError(
            f"A batch of {prompts} prompts (groups x model seats) does not divide over {parts} devices on the axes "
            "data and fsdp: choose a multiple."
        )


def spec(path: str, shape: tuple[int, ...], mesh: Any) -> PartitionSpec:
    """The split of the leaf at `path`, e.g. "learners/optimiser/learner/1/mu/policy/layers/q_proj".

    An axis of the mesh that does not divide the leaf's axis is skipped.
    """
    rule = _rule(path)
    before = len(shape) - len(rule)
    if before < 0:
        return PartitionSpec()
    return PartitionSpec(
        *(None,) * before, *(_fitting(axes, n, mesh) for axes, n in zip(rule, shape[before:], strict=True))
    )


def _rule(path: str) -> Rule:
    return next((rule for end, rule in RULES.items() if re.search(rf"(^|/)({end})$", path)), ())


def _fitting(axes: tuple[str, ...], n: int, mesh: Any) -> tuple[str, ...]:
    """The longest prefix of the axes whose sizes together divide n."""
    while n % math.prod(mesh.shape[axis] for axis in axes):
        axes = axes[:-1]
    return axes


def leaf(path: str, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """The sharding of the leaf at `path`, in the form that `loading.load` takes."""
    return NamedSharding(mesh, spec(path, shape, mesh))


def specs(tree: Any, mesh: Any) -> Any:
    """The PartitionSpec of every leaf of a tree of arrays or abstract arrays."""
    where = lambda path, x: spec(jax.tree_util.keystr(path, simple=True, separator="/"), x.shape, mesh)
    return jax.tree.map_with_path(where, tree)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """The sharding of every leaf of a tree of weights, optimiser states and the like."""
    return jax.tree.map(partial(NamedSharding, mesh), specs(tree, mesh))


def place(tree: Any, mesh: Mesh) -> Any:
    """The tree on the mesh, split by the rules; leaves without a rule lie on every device."""
    return jax.device_put(tree, shardings(tree, mesh))


def spread(tree: Any, mesh: Mesh) -> Any:
    """A trajectory, leaves [runs, rows or episodes, ...], on the mesh, split over data and fsdp where they divide."""

    def where(x: jax.Array) -> NamedSharding:
        return NamedSharding(
            mesh, PartitionSpec(None, _fitting(ROWS, x.shape[1], mesh)) if x.ndim > 1 else PartitionSpec()
        )

    return jax.device_put(tree, jax.tree.map(where, tree))


def weights(tree: Any) -> Any:
    """Under a mesh: the tree with the sharding that the rules give. Without a mesh: the tree unchanged."""
    around = _around()
    if around is None:
        return tree
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, specs(tree, around))


def rows(x: jax.Array) -> jax.Array:
    """Under a mesh: x [R, ...] with its rows, in order of their groups, split over data and fsdp if they divide."""
    return _by_rows(x, ())


def split_cache(x: jax.Array) -> jax.Array:
    """Under a mesh: keys, values or states [R, K, ...] split by rows, and by heads over tensor if they divide."""
    around = _around()
    divides = around is not None and x.ndim == 4 and x.shape[1] % around.shape[TENSOR] == 0
    return _by_rows(x, (TENSOR,) if divides else ())


def _by_rows(x: jax.Array, rest: tuple[str, ...]) -> jax.Array:
    around = _around()
    if around is None or x.shape[0] % (around.shape[DATA] * around.shape[FSDP]):
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(ROWS, *rest))


def everywhere(tree: Any) -> Any:
    """Under a mesh: the tree on every device, for numbers that every process reads."""
    whole = lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec())
    return tree if _around() is None else jax.tree.map(whole, tree)


def gather_weights(tree: Any) -> Any:
    """Under a mesh, for an update: weights gathered over fsdp and split over tensor; gradients are split over fsdp."""
    around = _around()
    if around is None or around.shape[FSDP] == 1:
        return tree
    return jax.tree.map(_gather, specs(tree, around), tree)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gather(spec: PartitionSpec, x: jax.Array) -> jax.Array:
    axes = ((axes,) if isinstance(axes, str) else axes or () for axes in spec)
    rest = (tuple(axis for axis in names if axis != FSDP) for names in axes)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*rest))


def _split(spec: PartitionSpec, _: None, dx: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.with_sharding_constraint(dx, spec),)


_gather.defvjp(lambda spec, x: (_gather(spec, x), None), _split)


def in_place(function: Callable[[jax.Array], jax.Array], name: str, lookup: bool = False) -> Callable:
    """`function`, x -> W x for rows x or x -> W[x], without moving the leaf W (`name`) of a mesh that splits weights.

    Rows move to the weights: each device gets the columns that its part of W multiplies, and the results move back.
    With `lookup` x is whole on each device of fsdp and tensor: indices of W, or rows for the device's experts.
    """
    around = _around()
    if around is None or around.shape[FSDP] == 1:
        return function
    out, into = ((), ()) if lookup else _rule(name)

    def split(x: jax.Array, first: Any, last: tuple[str, ...]) -> jax.Array:
        axes = (_fitting(names, n, around) for names, n in ((first, len(x)), (last, x.shape[-1])))
        middle = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 2)
        first, last = axes
        return jax.lax.with_sharding_constraint(x, PartitionSpec(first, *middle, last))

    def apply(x: jax.Array) -> jax.Array:
        y = split(function(split(x, (DATA,), into)), (DATA,), out)
        return split(y, ROWS, tuple(axis for axis in out if axis != FSDP))

    return apply


def single() -> bool:
    """True while programs are compiled for one device."""
    return _around() is None


def divided() -> bool:
    """True while programs are compiled for a mesh that splits weights."""
    around = _around()
    return around is not None and around.shape[FSDP] * around.shape[TENSOR] > 1


def _around() -> Any:
    """The mesh that programs are compiled for; None without a mesh or on one device."""
    around = jax.sharding.get_abstract_mesh()
    return None if around.empty or around.size == 1 else around


def cores(runs: int) -> tuple[NamedSharding, ...]:
    """Places on the CPU devices that share the runs evenly: as many as possible, at most one per core; empty if one
    device has all runs.

    A CPU device computes many operations of a tiny policy on a single core, however many cores it has. Each device runs
    a program of its own, since a program of several devices rounds otherwise than one of a single device.
    """
    if jax.default_backend() != "cpu" or jax.process_count() > 1:
        return ()
    limit = min(len(jax.devices()), surroundings.usable_cores())
    count = max(n for n in range(1, limit + 1) if runs % n == 0)
    alone = lambda device: Mesh(np.array(device).reshape(1, 1, 1), AXES)
    return () if count == 1 else tuple(NamedSharding(alone(core), PartitionSpec()) for core in jax.devices()[:count])


def split_runs(tree: Any, count: int) -> list[Any]:
    """The tree, leaves [runs, ...], in `count` trees of equally many runs."""
    return [jax.tree.map(lambda x, part=part: jnp.split(x, count)[part], tree) for part in range(count)]


def join_runs(trees: Sequence[Any]) -> Any:
    """Inverse of `split_runs`."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *trees)


def hardware() -> dict[str, Any]:
    """The hardware of a run: {"devices": {kind: number}, "processes": number}."""
    kinds = [device.device_kind for device in jax.devices()]
    return {"devices": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}, "processes": jax.process_count()}
