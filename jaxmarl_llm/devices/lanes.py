"""Several runs in one program: conditions of loops and choices of a branch that `vmap` does not batch."""

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


@jax.custom_batching.custom_vmap
def most_of_lanes(x: jax.Array) -> jax.Array:
    """The largest entry of x in any lane of any surrounding vmap: [...] -> [], never batched.

    As the index of a ``switch`` it keeps one branch for all lanes; with ``jnp.max`` JAX computes every branch.
    """
    return jnp.max(x)


@most_of_lanes.def_vmap
def _most_of_lanes_rule(axis_size: int, in_batched: list[bool], x: jax.Array) -> tuple[Any, bool]:
    return most_of_lanes(x), False
