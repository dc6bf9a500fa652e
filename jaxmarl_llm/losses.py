"""Losses: pure functions of per-token arrays, each returning what is minimised and what is reported.

All arrays are [R,M] unless said otherwise (R rows, M tokens; any shape does, as long as all are equal): ``logp`` is the
log-probability of the token under the policy being trained, ``behaviour`` the one it was sampled with, ``where`` the
tokens that are trained. Every function returns ``(Mean, {name: Mean})`` and averages over the trained tokens; terms
over the same tokens are combined as ``Mean(first.sum + weight * second.sum, first.count)``. Tokens that are not trained
may hold NaN or infinity. Arrays whose shape differs from that of ``where`` raise ValueError. Gradients flow through
``logp`` and ``entropy`` only.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxmarl_llm.masked import Mean, keep, mean_of

Loss = tuple[Mean, dict[str, Mean]]

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


def ppo_clip(
    logp: jax.Array,
    behaviour: jax.Array,
    advantage: jax.Array,
    where: jax.Array,
    *,
    clip_low: float | jax.Array = 0.2,
    clip_high: float | jax.Array = 0.2,
    dual_clip: float | jax.Array | None = None,
) -> Loss:
    """The clipped surrogate of PPO with separate bounds, and a third bound where the advantage is negative.

    With r = exp(logp - behaviour): -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), and, given ``dual_clip`` c > 1,
    at most -c A where A < 0, which bounds the loss of a token that the policy has come to like much more.
    Metrics: ``ratio``; ``clipped``, the share of tokens whose gradient a bound has set to 0; ``approximate_kl``.
    Schulman et al. 2017 (PPO); Ye et al. 2020 (dual clip). Textbook formulas.
    """
    advantage = _constant(advantage, where)
    log_ratio = keep(logp, where) - _constant(behaviour, where)
    ratio = _exp(log_ratio)
    bounded = jnp.clip(ratio, 1 - clip_low, 1 + clip_high) * advantage
    surrogate = jnp.minimum(ratio * advantage, bounded)
    clipped = ratio * advantage > bounded
    if dual_clip is not None:
        floor = dual_clip * advantage
        clipped |= (advantage < 0) & (surrogate < floor)
        surrogate = jnp.where(advantage < 0, jnp.maximum(surrogate, floor), surrogate)
    return mean_of(-surrogate, where), {
        "ratio": mean_of(ratio, where),
        "clipped": mean_of(clipped, where),
        "approximate_kl": _approximate_kl(log_ratio, where),
    }


def truncated_policy_gradient(
    logp: jax.Array, behaviour: jax.Array, advantage: jax.Array, where: jax.Array, *, cap: float | jax.Array = 2.0
) -> Loss:
    """REINFORCE with a truncated importance weight: -w A logp, with w = min(exp(logp - behaviour), cap) held constant.

    Metrics: ``ratio`` (before it is truncated), ``truncated`` (share of tokens), ``approximate_kl``. Textbook formula.
    """
    logp = keep(logp, where)
    log_ratio = jax.lax.stop_gradient(logp) - _constant(behaviour, where)
    ratio = _exp(log_ratio)
    return mean_of(-jnp.minimum(ratio, cap) * _constant(advantage, where) * logp, where), {
        "ratio": mean_of(ratio, where),
        "truncated": mean_of(ratio > cap, where),
        "approximate_kl": _approximate_kl(log_ratio, where),
    }


def alignment(
    logp: jax.Array,
    behaviour: jax.Array,
    advantage: jax.Array,
    entropy: jax.Array,
    where: jax.Array,
    *,
    cap: float | jax.Array = 2.0,
    entropy_weight: float | jax.Array = 0.01,
) -> Loss:
    """The loss of the released advantage alignment code: truncated policy gradient minus the weighted entropy.

    -(1/#tokens) sum of min(pi/mu, cap) A* logp + entropy_weight * entropy, the first factor held constant. A* is the
    credit of ``credit.advantage_alignment``; ``entropy`` that of the distribution the token was drawn from, which may
    be trained. Metrics: those of ``truncated_policy_gradient``, ``policy`` (its loss) and ``entropy``.
    Duque et al., Advantage Alignment; cap and weight are the values of the code released for language models.
    """
    policy, metrics = truncated_policy_gradient(logp, behaviour, advantage, where, cap=cap)
    mean_entropy = mean_of(entropy, where)
    loss = Mean(policy.sum - entropy_weight * mean_entropy.sum, policy.count)
    return loss, {**metrics, "policy": policy, "entropy": mean_entropy}


def kl_penalty(
    logp: jax.Array, reference: jax.Array, where: jax.Array, *, kind: Literal["k1", "k2", "k3"] = "k2"
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
    return mean_of({"k1": -d, "k2": d**2 / 2, "k3": k3}[kind], where), {"kl": mean_of(k3, where)}


def entropy_bonus(entropy: jax.Array, where: jax.Array) -> Loss:
    """-entropy, to be given a positive weight. Metric: ``entropy``."""
    mean = mean_of(entropy, where)
    return Mean(-mean.sum, mean.count), {"entropy": mean}


def cross_entropy(logp: jax.Array, where: jax.Array) -> Loss:
    """-logp of the given tokens, for supervised training. Metric: ``cross_entropy`` in nats a token."""
    loss = mean_of(-keep(logp, where), where)
    return loss, {"cross_entropy": loss}
