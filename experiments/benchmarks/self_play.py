"""Seconds of whole games of the dilemma, with ours and with a transformers loop that prompts anew in every turn.

The policy is SmolLM2-135M with LoRA. In every turn, theirs renders the chat template, tokenises, generates and parses
with `re`, all rows in one batch. An answer has the same number of tokens on both sides. In ours the grammar ends it; in
theirs `generate` stops at a fixed number of tokens.

- `--turns` adds a table for each number of rounds: seconds of both sides, and memory of ours beside the memory that
  `plan` predicts. It also plots the seconds. The transformers loop is timed only up to `--afresh` rounds, because its
  tokens grow with the square of the rounds.
- `--agents` adds the seconds of ours in the donor game, for each number of agents. An agent's observations do not grow
  with that number.

About two minutes without `--turns` and `--agents`, eight with the turns below. `--json` stores the comparison at
`--rounds`, without the results of the other flags.

  pip install 'jaxmarl_llm[bench,plot]'
  python -m experiments.benchmarks.self_play [--games 8] [--rounds 6] [--json FILE]
      [--turns 2 5 10 25 50 100 --afresh 10 --plot FILE] [--agents 2 4 8 16]
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.pairs import compare, label_of, measure_growth, seconds, show
from experiments.benchmarks.peers import Peers
from experiments.social.social_dilemma import NAIVE, self_play
from jaxmarl_llm.environments.social.commons import DonorGame
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.models import loading
from jaxmarl_llm.planning import cost_model, plan
from jaxmarl_llm.planning.machine import Machine
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.training.recipe import mean_return
from jaxmarl_llm.training.setup import LORA, for_pretrained
from jaxmarl_llm.training.trainer import Trainer


def trainer_of(games: int, rounds: int) -> Trainer:
    dilemma = dataclasses.replace(
        for_pretrained(NAIVE),
        game=MatrixGame(rounds=rounds),
        groups=2,
        group_size=games // 2,
        grad_accumulation=1,
        measure=partial(self_play, alone=2),
    )
    return Trainer(dilemma, [dilemma.all_hparams], [0], "smollm2")


def among(agents: int, games: int, rounds: int) -> Trainer:
    """A trainer of the donor game with one policy in all seats."""
    dilemma = for_pretrained(NAIVE)
    donors = dataclasses.replace(
        dilemma,
        game=DonorGame(agents, rounds),
        seats=(dilemma.learners * agents,),
        groups=2,
        group_size=games // 2,
        measure=mean_return,
    )
    return Trainer(donors, [donors.all_hparams], [0], "smollm2")


def player(trainer: Trainer) -> Callable[[], Any]:
    """A function that plays a batch of games with the initial policy."""
    weights, play = trainer.weights(trainer.init(), 0), jax.jit(trainer.rollout)
    return lambda: play(weights, trainer.keys[0])


def work(trainer: Trainer, trajectory: Trajectory) -> float:
    """Operations of play: 2 for each weight and token; weights of the vocabulary count for sampled tokens only."""
    ((name, rows),) = jax.device_get(trajectory.rows).items()
    body = sum(x.size for x in jax.tree.leaves(trainer.base[name]["layers"]))
    heard = int(rows.prompts.length.sum()) + int(rows.length.sum())
    return 2.0 * (heard * body + int(rows.loss_mask.sum()) * trainer.base[name]["embed_tokens"].size)


def peers_of(games: int, rounds: int) -> Peers:
    game = for_pretrained(NAIVE).game
    return Peers(
        loading.load("smollm2").directory, dataclasses.replace(game, rounds=rounds), games, LORA.rank, int(LORA.alpha)
    )


def main(
    games: int = 8,
    rounds: int = 6,
    repeat: int = 3,
    turns: tuple[int, ...] = (),
    afresh: int = 10,
    agents: tuple[int, ...] = (),
    plot: Path = Path("turns.png"),
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints a table; `turns` adds another table and a plot, `agents` a line for each number of agents."""
    if games < 2 or games % 2:
        sys.exit(f"Games are played in two groups: --games must be even, got {games}.")
    machine, trainer = Machine(), trainer_of(games, rounds)
    ours = player(trainer)
    operations = work(trainer, ours())
    least = lambda: operations / machine.products
    name, theirs = f"{games} games x {rounds} rounds", peers_of(games, rounds).play
    result = compare(name, ours, theirs, machine, repeat, least=least)
    show(f"Self-play, medians of {repeat} pairs", [result], machine, json_file)
    if turns:
        by_turns(turns, games, afresh, repeat, plot)
    for number in agents:
        play = player(among(number, games, rounds))
        seconds(play)
        took = median(seconds(play) for _ in range(repeat))
        print(f"{number} agents, {games} games x {rounds} rounds: {took:.2f} s, {took / number:.3f} s an agent.")


def by_turns(turns: tuple[int, ...], games: int, afresh: int, repeat: int, plot: Path) -> None:
    """Prints seconds and memory against turns, with one repetition of theirs; plots the seconds."""
    import matplotlib.pyplot as plt

    table, took = Table("turns", "ours", "ms a turn", "theirs", "MB", "planned"), []
    for number in turns:
        trainer = trainer_of(games, number)
        play, (job,) = player(trainer), plan.jobs_of(trainer)
        seconds(play)
        times, memory = zip(*(measure_growth(partial(seconds, play)) for _ in range(repeat)), strict=True)
        ours, theirs = median(times), seconds(peers_of(games, number).play) if number <= afresh else None
        took.append((ours, theirs))
        planned = {what: size for what, size in cost_model.rollout(job).items() if what != cost_model.EARLY}
        figures = (f"{ours:.2f} s", f"{1e3 * ours / number:.0f}", f"{theirs:.1f} s" if theirs else "")
        table.add_row(str(number), *figures, *(f"{sum(x) / 1e6:.0f}" for x in ([max(memory)], planned.values())))
    Console().print(table)
    figure, axes = plt.subplots(figsize=(6, 4))
    reason = "its tokens grow with the square of the turns"
    for name, values in zip(("ours", "a loop that prompts afresh"), zip(*took, strict=True), strict=True):
        axes.plot(turns, values, marker="o", label=label_of(name, turns, values, turns[-1], reason))
    axes.set(xlabel="turns", ylabel="seconds", xscale="log", yscale="log")
    axes.legend()
    figure.savefig(plot, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
