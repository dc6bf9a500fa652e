"""Training of tiny policies in the social dilemma: all seeds side by side in one program, or one after the other.

Two-layer policies play 10 rounds with the advantage of `social_dilemma`, without evaluation. `--whole` also runs all
updates once and prints their seconds. About two minutes, five with `--whole`.

  python -m experiments.benchmarks.tiny [--seeds 5] [--games 128] [--updates 300] [--whole] [--json FILE]
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro

from experiments.benchmarks.pairs import compare, show
from experiments.social.social_dilemma import NAIVE
from jaxmarl_llm.planning.machine import Machine
from jaxmarl_llm.training.trainer import Trainer

STEPS = 5  # updates in a repetition


def runner(trainer: Trainer) -> Callable[[int], Any]:
    """run(updates): makes this number of further updates of a trainer."""
    state = trainer.init()

    def run(updates: int) -> Any:
        nonlocal state
        for number in range(updates):
            state, metrics = trainer.update(state, number)
        return jax.block_until_ready(metrics)

    return run


def main(
    seeds: int = 5,
    games: int = 128,
    updates: int = 300,
    repeat: int = 5,
    whole: bool = False,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints a table of one row: seeds side by side, and one after the other."""
    machine, dilemma = Machine(), dataclasses.replace(NAIVE, group_size=games // NAIVE.groups, updates=updates)
    hparams = dilemma.all_hparams
    together = runner(Trainer(dilemma, [hparams] * seeds, range(seeds)))
    alone = runner(Trainer(dilemma, [hparams], [0]))
    both = (lambda: together(STEPS), lambda: [alone(STEPS) for _ in range(seeds)])
    amount = STEPS * seeds * games
    name = f"{seeds} seeds x {games} games"
    result = compare(name, *both, machine, repeat, amount, "episodes/s")
    show(f"Side by side, and one after the other; medians of {repeat} pairs", [result], machine, json_file)
    if whole:
        start = time.perf_counter()
        runner(Trainer(dilemma, [hparams] * seeds, range(seeds)))(updates)
        spent = time.perf_counter() - start
        print(f"{seeds} seeds x {updates} updates, compilation and imitation included: {spent:.1f} s")


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
