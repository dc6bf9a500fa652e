"""Does a small change of the reward flip the learned policy? With equally good answers, with and without entropy.

32 questions with 6 answers each; two answers are right and earn 1, the others between 0 and 0.5. Two policies, tables
with the same beginning, are learned by 2,000 exact natural gradient steps of E[reward] + tau H, under the rewards r +
epsilon n and r - epsilon n, n normal for each answer. The curves run over epsilon, from 0.0001 to 0.3.

  tau_0, tau_001, tau_003, tau_01, tau_03   with tau = 0, 0.01, 0.03, 0.1, 0.3
  unique_0                                  one right answer alone, the next earns 0.8; tau = 0
  plain_0                                   as tau_0, by steps of the plain gradient, which slows where it is sure
  mixed_0, mixed_01                         two rewards, each paid for one of the two right answers, weighed 0.5 +-
                                            epsilon and 0.5 -+ epsilon; tau = 0, 0.1

`jump` is the total variation between the two policies, mean over questions; `flips` the share of questions whose most
likely answer differs; `at 0.01` means that epsilon. `shortfall` is the best unperturbed reward, 1 or in
`mixed_` arms 1/2, less the expected one.

  python -m experiments cliff --seeds 10

Paper: The Policy Cliff (Xu) 2025, https://arxiv.org/abs/2507.20150: the map from rewards to optimal policies is
discontinuous where optimal actions are not unique, and continuous with an entropy term.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study

QUESTIONS, ANSWERS, STEPS = 32, 6, 2000
EPSILON = 10 ** jnp.linspace(-4, -0.5, 8)  # the fifth is 0.01
JUMP, FLIPS = "jump at 0.01", "flips at 0.01"


def ascent(logits: jax.Array, reward: jax.Array, tau: jax.Array, plain: bool) -> jax.Array:
    """The gradient of E[reward] + tau H of a softmax over the last axis, or the natural gradient, up to a constant."""
    probability, worth = jax.nn.softmax(logits), reward - tau * jax.nn.log_softmax(logits)
    centred = worth - (probability * worth).sum(-1, keepdims=True)
    return probability * centred if plain else centred


def run_ascent(logits: jax.Array, reward: jax.Array, tau: jax.Array, plain: bool = False) -> jax.Array:
    """The policy after all steps, each of length 1."""
    step = lambda _, logits: logits + ascent(logits, reward, tau, plain)
    return jax.nn.softmax(jax.lax.fori_loop(0, STEPS, step, logits))


def bank(key: jax.Array, unique: bool) -> jax.Array:
    """Rewards [questions, answers]; the first two answers are right, or the first alone."""
    wrong = jax.random.uniform(key, (QUESTIONS, ANSWERS), maxval=0.5)
    return wrong.at[:, 0].set(1.0).at[:, 1].set(0.8 if unique else 1.0)


def compute_metrics(
    key: jax.Array, hparams: Mapping[str, jax.Array], *, unique: bool = False, mixed: bool = False, plain: bool = False
) -> dict[str, jax.Array]:
    """The metrics of one seed."""
    of_bank, of_noise, of_start = jax.random.split(key, 3)
    reward = bank(of_bank, unique)
    noise = jax.random.normal(of_noise, reward.shape)
    if mixed:  # the mean of two rewards, and their difference
        reward = reward.at[:, :2].set(0.5)
        noise = jnp.zeros_like(noise).at[:, 0].set(1.0).at[:, 1].set(-1.0)
    change = EPSILON[:, None, None] * noise[None]
    start = jnp.broadcast_to(0.5 * jax.random.normal(of_start, reward.shape), change.shape)
    one, other = (run_ascent(start, reward[None] + sign * change, hparams["tau"], plain) for sign in (1, -1))
    jump = 0.5 * jnp.abs(one - other).sum(-1).mean(-1)
    flips = (one.argmax(-1) != other.argmax(-1)).mean(-1)
    entropy = -jnp.where(one[0] > 0, one[0] * jnp.log(jnp.maximum(one[0], 1e-30)), 0).sum(-1).mean()
    shortfall = reward.max() - (one[0] * reward).sum(-1).mean()
    at = {JUMP: jump[4], FLIPS: flips[4]}
    return {"jump": jump, "flips": flips, "entropy": entropy, "shortfall": shortfall, **at}


def arm(tau: float, **options: Any) -> Computed:
    return Computed(partial(compute_metrics, **options), {"tau": tau}, updates=len(EPSILON))


STUDY = Study(
    paper=Paper("The Policy Cliff (Xu)", "https://arxiv.org/abs/2507.20150", 2025, checked="abstract"),
    question="Does a small change of the reward flip the learned policy?",
    claim="Where answers tie, a change of a hundredth flips the policy; entropy prevents it at a cost in reward.",
    arms={
        **{f"tau_{name}": arm(tau) for name, tau in {"0": 0, "001": 0.01, "003": 0.03, "01": 0.1, "03": 0.3}.items()},
        "unique_0": arm(0, unique=True),
        "plain_0": arm(0, plain=True),
        "mixed_0": arm(0, mixed=True),
        "mixed_01": arm(0.1, mixed=True),
    },
    method="tau_01",
    metrics=(JUMP, FLIPS, "shortfall", "entropy", "jump"),
    predictions=(
        AtLeast(JUMP, "tau_0", 0.9),
        AtMost(JUMP, "unique_0", 0.02),
        Lower(JUMP, "tau_003", than="tau_0"),
        Lower(JUMP, "tau_01", than="tau_003"),
        Lower(JUMP, "tau_03", than="tau_01"),
        AtMost(JUMP, "tau_01", 0.1),
        Higher("shortfall", "tau_03", than="tau_0"),
        AtLeast(JUMP, "mixed_0", 0.9),
        Lower(JUMP, "mixed_01", than="mixed_0"),
        Lower(JUMP, "plain_0", than="tau_0"),
    ),
)
