"""Policy-gradient losses, the default loss ``ppo``, and the levels of importance ratios.

For arguments and shapes of all losses see the docstring of ``losses.records``.
"""

from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.losses.entropy import entropy_bonus
from jaxmarl_llm.rl.losses.records import (
    Aggregate,
    Batch,
    Hparams,
    Level,
    LossAndMetrics,
    Number,
    Scores,
    bounded_exp,
)
from jaxmarl_llm.rl.losses.value import value_squared
from jaxmarl_llm.rl.masked import Mean, constant, keep, mean_of, segment_count, segment_mean, utterance_of
from jaxmarl_llm.rl.shapes import check_shapes


def ppo(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """The default loss: ``ppo_clip`` less the weighted entropy, plus the weighted error of a critic, if any.

    Hyperparameters: clip_low, clip_high, entropy, value.
    """
    total, metrics = ppo_clip(
        scores.logp, batch.behaviour_logp, batch.advantage, batch.mask,
        clip_low=hparams["clip_low"], clip_high=hparams["clip_high"],
    )  # fmt: skip
    bonus, more = entropy_bonus(scores.entropy, batch.mask)
    metrics |= more
    total = Mean(total.sum + hparams["entropy"] * bonus.sum, total.count)
    if scores.value is not None:
        error, more = value_squared(scores.value, batch.value_target, batch.mask)
        total = Mean(total.sum + hparams["value"] * error.sum, total.count)
        metrics |= more
    return total, metrics


# Levels of importance ratios: log-ratios of tokens [R,M] -> at each token, the log-ratio of its unit [R,M].


def token_ratio(log_ratio: jax.Array, where: jax.Array) -> jax.Array:
    """Token level: each token has its own ratio."""
    check_shapes("where log_ratio [...]", where, log_ratio)
    return log_ratio


def turn_ratio(log_ratio: jax.Array, where: jax.Array, *, turn: jax.Array, product: bool = False) -> jax.Array:
    """Utterance level: one ratio, exp of the mean log-ratio of its trained tokens, or with ``product`` of the sum.

    ``turn`` int [R,M] as in ``masked.utterance_of``.
    """
    check_shapes("where log_ratio turn [R,M]", where, log_ratio, turn)
    key = utterance_of(turn)
    mean = segment_mean(log_ratio, key, key.size, where)[key]
    return mean * segment_count(key, key.size, where)[key] if product else mean


def sequence_ratio(log_ratio: jax.Array, where: jax.Array, *, product: bool = False) -> jax.Array:
    """Row level: one ratio, exp of the mean log-ratio of its trained tokens (GSPO), or with ``product`` of the sum."""
    check_shapes("where log_ratio [...,M]", where, log_ratio)
    total = keep(log_ratio, where).sum(-1, keepdims=True)
    count = 1 if product else jnp.maximum(where.sum(-1, keepdims=True), 1)
    return jnp.broadcast_to(total / count, log_ratio.shape)


def bounded_ratio(log_ratio: jax.Array, where: jax.Array, *, max_ratio: Number = 1e3) -> jax.Array:
    """Token level, with each ratio clipped to [1 / max_ratio, max_ratio] before the exponential; no gradient outside.

    Zhang et al., R1-Reward: Training Multimodal Reward Model Through Stable Reinforcement Learning (2025,
    StableReinforce), https://arxiv.org/abs/2505.02835; 1e3 as in the released code.
    """
    check_shapes("where log_ratio [...]", where, log_ratio)
    bound = jnp.log(max_ratio)
    return jnp.clip(log_ratio, -bound, bound)


# Losses


def ppo_clip(
    logp: jax.Array,
    behaviour_logp: jax.Array,
    advantage: jax.Array,
    where: jax.Array,
    *,
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
    dual_clip: Number | None = None,
    keep_gradient: bool = False,
    level: Level = token_ratio,
    aggregate: Aggregate = mean_of,
) -> LossAndMetrics:
    """The clipped surrogate of PPO with separate bounds, and optionally a dual clip for negative advantages.

    With r = exp(logp - behaviour_logp): -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A). Bounds may be arrays of the
    shape of r. Given ``dual_clip`` c > 1, the loss is at most -c A where A < 0. It bounds the loss of a token whose
    probability has grown much.

    With ``keep_gradient`` the upper bound is (1 + clip_high) r / r, with the second r a constant: it holds the value
    and keeps the gradient. For A > 0 the gradient is then -A min(r, 1 + clip_high) grad logp, as in CISPO.

    ``level`` replaces r by the ratio of the token's turn or sequence, clipped as a whole and differentiated through all
    its tokens. With ``sequence_ratio``, ``mean_per_row`` and one advantage a row this is GSPO: its gradient is the mean
    over rows of -A r mean(grad logp). Different advantages within a unit are averaged by that gradient.

    Metrics: ``ratio``; ``clipped``, the share of tokens whose gradient a bound has set to 0; ``approximate_kl``, over
    tokens at every level.

    Schulman et al., Proximal Policy Optimization Algorithms (2017), https://arxiv.org/abs/1707.06347.
    Ye et al., Mastering Complex Control in MOBA Games with Deep Reinforcement Learning (2019, dual clip),
    https://arxiv.org/abs/1912.09729.
    Dong et al., Agentic Entropy-Balanced Policy Optimization (2025, the kept gradient),
    https://arxiv.org/abs/2510.14545.
    Zheng et al., Group Sequence Policy Optimization (2025, GSPO), https://arxiv.org/abs/2507.18071.
    Textbook formulas; GSPO's as TRL computes it.
    """
    check_shapes("where logp behaviour_logp advantage [...]", where, logp, behaviour_logp, advantage)
    advantage = constant(advantage, where)
    log_ratio = keep(logp, where) - constant(behaviour_logp, where)
    ratio = bounded_exp(level(log_ratio, where))
    inside = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    if keep_gradient:
        through = jax.lax.stop_gradient(inside / ratio) * ratio
        inside = jnp.where(ratio > 1 + clip_high, through, inside)
    bounded = inside * advantage
    surrogate = jnp.minimum(ratio * advantage, bounded)
    clipped = ratio * advantage > bounded
    if keep_gradient:
        clipped &= ratio <= 1 + clip_high
    if dual_clip is not None:
        floor = dual_clip * advantage
        clipped |= (advantage < 0) & (surrogate < floor)
        surrogate = jnp.where(advantage < 0, jnp.maximum(surrogate, floor), surrogate)
    return aggregate(-surrogate, where), {
        "ratio": mean_of(ratio, where),
        "clipped": mean_of(clipped, where),
        "approximate_kl": _approximate_kl(log_ratio, where),
    }


def blended_clip(
    logp: jax.Array,
    behaviour_logp: jax.Array,
    local: jax.Array,
    between: jax.Array,
    weight: jax.Array,
    where: jax.Array,
    *,
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
    dual_clip: Number | None = None,
    aggregate: Aggregate = mean_of,
) -> LossAndMetrics:
    """weight L(local) + (1 - weight) L(between), with L the clipped surrogate ``ppo_clip`` of one advantage.

    Both advantages and the weight in [0, 1] are float32 [R,M]. Each advantage is clipped separately; their sum would be
    clipped as one where the signs differ. On-policy the gradient is that of the summed advantage. Metrics: those of
    ``ppo_clip`` for the local term, and ``weight``.

    Han et al., COPO: Consistency-Aware Policy Optimization (2025), https://arxiv.org/abs/2508.04138; formula of the
    released code. The advantages and the weight: ``advantages.consistency_parts``.
    """
    check_shapes(
        "where logp behaviour_logp local between weight [...]", where, logp, behaviour_logp, local, between, weight
    )
    clipped = partial(ppo_clip, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, aggregate=aggregate)
    first, metrics = clipped(logp, behaviour_logp, keep(weight, where) * keep(local, where), where)
    second, _ = clipped(logp, behaviour_logp, (1 - keep(weight, where)) * keep(between, where), where)
    return Mean(first.sum + second.sum, first.count), metrics | {"weight": mean_of(weight, where)}


def truncated_policy_gradient(
    logp: jax.Array,
    behaviour_logp: jax.Array,
    advantage: jax.Array,
    where: jax.Array,
    *,
    cap: Number = 2.0,
    floor: Number = 0.0,
    aggregate: Aggregate = mean_of,
) -> LossAndMetrics:
    """REINFORCE with a truncated importance weight: -w A logp, w = clip(exp(logp - behaviour_logp), floor, cap).

    w is a constant. With cap = 1 + epsilon_high, floor = 1 - epsilon_low (or 0) and the mean over tokens this is CISPO.
    Every token keeps its gradient, also where PPO would clip it to 0.
    Metrics: ``ratio`` (before truncation), ``truncated`` (share of tokens), ``approximate_kl``.

    Textbook formula. MiniMax, MiniMax-M1 (2025, CISPO), https://arxiv.org/abs/2506.13585
    """
    check_shapes("where logp behaviour_logp advantage [...]", where, logp, behaviour_logp, advantage)
    logp = keep(logp, where)
    log_ratio = jax.lax.stop_gradient(logp) - constant(behaviour_logp, where)
    ratio = bounded_exp(log_ratio)
    return aggregate(-jnp.clip(ratio, floor, cap) * constant(advantage, where) * logp, where), {
        "ratio": mean_of(ratio, where),
        "truncated": mean_of((ratio > cap) | (ratio < floor), where),
        "approximate_kl": _approximate_kl(log_ratio, where),
    }


def alignment(
    logp: jax.Array,
    behaviour_logp: jax.Array,
    advantage: jax.Array,
    entropy: jax.Array,
    where: jax.Array,
    *,
    cap: Number = 2.0,
    entropy_weight: Number = 0.01,
    aggregate: Aggregate = mean_of,
) -> LossAndMetrics:
    """The loss of the released Advantage Alignment code: truncated policy gradient minus the weighted entropy.

    -(1/#tokens) sum of min(pi/mu, cap) A* logp + entropy_weight * entropy, with a constant first factor. A* is
    ``advantages.advantage_alignment``. ``entropy`` is of the distribution from which the token was sampled, with
    gradient.
    Metrics: those of ``truncated_policy_gradient``, ``policy`` (its loss) and ``entropy``.

    Duque et al., Advantage Alignment Algorithms (2024), https://arxiv.org/abs/2406.14662; cap and weight are the values
    of the code released for language models, https://arxiv.org/abs/2511.19405
    """
    check_shapes("where logp behaviour_logp advantage entropy [...]", where, logp, behaviour_logp, advantage, entropy)
    policy, metrics = truncated_policy_gradient(logp, behaviour_logp, advantage, where, cap=cap, aggregate=aggregate)
    bonus, more = entropy_bonus(entropy, where, aggregate=aggregate)
    return Mean(policy.sum + entropy_weight * bonus.sum, policy.count), {**metrics, "policy": policy, **more}


def _approximate_kl(log_ratio: jax.Array, where: jax.Array) -> Mean:
    """KL(behaviour || policy) estimated from the sampled tokens: E[ratio - 1 - log ratio]."""
    return mean_of(bounded_exp(log_ratio) - 1 - log_ratio, where)
