"""Random keys of named events, folded from the seed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

DEAL, CHANCE, SAY, SCRIPT, POOL, SHUFFLE, EVALUATE, START, UPDATE, SHOW, ESTIMATE, ARRANGE, OPPONENT, GAME, BRANCH = (
    range(15)
)
SELECT = 15  # the survivors of a generation


def key_for(key: jax.Array, purpose: int, *indices: jax.Array | int) -> jax.Array:
    """The random key of a named event, e.g. key_for(seed, SAY, episode, turn, seat, token), folded from `key`.

    Episodes of a group share DEAL(group) and CHANCE(group, turn); every episode has its own SAY and SCRIPT.
    """
    for index in (purpose, *indices):
        key = jax.random.fold_in(key, index)
    return key


def batch_keys(key: jax.Array, purpose: int, *indices: jax.Array | np.ndarray) -> jax.Array:
    """Keys [n] of named events, for the entries of the index arrays int32 [n]; scalars are shared."""
    n = max((len(index) for index in indices if jnp.ndim(index)), default=1)
    columns = [jnp.broadcast_to(jnp.asarray(index, jnp.int32), (n,)) for index in indices]
    return jax.vmap(lambda *row: key_for(key, purpose, *row))(*columns)
