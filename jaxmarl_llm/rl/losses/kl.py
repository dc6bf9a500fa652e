"""KL divergence from a reference policy. For arguments and shapes see the docstring of ``losses.records``."""

from typing import Literal

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.losses.records import Aggregate, LossAndMetrics, bounded_exp
from jaxmarl_llm.rl.masked import constant, keep, mean_of
from jaxmarl_llm.rl.shapes import check_shapes


def kl_penalty(
    logp: jax.Array,
    reference_logp: jax.Array,
    where: jax.Array,
    *,
    kind: Literal["k1", "k2", "k3"] = "k2",
    behaviour_logp: jax.Array | None = None,
    aggregate: Aggregate = mean_of,
) -> LossAndMetrics:
    """An estimate of KL(policy || reference) from the sampled tokens: d = reference_logp - logp of each token.

    k1 = -d, k2 = d^2/2, k3 = exp(d) - d - 1. As estimates k1 and k3 are unbiased, k3 has the smallest variance, and k2
    is biased. As losses they differ by the expected gradient on tokens sampled from the policy itself:

        k1  zero
        k2  the gradient of KL(policy || reference)
        k3  the gradient of KL(reference || policy), the other direction

    With ``behaviour_logp``, of the policy that sampled, each token weighs exp(logp - behaviour_logp), with a gradient.
    Then k1 and k3 are unbiased for tokens of that policy, and have the gradient of KL(policy || reference).

    The metric ``kl`` is k3 under every kind, without weights. Raises ValueError for another kind.

    Schulman, Approximating KL Divergence (2020), http://joschu.net/blog/kl-approx.html, names the three; their
    gradients follow by differentiation.
    """
    check_shapes("where logp reference_logp [...]", where, logp, reference_logp)
    if kind not in ("k1", "k2", "k3"):
        raise ValueError(f"There is no KL estimate {kind!r}: choose k1, k2 or k3.")
    d = constant(reference_logp, where) - keep(logp, where)
    k3 = bounded_exp(d) - d - 1
    estimate = {"k1": -d, "k2": d**2 / 2, "k3": k3}[kind]
    if behaviour_logp is not None:
        check_shapes("where behaviour_logp [...]", where, behaviour_logp)
        estimate = estimate * bounded_exp(keep(logp, where) - constant(behaviour_logp, where))
    return aggregate(estimate, where), {"kl": mean_of(k3, where)}


def kl_exact(
    logp: jax.Array, reference_logp: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of
) -> LossAndMetrics:
    """KL(policy || reference), summed over the vocabulary: log-probabilities float32 [R,M,V], ``where`` [R,M].

    A token of probability 0 under the policy (logp -1e30 or -inf) adds nothing to value or gradient. A token of
    probability 0 only under the reference adds -reference_logp times its probability. Metric: ``kl``. Textbook formula.
    Raises ValueError for other shapes.
    """
    if not logp.shape == reference_logp.shape == (*where.shape, *logp.shape[-1:]):
        raise ValueError(
            f"The log-probabilities have shapes {logp.shape} and {reference_logp.shape}: both must be {where.shape}, "
            "the shape of where, and the vocabulary."
        )
    possible = jnp.broadcast_to(where[..., None], logp.shape) & (jnp.exp(logp) > 0)
    logp, reference_logp = keep(logp, possible), constant(reference_logp, possible)
    kl = (jnp.exp(logp) * (logp - reference_logp)).sum(-1)
    return aggregate(kl, where), {"kl": mean_of(kl, where)}


def kl_standard_normal(mean: jax.Array, log_variance: jax.Array) -> jax.Array:
    """KL(N(mean, variance) || N(0, 1)), summed over the last axis: [..., D] -> [...].

    (mean^2 + variance - 1 - log variance) / 2

    Kingma and Welling, Auto-Encoding Variational Bayes (2013), https://arxiv.org/abs/1312.6114, appendix B
    """
    check_shapes("mean log_variance [...,D]", mean, log_variance)
    return (mean**2 + jnp.exp(log_variance) - 1 - log_variance).sum(-1) / 2
