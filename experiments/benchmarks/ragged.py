"""Games in which most rows of a batch are silent, finished or told less than the longest: packed, and as all rows.

SmolLM2-135M in whispers, negotiation with messages, Leduc poker and router-search; and in the dilemma, where all act in
all turns. Both sides play the same games; the other computes every row of a chunk, as it would without
`models/packing.py`. With free text they part where rounding moves a token. Printed with them is the utilisation of
both: tokens in use a token computed, prompts apart. About six minutes.

  pip install 'jaxmarl_llm[bench]'
  python -m experiments.benchmarks.ragged [--games 16] [--repeat 3] [--only leduc] [--json FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import jax
import tyro

from experiments.benchmarks.pairs import compare, show
from jaxmarl_llm.environments.card_games import LeducPoker
from jaxmarl_llm.environments.deal_or_no_deal import DealOrNoDeal
from jaxmarl_llm.environments.matrix_games import MatrixGame
from jaxmarl_llm.environments.team_search import RouterSearch
from jaxmarl_llm.environments.whispers import Whispers
from jaxmarl_llm.models import packing
from jaxmarl_llm.planning.machine import Machine
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.recipe import Recipe, estimator
from jaxmarl_llm.training.trainer import Trainer

GAMES: dict[str, tuple[Any, Any]] = {  # with the budget of an answer
    "whispers": (Whispers(words=("dog", "sun", "tree", "book", "fish", "rain")), (3, 8)),
    "negotiation": (DealOrNoDeal(), 12),
    "leduc": (LeducPoker(), 2),
    "router_search": (RouterSearch(), 3),
    "dilemma": (MatrixGame(rounds=6), 2),
}


def player(name: str, games: int, packed: bool) -> Callable[[], Any]:
    """Plays a batch of games with one policy in all seats."""
    game, budget = GAMES[name]
    recipe = Recipe(
        game,
        seats=(("learner",) * game.agents,),
        advantage=estimator(advantages.rloo),
        budget=budget,
        groups=2,
        group_size=games // 2,
        updates=1,
    )
    with mock.patch.object(packing, "HEAVY", packing.HEAVY if packed else sys.maxsize):
        trainer = Trainer(recipe, [recipe.all_hparams], [0], "smollm2")
        weights = trainer.weights(trainer.init(), 0)
        play = jax.jit(trainer.rollout).lower(weights, trainer.keys[0]).compile()
    return lambda: play(weights, trainer.keys[0])


def main(
    games: int = 16,
    repeat: int = 3,
    only: tuple[str, ...] = (),
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints one table."""
    if games < 2 or games % 2:
        sys.exit(f"Games are played in two groups: --games must be even, got {games}.")
    if unknown := [name for name in only if name not in GAMES]:
        sys.exit(f"No game is called {unknown[0]!r}: possible are {', '.join(GAMES)}.")
    machine, results = Machine(), []
    for name in only or GAMES:
        ours, theirs = player(name, games, True), player(name, games, False)
        share = [next(iter(play().utilisation.values())) for play in (ours, theirs)]
        label = f"{name} ({share[0]:.2f} in use, else {share[1]:.2f})"
        results.append(compare(label, ours, theirs, machine, repeat))
    show(f"{games} games, medians of {repeat} pairs", results, machine, json_file)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
