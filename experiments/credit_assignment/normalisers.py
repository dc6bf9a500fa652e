"""What does an advantage's normaliser do to the gradient? Ten of them on one bank of questions, against the exact one.

64 questions with 5 answers each, right with probability p from 0.02 to 0.98; 8 answers a question are drawn and paid 1
if right, else 0. The policy is a table, so that the exact gradient is known: these arms are computed. A seed is 64
batches. `cosine` is that of a batch's gradient and the exact one, of all questions or those with p > 0.8; `gradient
norm` has a curve, along which the right answers' logits drift by -2 to 2, and `norm variation` is its deviation over
its mean; nothing is learnt from `silent groups`; `shift` is the relative change of the gradient if each question's
reward is shifted by a number of its own.

  python -m experiments normalisers --seeds 10

Papers: BNPO (Xiao et al.) 2025, https://arxiv.org/abs/2506.02864; Lite PPO, https://arxiv.org/abs/2508.08221; COPO,
https://arxiv.org/abs/2508.04138; P3O, https://arxiv.org/abs/2310.00212; GRPO, https://arxiv.org/abs/2402.03300.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.study import AtLeast, AtMost, Higher, Lower, Paper, Study

QUESTIONS, ANSWERS, GROUP, BATCHES = 64, 5, 8, 64
DRIFT = jnp.linspace(-2, 2, 9)
SHARE = jnp.linspace(0.02, 0.98, QUESTIONS)
EASY = SHARE > 0.8
QUESTION = jnp.repeat(jnp.arange(QUESTIONS), GROUP)

Estimate = Callable[[jax.Array, jax.Array], jax.Array]  # reward and answer, [questions * GROUP] each -> advantage


def policy(drift: jax.Array) -> jax.Array:
    """[questions, answers], the right answer first."""
    right = jnp.log(SHARE / (1 - SHARE)) + jnp.log(ANSWERS - 1.0) + drift
    return jax.nn.softmax(jnp.zeros((QUESTIONS, ANSWERS)).at[:, 0].set(right))


def gradient(advantage: jax.Array, answer: jax.Array, probability: jax.Array) -> jax.Array:
    """Of the logits [questions, answers]: the mean of advantage times the gradient of the log-probability."""
    score = jax.nn.one_hot(answer, ANSWERS) - probability[QUESTION]
    return (advantage[:, None] * score).reshape(QUESTIONS, GROUP, ANSWERS).sum(1) / len(answer)


def exact(probability: jax.Array) -> jax.Array:
    """The gradient of the mean share of right answers."""
    right = probability[:, :1]
    return right * (jnp.eye(1, ANSWERS) - probability) / QUESTIONS


def cosine(a: jax.Array, b: jax.Array, where: Any = True) -> jax.Array:
    a, b = (jnp.where(jnp.broadcast_to(where, len(x))[:, None], x, 0) for x in (a, b))
    return (a * b).sum() / jnp.maximum(jnp.linalg.norm(a) * jnp.linalg.norm(b), 1e-30)


def compute_metrics(key: jax.Array, hparams: Mapping[str, jax.Array], *, of: Estimate) -> dict[str, jax.Array]:
    """The metrics of one seed."""

    def batch(key: jax.Array, drift: jax.Array) -> dict[str, jax.Array]:
        draw, move = jax.random.split(key)  # a shift of a binary reward is none: of BNPO and COPO it says nothing
        probability = policy(drift)
        answer = jax.random.categorical(draw, jnp.log(probability)[QUESTION])
        reward = (answer == 0).astype(jnp.float32)
        advantage = of(reward, answer)
        found, truth = gradient(advantage, answer, probability), exact(probability)
        moved = of(reward + jax.random.normal(move, (QUESTIONS,))[QUESTION], answer)
        other = gradient(moved, answer, probability)
        wrong = reward == 0
        return {
            "cosine": cosine(found, truth),
            "cosine of easy": cosine(found, truth, EASY),
            "gradient norm": jnp.linalg.norm(found),
            "silent groups": (jnp.abs(advantage).reshape(QUESTIONS, GROUP).max(1) == 0).mean(),
            "wrong and positive": ((advantage > 0) & wrong).sum() / jnp.maximum(wrong.sum(), 1),
            "shift": jnp.linalg.norm(other - found) / jnp.linalg.norm(found),
        }

    keys = jax.random.split(key, BATCHES)
    still = jax.tree.map(jnp.mean, jax.vmap(lambda key: batch(key, jnp.float32(0)))(keys))
    norm = jax.lax.map(lambda drift: jax.vmap(lambda key: batch(key, drift)["gradient norm"])(keys).mean(), DRIFT)
    return still | {"gradient norm": norm, "norm variation": norm.std() / norm.mean()}


def preset(reward: jax.Array, answer: jax.Array, *, of: Callable[..., jax.Array], **options: Any) -> jax.Array:
    """An estimator of `rl.advantages`, of one turn and one seat."""
    given = reward[:, None, None], jnp.ones((len(reward), 1, 1), bool), QUESTION, QUESTIONS
    return of(*given, **options)[:, 0, 0]


def copo(reward: jax.Array, answer: jax.Array, **options: bool) -> jax.Array:
    return preset(reward, answer, of=partial(advantages.consistency, answer=answer), **options)


def pairs(reward: jax.Array, answer: jax.Array) -> jax.Array:
    """P3O while the policy is the one that sampled: half the mean difference to the other answers of the question."""
    own = reward.reshape(QUESTIONS, GROUP)
    return ((own[:, :, None] - own[:, None, :]).sum(2) / (GROUP - 1) / 2).ravel()


ESTIMATORS: dict[str, Estimate] = {
    "none": partial(preset, of=advantages.reinforce),
    "batch_mean": lambda reward, answer: reward - reward.mean(),
    "rloo": partial(preset, of=advantages.rloo),
    "grpo": partial(preset, of=advantages.grpo),
    "dr_grpo": partial(preset, of=advantages.grpo, scale="none"),
    "lite": partial(preset, of=advantages.lite),
    "bnpo": partial(preset, of=advantages.beta_normalised),
    "copo_as_released": partial(copo, discount=False, right_only=True),
    "copo": copo,
    "p3o": pairs,
}
STUDY = Study(
    paper=Paper("BNPO (Xiao et al.)", "https://arxiv.org/abs/2506.02864", 2025, checked="release"),
    question="What does the normaliser of an advantage do to the gradient?",
    claim="BNPO's norm is steadier while accuracy drifts; a group's deviation hurts where questions are nearly solved.",
    arms={name: Computed(partial(compute_metrics, of=of), updates=len(DRIFT)) for name, of in ESTIMATORS.items()},
    method="bnpo",
    metrics=("cosine", "cosine of easy", "norm variation", "silent groups", "wrong and positive", "gradient norm"),
    predictions=(
        Higher("cosine of easy", "lite", than="grpo"),
        Lower("norm variation", "bnpo", than="grpo"),
        Lower("norm variation", "bnpo", than="none"),
        Lower("silent groups", "copo", than="grpo"),
        AtLeast("wrong and positive", "copo_as_released", 0.01),
        AtMost("shift", "p3o", 1e-5),
        AtMost("shift", "rloo", 1e-5),
        AtLeast("shift", "none", 0.01),
    ),
)
