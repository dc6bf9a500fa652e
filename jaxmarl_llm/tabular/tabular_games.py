"""Small random Markov games as tables, for exact computations.

A game has n agents, S states and A actions for each; tables have an axis of actions for every agent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Game(NamedTuple):
    """A Markov game with deterministic transitions; agents know all but the others' rewards."""

    reward: jax.Array  # float32 [n, S, A, ..., A]
    following: jax.Array  # int32 [S, A, ..., A]
    discount: float
    length: int  # steps of an episode


def matrix(key: jax.Array, agents: int, actions: int = 3) -> Game:
    """A matrix game (one state, one round) with standard normal payoffs."""
    shape = (1, *[actions] * agents)
    return Game(jax.random.normal(key, (agents, *shape)), jnp.zeros(shape, int), 0.0, 1)


def grid(key: jax.Array, size: int = 3) -> Game:
    """Two agents that stay or move by a cell, at once, in a grid of size x size cells with walls.

    An agent gets 1 in each of its three goal cells; the agents share a goal. In the same cell both lose 1. The state is
    cells * (first agent's cell) + second agent's cell. Raises ValueError for fewer cells than the five goals.
    """
    if size * size < 5:
        raise ValueError(f"Five cells are liked: a grid of {size} x {size} is too small.")
    cells, moves = size * size, np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])
    at = np.stack(np.divmod(np.arange(cells), size), 1)
    to = np.clip(at[:, None] + moves[None], 0, size - 1) @ np.array([size, 1])  # [cells, moves]
    first, second = np.divmod(np.arange(cells**2), cells)
    to_1, to_2 = np.broadcast_arrays(to[first][:, :, None], to[second][:, None, :])  # [S, A, A]
    likes = jnp.zeros((2, cells))
    chosen = jax.random.permutation(key, cells)[:5]
    likes = likes.at[:, chosen[0]].set(1.0).at[0, chosen[1:3]].set(1.0).at[1, chosen[3:]].set(1.0)
    reward = jnp.stack([likes[0][to_1], likes[1][to_2]]) - jnp.asarray(to_1 == to_2, jnp.float32)[None]
    return Game(reward, jnp.asarray(to_1 * cells + to_2), 0.9, 8)
