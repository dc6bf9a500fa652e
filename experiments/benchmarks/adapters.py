"""A training step of many policies on one base model: one program, adapters swapped in turn, or many processes.

SmolLM2-135M has a LoRA adapter of rank 32 for each policy and plays the dilemma. The number of games, and so of rows,
is fixed: with more policies, each policy has fewer. A step plays all games and updates every policy once.

  ours       one program for all policies (`models/lora.py`)
  swapped    one peft model: every turn and the update set each policy's adapter and compute its rows
  processes  a process for each policy that plays itself with our program, all at once on the same cores

Repetitions of our sizes alternate, then those of each size of theirs with ours; figures are medians. Memory is the
growth of the process in a step; for processes, the sum of their peaks, base model included. Larger groups favour ours,
which reads the prompt of a group once.

  pip install 'jaxmarl_llm[bench,plot]'
  python -m experiments.benchmarks.adapters [--policies 1 2 4 8 16] [--games 32] [--group 2] [--repeat 3]
      [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.pairs import label_of, measure_growth, need
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models import loading
from jaxmarl_llm.planning.machine import seconds
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import LORA
from jaxmarl_llm.training.trainer import Trainer

SIDES = ("ours", "swapped", "processes")
ENDS = {"processes": "each holds a base model"}  # reasons why a line ends
MICRO = 8  # micro-batches of an update


class Size(NamedTuple):
    """The games that all policies play together in a step."""

    games: int
    group: int  # games that begin alike
    rounds: int

    @property
    def groups(self) -> int:
        return self.games // self.group


def recipe(policies: int, size: Size) -> Recipe:
    """A recipe in which policies play in pairs, every pair in equally many groups; one policy plays itself."""
    names = [f"policy_{i}" for i in range(policies)]
    met = tuple(zip(names[::2], names[1::2] or names, strict=True))
    return Recipe(
        MatrixGame(rounds=size.rounds),
        seats=tuple(pair for pair in met for _ in range(size.groups // len(met))),
        advantage=estimator(advantages.reinforce_plus_plus),
        budget=2,
        groups=size.groups,
        group_size=size.group,
        grad_accumulation=MICRO,
        remat="dots",
        updates=1,
    )


class Ours:
    """Training steps of one program for all policies."""

    def __init__(self, policies: int, size: Size):
        game = recipe(policies, size)
        self.trainer = Trainer(game, [game.all_hparams], [0], "smollm2")
        self.state, self.number = self.trainer.init(), 0

    def step(self) -> Any:
        self.state, metrics = self.trainer.update(self.state, self.number)
        self.number += 1
        return metrics


class Swapped:
    """Training steps of one peft model that swaps in the adapter of each policy."""

    def __init__(self, policies: int, size: Size):
        import torch
        from peft import LoraConfig

        from experiments.benchmarks.peers import Peers

        directory, seats = loading.load("smollm2").directory, recipe(policies, size).seats
        owner: dict[str, list[int]] = {}
        self.peers = peers = Peers(directory, MatrixGame(rounds=size.rounds), size.games, LORA.rank, int(LORA.alpha))
        for row in range(2 * size.games):
            owner.setdefault(seats[row // 2 // size.group][row % 2], []).append(row)
        lora = LoraConfig(r=LORA.rank, lora_alpha=LORA.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        self.rows, self.optimisers, generate = owner, {}, peers._generate
        for name in owner:
            peers.model.add_adapter(name, lora)
            peers.model.set_adapter(name)
            trained = [x for x in peers.model.parameters() if x.requires_grad]
            self.optimisers[name] = torch.optim.AdamW(trained, lr=3e-4)

        def in_turn(chats: list) -> list[str]:
            said = [""] * len(chats)
            for name, rows in owner.items():
                peers.model.set_adapter(name)
                for row, text in zip(rows, generate([chats[row] for row in rows]), strict=True):
                    said[row] = text
            return said

        peers._generate = in_turn  # type: ignore[method-assign]

    def step(self) -> None:
        chats, points = self.peers.play()
        for name, rows in self.rows.items():
            self.peers.model.set_adapter(name)
            self.peers.optimiser = self.optimisers[name]
            self.peers.learn([chats[row] for row in rows], points[rows], "dialogue")


def alone(begin: Any, ended: Any, memory: Any, size: Size, steps: int) -> None:
    """The process of one policy: it compiles, then makes a step whenever `begin` releases all processes."""
    policy = Ours(1, size)
    seconds(policy.step)
    for _ in range(steps):
        begin.wait()
        seconds(policy.step)
        ended.wait()
    peak = next(
        line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")
    )
    memory.put(int(peak.split()[1]) * 1024)


class Processes:
    """A process for each policy, with an equal share of the games."""

    def __init__(self, policies: int, size: Size, steps: int):
        context = multiprocessing.get_context("spawn")
        self.begin, self.ended = (context.Barrier(policies + 1, timeout=1800) for _ in range(2))
        self.memory = context.Queue()
        share = (self.begin, self.ended, self.memory, size._replace(games=size.games // policies), steps)
        self.all = [context.Process(target=alone, args=share, daemon=True) for _ in range(policies)]
        for process in self.all:
            process.start()

    def step(self) -> float:
        """Seconds until the last process has made its step."""
        self.begin.wait()
        start = time.perf_counter()
        self.ended.wait()
        return time.perf_counter() - start

    def end(self) -> int:
        """Waits for the processes, and returns the sum of their peaks of memory, bytes."""
        held = sum(self.memory.get() for _ in self.all)
        for process in self.all:
            process.join()
        return held


def main(
    policies: tuple[int, ...] = (1, 2, 4, 8, 16),
    games: int = 32,
    group: int = 2,
    rounds: int = 6,
    swapped: tuple[int, ...] = (1, 2, 4, 8, 16),
    processes: tuple[int, ...] = (2, 4),
    repeat: int = 3,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    plot: Path | None = None,
) -> None:
    """Prints a table with the seconds and the memory of a step for each side and number of policies."""
    if wrong := [p for p in (*policies, *swapped) if p != 1 and (p % 2 or games % (group * p))]:
        sys.exit(f"Policies meet in pairs, each as often in both roles of {games} games: {wrong[0]} cannot.")
    if wrong := [p for p in processes if 2 * games % (MICRO * group * p)]:
        sys.exit(f"Processes share {games} games, with {MICRO} prompts or a multiple each: {wrong[0]} cannot.")
    if swapped:
        need("torch", "peft")
    size = Size(games, group, rounds)
    measured: dict[str, dict[int, list[tuple[float, int]]]] = {side: defaultdict(list) for side in SIDES}
    for p in processes:  # first, while nothing else needs the memory
        together = Processes(p, size, repeat)
        times = [together.step() for _ in range(repeat)]
        memory = together.end()
        measured["processes"][p] = [(x, memory) for x in times]

    def measure(side: str, p: int, step: Any) -> None:
        measured[side][p].append(measure_growth(partial(seconds, step)))
        print(f"{side}, {p} policies: {measured[side][p][-1][0]:.1f} s", flush=True)

    ours = {p: Ours(p, size).step for p in policies}
    for step in ours.values():
        seconds(step)
    for _ in range(repeat):
        for p, step in ours.items():
            measure("ours", p, step)
    for p in swapped:  # one after the other: all models with their adapters do not fit into 24 GB
        other = Swapped(p, size).step
        seconds(other)
        for _ in range(repeat):
            if p in ours:
                measure("ours", p, ours[p])
            measure("swapped", p, other)
        del other
        gc.collect()
    rows = [
        {
            "policies": p,
            "side": side,
            "seconds": median(s for s, _ in by_size[p]),
            "megabytes": max(m for _, m in by_size[p]) / 1e6,
        }
        for side, by_size in measured.items()
        for p in by_size
    ]
    show(rows, games)
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        draw(rows, plot)


def show(rows: list[dict[str, Any]], games: int) -> None:
    """Prints the table with ratios to our step, for one policy and for the same number of policies."""
    ours = {row["policies"]: row["seconds"] for row in rows if row["side"] == "ours"}
    table = Table(title=f"A step of {games} games")
    for column in ("policies", "side", "s a step", "of ours with one", "of ours with as many", "MB"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for row in rows:
        single, same = (f"{row['seconds'] / ours[p]:.2f}x" if p in ours else "" for p in (1, row["policies"]))
        table.add_row(
            f"{row['policies']}", row["side"], f"{row['seconds']:.2f}", single, same, f"{row['megabytes']:,.0f}"
        )
    Console().print(table)


def draw(rows: list[dict[str, Any]], plot: Path) -> None:
    """Plots seconds and memory against the number of policies, with a line for each side."""
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    sizes = sorted({row["policies"] for row in rows})
    for axes, (name, unit) in zip(both, (("seconds", "seconds a step"), ("megabytes", "MB")), strict=True):
        for side in SIDES:
            of_side = [row for row in rows if row["side"] == side]
            x, y = [row["policies"] for row in of_side], [row[name] for row in of_side]
            reason = ENDS.get(side, "no more were asked for")
            axes.plot(x, y, marker="o", label=label_of(side, x, y, sizes[-1], reason))
        axes.set(xlabel="policies", ylabel=unit, ylim=(0, None))
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(p) for p in sizes])
    both[0].legend()
    figure.savefig(plot, dpi=150)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
