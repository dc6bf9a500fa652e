"""Losses of pairs, one row preferred to the other."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.losses.records import LossAndMetrics, Number
from jaxmarl_llm.rl.masked import constant, keep, mean_of


def dpo(logp: jax.Array, reference_logp: jax.Array, where: jax.Array, *, beta: Number = 0.1) -> LossAndMetrics:
    """-log sigmoid(beta (l_chosen - l_rejected)), l the row's sum of logp - reference_logp: arrays [P,2,M].

    The chosen row comes first. Averaged over the pairs in which both rows have a trained token. Metrics, over pairs:
    ``margin``, the argument of the sigmoid, and ``accuracy``, the share of pairs in which it is positive.
    Raises ValueError for other shapes.

    Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward Model (2023),
    https://arxiv.org/abs/2305.18290; equal to TRL's ``sigmoid`` loss.
    """
    if where.ndim != 3 or where.shape[1] != 2:
        raise ValueError(f"where has shape {where.shape}, but pairs are [P,2,M]: the chosen row, then the rejected.")
    chosen, rejected = jnp.moveaxis(beta * (keep(logp, where) - constant(reference_logp, where)).sum(-1), 1, 0)
    return pairwise_logistic(chosen, rejected, where.any(-1).all(-1))


def pairwise_logistic(better: jax.Array, worse: jax.Array, where: jax.Array) -> LossAndMetrics:
    """-log sigmoid(f(better) - f(worse)) of scores of the same shape [...], over the pairs of ``where``.

    Only differences are trained: a score may drift with all others. Metrics, over pairs: ``margin``, the argument of
    the sigmoid, and ``accuracy``, the share of pairs in which it is positive. Raises ValueError for other shapes.

    Bradley and Terry, Rank Analysis of Incomplete Block Designs (1952), https://doi.org/10.2307/2334029
    """
    margin = keep(better, where) - keep(worse, where)
    metrics = {"margin": mean_of(margin, where), "accuracy": mean_of(margin > 0, where)}
    return mean_of(jax.nn.softplus(-margin), where), metrics
