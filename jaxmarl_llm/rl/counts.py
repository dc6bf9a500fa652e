"""Counts of observations by name: over a whole run, in a table of fixed size, and within an episode.

A name is an integer, e.g. of `Episodes.told`, whose low bits are well mixed. A recipe keeps a `Counts` in its state.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.rl.shapes import check_shapes


class Counts(struct.PyTreeNode):
    """Visits by slot. Names with the same slot share a count."""

    visits: jax.Array  # float32 [slots]
    name: jax.Array  # int32 [slots], the name that took the slot
    collisions: jax.Array  # float32, visits of names whose slot another name had taken

    def add(self, names: jax.Array, where: jax.Array) -> Counts:
        """The counts with the visits of the names int [...] in ``where`` bool [...] added.

        A free slot is taken by a name of this call, of several by the largest.
        """
        check_shapes("where names [...]", where, names)
        slot, number = slots(names, len(self.visits)), names.astype(jnp.int32)
        newest = jnp.full_like(self.name, _LEAST).at[slot].max(jnp.where(where, number, _LEAST))
        name = jnp.where(self.visits > 0, self.name, newest)
        foreign = (where & (name[slot] != number)).sum(dtype=jnp.float32)
        return Counts(self.visits.at[slot].add(where.astype(jnp.float32)), name, self.collisions + foreign)

    def visits_to(self, names: jax.Array) -> jax.Array:
        """Visits float32 [...] of the names int [...]."""
        return self.visits[slots(names, len(self.visits))]


_LEAST = jnp.iinfo(jnp.int32).min


def empty(size: int = 2**12) -> Counts:
    """Counts in `size` slots before any visit. Raises ValueError without a slot."""
    if size < 1:
        raise ValueError(f"A table of counts has at least one slot, not {size}.")
    return Counts(jnp.zeros(size), jnp.zeros(size, jnp.int32), jnp.float32(0))


def slots(names: jax.Array, size: int) -> jax.Array:
    """The slot int32 [...] of each name int [...], below `size`."""
    return (names.astype(jnp.uint32) % size).astype(jnp.int32)


def within_episode(names: jax.Array, where: jax.Array) -> jax.Array:
    """The number of turns up to each turn in which the seat had the same name, itself included: int32 [B, T, A].

    Only turns in ``where`` bool [B, T, A] count and have a number; others have 0.
    """
    check_shapes("where names [B,T,A]", where, names)
    turn = jnp.arange(names.shape[1])
    before = (turn[:, None] >= turn[None])[None, :, :, None]
    same = (names[:, :, None] == names[:, None]) & where[:, :, None] & where[:, None]
    return (same & before).sum(2)


def arrivals(told: jax.Array, acted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(names of the observations after each act, acts with such an observation), both [B, T, A].

    Names `told` int [B, T, A] and acts `acted` bool [B, T, A] are of games in which every seat acts in every turn. The
    last act of an episode is followed by no observation.
    """
    check_shapes("acted told [B,T,A]", acted, told)
    shift = lambda x: jnp.concatenate([x[:, 1:], jnp.zeros_like(x[:, :1])], 1)
    return shift(told), acted & shift(acted)
