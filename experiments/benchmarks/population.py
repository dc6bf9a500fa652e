"""Seconds a generation of an evolving population, by its number of policies.

Tiny policies of about 20,000 weights play a few rounds of the dilemma in pairs, with a new partner every generation. In
a generation each policy makes an update. Then the better half survives, the other half becomes noisy copies of it, and
all draw partners (`methods/population.py`). Update and generation are one compiled program.

The first size runs `--generations` once, including compilation. Then repetitions of all sizes alternate, and the least
time of each counts, because other load only adds to it. About four minutes. population.png is the plot of a run on two
cores.

  python -m experiments.benchmarks.population [--policies 100 10 20 50 200] [--generations 50] [--plot FILE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import tyro

from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.methods.population import seat_scores, society
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer

TIMED = 5  # generations in a repetition


def recipe(games: int, rounds: int) -> Recipe:
    return Recipe(
        MatrixGame(rounds=rounds),
        seats=(("one", "other"),),
        advantage=estimator(advantages.round_leave_one_out),
        hparams={"learning_rate": 1e-3},
        budget=1,
        groups=2,
        group_size=games // 2,
        measure=seat_scores,
    )


class Society:
    """A population of policies, from its first generation on."""

    def __init__(self, policies: int, games: int, rounds: int):
        base = recipe(games, rounds)
        trainer = Trainer(base, [base.all_hparams] * (policies // 2), range(policies // 2))
        self.generation, self.state = society(trainer, survivors=policies // 2, noise=0.01), trainer.init()
        self.weights = sum(x.size for x in jax.tree.leaves(self.state.learners.weights)) // policies
        self.number = 0

    def run(self, generations: int) -> float:
        """Seconds of a number of generations."""
        start = time.perf_counter()
        for _ in range(generations):
            self.state, metrics = self.generation(self.state, self.number)
            self.number += 1
        jax.block_until_ready(metrics)
        return time.perf_counter() - start


def main(
    policies: tuple[int, ...] = (100, 10, 20, 50, 200),
    generations: int = 50,
    games: int = 16,
    rounds: int = 5,
    repeat: int = 5,
    plot: Path = Path("population.png"),
) -> None:
    """Prints a line for each size and the slope, and writes the plot. Numbers of policies must be even."""
    societies = {}
    for number in policies:
        start = time.perf_counter()
        societies[number] = people = Society(number, games, rounds)
        people.run(1)
        begun = time.perf_counter() - start
        if number == policies[0]:
            whole = begun + people.run(generations - 1)
            print(f"{number} policies of {people.weights} weights, {generations} generations: {whole:.0f} s, "
                  f"{begun:.0f} s of them until the end of the first.", flush=True)  # fmt: skip
    turns = [{number: people.run(TIMED) / TIMED for number, people in societies.items()} for _ in range(repeat)]
    least = {number: min(turn[number] for turn in turns) for number in sorted(policies)}
    for number, seconds in least.items():
        print(f"{number} policies: {seconds:.3f} s a generation, {1e3 * seconds / number:.2f} ms a policy.")
    draw(list(least), list(least.values()), plot)


def draw(policies: Sequence[int], seconds: Sequence[float], plot: Path) -> None:
    """Plots seconds a generation against the number of policies, with a linear fit."""
    import matplotlib.pyplot as plt

    slope, base = np.polyfit(policies, seconds, 1)
    print(f"A policy more takes {1e3 * slope:.2f} ms a generation; {1e3 * base:.0f} ms are there without any.")
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot(policies, seconds, marker="o", label="measured")
    axes.plot(policies, slope * np.array(policies) + base, linestyle="--", label=f"{1e3 * slope:.2f} ms a policy")
    axes.set(xlabel="policies", ylabel="seconds a generation", ylim=(0, None))
    axes.legend()
    figure.savefig(plot, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
