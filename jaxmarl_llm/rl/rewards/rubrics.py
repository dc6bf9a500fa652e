"""Rubrics: sets of criteria, grades by them, and the concordance (Kendall's S) of grades with the truth. Arrays
in, arrays out.

A rubric is a vector of weights over C criteria, here 0 or 1. A judge with a rubric checks only its criteria, each met
or not.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxmarl_llm.rl.shapes import check_shapes


def every_rubric(criteria: int) -> np.ndarray:
    """All 2^C - 1 non-empty sets of criteria, float32 [2^C - 1, C].

    Row i holds the binary digits of i + 1, with the first criterion as the lowest digit.
    """
    return (np.arange(1, 2**criteria)[:, None] >> np.arange(criteria) & 1).astype(np.float32)


def grade(met: Array, rubric: Array) -> Array:
    """The share of a rubric's criteria that are met: met [..., C], rubric [C] -> float32 [...], 0 for an empty rubric.

    sum_c w_c met_c / sum_c w_c
    """
    check_shapes("met [...,C] rubric [C]", met, rubric)
    weights = jnp.broadcast_to(rubric, met.shape)
    return (met * weights).sum(-1) / jnp.maximum(weights.sum(-1), 1e-6)


def concordance(grades: Array, truth: Array) -> Array:
    """Kendall's S, concordant less discordant pairs: grades [..., N], truth [N] -> float32 [...].

    sum over i < j of sign(g_i - g_j) sign(t_i - t_j)

    A pair with a tie in either counts 0. Grades within 10^-5 are equal.
    """
    check_shapes("grades [...,N] truth [N]", grades, truth)
    difference = grades[..., :, None] - grades[..., None, :]
    order = jnp.sign(jnp.where(jnp.abs(difference) < 1e-5, 0, difference))
    true = jnp.sign(truth[:, None] - truth[None])
    return (order * jnp.broadcast_to(true, order.shape)).sum((-2, -1)) / 2
