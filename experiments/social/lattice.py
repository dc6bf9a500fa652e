"""x"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.q_learning import boltzmann, q_learning

SIDE, OBSERVATIONS = 10, 32
SITES = SIDE * SIDE


def neighbours(x: jax.Array) -> jax.Array:
    """[side, side] -> [4, side, side] of the torus: above, right, below, left."""
    return jnp.stack([jnp.roll(x, shift, axis) for shift, axis in ((1, 0), (-1, 1), (-1, 0), (1, 1))])


def observed(act: jax.Array) -> jax.Array:
    """int32 [side, side], 0 to 31: the neighbours' acts as bits 0 to 3 and the own act as bit 4."""
    return (jnp.append(neighbours(act), act[None], 0) << jnp.arange(5)[:, None, None]).sum(0)


def payoff(act: jax.Array, dilemma: jax.Array) -> jax.Array:
    """Mean over four games: 1 for both C, -dilemma for C against D, 1 + dilemma for D against C, 0 for both D."""
    meets_c = 1 - neighbours(act).mean(0)
    return jnp.where(act == 0, meets_c - dilemma * (1 - meets_c), (1 + dilemma) * meets_c)
