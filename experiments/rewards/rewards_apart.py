"""Three rewards of very different difficulty: summed, or each normalised by itself? GDPO, its variants, plain sums.

A question of `Quiz` has 20 letters: 90% of them earn the first point, 50% the second and 10% the third. One letter
earns all three. Up to three idle words make answers differ in length. Eight answers to a question are compared:

  sum/grpo      GRPO on the sum of the points
  sum/dr_grpo   the same without the standard deviation
  sum/weighted  GRPO on a sum with three times the third point
  gdpo/sample   each point normalised in its group, then summed and whitened over the samples (TRL's release)
  gdpo/token    the same whitened over the tokens (verl's release)
  gdpo/gated    as gdpo/sample, but the first two points count only together with the third

Metrics:

  updates to half  updates until half of the answers earn the third point
  distinct         number of different advantages in a group, mean over the first 20 updates
  slip             mean size of the advantage of an answer without the first point, over all updates

Predictions: GDPO reaches half of the third points in fewer updates than both plain sums, and the gated form in fewer
still. GDPO has more distinct advantages and a larger slip than GRPO. In the end no point is lost.

  python -m experiments rewards_apart --seeds 10

Paper: GDPO (Liu et al.) 2026, https://arxiv.org/abs/2601.05242
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.rewards import condition_on
from jaxmarl_llm.studies.curves import updates_to
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

GAME = Quiz(filler=3)
ARMS = ("sum/grpo", "sum/dr_grpo", "sum/weighted", "gdpo/sample", "gdpo/token", "gdpo/gated")
HALF, DISTINCT, SLIP = "updates to half", "distinct", "slip"


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The arm's advantages; as metrics, their distinct values and their size for answers without the first point."""
    reward, acts = experience.episodes.reward, experience.acts
    ((name, sampled),) = experience.sampled.items()
    tokens = jnp.zeros(acts[0].shape).at[experience.rows[name].episode, 0, 0].set(sampled.mask.sum(1))
    equal = jnp.ones(3)
    apart = partial(advantages.decoupled_grpo, weights=equal)
    estimates = {
        "sum/grpo": advantages.grpo(reward.sum(-1), *acts),
        "sum/dr_grpo": advantages.grpo(reward.sum(-1), *acts, scale="none"),
        "sum/weighted": advantages.grpo(reward @ jnp.array([1.0, 1.0, 3.0]), *acts),
        "gdpo/sample": apart(reward, *acts),
        "gdpo/token": apart(reward, *acts, tokens=tokens),
        "gdpo/gated": apart(condition_on(reward, on=2), *acts),
    }
    advantage = select(hparams, "advantage", **estimates)
    grouped = jnp.sort(advantage.reshape(experience.groups, -1), 1)
    missed = reward[..., 0] == 0
    metrics = {
        "different": 1 + (jnp.diff(grouped, axis=1) > 1e-4).sum(1).mean(),
        "size": (jnp.abs(advantage) * missed).sum(),
        "missed": missed.sum().astype(jnp.float32),
    }
    return Advantages(advantage, metrics=metrics)


def distinct(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean number of different advantages in a group in the first 20 updates, [seeds]."""
    return curves["different"][:, :20].mean(1)


def slip(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean size of the advantages of answers without the first point, [seeds]."""
    return curves["size"].sum(1) / np.maximum(curves["missed"].sum(1), 1)


BASE = Recipe(
    GAME,
    seats=(("learner",),),
    advantage=estimate_advantages,
    tokenizer=Quiz.letter_tokenizer,
    hparams={"learning_rate": 4e-3, "entropy": 0.0},
    choices={"advantage": ARMS},
    updates=90,
    groups=16,
    group_size=8,
    measure=partial(component_returns, first=0, second=1, third=2),
)
STUDY = Study(
    paper=Paper("GDPO (Liu et al.)", "https://arxiv.org/abs/2601.05242", 2026, checked="release"),
    question="Three rewards of very different difficulty: added up, or each normalised apart?",
    claim="Normalised apart, the rare reward is learnt in fewer updates, and in the end none is lost.",
    arms={name: BASE.with_choice(advantage=name) for name in ARMS},
    method="gdpo/sample",
    metrics=(HALF, "first", "second", "third", DISTINCT, SLIP),
    predictions=(
        Lower(HALF, "gdpo/sample", than="sum/grpo"),
        Lower(HALF, "gdpo/sample", than="sum/dr_grpo"),
        Lower(HALF, "gdpo/gated", than="gdpo/sample"),
        Higher(DISTINCT, "gdpo/sample", than="sum/grpo"),
        Higher(SLIP, "gdpo/sample", than="sum/grpo"),
        AtLeast("first", "gdpo/sample", 0.9),
        AtLeast("third", "gdpo/sample", 0.9),
    ),
    derived={HALF: partial(updates_to, metric="third", bound=0.5), DISTINCT: distinct, SLIP: slip},
)
