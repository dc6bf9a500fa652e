"""Where arrays live: the only file that knows devices. Everything else is written as for one device."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA = "data"


def data_mesh(devices: int = 1) -> Mesh:
    """A mesh of `devices` devices with one axis, "data", over rows and episodes.

    Raises ValueError if there are fewer.
    """
    available = jax.devices()
    if not 1 <= devices <= len(available):
        raise ValueError(f"A data mesh of {devices} devices was asked for, but {len(available)} are here.")
    return jax.make_mesh((devices,), (DATA,), axis_types=(AxisType.Auto,), devices=available[:devices])


def use(mesh: Mesh) -> contextlib.AbstractContextManager:
    """The context in which programs are compiled for the mesh; one device needs none."""
    return jax.set_mesh(mesh) if mesh.size > 1 else contextlib.nullcontext()


def check_groups(mesh: Mesh, openings: int) -> None:
    """Raises ValueError unless a batch of so many openings (groups x model seats) divides over the data axis."""
    if openings % mesh.shape[DATA]:
        raise ValueError(
            f"A batch of {openings} openings (groups x model seats) does not divide over {mesh.shape[DATA]} devices on "
            f"the data axis: choose a multiple."
        )


def rows(x: jax.Array) -> jax.Array:
    """Under a mesh (jax.set_mesh): x with its first axis, rows in order of their groups, split over "data"."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape[DATA] == 1:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(DATA))


def replicate(tree: Any, mesh: Mesh) -> Any:
    """The tree on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def hardware() -> dict[str, Any]:
    """What the process runs on: {kind: number} of all devices, and how many processes there are."""
    kinds = [device.device_kind for device in jax.devices()]
    return {"devices": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}, "processes": jax.process_count()}
