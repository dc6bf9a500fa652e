"""Do written rubrics help a judge, and which should it follow? C2's writer and critical verifier on pairs of answers.

There are 12 kinds of questions. For each kind one of four criteria decides which of two answers is better, and another
criterion misleads (`Advised`). A writer names a criterion as the rubric, and a verifier judges without it. A critic
reads kind and rubric, and either trusts the rubric or leaves the verdict to the verifier.

All policies start by imitation. The writer knows 5 of the 12 kinds and names the misleading criterion for the rest; the
verifier knows another draw of 5 and guesses the rest. The critic knows for 5 kinds which criterion decides, and tosses
a coin for the rest. All learn by GRPO from preferences. The verifier is rewarded for being right; writer and critic for
the gain of a followed rubric over the verifier's verdict.

  alone        the verdict is the verifier's
  unfiltered   the verdict is the rubric's; the writer is a script and does not learn
  critical     the same writer; the critic chooses between rubric and verifier
  cooperative  the verdict is the rubric's; the writer learns
  c2           the writer learns and the critic chooses

`judgement` is the share of right verdicts, and `early judgement` the same in the first ten updates. Predictions:
judgement ends higher with c2 and with critical than with alone. It ends lower with unfiltered than with alone (the
condition). Early judgement, while the writer still misleads, is higher with c2 than with cooperative. Checks:
judgement ends higher with c2 and with critical than with unfiltered.

  python -m experiments critical_verifier --seeds 20

Paper: C2 (Kawabata and Sugawara) 2026, https://arxiv.org/abs/2604.13618. There rubrics are in words. Pairs of a helpful
and a misleading one are made first, and then the writer trains on them by DPO, the verifier by GRPO. In the release the
verifier is also the critic: it reads the answers and is paid in part for telling helpful from misleading rubrics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxmarl_llm.environments.teams.advised import CRITIC, VERIFIER, WRITER, Advised
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

EARLY, JUDGES = "early judgement", ("critic", "verifier", "rubric")


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GRPO on each seat's points; as a metric, the judgement of the arm's judge."""
    episodes = experience.episodes
    alone, facts = episodes.reward[:, -1, VERIFIER, 0].mean(), episodes.measured[:, -1].mean(0)
    judgements = {"verifier": alone, "rubric": facts[WRITER, 0], "critic": facts[CRITIC, 1]}
    metrics = {
        "judgement": select(hparams, "judge", **judgements),
        "verifier": judgements["verifier"],
        "rubric": judgements["rubric"],
    }
    return Advantages(
        advantages.grpo(episodes.total_reward, *experience.learning_acts, per_agent=True), metrics=metrics
    )


def early(curves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean judgement of the first ten updates, [seeds]."""
    return curves["judgement"][:, :10].mean(1)


C2 = Recipe(
    Advised(),
    seats=(("writer", "verifier", "critic"),),
    advantage=estimate_advantages,
    choices={"judge": JUDGES},
    warm_start=(("half",) * 3,),
    warm_start_updates=300,
    budget=1,
    updates=80,
    pretrained={"budget": 4},
)
FIXED = dataclasses.replace(C2, seats=(("half", "verifier", "critic"),))
STUDY = Study(
    paper=Paper("C2 (Kawabata and Sugawara)", "https://arxiv.org/abs/2604.13618", 2026, checked="release"),
    question="Do written rubrics help a judge, and which should it follow?",
    claim="A writer and a critic who follows only rubrics it trusts judge better than a verifier alone; unfiltered "
    "rubrics hurt.",
    arms={
        "alone": FIXED.with_choice(judge="verifier"),
        "unfiltered": FIXED.with_choice(judge="rubric"),
        "critical": FIXED,
        "cooperative": C2.with_choice(judge="rubric"),
        "c2": C2,
    },
    method="c2",
    metrics=("judgement", EARLY, "verifier", "rubric"),
    predictions=(
        Lower(
            "judgement",
            "unfiltered",
            than="alone",
            source="theory",
            where="The script misleads in 7 of 12 kinds and is right in 5/12 + 7/12 x 1/4 = 0.56; the verifier learns.",
            condition=True,
        ),
        Higher(
            "judgement",
            "c2",
            than="alone",
            source="paper",
            where="Abstract: C2 'outperforms reasoning reward models trained on the same binary preferences', by up to "
            "6.5 points on RM-Bench.",
        ),
        Higher(
            "judgement",
            "critical",
            than="alone",
            source="theory",
            where="The writer knows other kinds than the verifier, and the critic may follow the writer on these.",
        ),
        Higher(
            EARLY,
            "c2",
            than="cooperative",
            source="theory",
            where="The writer still misleads in the first ten updates; a critic can leave the verdict to the verifier.",
        ),
    ),
    checks=tuple(Higher("judgement", arm, than="unfiltered") for arm in ("c2", "critical")),
    derived={EARLY: early},
)
