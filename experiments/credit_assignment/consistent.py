"""Do groups whose answers agree still teach through a comparison between groups? COPO against filtering them out.

A `Quiz` has 24 questions with ten letters, one of which is right. A policy first imitates a habit: the right letter in
every third question, a wrong one in the others, and another letter once in twenty. So most groups of six answers are all
right or all wrong. A reward minus its group's mean is then 0. Each batch is used for two epochs. The arms:

  grpo              the reward's z-score within its group
  filtered          grpo on groups that are not uniform: the first 16 of 48, so it plays three times as many games
  copo              w A_within + (1 - w) A_between, each clipped apart. A_between is the z-score of R over groups, the
                    same for all answers of a group: R = share right * (1 - H (1 - 1/n) / log2 n). H is the entropy of the
                    group's n answers in bits, w = sigmoid(5 (H - 1))
  copo_as_released  the release's mode "soft-with-zero": R = share right, and w = 0 for wrong answers
  batch_mean        the reward's z-score in the batch, without groups: the control for A_between

  mean success        mean over all updates; `success` is that of the end
  silent              share of groups whose rewards are all equal; `all_wrong` of groups without a right answer
  silent over all     `silent`, mean over all updates
  wrong and positive  share of wrong answers with a positive advantage, mean over all updates

  python -m experiments consistent --seeds 20

Paper: COPO (Han et al.) 2025, https://arxiv.org/abs/2508.04138. There models of 3B and 7B parameters answer questions of
mathematics in groups of six. As in the release: mean over answers, clip 0.2, dual clip 3, no KL. Its run script sets
R = share right; the discount is the paper's. The paper's text could not be read beyond its introduction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import mean_of, mean_per_row
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

GROUPS, KNOWN, LETTERS = 16, 3, 10
MEAN, SILENT, POSITIVE = "mean success", "silent over all", "wrong and positive"


@dataclass(frozen=True)
class Habits(Around):
    """A quiz with a script `habit`: the right letter in every third question, the letter after it in the others."""

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def habit(state: jax.Array, seat: jax.Array, key: jax.Array) -> jax.Array:
            question = self.prompt(state)[0, 0]
            return (question + (question % KNOWN > 0)) % self.actions

        return {**super().scripts, "habit": habit}


def first_informative(reward: jax.Array, group: jax.Array, groups: int, *, kept: int) -> jax.Array:
    """bool [B]: episodes with rewards [B] in the first `kept` groups whose rewards differ. Fewer, if fewer differ."""
    differs = jax.ops.segment_max(reward, group, groups) > jax.ops.segment_min(reward, group, groups)
    return (differs & (jnp.cumsum(differs) <= kept))[group]


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The arm's advantages within and between groups, and the weight of the first."""
    reward, acts, (acted, group, groups) = experience.episodes.total_reward, experience.acts, experience.acts
    parts = partial(advantages.consistency_parts, reward, *acts, answer=experience.episodes.action[:, 0, 0])
    (within, between, weight), (_, level, right_only) = parts(), parts(discount=False, right_only=True)
    none, one = jnp.zeros(acted.shape), jnp.ones(acted.shape)
    local, between, weight = select(
        hparams,
        "signal",
        within=(within, none, one),
        copo=(within, between, weight),
        released=(within, level, right_only),
        batch=(advantages.whiten(reward, acted), none, one),
    )
    total = reward.sum((1, 2))
    informative = first_informative(total, group, groups, kept=GROUPS)[:, None, None]
    share_right = jax.ops.segment_sum(total, group, groups) * groups / len(total)
    return Advantages(
        local,
        extra={"between": between, "weight": weight},
        trained=select(hparams, "groups", all=acted, informative=acted & informative),
        metrics={
            "silent": jnp.mean((share_right == 0) | (share_right == 1)),
            "all_wrong": jnp.mean(share_right == 0),
            "positive": mean_of(weight * local + (1 - weight) * between > 0, acted & (reward == 0)).value,
        },
    )


def arm_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """COPO's blend of two clipped surrogates, in the mean over answers."""
    parts = batch.advantage, batch.extra["between"], batch.extra["weight"]
    return losses.blended_clip(
        scores.logp, batch.behaviour_logp, *parts, batch.mask, dual_clip=3.0, aggregate=mean_per_row
    )


GRPO = Recipe(
    Noisy(Habits(Quiz(((1 / LETTERS,),), questions=24, answers=LETTERS)), (Errs("start", "habit", 0.95),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=arm_loss,
    warm_start=(("start",),),
    warm_start_updates=150,
    hparams={"learning_rate": 1e-3, "entropy": 0.0},
    choices={"signal": ("within", "copo", "released", "batch"), "groups": ("all", "informative")},
    epochs=2,
    updates=90,
    groups=GROUPS,
    group_size=6,
    measure=partial(component_returns, success=0),
)
COPO = GRPO.with_choice(signal="copo")
STUDY = Study(
    paper=Paper("COPO (Han et al.)", "https://arxiv.org/abs/2508.04138", 2025, checked="release"),
    question="Do groups whose answers agree still teach through a comparison between groups?",
    claim="If most groups are uniform, COPO earns more than GRPO and than filtering these groups out.",
    arms={
        "grpo": GRPO,
        "filtered": replace(GRPO.with_choice(groups="informative"), groups=3 * GROUPS),
        "copo": COPO,
        "copo_as_released": GRPO.with_choice(signal="released"),
        "batch_mean": GRPO.with_choice(signal="batch"),
    },
    method="copo",
    metrics=(MEAN, "success", SILENT, "silent", "all_wrong", POSITIVE),
    predictions=(
        Higher(MEAN, "copo", than="grpo", source="paper", where="abstract: substantial gains"),
        Higher(MEAN, "copo", than="filtered", source="paper", where="second-hand"),
        AtLeast(SILENT, "grpo", 0.5, source="theory", where="The level is ours.", condition=True),
        Higher(MEAN, "copo", than="batch_mean", source="theory", where="w keeps the comparison within mixed groups."),
        Higher(POSITIVE, "copo_as_released", than="grpo", source="theory", where="w is 0 for wrong answers."),
    ),
    derived={
        MEAN: partial(mean_over_updates, metric="success"),
        SILENT: partial(mean_over_updates, metric="silent"),
        POSITIVE: partial(mean_over_updates, metric="positive"),
    },
)
