"""Losses: pure functions of per-token arrays, each returning what is minimised and what is reported.

All arrays are [R,M] unless said otherwise (R rows, M tokens; any shape does, as long as all are equal, if neither level
nor aggregation looks at rows): ``logp`` is the log-probability of the token under the policy being trained,
``behaviour_logp`` the one it was sampled with, ``where`` the tokens that are trained. Every function returns
``(Mean, {name: Mean})``. Tokens that are not trained may hold NaN or infinity. Arrays whose shape differs from that of
``where`` raise ValueError. Gradients flow through ``logp``, ``entropy`` and ``value`` only.

``aggregate(x, where)`` makes the loss of what each token loses: ``mean_of`` (the tokens of the batch),
``mean_per_row``, ``partial(sum_per_row, length=...)`` or ``partial(mean_per_turn, turn=...)``. Metrics are means over
tokens whatever it is. Terms with the same aggregation are added as ``Mean(first.sum + weight * second.sum,
first.count)``. A method is a combination:

    method       credit                  loss                                              aggregate
    REINFORCE    reinforce               truncated_policy_gradient                         mean_of
    RLOO         rloo                    truncated_policy_gradient                         sum_per_row
    PPO          a critic's              ppo_clip, value_clip                              mean_of
    GRPO         grpo                    ppo_clip, kl_penalty(kind="k3")                   mean_per_row
    Dr. GRPO     grpo(scale="none")      ppo_clip                                          sum_per_row(length=...)
    DAPO         grpo                    ppo_clip(clip_high=0.28)                          mean_of
    GSPO         grpo                    ppo_clip(level=sequence_level, clip_low=3e-4,     mean_per_row
                                                  clip_high=4e-4)
    CISPO        grpo                    truncated_policy_gradient(cap=1 + epsilon_high)   mean_of
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.masked import Mean, keep, mean_of, segment_count, segment_mean, utterance_of

Loss = tuple[Mean, dict[str, Mean]]
Aggregate = Callable[[jax.Array, jax.Array], Mean]
Level = Callable[[jax.Array, jax.Array], jax.Array]
Number = float | jax.Array

# exp of a larger log-ratio overflows in a product with its gradient, and 0 * inf is NaN. No ratio that is not clipped
# anyway comes near e^20.
LARGEST_LOG_RATIO = 20.0


def _exp(log_ratio: jax.Array) -> jax.Array:
    return jnp.exp(jnp.minimum(log_ratio, LARGEST_LOG_RATIO))


def _constant(x: jax.Array, where: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(keep(x, where))


def _approximate_kl(log_ratio: jax.Array, where: jax.Array) -> Mean:
    """KL of the sampling policy from the trained one, E[ratio - 1 - log ratio] over the tokens sampled."""
    return mean_of(_exp(log_ratio) - 1 - log_ratio, where)


# Levels: the log-ratios of tokens -> those of what the tokens belong to, in each of its tokens.


def token_level(log_ratio: jax.Array, where: jax.Array) -> jax.Array:
    """Each token has a ratio of its own."""
    return log_ratio


def turn_level(log_ratio: jax.Array, where: jax.Array, *, turn: jax.Array, product: bool = False) -> jax.Array:
    """One ratio an utterance: exp of the mean log-ratio of its trained tokens, or with ``product`` of their sum.

    ``turn`` int [R,M] as in ``masked.utterance_of``.
    """
    key = utterance_of(turn)
    mean = segment_mean(log_ratio, key, key.size, where)[key]
    return mean * segment_count(key, key.size, where)[key] if product else mean


def sequence_level(log_ratio: jax.Array, where: jax.Array, *, product: bool = False) -> jax.Array:
    """One ratio a row: exp of the mean log-ratio of its trained tokens (GSPO), or with ``product`` of their sum."""
    total = keep(log_ratio, where).sum(-1, keepdims=True)
    count = 1 if product else jnp.maximum(where.sum(-1, keepdims=True), 1)
    return jnp.broadcast_to(total / count, log_ratio.shape)


# Losses of the policy


def ppo_clip(
    logp: jax.Array,
    behaviour_logp: jax.Array,
    advantage: jax.Array,
    where: jax.Array,
    *,
    clip_low: Number = 0.2,
    clip_high: Number = 0.2,
    dual_clip: Number | None = None,
    level: Level = token_level,
    aggregate: Aggregate = mean_of,
) -> Loss:
    """The clipped surrogate of PPO with separate bounds, and a third bound where the advantage is negative.

    With r = exp(logp - behaviour): -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), and, given ``dual_clip`` c > 1,
    at most -c A where A < 0, which bounds the loss of a token that the policy has come to like much more.
    ``level`` makes r the ratio of the token's turn or sequence, which is then clipped as one and differentiated through
    all its tokens: with ``sequence_level``, ``mean_per_row`` and one advantage a row this is GSPO, whose gradient is
    the mean over rows of -A r mean(grad logp). Advantages that differ within a unit are averaged by that gradient.
    Metrics: ``ratio``; ``clipped``, the share of tokens whose gradient a bound has set to 0; ``approximate_kl``, which
    is of tokens at every level.
    Schulman et al. 2017 (PPO); Ye et al. 2020 (dual clip); Zheng et al. 2025 (GSPO). Textbook formulas; GSPO's as TRL
    computes it.
    """
    advantage = _constant(advantage, where)
    log_ratio = keep(logp, where) - _constant(behaviour_logp, where)
    ratio = _exp(level(log_ratio, where))
    bounded = jnp.clip(ratio, 1 - clip_low, 1 + clip_high) * advantage
    surrogate = jnp.minimum(ratio * advantage, bounded)
    clipped = ratio * advantage > bounded
    if dual_clip is not None:
        floor = dual_clip * advantage
        clipped |= (advantage < 0) & (surrogate < floor)
        surrogate = jnp.where(advantage < 0, jnp.maximum(surrogate, floor), surrogate)
    return aggregate(-surrogate, where), {
        "ratio": mean_of(ratio, where),
        "clipped": mean_of(clipped, where),
        "approximate_kl": _approximate_kl(log_ratio, where),
    }


def truncated_policy_gradient(
    logp: jax.Array,
    behaviour_logp: jax.Array,
    advantage: jax.Array,
    where: jax.Array,
    *,
    cap: Number = 2.0,
    floor: Number = 0.0,
    aggregate: Aggregate = mean_of,
) -> Loss:
    """REINFORCE with a truncated importance weight: -w A logp, w = clip(exp(logp - behaviour), floor, cap) a constant.

    With cap = 1 + epsilon_high (and floor = 1 - epsilon_low, which may be 0) and the mean over tokens this is CISPO:
    every token keeps its gradient, also where the loss of PPO would have clipped it away.
    Metrics: ``ratio`` (before it is truncated), ``truncated`` (share of tokens), ``approximate_kl``.
    Textbook formula; MiniMax 2025 (MiniMax-M1) for CISPO.
    """
    logp = keep(logp, where)
    log_ratio = jax.lax.stop_gradient(logp) - _constant(behaviour_logp, where)
    ratio = _exp(log_ratio)
    return aggregate(-jnp.clip(ratio, floor, cap) * _constant(advantage, where) * logp, where), {
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
) -> Loss:
    """The loss of the released advantage alignment code: truncated policy gradient minus the weighted entropy.

    -(1/#tokens) sum of min(pi/mu, cap) A* logp + entropy_weight * entropy, the first factor held constant. A* is the
    credit of ``credit.advantage_alignment``; ``entropy`` that of the distribution the token was drawn from, which may
    be trained. Metrics: those of ``truncated_policy_gradient``, ``policy`` (its loss) and ``entropy``.
    Duque et al., Advantage Alignment; cap and weight are the values of the code released for language models.
    """
    policy, metrics = truncated_policy_gradient(logp, behaviour_logp, advantage, where, cap=cap, aggregate=aggregate)
    bonus, more = entropy_bonus(entropy, where, aggregate=aggregate)
    return Mean(policy.sum + entropy_weight * bonus.sum, policy.count), {**metrics, "policy": policy, **more}


# Losses of a critic


def value_squared(value: jax.Array, target: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of) -> Loss:
    """(V - G)^2 / 2, with G the target, a constant. Metrics: ``value`` and ``value_error``, the mean of (V - G)^2."""
    value, error = keep(value, where), _error(value, target, where)
    return aggregate(error**2 / 2, where), _value_metrics(value, error, where)


def value_clip(
    value: jax.Array,
    old: jax.Array,
    target: jax.Array,
    where: jax.Array,
    *,
    clip: Number = 0.2,
    aggregate: Aggregate = mean_of,
) -> Loss:
    """max((V - G)^2, (V_old + clip(V - V_old, -clip, clip) - G)^2) / 2, V_old the value when the token was sampled.

    A value that has moved by more than ``clip`` towards its target has no gradient. Metrics: those of
    ``value_squared`` and ``value_clipped``, the share of such tokens. The released code of PPO; textbook formula.
    """
    value, old = keep(value, where), _constant(old, where)
    error = _error(value, target, where)
    bounded = _error(old + jnp.clip(value - old, -clip, clip), target, where)
    metrics = _value_metrics(value, error, where) | {"value_clipped": mean_of(bounded**2 > error**2, where)}
    return aggregate(jnp.maximum(error**2, bounded**2) / 2, where), metrics


def value_huber(
    value: jax.Array, target: jax.Array, where: jax.Array, *, delta: Number = 1.0, aggregate: Aggregate = mean_of
) -> Loss:
    """(V - G)^2 / 2 up to a distance of ``delta``, from there delta (|V - G| - delta / 2). Metrics as above."""
    value, error = keep(value, where), _error(value, target, where)
    near = jnp.minimum(jnp.abs(error), delta)
    return aggregate(near**2 / 2 + delta * (jnp.abs(error) - near), where), _value_metrics(value, error, where)


def _error(value: jax.Array, target: jax.Array, where: jax.Array) -> jax.Array:
    return keep(value, where) - _constant(target, where)


def _value_metrics(value: jax.Array, error: jax.Array, where: jax.Array) -> dict[str, Mean]:
    return {"value": mean_of(value, where), "value_error": mean_of(error**2, where)}


# Divergence and entropy


def kl_penalty(
    logp: jax.Array,
    reference: jax.Array,
    where: jax.Array,
    *,
    kind: Literal["k1", "k2", "k3"] = "k2",
    aggregate: Aggregate = mean_of,
) -> Loss:
    """An estimate of KL(policy || reference) from the tokens sampled, with d = reference - logp held per token.

    k1 = -d, k2 = d^2/2, k3 = exp(d) - d - 1. As an estimate k1 and k3 are unbiased and k3 varies least; k2 is biased.
    As a loss it is the gradient that counts, and on tokens sampled from the policy itself its expectation is: for k1
    zero; for k2 the gradient of KL(policy || reference); for k3 that of KL(reference || policy), the other direction.
    The metric ``kl`` is k3, whichever is the loss. Raises ValueError for another kind.
    Schulman's note "Approximating KL Divergence" names the three; their gradients follow by differentiation.
    """
    if kind not in ("k1", "k2", "k3"):
        raise ValueError(f"There is no KL estimate {kind!r}: choose k1, k2 or k3.")
    d = _constant(reference, where) - keep(logp, where)
    k3 = _exp(d) - d - 1
    return aggregate({"k1": -d, "k2": d**2 / 2, "k3": k3}[kind], where), {"kl": mean_of(k3, where)}


def kl_exact(logp: jax.Array, reference: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of) -> Loss:
    """KL(policy || reference), summed over the vocabulary: log-probabilities float32 [R,M,V], ``where`` [R,M].

    A token that the policy never says (-1e30, -inf) adds nothing to value or gradient; one that it may say and the
    reference never does makes the KL as large as that is unlikely. Metric: ``kl``. Raises ValueError for other shapes.
    """
    if not logp.shape == reference.shape == (*where.shape, *logp.shape[-1:]):
        raise ValueError(
            f"The log-probabilities have shapes {logp.shape} and {reference.shape}: both must be {where.shape}, "
            "the shape of where, and the vocabulary."
        )
    possible = jnp.broadcast_to(where[..., None], logp.shape) & (jnp.exp(logp) > 0)
    logp, reference = keep(logp, possible), _constant(reference, possible)
    kl = (jnp.exp(logp) * (logp - reference)).sum(-1)
    return aggregate(kl, where), {"kl": mean_of(kl, where)}


def entropy_bonus(entropy: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of) -> Loss:
    """-entropy, to be given a positive weight. Metric: ``entropy``."""
    return aggregate(-keep(entropy, where), where), {"entropy": mean_of(entropy, where)}


def entropy_corridor(
    entropy: jax.Array,
    where: jax.Array,
    turn: jax.Array,
    running: jax.Array,
    *,
    low: Number,
    high: Number,
    aggregate: Aggregate = mean_of,
) -> Loss:
    """How far the mean entropy of an utterance lies outside [low, high] times the running mean of its turn.

    max(low m - H, 0) + max(H - high m, 0) in each of its tokens, H their mean entropy and m = running[turn], a
    constant. ``turn`` int [R,M] in 0..T-1, as in ``masked.utterance_of``; ``running`` [T] is kept by
    ``running_entropy``, and where it is 0, nothing being known yet, so is the penalty. Metrics: ``entropy``,
    ``outside`` (the share of tokens whose utterance is).
    After Xu et al. 2025 (EPO), in whose released code the penalty is one constant outside and 0 inside: it has no
    gradient. This one has, and its form is ours.
    """
    key = utterance_of(turn)
    mean = segment_mean(entropy, key, key.size, where)[key]
    middle = _constant(running[turn], where)
    distance = jnp.maximum(low * middle - mean, 0) + jnp.maximum(mean - high * middle, 0)
    distance = jnp.where(middle > 0, distance, 0)
    return aggregate(distance, where), {"entropy": mean_of(entropy, where), "outside": mean_of(distance > 0, where)}


def running_entropy(
    running: jax.Array, entropy: jax.Array, where: jax.Array, turn: jax.Array, *, decay: Number = 0.9
) -> jax.Array:
    """The running mean entropy of each turn after this batch: [T] -> [T], a constant; it begins with zeros.

    decay * running + (1 - decay) * the mean over the tokens of that turn, [R,M]; that mean itself the first time. A
    turn in which nothing was said keeps what it has.
    """
    turns = running.shape[0]
    mean = segment_mean(jax.lax.stop_gradient(entropy), turn, turns, where)
    updated = jnp.where(running > 0, decay * running + (1 - decay) * mean, mean)
    return jnp.where(segment_count(turn, turns, where) > 0, updated, running)


# Learning from what is given: demonstrations, pairs, one's own past


def cross_entropy(logp: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of) -> Loss:
    """-logp of the given tokens, for supervised training. Metric: ``cross_entropy`` in nats a token."""
    return aggregate(-keep(logp, where), where), {"cross_entropy": mean_of(-keep(logp, where), where)}


def dpo(logp: jax.Array, reference: jax.Array, where: jax.Array, *, beta: Number = 0.1) -> Loss:
    """-log sigmoid(beta (l_chosen - l_rejected)), l the row's sum of logp - reference: arrays [P,2,M], chosen first.

    Averaged over the pairs in which both rows have a trained token. Metrics, over pairs: ``margin``, the argument of
    the sigmoid, and ``accuracy``, the share of pairs in which it is positive. Raises ValueError for other shapes.
    Rafailov et al. 2023 (DPO); equal to TRL's ``sigmoid`` loss.
    """
    if where.ndim != 3 or where.shape[1] != 2:
        raise ValueError(f"where has shape {where.shape}, but pairs are [P,2,M]: the chosen row, then the rejected.")
    chosen, rejected = jnp.moveaxis((keep(logp, where) - _constant(reference, where)).sum(-1), 1, 0)
    margin, pairs = beta * (chosen - rejected), where.any(-1).all(-1)
    metrics = {"margin": mean_of(margin, pairs), "accuracy": mean_of(margin > 0, pairs)}
    return mean_of(jax.nn.softplus(-margin), pairs), metrics


def reward_weighted(
    logp: jax.Array,
    reward: jax.Array,
    where: jax.Array,
    *,
    temperature: Number = 1.0,
    normalise: bool = True,
    aggregate: Aggregate = mean_of,
) -> Loss:
    """Reward-weighted regression: -w logp, w = exp(reward / temperature), a constant of each token, at most e^20.

    Normalised, the loss is divided by the sum of the weights instead of their number: the Mean's count is that sum, so
    that parts of a batch still add up, and a constant added to all rewards changes nothing. Metrics: ``weight``,
    ``cross_entropy``. Peters & Schaal 2007; textbook formula.
    """
    weight = _exp(_constant(reward, where) / temperature)
    loss = aggregate(-weight * keep(logp, where), where)
    if normalise:
        loss = Mean(loss.sum, aggregate(weight, where).sum)
    return loss, {"weight": mean_of(weight, where), "cross_entropy": mean_of(-keep(logp, where), where)}


def self_imitation(
    logp: jax.Array, returns: jax.Array, baseline: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of
) -> Loss:
    """-max(R - baseline, 0) logp: past play is imitated as far as it did better than expected.

    The loss of the value in the paper, max(R - V, 0)^2 / 2, is ``value_squared`` with the target max(R, V). Metrics:
    ``weight``, ``imitated`` (the share of tokens with a positive one). Oh et al. 2018; not compared with their code.
    """
    weight = jnp.maximum(_constant(returns, where) - _constant(baseline, where), 0)
    metrics = {"weight": mean_of(weight, where), "imitated": mean_of(weight > 0, where)}
    return aggregate(-weight * keep(logp, where), where), metrics


# TEMPORARY: replaced by the records of rl/losses when its branch lands
from flax import struct  # noqa: E402


class Batch(struct.PyTreeNode):
    token: jax.Array
    turn: jax.Array
    behaviour_logp: jax.Array
    mask: jax.Array
    advantage: jax.Array
    value_target: jax.Array
    old_value: jax.Array
    episode: jax.Array
    seat: jax.Array
    policy: jax.Array
    role: jax.Array
    reference_logp: jax.Array | None = None


LossFn = Callable


def ppo(scores, batch, hparams):
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
