"""Does training on further attempts keep a policy from repeating a wrong answer? UFO's "try again" in a quiz.

A quiz has twelve questions and 20 letters. The deal draws the right letter of a question from three, with chances 1/2,
1/3 and 1/6, so that a first answer is a guess. A policy first imitates a player that says the most common letter with
probability 0.4, else any other, in each attempt anew. After a wrong answer the game says so, and earlier letters stay
in sight. Training is PPO with a critic, discount and lambda 1. 256 fresh games of five attempts judge all arms.

  base        no training
  one         games end after the first attempt
  one_equal   as one, with five times the games: at least as many answers as five has
  five        five attempts; a right answer pays 1 and ends the game
  penalty     as five, less 0.5 (1 - distinct answers / answers) at the end
  ufo         as penalty, and a right answer at attempt t, from 0, pays 2^-t
  regression  as five; imitates each answer with the weight exp(r / 0.5) of its own point r, after RISE

  python -m experiments retry --seeds 20

Papers: UFO (Liu et al.) 2025, https://arxiv.org/abs/2507.14295. The release pays both also after a right answer, as
here, and raises an exception at an empty answer. RISE (Qu et al.) 2024, https://arxiv.org/abs/2407.18219.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.around.retry import Retry
from jaxmarl_llm.environments.solo.quiz import Quiz
from jaxmarl_llm.evaluation.statistics import coverage, success_by_turn
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import losses, returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtLeast, Higher, Lower, NotLower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

ATTEMPTS, GROUPS, FIRST, SOLVED, GAIN, DISTINCT = 5, 32, "first", "solved by 5", "gain", "distinct"
QUIZ = Quiz(((1 / 20,),), questions=12, answers=20, shifts=(0, 0, 0, 5, 5, 10))


def arrange(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    return Arranged(turns=hparams["attempts"].astype(jnp.int32))


def shape(reward: jax.Array, action: jax.Array, acted: jax.Array, decay: jax.Array, penalty: jax.Array) -> jax.Array:
    """The points of attempts [B, T], times decay^t, less penalty (1 - distinct / answers) at the last attempt."""
    turn, count = jnp.arange(reward.shape[1])[None], acted.sum(1, keepdims=True)
    earlier = acted[:, :, None] & acted[:, None, :] & (turn[..., None] > turn[:, None])
    again = ((action[:, :, None] == action[:, None, :]) & earlier).any(2)
    repeated = again.sum(1, keepdims=True) / jnp.maximum(count, 1)
    return reward * decay**turn - penalty * repeated * (turn == count - 1)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE, whitened as in the release; for the regression the point of each answer."""
    episodes = experience.episodes
    points, acted = episodes.reward[..., 0], episodes.acted
    shaped = shape(points[..., 0], episodes.action[..., 0], acted[..., 0], hparams["decay"], hparams["penalty"])
    gae = returns.gae(shaped[..., None], experience.turn_value, acted)
    return Advantages(select(hparams, "method", ppo=whiten(gae.advantage, acted), regression=points), gae.value_target)


def arm_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO's loss, or the regression's. Both are computed, so that arms share a program."""
    ppo, metrics = losses.ppo(scores, batch, hparams)
    weighted = losses.reward_weighted(scores.logp, batch.advantage, batch.mask, temperature=0.5, normalise=False)
    return select(hparams, "method", ppo=ppo, regression=weighted[0]), metrics


def judge(episodes: Episodes) -> dict[str, Any]:
    """Success by attempt, and distinct answers; NaN for the latter if all first answers are right."""
    acted, action, points = (np.asarray(x)[:, :, 0] for x in (episodes.acted, episodes.action, episodes.reward[..., 0]))
    by_turn = success_by_turn(np.where(points.any(1), points.argmax(1), -1), ATTEMPTS)
    share, more = coverage(np.where(acted, action, -1)) / acted.sum(1), acted.sum(1) > 1
    distinct = share[more].mean() if more.any() else np.nan
    return {FIRST: by_turn[0], SOLVED: by_turn[-1], GAIN: by_turn[-1] - by_turn[0], DISTINCT: distinct}


FIVE = Recipe(
    Noisy(Retry(QUIZ, ATTEMPTS), (Errs("unsure", "common", 0.4),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=arm_loss,
    critic=True,
    arrange=arrange,
    warm_start=(("unsure",),),
    warm_start_updates=150,
    hparams={"entropy": 0.001, "attempts": ATTEMPTS, "decay": 1.0, "penalty": 0.0},
    choices={"method": ("ppo", "regression")},
    budget=1,
    updates=150,
    groups=GROUPS,
    group_size=4,
    evaluate=partial(in_fresh_games, measure=judge),
    eval_every=150,
    pretrained={"budget": 4},
)
ONE = FIVE.with_hparams(attempts=1)
BOTH = 'abstract: UFO "keeps single-turn performance and improves multi-turn reasoning accuracy by up to 14%"'
REWARDS = "abstract: rewards to minimise the turns needed and encourage diverse reasoning when mistakes occur"
DROPS = "project page, Figure 1: the share of unique answers drops after single-turn training, in every model"
SPARSE = "README of the release: 90% of answers not repeated, against 80% of the baseline"
RISE = "RISE, second-hand: accuracy rises over turns after training, while that of the base stays flat"
LEARNT = "A policy that has not learnt the common letters, half of the games, says nothing of single-turn training."
STUDY = Study(
    paper=Paper("UFO (Liu et al.)", "https://arxiv.org/abs/2507.14295", 2025, checked="release"),
    question="Does training on further attempts keep a policy from repeating a wrong answer?",
    claim="Training on five attempts solves more questions within five, and no fewer at the first.",
    arms={"base": FIVE.with_hparams(learning_rate=0.0), "one": ONE, "one_equal": replace(ONE, groups=5 * GROUPS)}
    | {"five": FIVE, "penalty": FIVE.with_hparams(penalty=0.5), "ufo": FIVE.with_hparams(decay=0.5, penalty=0.5)}
    | {"regression": FIVE.with_choice(method="regression")},
    method="ufo",
    metrics=(SOLVED, FIRST, GAIN, DISTINCT),
    predictions=(
        Higher(SOLVED, "ufo", than="one_equal", source="paper", where=BOTH),
        NotLower(FIRST, "ufo", than="one_equal", by=0.03, source="paper", where=f"{BOTH}; the margin is ours"),
        Higher(DISTINCT, "ufo", than="one_equal", source="paper", where=SPARSE),
        Higher(DISTINCT, "penalty", than="five", source="paper", where=REWARDS),
        Higher(GAIN, "regression", than="base", source="paper", where=RISE),
        Lower(DISTINCT, "one", than="base", source="paper", where=DROPS, condition=True),
        AtLeast(FIRST, "one", 0.35, source="theory", where=LEARNT, condition=True),
    ),
)
