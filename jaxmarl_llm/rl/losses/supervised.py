"""Imitation of given tokens, with equal weights or weights from rewards.

For arguments and shapes of all losses see the docstring of ``losses.records``.
"""

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.losses.records import LARGEST_LOG_RATIO, Aggregate, LossAndMetrics, Number, bounded_exp
from jaxmarl_llm.rl.masked import Mean, constant, keep, mean_of
from jaxmarl_llm.rl.shapes import check_shapes


def cross_entropy(logp: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of) -> LossAndMetrics:
    """-logp of the given tokens. Metric: ``cross_entropy`` in nats a token. Textbook formula."""
    check_shapes("where logp [...]", where, logp)
    return aggregate(-keep(logp, where), where), {"cross_entropy": mean_of(-keep(logp, where), where)}


def reward_weighted(
    logp: jax.Array,
    reward: jax.Array,
    where: jax.Array,
    *,
    temperature: Number = 1.0,
    normalise: bool = True,
    aggregate: Aggregate = mean_of,
) -> LossAndMetrics:
    """Reward-weighted regression: -w logp, w = exp(reward / temperature), a constant of each token, at most e^20.

    With ``normalise`` the loss is divided by the sum of the weights instead of their number. The Mean's count is that
    sum, so parts of a batch still add up. A constant added to all rewards then changes nothing, unless a weight is
    capped. Rewards above 20 temperatures all weigh e^20: whiten larger ones first. Metrics: ``weight``, ``capped`` (the
    share of tokens at that bound), ``cross_entropy``.

    Peters & Schaal, Reinforcement Learning by Reward-Weighted Regression for Operational Space Control (2007),
    https://doi.org/10.1145/1273496.1273590; textbook formula.
    """
    check_shapes("where logp reward [...]", where, logp, reward)
    exponent = constant(reward, where) / temperature
    weight = bounded_exp(exponent)
    loss = aggregate(-weight * keep(logp, where), where)
    if normalise:
        loss = Mean(loss.sum, aggregate(weight, where).sum)
    return loss, {
        "weight": mean_of(weight, where),
        "capped": mean_of(exponent > LARGEST_LOG_RATIO, where),
        "cross_entropy": mean_of(-keep(logp, where), where),
    }


def self_imitation(
    logp: jax.Array, returns: jax.Array, baseline: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of
) -> LossAndMetrics:
    """-max(R - baseline, 0) logp: imitation of past play in proportion to its return above the baseline.

    The paper's value loss, max(R - V, 0)^2 / 2, is ``value_squared`` with the target max(R, V). Metrics: ``weight``,
    ``imitated`` (the share of tokens with a positive weight).

    Oh et al., Self-Imitation Learning (2018), https://arxiv.org/abs/1806.05635; not compared with its code.
    """
    check_shapes("where logp returns baseline [...]", where, logp, returns, baseline)
    weight = jnp.maximum(constant(returns, where) - constant(baseline, where), 0)
    metrics = {"weight": mean_of(weight, where), "imitated": mean_of(weight > 0, where)}
    return aggregate(-weight * keep(logp, where), where), metrics
