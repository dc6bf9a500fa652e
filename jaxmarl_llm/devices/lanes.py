"""Several runs in one program: conditions of loops and choices of a branch that `vmap` does not batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def of_all_lanes(reduce: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """A reduction of all entries [...] -> [] that reduces over all lanes of any surrounding vmap too: never batched."""
    found = jax.custom_batching.custom_vmap(reduce)
    found.def_vmap(lambda axis_size, in_batched, x: (found(x), False))
    return found


@of_all_lanes
def any_lane(x: jax.Array) -> jax.Array:
    """True if any entry of x is true in any lane: bool [...] -> bool [].

    As the condition of a ``while_loop`` it keeps a vmapped loop a plain loop: with ``jnp.any`` the condition is
    batched, and JAX then selects between the old and the new carry, caches included, in every step of every lane. The
    body runs in finished lanes too until all have finished, so it must leave a finished lane unchanged.
    """
    return jnp.any(x)


@of_all_lanes
def most_of_lanes(x: jax.Array) -> jax.Array:
    """The largest entry of x in any lane: [...] -> [].

    As the index of a ``switch`` it keeps one branch for all lanes; with ``jnp.max`` JAX computes every branch.
    """
    return jnp.max(x)
