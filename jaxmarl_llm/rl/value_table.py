"""A tabular critic: mean returns of past games by step of the game and situation, for games with a finite situation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.rl.returns import gae
from jaxmarl_llm.rl.shapes import check_shapes


class ValueTable(struct.PyTreeNode):
    """Sums and counts of returns, float32 [T, S] each, for T steps of the game and S situations."""

    total: jax.Array
    count: jax.Array

    def values(self, situation: jax.Array) -> jax.Array:
        """Values float32 [B, T, A] of the situations int [B, T, A]: (total + m) / (count + 1).

        m is the mean return of the step over all situations, 0 before any game. A rarely visited situation has a value
        near m.
        """
        mean = self.total.sum(1, keepdims=True) / jnp.maximum(self.count.sum(1, keepdims=True), 1)
        return ((self.total + mean) / (self.count + 1))[_steps(situation), situation]

    def add(self, situation: jax.Array, to_go: jax.Array, where: jax.Array, keeps: float = 1.0) -> ValueTable:
        """The table with the returns [B, T, A] of the steps in ``where`` added; old sums weigh `keeps`."""
        index = _steps(situation), situation
        add = lambda old, x: (keeps * old).at[index].add(jnp.where(where, x, 0))
        return ValueTable(add(self.total, to_go), add(self.count, jnp.ones_like(to_go)))


def empty(steps: int, situations: int) -> ValueTable:
    """The table before any game."""
    return ValueTable(jnp.zeros((steps, situations)), jnp.zeros((steps, situations)))


def to_go(reward: jax.Array, where: jax.Array) -> jax.Array:
    """The undiscounted return [B, T, A] from each step of ``where`` on, 0 elsewhere; rewards move as in `returns`."""
    check_shapes("where reward [B,T,A]", where, reward)
    return gae(reward, jnp.zeros_like(reward), where).advantage


def unexplained_variance(value: jax.Array, returns: jax.Array, where: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums over ``where`` of (G - V)^2 and of (G - mean G)^2, for values V and returns G [...]: two scalars.

    Their ratio is the share of the variance of returns that the values leave unexplained: 1 for the best constant.
    """
    check_shapes("where value returns [...]", where, value, returns)
    mean = jnp.where(where, returns, 0).sum() / jnp.maximum(where.sum(), 1)
    return tuple(jnp.where(where, (returns - x) ** 2, 0).sum() for x in (value, mean))  # type: ignore[return-value]


def _steps(situation: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(situation.shape[1])[None, :, None], situation.shape)
