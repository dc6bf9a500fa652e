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

Predictions: GDPO reaches half of the third points in fewer updates than both plain sums. The gated form needs fewer
than GDPO and than the weighted sum. In the end GDPO earns more third points than GRPO, and more first points than Dr.
GRPO. GDPO has a larger slip than GRPO. Checks: GDPO has more distinct advantages than GRPO, and ends with 90% of the
first and third points.

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
    censored={HALF: BASE.updates},
    predictions=(
        Lower(
            HALF,
            "gdpo/sample",
            than="sum/grpo",
            source="paper",
            where="Section 4.1, Figure 4: 'faster early-stage improvement' of the correctness reward. Seeds 100 to 102 "
            "showed this order (62.7 against 64.7).",
        ),
        Lower(
            HALF,
            "gdpo/sample",
            than="sum/dr_grpo",
            source="pilot",
            where="Seeds 100 to 102: 62.7 against 63.7. Section 4.1.1 calls both similar on correctness.",
        ),
        Lower(
            HALF,
            "gdpo/gated",
            than="gdpo/sample",
            source="paper",
            where="Section 3.2: conditioned rewards force the model 'to always maximize the human-prioritized reward "
            "first'.",
        ),
        Lower(
            HALF,
            "gdpo/gated",
            than="sum/weighted",
            source="paper",
            where="Section 3.2: conditioned rewards put the prioritised reward first, more than larger weights do.",
        ),
        Higher(
            "third",
            "gdpo/sample",
            than="sum/grpo",
            source="paper",
            where="Section 4.1, Figure 4 and Table 1: the correctness reward ends above GRPO's (32.81 against 30.18).",
        ),
        Higher(
            "first",
            "gdpo/sample",
            than="sum/dr_grpo",
            source="paper",
            where="Section 4.1.1, Table 2: without the standard deviation the easy format reward ends at 0%, with GDPO "
            "at 80.66%.",
        ),
        Higher(
            SLIP,
            "gdpo/sample",
            than="sum/grpo",
            source="theory",
            where="A point missed with rate e has the deviation sqrt(e (1 - e)), so a miss weighs about 1 / sqrt(e).",
        ),
    ),
    checks=(
        Higher(DISTINCT, "gdpo/sample", than="sum/grpo"),
        AtLeast("first", "gdpo/sample", 0.9),
        AtLeast("third", "gdpo/sample", 0.9),
    ),
    derived={HALF: partial(updates_to, metric="third", bound=0.5), DISTINCT: distinct, SLIP: slip},
)
