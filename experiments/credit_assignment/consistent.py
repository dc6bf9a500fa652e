"""Do groups whose answers agree still teach through a comparison between groups? COPO against filtering them out.

A `Quiz` has 24 questions with ten letters, one of which is right. A policy first imitates a habit, the right letter in
every third question and a wrong one in the others. Once in ten it says any other letter. So most groups of six answers
are all right or all wrong, and rewards minus their group's mean are 0. Each batch is used for two epochs.

  grpo              z-score of the reward within its group
  filtered          grpo on the first 16 groups that are not uniform, or all of them, among 48: three times the games
  copo              w A_within + (1 - w) A_between, each clipped apart. A_between is the z-score over groups of
                    R = share right * (1 - H (1 - 1/n) / log2 n), with H the entropy of the group's n answers in bits,
                    and w = sigmoid(5 (H - 1))
  copo_as_released  the release's mode "soft-with-zero": R = share right, and w = 0 for wrong answers
  batch_mean        z-score of the reward in the batch, without groups: the control for A_between

  mean success        mean over all updates; `success` is that of the end
  silent over all     mean over all updates of `silent`, the share of groups whose rewards are all equal
  all_wrong           share of groups without a right answer
  wrong and positive  share of wrong answers with a positive advantage, mean over all updates

  python -m experiments consistent --seeds 20

Paper: COPO (Han et al.) 2025, https://arxiv.org/abs/2508.04138. There models of 3B and 7B parameters answer
mathematics in groups of six. As in the release: mean over answers, clip 0.2, dual clip 3, no KL. The release's script
sets R = share right; the discount is the paper's. Read were the release, the abstract and reviews.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import mean_of, mean_per_row
from jaxmarl_llm.rl.statistics import first_informative
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

GROUPS, LETTERS, KNOWN = 16, 10, 3
MEAN, SILENT, POSITIVE = "mean success", "silent over all", "wrong and positive"
OVER_ALL = {MEAN: "success", SILENT: "silent", POSITIVE: "positive"}


@dataclass(frozen=True)
class Habits(Around):
    """A quiz with a script `habit`: the right letter in every third question, the letter after it in the others."""

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def habit(state: Any, seat: jax.Array, key: jax.Array) -> jax.Array:
            return (state.question + (state.question % KNOWN > 0)) % self.actions

        return {**super().scripts, "habit": habit}


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The arm's advantages within and between groups, and the weight of the first."""
    reward, (acted, group, groups) = experience.episodes.total_reward, experience.acts
    parts = partial(
        advantages.consistency_parts, reward, acted, group, groups, answer=experience.episodes.action[:, 0, 0]
    )
    within, level, weight = parts()
    none, whole = jnp.zeros(acted.shape), jnp.ones(acted.shape)
    signals = {"within": (within, none, whole), "copo": (within, level, weight)}
    signals["released"] = parts(discount=False, right_only=True)
    signals["batch"] = advantages.whiten(reward, acted), none, whole
    local, between, weight = select(hparams, "signal", **signals)
    kept, unlike = (first_informative(reward, acted, group, groups, kept=n) for n in (GROUPS, groups))
    positive = mean_of(weight * local + (1 - weight) * between > 0, acted & (reward == 0)).value
    all_wrong = 1 - jax.ops.segment_max(reward.sum((1, 2)), group, groups).mean()
    return Advantages(
        local,
        extra={"between": between, "weight": weight},
        trained=select(hparams, "groups", all=acted, informative=kept),
        metrics={"silent": 1 - unlike.mean(), "all_wrong": all_wrong, "positive": positive},
    )


def blended_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """The blend of two clipped surrogates, in the mean over answers."""
    parts = batch.advantage, batch.extra["between"], batch.extra["weight"], batch.mask
    return losses.blended_clip(scores.logp, batch.behaviour_logp, *parts, dual_clip=3.0, aggregate=mean_per_row)


GRPO = Recipe(
    Noisy(Habits(Quiz(((1 / LETTERS,),), questions=24, answers=LETTERS)), (Errs("start", "habit", 0.9),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=blended_loss,
    warm_start=(("start",),),
    warm_start_updates=150,
    hparams={"learning_rate": 2e-3, "entropy": 0.0},
    choices={"signal": ("within", "copo", "released", "batch"), "groups": ("all", "informative")},
    epochs=2,
    updates=90,
    groups=GROUPS,
    group_size=6,
    measure=partial(component_returns, success=0),
)
FILTERED = replace(GRPO.with_choice(groups="informative"), groups=3 * GROUPS)
SIGNALS = {"copo": "copo", "copo_as_released": "released", "batch_mean": "batch"}
GAINS = 'abstract: "substantial performance gains on multiple mathematical reasoning benchmarks"; MATH-500 against '
BASELINE = "Where answers differ, w is near 1, and a group's own mean is the better baseline."
UNIFORM = "In the paper 59.9% of groups were uniform (3B; second-hand, a review). The level is ours."
STUDY = Study(
    paper=Paper("COPO (Han et al.)", "https://arxiv.org/abs/2508.04138", 2025, checked="release"),
    question="Do groups whose answers agree still teach through a comparison between groups?",
    claim="If most groups are uniform, COPO earns more than GRPO, and than GRPO without these groups.",
    arms={"grpo": GRPO, "filtered": FILTERED} | {name: GRPO.with_choice(signal=x) for name, x in SIGNALS.items()},
    method="copo",
    metrics=(MEAN, "success", SILENT, "all_wrong", POSITIVE),
    predictions=(
        Higher(MEAN, "copo", than="grpo", source="paper", where=f"{GAINS}GRPO: +2.2 (7B), +4.6 (3B), second-hand"),
        Higher(MEAN, "copo", than="filtered", source="paper", where=f"{GAINS}DAPO: second-hand, of a review"),
        Higher(MEAN, "copo", than="batch_mean", source="theory", where=BASELINE),
        AtLeast(SILENT, "grpo", 0.5, source="theory", where=UNIFORM, condition=True),
    ),
    checks=(Higher(POSITIVE, "copo_as_released", than="copo"),),
    derived={name: partial(mean_over_updates, metric=metric) for name, metric in OVER_ALL.items()},
)
