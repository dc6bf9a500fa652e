"""2x2 games on a torus: agents play their four neighbours with a single act. Acts are int32 [side, side], 0 or 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp

OBSERVATIONS = 32


def neighbours(x: jax.Array) -> jax.Array:
    """[side, side] -> [4, side, side]: the values above, right, below and left."""
    return jnp.stack([jnp.roll(x, shift, axis) for shift, axis in ((1, 0), (-1, 1), (-1, 0), (1, 1))])


def observe(act: jax.Array) -> jax.Array:
    """Observations int32 [side, side], 0 to 31: bits 0 to 3 are the neighbours' acts, bit 4 the own act."""
    return (jnp.append(neighbours(act), act[None], 0) << jnp.arange(5)[:, None, None]).sum(0)


def mean_payoff(act: jax.Array, payoff: jax.Array) -> jax.Array:
    """float32 [side, side]: mean payoff of an agent's four games; `payoff` is [own act, neighbour's act]."""
    ones = neighbours(act).mean(0)
    return payoff[act, 0] * (1 - ones) + payoff[act, 1] * ones


def dilemma(strength: float | jax.Array) -> jax.Array:
    """Payoffs float32 [own, other's] with C 0 and D 1: CC 1, DD 0, DC 1 + strength, CD -strength."""
    strength = jnp.asarray(strength, jnp.float32)
    return jnp.array([[1.0, 0.0], [1.0, 0.0]]) + strength * jnp.array([[0.0, -1.0], [1.0, 0.0]])
