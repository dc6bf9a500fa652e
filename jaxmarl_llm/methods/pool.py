"""A pool of earlier items with scores, as substitutes for new items that cannot be used.

A recipe keeps a `Pool` in its state (`init_state`), so that checkpoints hold it. `Recipe.arrange` draws deals from it,
and the estimator adds items that have proved good.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


class Pool(struct.PyTreeNode):
    """The latest items; a new item replaces the oldest."""

    items: Any  # leaves [kept, ...]
    score: jax.Array  # float32 [kept], e.g. the share of players that solved it
    filled: jax.Array  # bool [kept]
    next: jax.Array  # int32, the slot of the next item
    updates: jax.Array  # int32, number of calls of `put`


def empty(item: Any, kept: int) -> Pool:
    """A pool for `kept` items of the same structure as `item`. Raises ValueError unless at least one is kept."""
    if kept < 1:
        raise ValueError(f"A pool keeps at least one item, not {kept}.")
    items = jax.tree.map(lambda x: jnp.zeros((kept, *jnp.shape(x)), jnp.asarray(x).dtype), item)
    return Pool(items, jnp.zeros(kept), jnp.zeros(kept, bool), jnp.int32(0), jnp.int32(0))


def put(pool: Pool, items: Any, score: jax.Array, good: jax.Array, clear_every: int = 0) -> Pool:
    """Adds the items [n, ...] that are `good`, bool [n], with their scores [n]. With `clear_every`, every call whose
    number is a multiple of it first empties the pool; Search Self-play does so every ten updates. Raises ValueError for
    more items than the pool keeps."""
    kept, n = len(pool.score), len(score)
    if n > kept:
        raise ValueError(f"A pool of {kept} cannot take {n} items at once.")
    updates = pool.updates + 1
    clear = updates % clear_every == 0 if clear_every else jnp.bool_(False)
    slot = jnp.where(good, (pool.next + jnp.cumsum(good) - 1) % kept, kept)  # index kept: dropped
    into = lambda old, new: old.at[slot].set(new, mode="drop")
    return Pool(
        items=jax.tree.map(into, pool.items, items),
        score=into(pool.score, score),
        filled=into(pool.filled & ~clear, jnp.ones(n, bool)),
        next=((pool.next + good.sum()) % kept).astype(jnp.int32),
        updates=updates,
    )


def draw_items(pool: Pool, key: jax.Array, n: int, at_most: float | jax.Array = 1.0) -> tuple[Any, jax.Array]:
    """Draws n items [n, ...] independently and uniformly from the items with a score of at most `at_most`. Also returns
    bool [n], true if there are any; without any, the items are those of slot 0."""
    fits = pool.filled & (pool.score <= at_most)
    which = jax.random.categorical(key, jnp.where(fits | ~fits.any(), 0.0, -jnp.inf), shape=(n,))
    which = jnp.where(fits.any(), which, 0)
    return jax.tree.map(lambda x: x[which], pool.items), jnp.broadcast_to(fits.any(), (n,))
