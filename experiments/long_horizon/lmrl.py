"""What does a value function add to imitation, in which games? LMRL-Gym's methods in four of its kinds of game.

Every arm begins with behavioural cloning of scripted games, of which one is good and two are random (`bc`), and then

  bc        stays as it is
  filtered  imitates those of its own games that end among the best tenth of a batch's returns, or as well
            (filtered behavioural cloning, online)
  ppo       PPO with a value head on the policy's trunk, GAE from turn to turn (lambda 0.95)
  archer    an utterance critic and a policy that learn off policy from the last ten updates' games

  questions  twenty questions on eight animals, at most four questions of 0.05 each
  wordle     16 words of four letters, six guesses, 0.1 for each wrong one
  maze       13 open cells, 16 steps of 0.02 each, the place is told
  rooms      three rooms, three things, two of them to be taken in an order, 1 at the end; ten turns

`return`: all points of a game, at the end; `of the best`: as a share of what the best player gets, the exact optimum
where `solve` knows it and the knowing script's elsewhere.

  python -m experiments lmrl --seeds 10

Paper: LMRL Gym (Abdulhai et al.) 2023, https://arxiv.org/abs/2311.18232.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.maze import Maze
from jaxmarl_llm.environments.rooms import Rooms
from jaxmarl_llm.environments.team_search import ANIMALS, TwentyQuestions
from jaxmarl_llm.environments.wordle import Wordle
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training import utterance_critic
from jaxmarl_llm.training.recipe import Advantages, Experience, Hparams, Recipe

LENGTH, KEPT, WARM_UP, OVER_ALL = 60, 10, 10, "over all"


def points(episodes: Episodes) -> jax.Array:
    """[B, T, A], of the first seat, which learns: success, the first component, and -cost where there is one."""
    reward, first = episodes.reward[:, :, :1], jnp.arange(episodes.reward.shape[2]) == 0
    return first * (reward[..., 0] + jnp.minimum(reward[..., 1], 0))


def measured(episodes: Episodes) -> dict[str, jax.Array]:
    return {"return": points(episodes).sum((1, 2)).mean(), "solved": episodes.reward[:, :, 0, 0].sum(1).mean()}


def best_tenth(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    total, acted = points(experience.episodes).sum((1, 2)), experience.episodes.acted
    chosen = total >= jnp.quantile(total, 0.9)
    return Advantages(acted.astype(jnp.float32), trained=acted & chosen[:, None, None])


def by_turn(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    paid, acted = points(experience.episodes), experience.episodes.acted
    return Advantages(*returns.gae(paid, experience.turn_value, acted, gamma=hparams["gamma"], lam=0.95))


def as_paid(experience: Experience, hparams: Hparams, state: Any) -> Advantages:
    return Advantages(points(experience.episodes), state=state)


def arms(game: Any, seats: tuple[str, ...], good: tuple[str, ...], bad: tuple[str, ...]) -> dict[str, Recipe]:
    filtered = Recipe(
        game,
        seats=(seats,),
        advantage=best_tenth,
        hparams={"learning_rate": 3e-3, "gamma": 0.99},
        warm_start=(good, bad),
        warm_start_updates=200,
        budget=1,
        updates=LENGTH,
        groups=8,
        group_size=8,
        measure=measured,
        pretrained={"budget": 4},
    )
    archer = filtered.with_hparams(
        critic_rate=3e-3, learning_rate=lambda update: np.where(np.asarray(update) < WARM_UP, 0.0, 1e-3)
    )
    return {
        "bc": filtered.with_hparams(learning_rate=0.0),
        "filtered": filtered,
        "ppo": dataclasses.replace(filtered, advantage=by_turn, critic=True),
        "archer": dataclasses.replace(
            archer,
            advantage=as_paid,
            step=partial(utterance_critic.off_policy, steps=(40, 5)),
            init_state=partial(utterance_critic.remembered, kept=KEPT),
        ),
    }


QUESTIONS = TwentyQuestions(tuple(ANIMALS[:8]), questions=4, cost=0.05)
ALONE = (("learner",),)
GAMES: dict[str, dict[str, Recipe]] = {
    "questions": arms(QUESTIONS, ("learner", "correct"), ("halving", "correct"), ("random", "correct")),
    "wordle": arms(Wordle(), *ALONE, ("fitting",), ("random",)),
    "maze": arms(Maze(), *ALONE, ("correct",), ("random",)),
    "rooms": arms(Rooms(), *ALONE, ("explorer",), ("random",)),
}
STUDY = Study(
    paper=Paper("LMRL Gym (Abdulhai et al.)", "https://arxiv.org/abs/2311.18232", 2023, checked="abstract"),
    question="What does a value function add to imitation, in which games?",
    claim="TODO",
    arms={f"{game}/{arm}": recipe for game, own in GAMES.items() for arm, recipe in own.items()},
    method="wordle/archer",
    metrics=("return", "solved", OVER_ALL),
    derived={OVER_ALL: partial(mean_over_updates, of="return")},
    predictions=tuple(
        Higher("return", f"{game}/{better}", than=f"{game}/{worse}")
        for game in GAMES
        for better, worse in (("filtered", "bc"), ("ppo", "filtered"), ("archer", "filtered"))
    ),
)
