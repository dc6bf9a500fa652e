"""A small iterated prisoner's dilemma, without warm start, snapshots and evaluation."""

from dataclasses import replace
from functools import partial
from typing import Any

from experiments.social.social_dilemma import NAIVE, SELF_PLAY, self_play
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.training.recipe import Recipe


def small_dilemma(rounds: int = 2, base: Recipe = NAIVE, hparams: dict[str, float] | None = None, **changes: Any):
    """Four groups of two games; `hparams` are added to the recipe's."""
    fewest: dict[str, Any] = {
        "game": MatrixGame(rounds=rounds),
        "seats": (SELF_PLAY,),
        "snapshots": None,
        "group_size": 2,
        "warm_start": (),
        "evaluate": None,
        "measure": partial(self_play, alone=4),
        "hparams": {**base.hparams, **(hparams or {})},
    }
    return replace(base, **fewest | changes)
