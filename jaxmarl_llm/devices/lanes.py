"""Several runs (lanes) in one vmapped program: reductions over all lanes, for conditions that `vmap` must not batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def of_all_lanes(reduce: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """The reduction [...] -> [] over all entries and all lanes of surrounding vmaps; its result is never batched."""
    over_lanes = jax.custom_batching.custom_vmap(reduce)
    over_lanes.def_vmap(lambda axis_size, in_batched, x: (over_lanes(x), False))
    return over_lanes


@of_all_lanes
def any_lane(x: jax.Array) -> jax.Array:
    """True if any entry of x is true in any lane: bool [...] -> bool [].

    As the condition of a ``while_loop`` it keeps a vmapped loop a plain loop. With ``jnp.any`` the condition is
    batched, and every step of every lane selects between the old and the new carry, caches included. The body also runs
    in finished lanes until all have finished, so it must leave a finished lane unchanged.
    """
    return jnp.any(x)


@of_all_lanes
def most_of_lanes(x: jax.Array) -> jax.Array:
    """The largest entry of x in any lane: [...] -> [].

    As the index of a ``switch`` it keeps one branch for all lanes; with ``jnp.max`` JAX computes every branch.
    """
    return jnp.max(x)
