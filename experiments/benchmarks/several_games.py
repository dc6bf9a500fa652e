"""Training of three games in one update, compared with training each game alone, one after the other.

The arms are those of `transfer`, without evaluation: tiny policies in Kuhn poker, tic-tac-toe and a small Hanabi. A
ratio of 1 means that joint training costs the sum of separate training. A ratio below 1 / 1.15 means more than 1.15
times that cost. Three minutes.

  python -m experiments.benchmarks.several_games [--seeds 2] [--repeat 5] [--json FILE]
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from experiments.benchmarks.pairs import compare, show
from experiments.benchmarks.tiny import STEPS, runner
from experiments.self_play.transfer import ARMS, RECIPES
from jaxmarl_llm.planning.machine import Machine
from jaxmarl_llm.training.trainer import Trainer


def main(seeds: int = 2, repeat: int = 5, json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None) -> None:
    """Prints a table of one row: joint and separate training."""
    arms = {name: dataclasses.replace(arm, evaluate=None) for name, arm in ARMS.items()}
    run = {name: runner(Trainer(arm, [arm.all_hparams] * seeds, range(seeds))) for name, arm in arms.items()}
    both = (lambda: run["together"](STEPS), lambda: [run[name](STEPS) for name in RECIPES])
    machine, games = Machine(), sum(recipe.groups * recipe.group_size for recipe in RECIPES.values())
    result = compare(f"{len(RECIPES)} games", *both, machine, repeat, STEPS * seeds * games, "episodes/s")
    show(f"Together, and apart; medians of {repeat} pairs", [result], machine, json_file)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
