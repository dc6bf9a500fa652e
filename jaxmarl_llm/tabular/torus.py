"""2x2 games on a torus: everyone plays its four neighbours at once. Acts are int32 [side, side], 0 or 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp

OBSERVATIONS = 32


def neighbours(x: jax.Array) -> jax.Array:
    """[side, side] -> [4, side, side]: what is above, right, below and left."""
    return jnp.stack([jnp.roll(x, shift, axis) for shift, axis in ((1, 0), (-1, 1), (-1, 0), (1, 1))])


def observed(act: jax.Array) -> jax.Array:
    """int32 [side, side], 0 to 31: the neighbours' acts are bits 0 to 3, the own act is bit 4."""
    return (jnp.append(neighbours(act), act[None], 0) << jnp.arange(5)[:, None, None]).sum(0)


def mean_payoff(act: jax.Array, payoff: jax.Array) -> jax.Array:
    """float32 [side, side]: the mean over an agent's four games of payoff [own act, the neighbour's]."""
    ones = neighbours(act).mean(0)
    return payoff[act, 0] * (1 - ones) + payoff[act, 1] * ones


def dilemma(strength: float | jax.Array) -> jax.Array:
    """float32 [2, 2], 0: C, 1: D: 1 for both C, 0 for both D, 1 + strength for D against C, who gets -strength."""
    strength = jnp.asarray(strength, jnp.float32)
    return jnp.array([[1.0, 0.0], [1.0, 0.0]]) + strength * jnp.array([[0.0, -1.0], [1.0, 0.0]])
