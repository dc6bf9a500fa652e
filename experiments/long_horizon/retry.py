"""Does a policy that trains on further attempts at a question stop repeating a wrong answer? UFO's "try again".

A quiz has 30 questions, each with one right letter of 20. A policy begins with beliefs: it imitates a player that says
its belief in 40% of its answers and any other letter otherwise, in every attempt anew. Half of the beliefs are right.
After a wrong answer a game goes on with "That failed. You begin again.", and the letters said before stay in sight.
Training is PPO with a critic, discount 1 and lambda 1. All arms read the same rules and are judged in 256 fresh games of
five attempts.

  base        no training
  one         games end after the first attempt
  five        five attempts; a right answer pays 1 and ends the game
  decay       as five, and a right answer at attempt t, from 0, pays 2^-t
  penalty     as five, less 0.5 (1 - distinct answers / answers) at the end
  ufo         both
  regression  as five; each answer is imitated with the weight exp(r / 0.5) of its own point r: RISE's weighted regression

  first, solved by 5  share of games with a right answer at the first attempt, or at any of five
  gain                the second less the first
  distinct            distinct answers over answers, in games with more than one

  python -m experiments retry --seeds 20

Papers: UFO (Liu et al.) 2025, https://arxiv.org/abs/2507.14295. Its release pays 2^-t and the penalty, also after a right
answer, and raises an exception at an empty answer, which no player can give here. Its questions are mathematics, and it
is judged on others than those of training. RISE (Qu et al.) 2024, https://arxiv.org/abs/2407.18219, imitates answers of a
stronger model, or the best of several own ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.around.noisy import Errs, Noisy
from jaxmarl_llm.environments.around.retry import Retry
from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import View
from jaxmarl_llm.environments.solo.quiz import Quiz, QuizState
from jaxmarl_llm.evaluation.statistics import coverage, success_by_turn
from jaxmarl_llm.methods.fresh_games import in_fresh_games
from jaxmarl_llm.rl import losses, returns
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Batch, LossAndMetrics, Scores
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import AtMost, Higher, Lower, NotLower, Paper, Study
from jaxmarl_llm.training.recipe import Hparams, Recipe, component_returns
from jaxmarl_llm.training.records import Advantages, Arranged, Experience

QUESTIONS, LETTERS, ATTEMPTS = 30, 20, 5
FIRST, SOLVED, GAIN, DISTINCT = "first", "solved by 5", "gain", "distinct"


@dataclass(frozen=True)
class Believed(Around):
    """The quiz with a script `belief`: the right letter of an even question, the letter five further of an odd one."""

    game: Quiz

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def belief(state: QuizState, seat: jax.Array, key: jax.Array) -> jax.Array:
            right = self.game.scripts["best"](state, seat, key)
            return jnp.where(state.question % 2 == 0, right, (right + 5) % self.game.answers)

        return {**self.game.scripts, "belief": belief}

    def view(self, state: QuizState) -> View:
        return self.game.view(state)

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[QuizState, View]:
        return self.game.reset(key, group)

    def step(self, state: QuizState, action: jax.Array, key: jax.Array) -> tuple[QuizState, View, jax.Array]:
        return self.game.step(state, action, key)


def attempts(hparams: Hparams, state: tuple, key: jax.Array, number: jax.Array) -> Arranged:
    return Arranged(turns=hparams["attempts"].astype(jnp.int32))


def shape(reward: jax.Array, action: jax.Array, acted: jax.Array, decay: Any, penalty: Any) -> jax.Array:
    """The points of attempts [B, T], decay^t each, less penalty (1 - distinct / answers) at the last attempt."""
    turn, count = jnp.arange(reward.shape[1])[None], acted.sum(1, keepdims=True)
    earlier = acted[:, :, None] & acted[:, None, :] & (turn[..., None] > turn[:, None])
    again = ((action[:, :, None] == action[:, None, :]) & earlier).any(2)
    repeated = again.sum(1, keepdims=True) / jnp.maximum(count, 1)
    return reward * decay**turn - penalty * repeated * (turn == count - 1)


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """GAE with discount and lambda 1, whitened as in the release; for the regression the point of each answer."""
    episodes = experience.episodes
    points, acted = episodes.reward[..., 0], episodes.acted
    shaped = shape(points[..., 0], episodes.action[..., 0], acted[..., 0], hparams["decay"], hparams["penalty"])
    targets = returns.gae(shaped[..., None], experience.turn_value, acted)
    advantage = select(hparams, "method", ppo=whiten(targets.advantage, acted), regression=points)
    return Advantages(advantage, targets.value_target)


def arm_loss(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """PPO's loss, or the weighted regression with the same critic; both are computed, so that arms share a program."""
    ppo, metrics = losses.ppo(scores, batch, hparams)
    regression, more = losses.reward_weighted(scores.logp, batch.advantage, batch.mask, temperature=hparams["temperature"])
    critic, _ = losses.value_squared(scores.value, batch.value_target, batch.mask)
    regression = Mean(regression.sum + hparams["value"] * critic.sum / jnp.maximum(critic.count, 1) * regression.count, regression.count)
    return select(hparams, "method", ppo=ppo, regression=regression), {**metrics, "weight": more["weight"]}


def judge(episodes: Episodes) -> dict[str, Any]:
    """Success by attempt and distinct answers of fresh games."""
    acted, action, points = (np.asarray(x)[:, :, 0] for x in (episodes.acted, episodes.action, episodes.reward[..., 0]))
    won = np.where(points.any(1), points.argmax(1), -1)
    by_turn, count = success_by_turn(won, ATTEMPTS), acted.sum(1)
    several = count > 1
    distinct = coverage(np.where(acted, action, -1)) / count
    return {
        FIRST: by_turn[0],
        SOLVED: by_turn[-1],
        GAIN: by_turn[-1] - by_turn[0],
        DISTINCT: distinct[several].mean() if several.any() else np.nan,
    }


QUIZ = Retry(Believed(Quiz(((1 / LETTERS,),), QUESTIONS, LETTERS)), ATTEMPTS)
FIVE = Recipe(
    Noisy(QUIZ, (Errs("unsure", "belief", 0.4),)),
    seats=(("learner",),),
    advantage=estimate_advantages,
    loss=arm_loss,
    critic=True,
    arrange=attempts,
    warm_start=(("unsure",),),
    warm_start_updates=150,
    hparams={"learning_rate": 1e-3, "entropy": 0.001, "attempts": ATTEMPTS, "decay": 1.0, "penalty": 0.0, "temperature": 0.5},
    choices={"method": ("ppo", "regression")},
    budget=1,
    updates=150,
    groups=32,
    group_size=4,
    measure=partial(component_returns, **{"solved": 0}),
    evaluate=partial(in_fresh_games, measure=judge),
    eval_every=150,
    pretrained={"budget": 4},
)
ARMS = {
    "base": FIVE.with_hparams(learning_rate=0.0),
    "one": FIVE.with_hparams(attempts=1),
    "five": FIVE,
    "decay": FIVE.with_hparams(decay=0.5),
    "penalty": FIVE.with_hparams(penalty=0.5),
    "ufo": FIVE.with_hparams(decay=0.5, penalty=0.5),
    "regression": FIVE.with_choice(method="regression"),
}
BOTH = 'abstract: "RL training with UFO keeps single-turn performance and improves multi-turn reasoning accuracy by up to 14%"'
STUDY = Study(
    paper=Paper("UFO (Liu et al.)", "https://arxiv.org/abs/2507.14295", 2025, checked="release"),
    question="Does training on further attempts stop a policy from repeating a wrong answer?",
    claim="Training on five attempts solves more questions within five, without fewer at the first.",
    arms=ARMS,
    method="ufo",
    metrics=(SOLVED, FIRST, GAIN, DISTINCT),
    predictions=(
        Higher(SOLVED, "ufo", than="one", source="paper", where=BOTH),
    ),
)
