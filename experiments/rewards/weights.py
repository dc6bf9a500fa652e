"""What do reward weights reach that change while a policy learns? Hypervolume, influence and duals, computed exactly.

32 questions with 8 answers; a policy is a table, and each step follows the exact gradient of factor * sum_k w_k E[r_k].

  equal, quarter  weights 1/K each; weights 1/4 and 3/4
  hypervolume     the same weights; factor 0.5 + 1.5 tanh(gain of hypervolume in the step before), from 1
  influence       w_k grows with exp(rate sum_j <g_k, g_j>), g_k the gradient of component k
  dual            w_1 = sigmoid(lambda), w_2 = 1 - w_1, lambda by dual ascent towards E[r_1] = 1/4

In `aligned_` arms K = 3: one answer meets all of three criteria, the others each with chance 0.8, 0.4 and 0.15. In
`opposed_` arms K = 2: one answer is worth (1, 0), one (0, 1) and one (0.4, 0.4), which no fixed weights prefer; the
dynamic ones begin with 1/4 and 3/4. `least` is the least component, `steps to 90%` the first at which it is 0.9, `off`
the distance of E[r_1] from 1/4 over the last 30 steps; `steps moved` adds up the factors.

Predicted, the first from the paper, the rest from the formulas: influence needs fewer steps than equal weights, and the
factor, one for all components, more, as it is near 1/2; opposed, both end in the corner of the fixed weights.

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
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study

QUESTIONS, ANSWERS, STEPS, RATE, BUFFER = 32, 8, 300, 1.0, 8
TARGET, TO_90, OFF = 0.25, "steps to 90%", "off"


def aligned_rewards(key: jax.Array) -> jax.Array:
    """Rewards [questions, answers, 3]."""
    chance = jnp.broadcast_to(jnp.array([0.8, 0.4, 0.15]), (QUESTIONS, ANSWERS, 3))
    return jax.random.bernoulli(key, chance).astype(jnp.float32).at[:, 0].set(1.0)


def opposed_rewards(key: jax.Array) -> jax.Array:
    """Rewards [questions, answers, 2]."""
    one = jnp.zeros((ANSWERS, 2)).at[:3].set(jnp.array([[1, 0], [0, 1], [0.4, 0.4]]))
    return jnp.broadcast_to(one, (QUESTIONS, ANSWERS, 2))


def values(logits: jax.Array, reward: jax.Array) -> jax.Array:  # E[r_k], the mean over questions, [K]
    return (jax.nn.softmax(logits)[..., None] * reward).sum(1).mean(0)


def gradients(logits: jax.Array, reward: jax.Array) -> jax.Array:
    """Of each component, summed over questions instead of averaged, [K, questions, answers]."""
    probability = jax.nn.softmax(logits)[..., None]
    return jnp.moveaxis(probability * (reward - (probability * reward).sum(1, keepdims=True)), -1, 0)


def compute_metrics(
    key: jax.Array, hparams: Mapping[str, jax.Array], *, opposes: bool, by: str = ""
) -> dict[str, jax.Array]:
    """The metrics of one seed."""
    of_bank, of_start = jax.random.split(key)
    reward = opposed_rewards(of_bank) if opposes else aligned_rewards(of_bank)
    k = reward.shape[-1]
    weights = jnp.stack([hparams["first"], 1 - hparams["first"]]) if opposes else jnp.full(k, 1 / k)
    start = 0.5 * jax.random.normal(of_start, reward.shape[:2])
    reference = values(start, reward)

    def step(carry: tuple, _: None) -> tuple[tuple, dict[str, jax.Array]]:
        logits, weights, factor, raw, buffer = carry
        reached, each = values(logits, reward), gradients(logits, reward)
        if by == "influence":
            weights = multipliers.influence_weights(weights, each.reshape(k, -1), hparams["rate"])
        if by == "dual":
            first = multipliers.at_least_weights(raw)[0]
            weights, raw = (
                jnp.stack([first, 1 - first]),
                multipliers.dual_ascent(raw, reached[:1], jnp.array([TARGET]), hparams["rate"]),
            )
        logits += RATE * factor * (weights[:, None, None] * each).sum(0)
        found = {"least": reached.min(), "first": reached[0], "weight of first": weights[0], "factor": factor}
        if by == "hypervolume":
            gain, buffer = multipliers.hypervolume_gain(buffer, reached, reference)
            factor = multipliers.meta_reward(gain)
        return (logits, weights, factor, raw, buffer), found

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
    predictions=(
        Lower(TO_90, "aligned_influence", than="aligned_equal"),
        Higher(TO_90, "aligned_hypervolume", than="aligned_equal"),
        AtMost("least", "opposed_quarter", 0.05),
        AtMost("least", "opposed_hypervolume", 0.05),
        AtMost("least", "opposed_influence", 0.05),
        Higher("off", "opposed_equal", than="opposed_dual"),
        AtMost("off", "opposed_dual", 0.1),
        AtLeast("least", "opposed_dual", 0.1),
    ),
    derived={
        TO_90: partial(updates_to, metric="least", over=1),
        OFF: lambda curves: np.abs(curves["first"][:, -30:] - TARGET).mean(1),
    },
)
