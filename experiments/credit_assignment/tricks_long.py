"""Does Lite PPO learn faster than GRPO and DAPO where answers have a right length?

A question of `Quiz` has one point. The share of its 20 letters that earn it is 10, 30, 50, 70 or 100%. An answer is a
letter, up to 14 idle words and a stop, a token each. Such questions ask for 11, 11, 6, 1 and 1 words; with over four
more or fewer an answer earns nothing. So hard questions need long answers, and in the first bank wrong answers are
longer. Each batch is used for two epochs. Two banks have the same questions and differ in the script imitated first:

  ...       any letter and words that the question takes; with probability 0.3 any other answer: 0.09 to 0.82 are right
  easy/...  the best answer; with probability 0.08 any other answer: 0.92 to 0.95 are right

An arm is an advantage and a mean of the clipped loss. The advantage is the reward minus its group's mean:

  grpo     over the group's standard deviation
  lite     over the batch's standard deviation
  dr_grpo  over nothing; the loss is each answer's sum over a constant length of 16
  dapo     as grpo/token, with an upper clip of 0.28, on groups that are not uniform: the first 10 of 20

  token, row  over all tokens, or over each answer's and then over answers; Lite PPO is lite/token, GRPO grpo/row

  mean success  mean over all updates; `success` is that of the end, `start` of the first update
  wrong longer  tokens of wrong answers less those of right ones, mean over all updates

  python -m experiments tricks_long --seeds 20

Paper: Liu et al. 2025, Tricks or Traps? (Lite PPO), https://arxiv.org/abs/2508.08221, third version. There Qwen3 models
of 4B and 8B answer in up to 8,192 tokens. Here DAPO has no penalty for overlong answers, and GRPO none on the KL.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import mean_of, mean_per_row, sum_per_row
from jaxmarl_llm.rl.statistics import first_informative
from jaxmarl_llm.studies.curves import at_first, mean_over_updates
from jaxmarl_llm.studies.study import AtLeast, Higher, Paper, Study
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Experience

MEAN, LONGER, START, LONGEST, GROUPS, LETTERS = "mean success", "wrong longer", "start", 16, 10, 20


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The arm's advantages, for all groups or for the first that are not uniform."""
    reward, (acted, group, groups) = experience.episodes.total_reward, experience.acts
    kept, unlike = (first_informative(reward, acted, group, groups, kept=n) for n in (GROUPS, groups))
    words = experience.episodes.action // LETTERS
    wrong, right = (mean_of(words, acted & x) for x in (reward == 0, reward > 0))
    longer = jnp.where((wrong.count > 0) & (right.count > 0), wrong.value - right.value, 0)
    given, grpo, lite = (reward, acted, group, groups), advantages.grpo, advantages.lite
    return Advantages(
        select(hparams, "scale", group=grpo(*given), batch=lite(*given), none=grpo(*given, scale="none")),
        trained=select(hparams, "groups", all=acted, informative=kept),
        metrics={"silent": 1 - unlike.mean(), "longer": longer},
    )


def arm_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """The clipped surrogate under the arm's mean. All three means are computed, so that arms share a program."""
    clip = partial(losses.ppo_clip, clip_low=hparams["clip_low"], clip_high=hparams["clip_high"])
    given = scores.logp, batch.behaviour_logp, batch.advantage, batch.mask
    (token, metrics), (row, _) = clip(*given, aggregate=mean_of), clip(*given, aggregate=mean_per_row)
    constant, _ = clip(*given, aggregate=partial(sum_per_row, length=LONGEST))
    return select(hparams, "mean", token=token, row=row, constant=constant), metrics


def letter_tokens(game: Any) -> SymbolTokenizer:
    return game.game.letter_tokenizer()


QUIZ = Quiz(((0.1, 0.3, 0.5, 0.7, 1.0),), 15, LETTERS, LONGEST - 2, words=(11, 11, 6, 1, 1), slack=4)
SCALES, MEANS, KEPT = ("group", "batch", "none"), ("row", "token", "constant"), ("all", "informative")
GRPO = Recipe(
    Noisy(QUIZ, (Errs("guess", "fitting", 0.7), Errs("known", "best", 0.92))),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=arm_loss,
    tokenizer=letter_tokens,
    warm_start=(("guess",),),
    warm_start_updates=150,
    hparams={"learning_rate": 2.5e-3, "entropy": 0.0},
    choices={"scale": SCALES, "mean": MEANS, "groups": KEPT},
    budget=LONGEST,
    epochs=2,
    updates=60,
    groups=GROUPS,
    group_size=8,
    measure=partial(component_returns, success=0),
)
TOKEN = GRPO.with_choice(mean="token")
DAPO = replace(TOKEN.with_choice(groups="informative").with_hparams(clip_high=0.28), groups=2 * GROUPS)
ARMS = {
    "grpo/row": GRPO,
    "grpo/token": TOKEN,
    "lite/token": TOKEN.with_choice(scale="batch"),
    "lite/row": GRPO.with_choice(scale="batch"),
    "dr_grpo": GRPO.with_choice(scale="none", mean="constant"),
    "dapo": DAPO,
}
EASY: dict[str, Any] = {"warm_start": (("known",),), "warm_start_updates": 500}
IN_BOTH = ("grpo/row", "grpo/token", "lite/token", "dr_grpo")
LENGTHS = "If wrong answers were as long as right ones, a mean would weigh them alike. The level is ours."
SECTION_5 = "Section 5, Figure 15: 'outperforms' DAPO and GRPO, base models; abstract: 'surpassing' both"
EASY_DATA = "Section 4.1.2, Figure 6, easy data in its first row: 'global-level calculation exhibits a clear advantage'"
STUDY = Study(
    paper=Paper("Tricks or Traps? (Liu et al.)", "https://arxiv.org/abs/2508.08221", 2025, checked="release"),
    question="Does Lite PPO learn faster than GRPO and DAPO where the length of answers matters?",
    claim="The batch's deviation with the mean over tokens earns more than GRPO and than DAPO.",
    arms=ARMS | {f"easy/{name}": replace(ARMS[name], **EASY) for name in IN_BOTH},
    method="lite/token",
    metrics=(MEAN, "success", LONGER, START, "silent", "clipped/learner", "length/learner"),
    predictions=(
        Higher(MEAN, "lite/token", than="grpo/row", source="paper", where=SECTION_5),
        Higher(MEAN, "lite/token", than="dapo", source="paper", where=SECTION_5),
        Higher(MEAN, "easy/lite/token", than="easy/grpo/token", source="paper", where=EASY_DATA),
        AtLeast(LONGER, "grpo/row", 1.0, source="theory", where=LENGTHS, condition=True),
        AtLeast(START, "easy/grpo/row", 0.85, source="theory", where="Nearly solved; our level.", condition=True),
    ),
    derived={name: partial(mean_over_updates, metric=x) for name, x in ((MEAN, "success"), (LONGER, "longer"))}
    | {START: partial(at_first, metric="success")},
)
