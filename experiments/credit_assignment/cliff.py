"""Does a small change of the reward flip the learned policy, with and without an entropy bonus?

A seed has 32 questions with 6 answers each. Two answers are right and earn 1; the others earn between 0 and 0.5. Two
tabular policies start from the same logits. One learns under the rewards r + epsilon n, the other under r - epsilon n,
with n normal for each answer. Both take 2,000 exact natural-gradient steps on E[reward] + tau H, with H the policy's
entropy. The curves run over epsilon, from 0.0001 to 0.3.

  tau_0, tau_001, tau_003, tau_01, tau_03   tau = 0, 0.01, 0.03, 0.1, 0.3
  unique_0                                  one right answer; the next best earns 0.8; tau = 0
  plain_0                                   as tau_0, with the plain gradient, which is small for a confident policy
  mixed_0, mixed_01                         two rewards, each paid for one of the two right answers; their weights are
                                            0.5 + epsilon and 0.5 - epsilon, or the reverse; tau = 0, 0.1

Metrics:

  jump         total variation distance between the two policies, mean over questions
  flips        share of questions whose most likely answer differs between the two policies
  ... at 0.01  the metric at epsilon = 0.01
  shortfall    best unperturbed reward (1, or 1/2 in `mixed_` arms) minus the expected one, at the smallest epsilon
  entropy      entropy of the policy in nats, at the smallest epsilon

  python -m experiments cliff --seeds 10

Paper: The Policy Cliff (Xu) 2025, https://arxiv.org/abs/2507.20150. It says that the map from rewards to optimal
policies is discontinuous if optimal actions are not unique, and continuous with an entropy term.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, Paper, Study

QUESTIONS, ANSWERS, STEPS = 32, 6, 2000
EPSILON = 10 ** jnp.linspace(-4, -0.5, 8)  # the fifth is 0.01
JUMP, FLIPS = "jump at 0.01", "flips at 0.01"


def ascent(logits: jax.Array, reward: jax.Array, tau: jax.Array, plain: bool) -> jax.Array:
    """The natural gradient of E[reward] + tau H of a softmax over the last axis, up to a constant.

    With `plain` it is the gradient itself."""
    probability, worth = jax.nn.softmax(logits), reward - tau * jax.nn.log_softmax(logits)
    centred = worth - (probability * worth).sum(-1, keepdims=True)
    return probability * centred if plain else centred


def run_ascent(logits: jax.Array, reward: jax.Array, tau: jax.Array, plain: bool = False) -> jax.Array:
    """The policy after STEPS steps with learning rate 1."""
    step = lambda _, logits: logits + ascent(logits, reward, tau, plain)
    return jax.nn.softmax(jax.lax.fori_loop(0, STEPS, step, logits))


def bank(key: jax.Array, unique: bool) -> jax.Array:
    """Rewards [questions, answers]. The first two answers are right; with `unique`, the first alone."""
    wrong = jax.random.uniform(key, (QUESTIONS, ANSWERS), maxval=0.5)
    return wrong.at[:, 0].set(1.0).at[:, 1].set(0.8 if unique else 1.0)


def compute_metrics(
    key: jax.Array, hparams: Mapping[str, jax.Array], *, unique: bool = False, mixed: bool = False, plain: bool = False
) -> dict[str, jax.Array]:
    """The metrics of one seed."""
    bank_key, noise_key, start_key = jax.random.split(key, 3)
    reward = bank(bank_key, unique)
    noise = jax.random.normal(noise_key, reward.shape)
    if mixed:  # mean and difference of the two rewards
        reward = reward.at[:, :2].set(0.5)
        noise = jnp.zeros_like(noise).at[:, 0].set(1.0).at[:, 1].set(-1.0)
    change = EPSILON[:, None, None] * noise[None]
    start = jnp.broadcast_to(0.5 * jax.random.normal(start_key, reward.shape), change.shape)
    plus, minus = (run_ascent(start, reward[None] + sign * change, hparams["tau"], plain) for sign in (1, -1))
    jump = 0.5 * jnp.abs(plus - minus).sum(-1).mean(-1)
    flips = (plus.argmax(-1) != minus.argmax(-1)).mean(-1)
    entropy = -jnp.where(plus[0] > 0, plus[0] * jnp.log(jnp.maximum(plus[0], 1e-30)), 0).sum(-1).mean()
    shortfall = reward.max() - (plus[0] * reward).sum(-1).mean()
    at = {JUMP: jump[4], FLIPS: flips[4]}
    return {"jump": jump, "flips": flips, "entropy": entropy, "shortfall": shortfall, **at}


def arm(tau: float, **options: Any) -> Computed:
    """An arm of weight `tau`; the options are those of `compute_metrics`."""
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
        Lower(
            JUMP,
            "plain_0",
            than="tau_0",
            source="pilot",
            where="Seeds 100 to 102, 4,000 steps: with the plain gradient the policies at tau 0 moved 0.33 apart only.",
        ),
    ),
    checks=(
        Higher(JUMP, "tau_0", than="unique_0"),
        AtMost(JUMP, "unique_0", 0.02),
        Lower(JUMP, "tau_003", than="tau_0"),
        Lower(JUMP, "tau_01", than="tau_003"),
        Lower(JUMP, "tau_03", than="tau_01"),
        AtMost(JUMP, "tau_01", 0.1),
        Higher("shortfall", "tau_03", than="tau_0"),
        Higher(JUMP, "mixed_0", than="mixed_01"),
    ),
    x="half decade of epsilon, from 0.0001",
)
