"""What does a value function add to imitation, in which games? LMRL-Gym's methods in four of its kinds of game.

Every arm begins with behavioural cloning of scripted games, half of a good player and half of a random one. Arms:

  bc        no further learning
  filtered  online filtered behavioural cloning: imitates the best tenth, by return, of an update's own games
  ppo       PPO with a value head on the policy's trunk and GAE from turn to turn (lambda 0.95)
  archer    an utterance critic and a policy learn off policy from the games of the last ten updates; in the first ten
            updates only the critic learns; in the two shorter games only
  best      no learning: the best script that knows no more than it is told; in the maze it knows the map

Games:

  questions  twenty questions on eight animals; at most four questions, each at a cost of 0.05
  wordle     16 words of four letters, six guesses; each wrong guess costs 0.1
  maze       16 open cells and the goal, 16 steps at a cost of 0.02 each; the player is told its place
  rooms      three rooms and three things, two of which are to be taken in an order, ten turns; a point at the end

An update has 64 games. `return` is the sum of a game's points at the end of training. `over all` is its mean over all
updates.

  python -m experiments lmrl --seeds 10

Paper: LMRL Gym (Abdulhai et al.) 2023, https://arxiv.org/abs/2311.18232. There GPT-2 models first clone data sets of
1,000 to a million games, and PPO has advantages by token and a KL penalty. The released online filter keeps 30% of the
games of Wordle, and the solved ones of the maze.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.solo.maze import Maze
from jaxmarl_llm.environments.solo.rooms import Rooms
from jaxmarl_llm.environments.solo.wordle import Wordle
from jaxmarl_llm.environments.teams.team_search import ANIMALS, TwentyQuestions
from jaxmarl_llm.methods import archer
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.curves import mean_over_updates
from jaxmarl_llm.studies.study import Higher, Lower, Paper, Study
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Recipe
from jaxmarl_llm.training.records import Advantages, Experience

LENGTH, KEPT, WARM_UP, TESTED, OVER_ALL = 60, 10, 10, 1024, "over all"


def points(episodes: Episodes) -> jax.Array:
    """Rewards [B, T, A] of the first seat, which learns: success (the first component) minus costs. Others get 0."""
    reward, first = episodes.reward, jnp.arange(episodes.reward.shape[2]) == 0
    return first[None, None] * (reward[..., 0] + jnp.minimum(reward[..., 1:2], 0).sum(-1))


def measure(episodes: Episodes) -> dict[str, jax.Array]:
    totals = {"return": points(episodes).sum((1, 2)), "solved": episodes.reward[:, :, 0, 0].sum(1)}
    return {name: mean_of_kept(episodes, x) for name, x in totals.items()}


def play_scripts(key: jax.Array, hparams: Mapping[str, jax.Array], *, game: Any, seats: tuple[str, ...]) -> dict:
    return measure(Rollout(game, {}, Lineup((seats,) * TESTED, 1), 1)({}, key).episodes)


def best_tenth(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """Advantage 1; only the episodes whose return is in the update's best tenth are trained on."""
    total, acted = points(experience.episodes).sum((1, 2)), experience.episodes.acted
    chosen = total >= jnp.quantile(total, 0.9)
    return Advantages(acted.astype(jnp.float32), trained=acted & chosen[:, None, None])


def by_turn(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    paid, acted = points(experience.episodes), experience.episodes.acted
    return Advantages(*returns.gae(paid, experience.turn_value, acted, gamma=hparams["gamma"], lam=0.95))


def as_paid(experience: Experience, hparams: Hparams, state: Any) -> Advantages:
    return Advantages(points(experience.episodes), state=state)


def arms(game: Any, seats: tuple[str, ...], good: tuple[str, ...], bad: tuple[str, ...]) -> dict[str, Any]:
    """The arms of a game; policies first clone the scripts `good` and `bad`, which are given by seat."""
    best = ("best" if "best" in game.scripts else good[0], *good[1:])
    filtered = Recipe(
        game, seats=(seats,), advantage=best_tenth, hparams={"learning_rate": 3e-3, "gamma": 0.99}, measure=measure,
        warm_start=(good, bad), warm_start_updates=200, budget=1, updates=LENGTH, groups=8, group_size=8,
        pretrained={"budget": 4},
    )  # fmt: skip
    return {
        "best": Computed(partial(play_scripts, game=game, seats=best)),
        "bc": filtered.with_hparams(learning_rate=0.0),
        "filtered": filtered,
        "ppo": dataclasses.replace(filtered, advantage=by_turn, critic=True),
    }


def with_archer(arm: Recipe) -> Recipe:
    """The arm with ArCHer's step; the policy's learning rate is 0 while the critic learns alone."""
    return dataclasses.replace(
        arm.with_hparams(learning_rate=lambda n: np.where(np.asarray(n) < WARM_UP, 0.0, 1e-3), critic_rate=3e-3),
        advantage=as_paid,
        step=partial(archer.off_policy, steps=(20, 4)),
        init_state=partial(archer.empty_memory, kept=KEPT),
    )


QUESTIONS = TwentyQuestions(tuple(ANIMALS[:8]), questions=4, cost=0.05)
GAMES = {
    "questions": arms(QUESTIONS, ("learner", "correct"), ("halving", "correct"), ("random", "correct")),
    "wordle": arms(Wordle(), ("learner",), ("fitting",), ("random",)),
    "maze": arms(Maze(), ("learner",), ("correct",), ("random",)),
    "rooms": arms(Rooms(), ("learner",), ("explorer",), ("random",)),
}
SHORT = ("questions", "wordle")  # an update of `archer` takes a second in the longer games
for name in SHORT:
    GAMES[name]["archer"] = with_archer(GAMES[name]["filtered"])
TUNED = "tuned on seeds 100 to 106"
TABLE_2 = {  # the paper's task, and its normalised returns of BC, online filtered BC and online PPO
    "questions": ("20Qs", 57.1, 55.2, 72.9),
    "wordle": ("Wordle", 79.9, 95.2, 84.2),
    "maze": ("FO Maze", 58.2, 57.4, 79.7),
    "rooms": ("FO Text-Nav", 53.7, 74.5, 87.1),
}
PLACES = {
    game: f"Table 2, {task}: BC {cloned}, online filtered BC {filtered}, online PPO {ppo}"
    for game, (task, cloned, filtered, ppo) in TABLE_2.items()
}
Kind = type[Higher] | type[Lower]
FILTERED_TO_BC: dict[str, Kind] = {"questions": Lower, "wordle": Higher, "rooms": Higher}
PPO_TO_FILTERED: dict[str, Kind] = {"questions": Higher, "wordle": Lower, "maze": Higher, "rooms": Higher}
STUDY = Study(
    paper=Paper("LMRL Gym (Abdulhai et al.)", "https://arxiv.org/abs/2311.18232", 2023, checked="release"),
    question="What does a value function add to imitation, in which games?",
    claim="PPO ends above cloning in all games and above filtered imitation in all but Wordle. Filtered imitation ends "
    "above cloning except in twenty questions, and ArCHer above filtered imitation.",
    arms={f"{game}/{arm}": recipe for game, recipes in GAMES.items() for arm, recipe in recipes.items()},
    method="wordle/archer",
    metrics=("return", "solved", OVER_ALL),
    predictions=(
        *(
            kind("return", f"{game}/filtered", than=f"{game}/bc", source="paper", where=PLACES[game])
            for game, kind in FILTERED_TO_BC.items()
        ),
        Higher(
            "return",
            "maze/filtered",
            than="maze/bc",
            source="pilot",
            where=f"{TUNED}; the paper has 57.4 below 58.2 in Table 2 and -71.7 above -72.1 in Table 4",
        ),
        *(
            kind("return", f"{game}/ppo", than=f"{game}/filtered", source="paper", where=f"Section 6, {PLACES[game]}")
            for game, kind in PPO_TO_FILTERED.items()
        ),
        *(
            Higher("return", f"{game}/ppo", than=f"{game}/bc", source="paper", where=f"Section 6, {PLACES[game]}")
            for game in GAMES
        ),
        *(
            Higher(
                "return",
                f"{game}/archer",
                than=f"{game}/filtered",
                source="pilot",
                where=f"{TUNED}; the paper does not have ArCHer",
            )
            for game in SHORT
        ),
    ),
    x="update of 64 games",
    derived={OVER_ALL: partial(mean_over_updates, metric="return")},
)
