"""Play with and without packing, in games whose rows are often silent, finished or shorter than the longest row.

SmolLM2-135M plays whispers, negotiation with messages, Leduc poker and router-search. In the dilemma all seats act in
all turns. Both sides play the same games; the second side computes every row of a chunk, as without
`models/packing.py`. With free text, rounding may change a token, and then the games differ. The utilisation of both is
printed too: tokens in use / tokens computed, without prompts. About six minutes.

With `--afresh` a second table compares transformers. In every turn, one batch prompts all speakers with their dialogue
so far, and generates as many tokens as the longest answer in our games. Rules, texts and parsing cost it nothing.

  pip install 'jaxmarl_llm[bench]'
  python -m experiments.benchmarks.ragged [--games 16] [--repeat 3] [--only leduc] [--afresh] [--json FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import jax
import numpy as np
import tyro

from experiments.benchmarks.pairs import compare, need, show
from jaxmarl_llm.environments.classic.card_games import LeducPoker
from jaxmarl_llm.environments.social.deal_or_no_deal import DealOrNoDeal
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from jaxmarl_llm.environments.teams.whispers import Whispers
from jaxmarl_llm.models import loading, packing
from jaxmarl_llm.planning.machine import Machine
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer

GAMES: dict[str, tuple[Any, Any]] = {  # {name: (game, budget of an answer in tokens)}
    "whispers": (Whispers(words=("dog", "sun", "tree", "book", "fish", "rain")), (3, 8)),
    "negotiation": (DealOrNoDeal(), 12),
    "leduc": (LeducPoker(), 2),
    "router_search": (RouterSearch(), 3),
    "dilemma": (MatrixGame(rounds=6), 2),
}


def player(name: str, games: int, packed: bool) -> Callable[[], Any]:
    """A function that plays a batch of games with one policy in all seats."""
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


def afresh(play: Callable[[], Any]) -> Callable[[], Any]:
    """A function that generates the answers of the games of `play` with transformers, prompted anew in every turn."""
    import torch
    from transformers import AutoModelForCausalLM

    rows = next(iter(jax.device_get(play()).rows.values()))
    language_model = AutoModelForCausalLM.from_pretrained(loading.load("smollm2").directory, dtype=torch.float32).eval()
    turns = []
    for turn in range(rows.turn.max() + 1):
        sampled = rows.loss_mask & (rows.turn == turn)
        prompts = [
            np.concatenate(
                [rows.prompts.tokens[p][: rows.prompts.length[p]], rows.tokens[row][: sampled[row].argmax()]]
            )
            for row in np.flatnonzero(sampled.any(1))
            for p in [rows.prompt[row]]
        ]
        if prompts:
            width = max(map(len, prompts))
            ids = torch.tensor(np.stack([np.pad(x, (width - len(x), 0)) for x in prompts]), dtype=torch.long)
            seen = torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in prompts])
            turns.append((ids, seen, int(sampled.sum(1).max())))

    def generate() -> None:
        with torch.no_grad():
            for ids, seen, new in turns:
                language_model.generate(
                    ids, attention_mask=seen, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, min_new_tokens=new,
                    max_new_tokens=new, pad_token_id=0,
                )  # fmt: skip

    return generate


def main(
    games: int = 16,
    repeat: int = 3,
    only: tuple[str, ...] = (),
    with_afresh: Annotated[bool, tyro.conf.arg(name="afresh")] = False,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints a table; with `--afresh`, a second one."""
    if games < 2 or games % 2:
        sys.exit(f"Games are played in two groups: --games must be even, got {games}.")
    if unknown := [name for name in only if name not in GAMES]:
        sys.exit(f"No game is called {unknown[0]!r}: possible are {', '.join(GAMES)}.")
    if with_afresh:
        need("torch")
    machine, results, others = Machine(), [], []
    for name in only or GAMES:
        ours, theirs = player(name, games, True), player(name, games, False)
        share = [next(iter(play().utilisation.values())) for play in (ours, theirs)]
        label = f"{name} ({share[0]:.2f} in use, else {share[1]:.2f})"
        results.append(compare(label, ours, theirs, machine, repeat))
        if with_afresh:
            others.append(compare(name, ours, afresh(ours), machine, repeat))
    show(f"{games} games, medians of {repeat} pairs", results, machine, json_file)
    if others:
        show("Beside transformers, which prompts afresh", others, machine, None)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
