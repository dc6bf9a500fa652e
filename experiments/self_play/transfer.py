"""Does training in several games at once help in games that were never trained in? MARS and SPIRAL say so.

One policy plays itself in Kuhn poker, tic-tac-toe and a small Hanabi (two colours of two ranks), whose texts share one
vocabulary with three larger games of the same families that it is only judged in: Leduc poker, Connect Four (three in a
row on four columns of three) and Hanabi with a third rank and fewer hints. A tiny policy knows words only by what they
were good for: what can transfer are shared words, nearly all of Hanabi's and few of the others', and what many games
have in common.

  together                        the three games in every update
  kuhn, tic_tac_toe, mini_hanabi  one of them, with as many of its games and updates as in `together`

Judged after training, in games with fresh deals: points a game against random play, both seats, and in Hanabi the score
of four or six with itself. The table shows the untrained policy of the same seed beside it.

  python -m experiments transfer --seeds 10

Papers: MARS (Yuan et al.) 2025, https://arxiv.org/abs/2510.15414; SPIRAL (Liu et al.) 2025,
https://arxiv.org/abs/2506.24119. There a pretrained model carries over how it reasons; that is not tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.environments.board_games import ConnectFour, TicTacToe
from jaxmarl_llm.environments.card_games import KuhnPoker, LeducPoker
from jaxmarl_llm.environments.hanabi import SIZES, Hanabi
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.training.recipe import Recipe, estimator
from jaxmarl_llm.training.several_games import together
from jaxmarl_llm.training.trainer import Trainer, jit_rollout

ME, GAMES_JUDGED, UPDATES = "learner", 128, 80
MINI = SIZES["mini"]
TRAINED: dict[str, Any] = {"kuhn": KuhnPoker(), "tic_tac_toe": TicTacToe(), "mini_hanabi": Hanabi(**MINI)}
HELD_OUT: dict[str, Any] = {
    "leduc": LeducPoker(),
    "connect_four": ConnectFour(columns=4, rows=3, line=3),
    "larger_hanabi": Hanabi(**{**MINI, "ranks": 3, "hand_size": 4, "information_tokens": 1}),
}


def judged(trainer: Trainer) -> Callable[[dict], dict[str, float]]:
    """Points a game in all six games, trained in or not."""
    plays: dict[str, Callable[..., Any]] = {}
    for name, game in (TRAINED | HELD_OUT).items():
        pairs = ((ME, ME),) if isinstance(game, Hanabi) else ((ME, "random"), ("random", ME))
        lineup = Lineup(pairs * (GAMES_JUDGED // len(pairs)), 1)
        plays[name] = jit_rollout(Rollout(game, trainer.policy_sets, lineup, trainer.recipe.budget))

    def evaluate(weights: dict) -> dict[str, float]:
        found = {}
        for name, play in plays.items():
            won = np.asarray(play(weights, jax.random.key(0)).episodes.reward[..., 0].sum(1))  # [games, seats]
            seats = np.arange(len(won)) % 2  # of the policy
            found[name] = float(won[np.arange(len(won)), seats].mean())
        return found

    return evaluate


def recipe(game: Any, groups: int) -> Recipe:
    return Recipe(
        game,
        seats=((ME, ME),),
        advantage=estimator(advantages.rloo, per_agent=True),
        hparams={"learning_rate": 3e-3},
        groups=groups,
        group_size=8,
    )


SIZE = {"kuhn": 8, "tic_tac_toe": 4, "mini_hanabi": 2}
RECIPES = {name: recipe(game, SIZE[name]) for name, game in TRAINED.items()}
EVERY: tuple[Any, ...] = (*TRAINED.values(), *HELD_OUT.values())  # one vocabulary in all arms
OWN: dict[str, Any] = {"updates": UPDATES, "evaluate": judged, "eval_every": UPDATES}
ARMS = {"together": together(RECIPES, also=EVERY, **OWN)}
ARMS |= {name: together({name: alone}, also=EVERY, **OWN) for name, alone in RECIPES.items()}
STUDY = Study(
    paper=Paper("MARS (Yuan et al.)", "https://arxiv.org/abs/2510.15414", 2025, checked="abstract"),
    question="Does training in several games at once help in games that were never trained in?",
    claim="Who trained in three games at once is better in larger games of their families than who trained in one.",
    arms=ARMS,
    method="together",
    metrics=(*HELD_OUT, *TRAINED),
    predictions=(
        Higher("leduc", "together", than="kuhn"),
        Higher("connect_four", "together", than="tic_tac_toe"),
        Higher("larger_hanabi", "together", than="mini_hanabi"),
        Higher("larger_hanabi", "mini_hanabi", than="kuhn"),
    ),
)
