"""What does SmolLM2-135M learn on two cores, in eight games, by half an hour of reinforcement learning at most?

An arm is a game. `score` is the model's return in fresh games before and after training:

  dilemma           points of a game of four rounds against tit-for-tat; also `against always_defect`
  kuhn              chips against random play; also exact NashConv
  tic_tac_toe       points against random play, in both seats; also `against minimax`, and `points lost`: what the
                    model's moves of a game give away, by exact values
  twenty_questions  right names, with an honest answerer
  router_search     right values, with the model in all three seats
  arithmetic        right products modulo 2, as solver and as verifier
  whispers          right words that one seat names after one free line from the other, with the model in both seats
  commons           units harvested by a seat; one policy in both seats learns from the sum of both harvests

The arm twenty_questions has a supervised warm start on scripted play; `untaught score` is of the model as loaded.

Claim before the runs: in at least five of the eight games, the score rises by more than its interval in each of three
seeds. Settings were chosen on seed 100. For arithmetic, whispers and tic_tac_toe they were chosen after the claim:
arithmetic had been sums modulo 5, and whispers a chain of three players. The notes of their results describe this.

  python -m experiments small_model --model smollm2 --arms kuhn --seeds 3

Paper: SmolLM2 (Ben Allal et al.) 2025, https://arxiv.org/abs/2502.02737
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.self_play.exploitability import RLOO
from jaxmarl_llm.environments.classic.board_games import CELLS, TicTacToe, values_of_boards
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.commons import Harvest
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_search import ANIMALS, RouterSearch, TwentyQuestions
from jaxmarl_llm.environments.teams.team_tasks import SolverVerifier
from jaxmarl_llm.environments.teams.whispers import Whispers
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.study import Paper, Study
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.left_out import mean_of_kept
from jaxmarl_llm.training.recipe import Hparams, Parts, Recipe
from jaxmarl_llm.training.records import Advantages, Experience
from jaxmarl_llm.training.setup import jit_rollout


def evaluate(
    parts: Parts, *, seats: Mapping[str, tuple[tuple[str, ...], ...]], games: int = 64
) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """measure(weights, key): {name: points of the learner [games]} for each name of `seats`, over newly dealt games.

    `seats` is {name: line-ups}, and the games are divided evenly among the line-ups. After a warm start, `untaught
    score` is the score without the adapter. Kuhn poker also has NashConv.
    """
    recipe, (policy_set,) = parts.recipe, parts.policy_sets
    seats = {name: teams * (games // len(teams)) for name, teams in seats.items()}
    plays = {
        name: jit_rollout(Rollout(recipe.game, parts.policy_sets, Lineup(teams, 1), recipe.budget))
        for name, teams in seats.items()
    }
    exploited = RLOO.evaluate(parts) if RLOO.evaluate and recipe.game == RLOO.game else None

    def points(name: str, weights: dict, key: jax.Array) -> np.ndarray:
        episodes = plays[name](weights, key).episodes
        learning = np.array([[player in parts.learners for player in team] for team in seats[name]])
        learns = learning[np.asarray(episodes.group)]  # [B, A]
        return (np.asarray(episodes.reward[..., 0].sum(1)) * learns).sum(1) / learns.sum(1)

    def measure(weights: dict, key: jax.Array) -> dict[str, Any]:
        scores: dict[str, Any] = {name: points(name, weights, key) for name in plays}
        if recipe.warm_start:
            untaught = {
                **weights[policy_set],
                "adapters": jax.tree.map(jnp.zeros_like, weights[policy_set]["adapters"]),
            }
            scores["untaught score"] = points("score", {policy_set: untaught}, key)
        return scores | (exploited(weights, key) if exploited else {})

    return measure


def first_component(episodes: Episodes) -> dict[str, jax.Array]:
    """The return of the first reward component, mean over episodes and seats."""
    return {"return": mean_of_kept(episodes, episodes.reward[..., 0].sum(1))}


def points_lost(episodes: Episodes) -> dict[str, jax.Array]:
    """The return, and the points that the learner's moves of a game give away if both seats play perfectly from there
    on. In group g the learner has seat g % 2."""
    turn = np.arange(episodes.action.shape[1])
    mover = (turn % 2)[None]
    moved, cell = (x[:, turn, turn % 2] for x in (episodes.acted, episodes.action))  # [B, T]
    board = jnp.where(moved, (1 + mover) * jnp.asarray(CELLS, jnp.int32)[cell], 0).cumsum(1)
    value = jnp.asarray(values_of_boards(), jnp.float32)[jnp.pad(board, ((0, 0), (1, 0)))]
    lost = (2 * mover - 1) * jnp.diff(value, axis=1)
    learns = moved & (mover == episodes.group[:, None] % 2)
    return first_component(episodes) | {"points lost": mean_of_kept(episodes, jnp.where(learns, lost, 0).sum(1))}


def estimate_advantages(experience: Experience, hparams: Hparams, state: tuple) -> Advantages:
    """The return of all seats from each turn on, minus its mean over the other games of the group."""
    reward = experience.episodes.total_reward
    everyone = jnp.broadcast_to(reward.mean(2, keepdims=True), reward.shape)
    return Advantages(advantages.round_leave_one_out(everyone, *experience.acts))


WORDS = ("dog", "sun", "tree", "book", "fish", "rain")
ALONE = estimator(advantages.round_leave_one_out)


def task(
    game: Any, seats: tuple, budget: int | tuple[int, ...], score: Any = None, games: int = 64, **settings: Any
) -> Recipe:
    """A recipe of a pretrained model's size. `score` is {metric: line-ups} of the evaluation; by default, `seats`."""
    sized: dict[str, Any] = {"groups": 4, "group_size": 8, "updates": 20, "hparams": {"learning_rate": 3e-4}}
    sized |= {
        "evaluate": partial(evaluate, seats=score or {"score": seats}, games=games),
        "budget": budget,
    } | settings
    advantage = sized.pop("advantage", ALONE)
    return Recipe(
        game, seats=seats, advantage=advantage, updates=20, groups=4, hparams={"entropy": 0.01},
        measure=first_component, pretrained=sized,
    )  # fmt: skip


ME, TFT, DEFECT = "learner", "tit_for_tat", "always_defect"
TASKS = {
    "dilemma": task(
        MatrixGame(rounds=4),
        ((ME, TFT), (ME, TFT), (TFT, ME), (TFT, ME)),  # each line-up with both labelings
        2,
        {
            "score": ((ME, TFT), (ME, TFT), (TFT, ME), (TFT, ME)),
            "against always_defect": ((ME, DEFECT), (ME, DEFECT), (DEFECT, ME), (DEFECT, ME)),
        },
        hparams={"learning_rate": 6e-4},
    ),
    "kuhn": task(KuhnPoker(), ((ME, ME),), 2, {"score": ((ME, "random"), ("random", ME))}, games=256, group_size=6),
    "tic_tac_toe": task(
        TicTacToe(),
        ((ME, "random"), ("random", ME)),
        2,
        {"score": ((ME, "random"), ("random", ME)), "against minimax": ((ME, "minimax"), ("minimax", ME))},
        games=256,
        measure=points_lost,
        groups=2,
        group_size=16,
        hparams={"learning_rate": 5e-4, "entropy": 0.0},
    ),
    "twenty_questions": task(
        TwentyQuestions(objects=ANIMALS[:8], questions=3, cost=0.0),
        ((ME, "correct"),),
        4,
        warm_start=(("halving", "halving"),),
        warm_start_updates=30,
        updates=30,
        hparams={"learning_rate": 1e-4},
    ),
    "router_search": task(
        RouterSearch(keys=3, values=3), ((ME, ME, ME),), 2, group_size=6, hparams={"learning_rate": 2e-4}
    ),
    "arithmetic": task(
        SolverVerifier(Arithmetic(2, "*"), loops=2),
        ((ME, ME),),
        3,
        group_size=4,
        updates=16,
        hparams={"learning_rate": 4e-4},
    ),
    "whispers": task(
        Whispers(words=WORDS, agents=2), ((ME, ME),), (3, 6), hparams={"learning_rate": 5e-4, "entropy": 0.0}
    ),
    "commons": task(
        Harvest(agents=2, rounds=4, capacity=20, start=20, most=10),
        ((ME, ME),),
        3,
        advantage=estimate_advantages,
        groups=2,
        group_size=6,
        hparams={"learning_rate": 5e-4},
    ),
}
STUDY = Study(
    paper=Paper("SmolLM2 (Ben Allal et al.)", "https://arxiv.org/abs/2502.02737", 2025, checked="abstract"),
    question="What does a model of 135M parameters learn on two cores?",
    claim="In at least five of the eight games the score rises by more than its interval in each of three seeds.",
    arms={"kuhn": TASKS["kuhn"]},
    extra={name: recipe for name, recipe in TASKS.items() if name != "kuhn"},
    method="kuhn",
    metrics=("score", "nash_conv", "against minimax", "points lost"),
)
