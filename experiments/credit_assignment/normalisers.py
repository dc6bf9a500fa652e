"""What does the normaliser of an advantage do to the gradient? Ten estimators on one bank of questions.

The bank has 64 questions with 5 answers each. A seed draws the right answer's probability p of each question, from 0.02
to 0.98. Each question draws 8 answers; a right one earns 1, a wrong one 0. The policy is a table, so the exact gradient
is known: these arms are computed. A seed is a bank and 64 batches. The arms are the estimators in ESTIMATORS.

  cosine              cosine of a batch's gradient and the exact one
  cosine of easy      the same for the questions with p > 0.8
  gradient norm       norm of a batch's gradient; its curve shifts the right answers' logits by -2 to 2
  norm variation      standard deviation over mean of that curve
  silent groups       share of questions whose advantages are all 0
  wrong and positive  share of wrong answers with a positive advantage
  shift               relative change of the gradient if each question's rewards get a constant of its own

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
SHARES, EASY = (0.02, 0.98), 0.8  # shares of right answers: range, and least of an easy question
QUESTION = jnp.repeat(jnp.arange(QUESTIONS), GROUP)

Estimate = Callable[[jax.Array, jax.Array], jax.Array]  # reward and answer, [questions * GROUP] each -> advantage


def policy(share: jax.Array, drift: jax.Array) -> jax.Array:
    """Probabilities [questions, answers], the right answer first, with probability `share` [questions] before its logit
    is shifted by `drift`."""
    right = jnp.log(share / (1 - share)) + jnp.log(ANSWERS - 1.0) + drift
    return jax.nn.softmax(jnp.zeros((QUESTIONS, ANSWERS)).at[:, 0].set(right))


def gradient(advantage: jax.Array, answer: jax.Array, probability: jax.Array) -> jax.Array:
    """Gradient [questions, answers] of the logits: mean over answers of advantage times grad log-probability."""
    score = jax.nn.one_hot(answer, ANSWERS) - probability[QUESTION]
    return (advantage[:, None] * score).reshape(QUESTIONS, GROUP, ANSWERS).sum(1) / len(answer)


def exact(probability: jax.Array) -> jax.Array:
    """The exact gradient [questions, answers] of the mean share of right answers."""
    right = probability[:, :1]
    return right * (jnp.eye(1, ANSWERS) - probability) / QUESTIONS


def cosine(a: jax.Array, b: jax.Array, where: Any = True) -> jax.Array:
    a, b = (jnp.where(jnp.broadcast_to(where, len(x))[:, None], x, 0) for x in (a, b))
    return (a * b).sum() / jnp.maximum(jnp.linalg.norm(a) * jnp.linalg.norm(b), 1e-30)


def compute_metrics(key: jax.Array, hparams: Mapping[str, jax.Array], *, estimate: Estimate) -> dict[str, jax.Array]:
    """The metrics of one seed."""
    bank, key = jax.random.split(key)
    share = jax.random.uniform(bank, (QUESTIONS,), minval=SHARES[0], maxval=SHARES[1])

    def batch(key: jax.Array, drift: jax.Array) -> dict[str, jax.Array]:
        draw, move = jax.random.split(key)  # BNPO and COPO need binary rewards: `shift` says nothing about them
        probability = policy(share, drift)
        answer = jax.random.categorical(draw, jnp.log(probability)[QUESTION])
        reward = (answer == 0).astype(jnp.float32)
        advantage = estimate(reward, answer)
        estimated, truth = gradient(advantage, answer, probability), exact(probability)
        shifted = estimate(reward + jax.random.normal(move, (QUESTIONS,))[QUESTION], answer)
        other = gradient(shifted, answer, probability)
        wrong = reward == 0
        return {
            "cosine": cosine(estimated, truth),
            "cosine of easy": cosine(estimated, truth, share > EASY),
            "gradient norm": jnp.linalg.norm(estimated),
            "silent groups": (jnp.abs(advantage).reshape(QUESTIONS, GROUP).max(1) == 0).mean(),
            "wrong and positive": ((advantage > 0) & wrong).sum() / jnp.maximum(wrong.sum(), 1),
            "shift": jnp.linalg.norm(other - estimated) / jnp.linalg.norm(estimated),
        }

    keys = jax.random.split(key, BATCHES)
    still = jax.tree.map(jnp.mean, jax.vmap(lambda key: batch(key, jnp.float32(0)))(keys))
    norm = jax.lax.map(lambda drift: jax.vmap(lambda key: batch(key, drift)["gradient norm"])(keys).mean(), DRIFT)
    return still | {"gradient norm": norm, "norm variation": norm.std() / norm.mean()}


def preset(reward: jax.Array, answer: jax.Array, *, estimate: Callable[..., jax.Array], **options: Any) -> jax.Array:
    """Advantages float32 [questions * GROUP] by a preset of `rl.advantages`, for one turn and one seat.

    `answer` is not used: all estimators of this file take it.
    """
    given = reward[:, None, None], jnp.ones((len(reward), 1, 1), bool), QUESTION, QUESTIONS
    return estimate(*given, **options)[:, 0, 0]


def copo(reward: jax.Array, answer: jax.Array, **options: bool) -> jax.Array:
    """COPO's advantages, which depend on the consistency of a question's answers."""
    return preset(reward, answer, estimate=partial(advantages.consistency, answer=answer), **options)


def pairs(reward: jax.Array, answer: jax.Array) -> jax.Array:
    """P3O on policy: half the mean difference between a reward and those of the question's other answers."""
    grouped = reward.reshape(QUESTIONS, GROUP)
    return ((grouped[:, :, None] - grouped[:, None, :]).sum(2) / (GROUP - 1) / 2).ravel()


ESTIMATORS: dict[str, Estimate] = {
    "none": partial(preset, estimate=advantages.reinforce),
    "batch_mean": lambda reward, answer: reward - reward.mean(),
    "rloo": partial(preset, estimate=advantages.rloo),
    "grpo": partial(preset, estimate=advantages.grpo),
    "dr_grpo": partial(preset, estimate=advantages.grpo, scale="none"),
    "lite": partial(preset, estimate=advantages.lite),
    "bnpo": partial(preset, estimate=advantages.beta_normalised),
    "copo_as_released": partial(copo, discount=False, right_only=True),
    "copo": copo,
    "p3o": pairs,
}
STUDY = Study(
    paper=Paper("BNPO (Xiao et al.)", "https://arxiv.org/abs/2506.02864", 2025, checked="release"),
    question="What does the normaliser of an advantage do to the gradient?",
    claim="BNPO's norm is steadier while accuracy drifts; a group's deviation hurts where questions are nearly solved.",
    arms={
        name: Computed(partial(compute_metrics, estimate=estimate), updates=len(DRIFT))
        for name, estimate in ESTIMATORS.items()
    },
    method="bnpo",
    metrics=("cosine", "cosine of easy", "norm variation", "silent groups", "wrong and positive", "gradient norm"),
    predictions=(
        *(
            Lower(
                "norm variation",
                "bnpo",
                than=name,
                source="paper",
                where="Abstract: 'lower-variance gradient estimation' and 'stable training dynamics'; it names "
                "REINFORCE with baseline (here `dr_grpo`) and GRPO.",
            )
            for name in ("grpo", "dr_grpo")
        ),
        Lower(
            "norm variation",
            "bnpo",
            than="none",
            source="theory",
            where="Without a baseline the norm follows the share of right answers, which the drift moves.",
        ),
        Higher(
            "cosine of easy",
            "lite",
            than="grpo",
            source="theory",
            where="A group's deviation gives nearly solved questions more weight than they have in the exact gradient.",
        ),
    ),
    checks=(
        Lower("silent groups", "copo", than="grpo"),
        AtLeast("wrong and positive", "copo_as_released", 0.01),
        AtMost("shift", "p3o", 1e-5),
        AtMost("shift", "rloo", 1e-5),
        AtLeast("shift", "none", 0.01),
    ),
    x="shift of the right answers' logits, in steps of 0.5 from -2",
)
