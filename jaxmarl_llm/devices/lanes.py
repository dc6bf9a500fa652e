"""Loops of several runs in one program: a loop condition that `vmap` does not batch."""

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_batching.custom_vmap
def any_lane(x: jax.Array) -> jax.Array:
    """True if any entry of x is true in any lane of any surrounding vmap: bool [...] -> bool [], never batched.

    As the condition of a ``while_loop`` it keeps a vmapped loop a plain loop: with ``jnp.any`` the condition is
    batched, and JAX then selects between the old and the new carry, caches included, in every step of every lane. The
    body runs in finished lanes too until all have finished, so it must leave a finished lane unchanged.
    """
    return jnp.any(x)


@any_lane.def_vmap
def _any_lane_rule(axis_size: int, in_batched: list[bool], x: jax.Array) -> tuple[Any, bool]:
    return any_lane(x), False
