"""Whole games of the dilemma beside a transformers loop that prompts afresh in every turn: SmolLM2-135M, LoRA.

Theirs renders the chat template, tokenises, generates and parses with `re` in every turn, all rows in one batch. An
answer has as many tokens on both sides; on ours the grammar forces its end. With `--turns` both also play that many
rounds, and a plot shows seconds against turns. With `--agents` ours plays the donor game among that many, each told no
more for it. About three minutes; 36 with those turns, nearly all of them theirs.

  pip install 'jaxmarl_llm[bench]'
  python -m experiments.benchmarks.self_play [--games 8] [--rounds 6] [--json FILE]
      [--turns 2 5 10 20 40 --plot FILE] [--agents 2 4 8 16]
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

from experiments.benchmarks.pairs import compare, seconds, show
from experiments.benchmarks.peers import Peers
from experiments.social.social_dilemma import NAIVE, self_play
from jaxmarl_llm.environments.commons import DonorGame
from jaxmarl_llm.environments.matrix_games import MatrixGame
from jaxmarl_llm.models import loading
from jaxmarl_llm.planning.machine import Machine
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.training.recipe import for_pretrained, mean_return
from jaxmarl_llm.training.setup import LORA
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
    """One policy for all seats of the donor game."""
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
    """Plays a batch of games with the policy as it begins."""
    weights, play = trainer.weights(trainer.init(), 0), jax.jit(trainer.rollout)
    return lambda: play(weights, trainer.keys[0])


def work(trainer: Trainer, trajectory: Trajectory) -> float:
    """Operations that playing takes: 2 a weight and token, of the vocabulary only where one is sampled."""
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
    agents: tuple[int, ...] = (),
    plot: Path = Path("turns.png"),
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints one table; with `turns` also the slopes, and writes the plot; `agents` prints ours by number."""
    machine, results = Machine(), []
    for number in (rounds, *turns):
        trainer, peers = trainer_of(games, number), peers_of(games, number)
        ours, pairs = player(trainer), repeat if number == rounds else 1
        operations = work(trainer, ours())
        least = lambda operations=operations: operations / machine.products  # noqa: E731
        results.append(compare(f"{games} games x {number} rounds", ours, peers.play, machine, pairs, least=least))
    show(f"Self-play, medians of {repeat} pairs", results, machine, json_file)
    if turns:
        draw(turns, [row.ours for row in results[1:]], [row.theirs for row in results[1:]], plot)
    for number in agents:
        play = player(among(number, games, rounds))
        seconds(play)
        took = median(seconds(play) for _ in range(repeat))
        print(f"{number} agents, {games} games x {rounds} rounds: {took:.2f} s, {took / number:.3f} s an agent.")


def draw(turns: tuple[int, ...], ours: list[float], theirs: list[float], plot: Path) -> None:
    """Seconds against turns, and the seconds that one more turn takes at both ends."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(6, 4))
    for name, values in (("ours", ours), ("a loop that prompts afresh", theirs)):
        axes.plot(turns, values, marker="o", label=name)
        slopes = np.diff(values) / np.diff(turns)
        print(f"{name}: a turn more takes {slopes[0]:.2f} s at {turns[0]} to {turns[1]} turns, {slopes[-1]:.2f} s at "
              f"{turns[-2]} to {turns[-1]}.")  # fmt: skip
    axes.set(xlabel="turns", ylabel="seconds", yscale="log")
    axes.legend()
    figure.savefig(plot, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
