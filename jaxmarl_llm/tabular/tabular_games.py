"""Small Markov games as tables, drawn at random: for what is computed exactly.

A game has n agents, S states and A actions for each; tables have an axis of actions for every agent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Game(NamedTuple):
    """Rules that all know, and what each agent is paid."""

    reward: jax.Array  # float32 [n, S, A, ..., A]
    following: jax.Array  # int32 [S, A, ..., A]
    discount: float
    length: int  # of an episode


def matrix(key: jax.Array, agents: int, actions: int = 3) -> Game:
    """One round, one state: every agent's payoffs are drawn from a normal law."""
    shape = (1, *[actions] * agents)
    return Game(jax.random.normal(key, (agents, *shape)), jnp.zeros(shape, int), 0.0, 1)


def grid(key: jax.Array, size: int = 3) -> Game:
    """Two agents on size x size cells stay or move by one, at once; walls stop them. An agent is paid 1 in three cells
    that it likes, one of which the other likes too, and both lose 1 in the same cell. State: cells * first + second.

    Raises ValueError for fewer than the five cells that are liked.
    """
    if size * size < 5:
        raise ValueError(f"Five cells are liked: a grid of {size} x {size} is too small.")
    cells, moves = size * size, np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])
    at = np.stack(np.divmod(np.arange(cells), size), 1)
    to = np.clip(at[:, None] + moves[None], 0, size - 1) @ np.array([size, 1])  # [cells, moves]
    first, second = np.divmod(np.arange(cells**2), cells)
    one, two = np.broadcast_arrays(to[first][:, :, None], to[second][:, None, :])  # [S, A, A]
    likes = jnp.zeros((2, cells))
    chosen = jax.random.permutation(key, cells)[:5]
    likes = likes.at[:, chosen[0]].set(1.0).at[0, chosen[1:3]].set(1.0).at[1, chosen[3:]].set(1.0)
    reward = jnp.stack([likes[0][one], likes[1][two]]) - jnp.asarray(one == two, jnp.float32)[None]
    return Game(reward, jnp.asarray(one * cells + two), 0.9, 8)
