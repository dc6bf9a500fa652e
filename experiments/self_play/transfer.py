"""Does training in several games at once help in games that were never trained in? MARS and SPIRAL say yes.

One policy plays itself in Kuhn poker, tic-tac-toe and a small Hanabi (two colours of two ranks). Three larger games of
the same families are held out: Leduc poker, Connect Four and a larger Hanabi. Connect Four has 4 columns and 3 rows,
and 3 in a row win; Hanabi has a third rank and fewer hints. The texts of all six share one vocabulary. A tiny policy
learns the words from rewards alone. Two things can therefore transfer: shared words and common structure. Nearly all of
Hanabi's words are shared, and few of the other games'.

  together                        the three games in every update
  kuhn, tic_tac_toe, mini_hanabi  one of them, with as many of its games and updates as in `together`

Evaluation follows training, in games with fresh deals. The metric is points per game against random play, over both
seats. In Hanabi it is the score in self-play, of 4 or 6 points. The table shows the untrained policy of the same seed
beside it.

  python -m experiments transfer --seeds 10

Papers: MARS (Yuan et al.) 2025, https://arxiv.org/abs/2510.15414; SPIRAL (Liu et al.) 2025,
https://arxiv.org/abs/2506.24119. There a pretrained model transfers its reasoning; that is not tested here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

from jaxmarl_llm.environments.classic.board_games import ConnectFour, TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker
from jaxmarl_llm.environments.classic.hanabi import SIZES, Hanabi
from jaxmarl_llm.evaluation.trials import points_in_games
from jaxmarl_llm.methods.several_games import one_vocabulary, together
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.studies.study import Higher, Paper, Study
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Parts, Recipe

ME, GAMES_JUDGED, UPDATES = "learner", 128, 80
MINI = SIZES["mini"]
TRAINED: dict[str, Any] = {"kuhn": KuhnPoker(), "tic_tac_toe": TicTacToe(), "mini_hanabi": Hanabi(**MINI)}
HELD_OUT: dict[str, Any] = {
    "leduc": LeducPoker(),
    "connect_four": ConnectFour(columns=4, rows=3, line=3),
    "larger_hanabi": Hanabi(**{**MINI, "ranks": 3, "hand_size": 4, "information_tokens": 1}),
}
EVERY = TRAINED | HELD_OUT


@cache
def vocabulary(game: Any) -> SymbolTokenizer:
    """One vocabulary for all arms, so that they share their first weights and the evaluation."""
    return one_vocabulary(game, games=tuple(EVERY.values()))


@cache
def trials(policy_set: PolicySet) -> Callable[[dict, jax.Array], dict[str, float]]:
    shared = {name: game for name, game in EVERY.items() if isinstance(game, Hanabi)}
    beside = {name: ("random",) for name in EVERY if name not in shared}
    scripted = points_in_games(policy_set, {name: EVERY[name] for name in beside}, beside, rounds=GAMES_JUDGED // 2)
    alone = points_in_games(policy_set, shared, {}, rounds=GAMES_JUDGED)
    return lambda weights, key: scripted(weights, key) | alone(weights, key)


def game_evaluator(parts: Parts) -> Callable[[dict, jax.Array], dict[str, float]]:
    """Points per game in all six games, the trained and the held-out ones."""
    return trials(parts.policy_sets[ME])


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
COMMON: dict[str, Any] = {
    "game": TRAINED["kuhn"],
    "tokenizer": vocabulary,
    "updates": UPDATES,
    "evaluate": game_evaluator,
    "eval_every": UPDATES,
}
ARMS = {"together": together(RECIPES, **COMMON)}
ARMS |= {name: together({name: alone}, **COMMON) for name, alone in RECIPES.items()}
STUDY = Study(
    paper=Paper("MARS (Yuan et al.)", "https://arxiv.org/abs/2510.15414", 2025, checked="abstract"),
    question="Does training in several games at once help in games that were never trained in?",
    claim="Who trained in three games at once is better in larger games of their families than who trained in one.",
    arms=ARMS,
    method="together",
    metrics=(*HELD_OUT, *TRAINED),
    predictions=(
        *(
            Higher(
                game,
                "together",
                than=home,
                source="paper",
                where="SPIRAL, Section 4.1 and Table 5: in each held-out game the multi-game model is above every "
                "specialist. Its games are others.",
            )
            for game, home in zip(HELD_OUT, TRAINED, strict=True)
        ),
        *(
            Higher(
                game,
                home,
                than=other,
                source="paper",
                where="SPIRAL, Table 4: in each held-out game the specialist of the similar game is best. Its games "
                "are others.",
            )
            for game, home, other in (
                ("leduc", "kuhn", "tic_tac_toe"),
                ("connect_four", "tic_tac_toe", "kuhn"),
                ("larger_hanabi", "mini_hanabi", "kuhn"),
            )
        ),
    ),
)
