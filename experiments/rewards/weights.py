"""Where do policies end if reward weights change during training? Hypervolume, influence and duals, computed exactly.

There are 32 questions with 8 answers each, and the policy is a table. Each step follows the exact gradient of
factor * sum_k w_k E[r_k].

  equal, quarter  weights 1/K each; weights 1/4 and 3/4
  hypervolume     the same weights; the factor is 0.5 + 1.5 tanh(gain of hypervolume in the last step), at first 1
  influence       w_k grows with exp(rate sum_j <g_k, g_j>), with g_k the gradient of component k
  dual            w_1 = sigmoid(lambda), w_2 = 1 - w_1, with dual ascent of lambda towards E[r_1] = 1/4

In arms `aligned_` K = 3. One answer meets all three criteria; the others meet them with probability 0.8, 0.4 and 0.15.
In arms `opposed_` K = 2. Three answers have rewards (1, 0), (0, 1) and (0.4, 0.4); no fixed weights prefer the last
one. Dynamic weights start at 1/4 and 3/4. Metrics:

  least         the least component
  steps to 90%  first step at which it is 0.9
  off           distance of E[r_1] from 1/4 over the last 30 steps
  steps moved   sum of the factors

Predictions: influence and hypervolume need fewer steps than equal weights (paper). The dual ends nearer to its target
than equal weights (pilot). Checks: with opposed rewards both dynamic weights end in the corner of the fixed weights,
and the dual ends within 0.1 of its target.

  python -m experiments weights --seeds 10

Papers: Dynamic reward weighting (Lu et al.) 2025, https://arxiv.org/abs/2509.11452; Constrained RLHF (Moskovitz et al.)
2023, https://arxiv.org/abs/2310.04373.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.rewards import multipliers
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study

QUESTIONS, ANSWERS, STEPS, RATE, BUFFER = 32, 8, 300, 1.0, 8
TARGET, TO_90, OFF = 0.25, "steps to 90%", "off"


def aligned_rewards(key: jax.Array) -> jax.Array:
    """Rewards [questions, answers, 3] with one best answer for all criteria."""
    chance = jnp.broadcast_to(jnp.array([0.8, 0.4, 0.15]), (QUESTIONS, ANSWERS, 3))
    return jax.random.bernoulli(key, chance).astype(jnp.float32).at[:, 0].set(1.0)


def opposed_rewards(key: jax.Array) -> jax.Array:
    """Rewards [questions, answers, 2] whose components conflict."""
    rewards = jnp.zeros((ANSWERS, 2)).at[:3].set(jnp.array([[1, 0], [0, 1], [0.4, 0.4]]))
    return jnp.broadcast_to(rewards, (QUESTIONS, ANSWERS, 2))


def values(logits: jax.Array, reward: jax.Array) -> jax.Array:
    """E[r_k], [K]: the mean over questions."""
    return (jax.nn.softmax(logits)[..., None] * reward).sum(1).mean(0)


def gradients(logits: jax.Array, reward: jax.Array) -> jax.Array:
    """Gradients of sum_q E[r_k | q] in the logits, [K, questions, answers]; `reward` is [questions, answers, K]."""
    probability = jax.nn.softmax(logits)[..., None]
    return jnp.moveaxis(probability * (reward - (probability * reward).sum(1, keepdims=True)), -1, 0)


def compute_metrics(
    key: jax.Array, hparams: Mapping[str, jax.Array], *, opposes: bool, by: str = ""
) -> dict[str, jax.Array]:
    """Curves and metrics of one seed. `by` is "influence" or "dual" for a rule that changes the weights, "hypervolume"
    for fixed weights with a factor that changes, and "" if both are fixed."""
    bank_key, start_key = jax.random.split(key)
    reward = opposed_rewards(bank_key) if opposes else aligned_rewards(bank_key)
    k = reward.shape[-1]
    weights = jnp.stack([hparams["first"], 1 - hparams["first"]]) if opposes else jnp.full(k, 1 / k)
    start = 0.5 * jax.random.normal(start_key, reward.shape[:2])
    reference = values(start, reward)

    def step(carry: tuple, _: None) -> tuple[tuple, dict[str, jax.Array]]:
        logits, weights, factor, raw, buffer = carry
        reached, slopes = values(logits, reward), gradients(logits, reward)
        if by == "influence":
            weights = multipliers.influence_weights(weights, slopes.reshape(k, -1), hparams["rate"])
        if by == "dual":
            first = multipliers.at_least_weights(raw)[0]
            weights, raw = (
                jnp.stack([first, 1 - first]),
                multipliers.dual_ascent(raw, reached[:1], jnp.array([TARGET]), hparams["rate"]),
            )
        logits += RATE * factor * (weights[:, None, None] * slopes).sum(0)
        metrics = {"least": reached.min(), "first": reached[0], "weight of first": weights[0], "factor": factor}
        if by == "hypervolume":
            gain, buffer = multipliers.hypervolume_gain(buffer, reached, reference)
            factor = multipliers.meta_reward(gain)
        return (logits, weights, factor, raw, buffer), metrics

    begin = (start, weights, jnp.float32(1), jnp.zeros(1), multipliers.pareto_buffer(BUFFER, k))
    curves = jax.lax.scan(step, begin, length=STEPS)[1]
    return curves | {"steps moved": curves["factor"].sum()}


def arm(opposes: bool, by: str = "", first: float = 0.25, rate: float = 0.0) -> Computed:
    return Computed(partial(compute_metrics, opposes=opposes, by=by), {"first": first, "rate": rate}, updates=STEPS)


STUDY = Study(
    paper=Paper("Dynamic reward weighting (Lu et al.)", "https://arxiv.org/abs/2509.11452", 2025, checked="release"),
    question="What do reward weights reach that change while a policy learns?",
    claim="A factor of the batch changes no direction; weights that follow a target reach what fixed weights cannot.",
    arms={
        "aligned_equal": arm(False),
        "aligned_hypervolume": arm(False, "hypervolume"),
        "aligned_influence": arm(False, "influence", rate=0.02),
        "opposed_quarter": arm(True),
        "opposed_equal": arm(True, first=0.5),
        "opposed_hypervolume": arm(True, "hypervolume"),
        "opposed_influence": arm(True, "influence", rate=0.02),
        "opposed_dual": arm(True, "dual", rate=0.01),
    },
    method="aligned_influence",
    metrics=("least", "first", "weight of first", OFF, TO_90, "steps moved"),
    x="gradient step",
    censored={TO_90: STEPS},
    predictions=(
        *(
            Lower(
                TO_90,
                dynamic,
                than="aligned_equal",
                source="paper",
                where="Abstract: both methods need 'fewer training steps than fixed-weight linear scalarization "
                "baselines'.",
            )
            for dynamic in ("aligned_influence", "aligned_hypervolume")
        ),
        Higher(
            "off",
            "opposed_equal",
            than="opposed_dual",
            source="pilot",
            where="Other keys: the target 1/2 was given up, because equal weights end near it, and the dual's rate was "
            "chosen.",
        ),
    ),
    checks=(
        *(AtMost("least", f"opposed_{name}", 0.05) for name in ("quarter", "hypervolume", "influence")),
        AtMost(OFF, "opposed_dual", 0.1),
    ),
    derived={
        TO_90: partial(updates_to, metric="least", over=1),
        OFF: lambda curves: np.abs(curves["first"][:, -30:] - TARGET).mean(1),
    },
)
