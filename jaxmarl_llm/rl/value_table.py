"""A critic that is a table: mean returns of past games by step and situation, for a situation that is known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.rl.returns import gae
from jaxmarl_llm.rl.shapes import check_shapes


class ValueTable(struct.PyTreeNode):
    """Sums of returns and how many they are, float32 [T, S] each, by step of the game and situation."""

    total: jax.Array
    count: jax.Array

    def values(self, situation: jax.Array) -> jax.Array:
        """(total + m) / (count + 1) of each step in its situation int [B, T, A], m the mean return of that step in all
        situations, 0 before any game: float32 [B, T, A]. Where little is known, the value is near that mean."""
        mean = self.total.sum(1, keepdims=True) / jnp.maximum(self.count.sum(1, keepdims=True), 1)
        return ((self.total + mean) / (self.count + 1))[_steps(situation), situation]

    def learnt(self, situation: jax.Array, to_go: jax.Array, where: jax.Array, keeps: float = 1.0) -> ValueTable:
        """The table with the returns [B, T, A] of the steps that count; what it held before is weighed by `keeps`."""
        place = _steps(situation), situation
        add = lambda old, x: (keeps * old).at[place].add(jnp.where(where, x, 0))  # noqa: E731
        return ValueTable(add(self.total, to_go), add(self.count, jnp.ones_like(to_go)))


def empty(steps: int, situations: int) -> ValueTable:
    """A table that has seen no game."""
    return ValueTable(jnp.zeros((steps, situations)), jnp.zeros((steps, situations)))


def to_go(reward: jax.Array, where: jax.Array) -> jax.Array:
    """What is paid from each step that counts on, [B, T, A], 0 elsewhere; rewards belong to steps as in `returns`."""
    check_shapes("where reward [B,T,A]", where, reward)
    return gae(reward, jnp.zeros_like(reward), where).advantage


def unexplained(value: jax.Array, returns: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums over the steps that count, (G - V)^2 and (G - mean G)^2: their ratio is the share of the returns' variance
    that the values leave unexplained, 1 for the best constant."""
    check_shapes("where value returns [...]", where, value, returns)
    mean = jnp.where(where, returns, 0).sum() / jnp.maximum(where.sum(), 1)
    return tuple(jnp.where(where, (returns - x) ** 2, 0).sum() for x in (value, mean))  # type: ignore[return-value]


def _steps(situation: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(situation.shape[1])[None, :, None], situation.shape)
