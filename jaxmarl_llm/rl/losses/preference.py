"""Losses of pairs: preferred and rejected rows, or two samples of one prompt with rewards."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.losses.records import LossAndMetrics, Number, bounded_exp
from jaxmarl_llm.rl.masked import constant, keep, mean_of
from jaxmarl_llm.rl.shapes import check_shapes


def dpo(logp: jax.Array, reference_logp: jax.Array, where: jax.Array, *, beta: Number = 0.1) -> LossAndMetrics:
    """-log sigmoid(beta (l_chosen - l_rejected)), l the row's sum of logp - reference_logp: arrays [P,2,M].

    The chosen row is the first. The loss is the mean over pairs with a trained token in both rows. Metrics, over pairs:
    ``margin``, the argument of the sigmoid, and ``accuracy``, the share of pairs with a positive margin.
    Raises ValueError for other shapes.

    Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward Model (2023),
    https://arxiv.org/abs/2305.18290; equal to TRL's ``sigmoid`` loss.
    """
    if where.ndim != 3 or where.shape[1] != 2:
        raise ValueError(f"where has shape {where.shape}, but pairs are [P,2,M]: the chosen row, then the rejected.")
    check_shapes("where logp reference_logp [P,pair,M]", where, logp, reference_logp)
    chosen, rejected = jnp.moveaxis(beta * (keep(logp, where) - constant(reference_logp, where)).sum(-1), 1, 0)
    return pairwise_logistic(chosen, rejected, where.any(-1).all(-1))


def pairwise_logistic(better: jax.Array, worse: jax.Array, where: jax.Array) -> LossAndMetrics:
    """-log sigmoid(f(better) - f(worse)) of scores of the same shape [...], over the pairs of ``where``.

    Only differences of scores are trained: a constant added to all scores changes nothing. Metrics, over pairs:
    ``margin``, the argument of the sigmoid, and ``accuracy``, the share of pairs with a positive margin. Raises
    ValueError for other shapes.

    Bradley and Terry, Rank Analysis of Incomplete Block Designs (1952), https://doi.org/10.2307/2334029
    """
    check_shapes("where better worse [...]", where, better, worse)
    margin = keep(better, where) - keep(worse, where)
    metrics = {"margin": mean_of(margin, where), "accuracy": mean_of(margin > 0, where)}
    return mean_of(jax.nn.softplus(-margin), where), metrics


def pairwise_clip(
    logp: jax.Array,
    behaviour_logp: jax.Array,
    reward: jax.Array,
    where: jax.Array,
    *,
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
) -> LossAndMetrics:
    """The clipped surrogate of pairs of samples of one prompt, with the quotient of their two ratios clipped.

    Arrays [P,G,M] of G samples of P prompts, rewards [P,G]. Each pair i < j of a prompt is ordered so that
    d = (r_i - r_j) / 2 >= 0. Then w = exp(l_i - l_j), with l the row's sum of logp - behaviour_logp.

        -min(w d, clip(w, 1 - clip_low, 1 + clip_high) d)

    The loss is the mean over pairs with a trained token in both rows. A constant added to all rewards of a prompt
    changes nothing. On-policy the gradient is RLOO's averaged over rows, and half its sum for two samples. The
    separately clipped form is ``ppo_clip`` of ``rloo`` with ``sequence_ratio(product=True)``. Metrics, over pairs:
    ``ratio``, ``clipped``.
    Raises ValueError for other shapes.

    Wu et al., Pairwise Proximal Policy Optimization: Harnessing Relative Feedback for LLM Alignment (2023, P3O),
    https://arxiv.org/abs/2310.00212. The gradient is the paper's, from a summary of the authors' post. The joint ratio
    w is our reading: w is the quantity whose gradient at 1 is the pairwise gradient.
    """
    if where.ndim != 3:
        raise ValueError(f"where has shape {where.shape}, but groups are [P,G,M] and their rewards [P,G].")
    check_shapes("where logp behaviour_logp [P,G,M] reward [P,G]", where, logp, behaviour_logp, reward)
    row = (keep(logp, where) - constant(behaviour_logp, where)).sum(-1)
    present = where.any(-1)
    first, second = jnp.triu_indices(where.shape[1], 1)
    pair = present[:, first] & present[:, second]
    reward = constant(reward, present)
    difference = (reward[:, first] - reward[:, second]) / 2
    ratio = bounded_exp(jnp.where(difference < 0, -1, 1) * (row[:, first] - row[:, second]))
    size = jnp.abs(difference)
    clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    metrics = {"ratio": mean_of(ratio, pair), "clipped": mean_of((ratio > clipped) & (size > 0), pair)}
    return mean_of(-jnp.minimum(ratio, clipped) * size, pair), metrics
