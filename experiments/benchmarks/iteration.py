"""Seconds of a training iteration, games and update, with ours and with torch: the dilemma, SmolLM2-135M, LoRA.

Theirs plays as in `self_play` and makes a step of AdamW. A sample is either a whole dialogue or one turn. A second
scoring pass, which most libraries add, is left out. The lower bound is the sum over our step's matrix products,
each timed alone; "of limit" is its share of the measured time. Under ten minutes.

  pip install 'jaxmarl_llm[bench]'
  python -m experiments.benchmarks.iteration [--games 8] [--rounds 6] [--repeat 2] [--json FILE]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import jax
import jax.numpy as jnp
import tyro

from experiments.benchmarks.pairs import compare, seconds, show
from experiments.benchmarks.peers import Sample
from experiments.benchmarks.self_play import peers_of, trainer_of
from jaxmarl_llm.planning.machine import Machine
from jaxmarl_llm.training.setup import LORA
from jaxmarl_llm.training.trainer import Trainer

Product = tuple[int, int, int]  # tokens, input width, output width


def products(trainer: Trainer) -> Counter[Product]:
    """{matrix product: its number in a training step}, for weights, adapters and vocabulary."""
    (layout,) = trainer.rollout.layouts.values()
    config, turns, counts = layout.policy_set.config, trainer.recipe.game.turns, Counter[Product]()
    assert config is not None
    width, inner, rank = config.hidden_size, config.intermediate_size, LORA.rank
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    maps = {
        "qkv": (width, queries + 2 * keys, 3),
        "o": (queries, width, 1),
        "up": (width, 2 * inner, 2),
        "down": (inner, width, 1),
    }
    rows, prompts = len(layout.policy), len(layout.assignments) * layout.prompt_width
    layers = config.num_hidden_layers

    def of_layers(tokens: int, times: int, learns: bool) -> None:
        for into, out, joined in maps.values():
            counts[tokens, into, out] += times * layers
            if learns:
                ranks = joined * rank
                counts[tokens, out, into] += layers  # the gradient of the input
                # the adapter: forward pass, gradient of its input, gradients of both its matrices
                for a, b in ((into, ranks), (ranks, out)):
                    counts[tokens, a, b] += layers
                    counts[tokens, b, a] += layers
                    counts[a, tokens, b] += layers

    of_layers(prompts, 1, False)
    of_layers(rows * (layout.max_heard + layout.max_said), turns - 1, False)
    counts[rows, width, config.vocab_size] += turns
    for tokens in (prompts, rows * layout.slots):
        of_layers(tokens, 1, True)
    spoken = rows * trainer.rollout.max_sampled_tokens(next(iter(trainer.rollout.layouts)))
    counts[spoken, width, config.vocab_size] += 1 + 1  # forward twice: once in the chunk, again in its backward pass
    counts[spoken, config.vocab_size, width] += 1
    return counts


def floor(counts: Counter[Product], repeat: int) -> Callable[[], float]:
    """measure(): seconds of all these matrix products, each timed alone."""
    product = jax.jit(lambda x, w: jnp.einsum("ti,oi->to", x, w))

    def measure() -> float:
        total = 0.0
        for (tokens, into, out), times in counts.items():
            x, w = jnp.ones((tokens, into)), jnp.ones((out, into))
            seconds(lambda: product(x, w))  # noqa: B023
            total += times * median(seconds(lambda: product(x, w)) for _ in range(repeat))  # noqa: B023
        return total

    return measure


def main(
    games: int = 8,
    rounds: int = 6,
    repeat: int = 2,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints a table; `json_file` stores it."""
    machine, trainer, peers = Machine(), trainer_of(games, rounds), peers_of(games, rounds)
    state, least = trainer.init(), floor(products(trainer), 5)

    def ours() -> dict:
        nonlocal state
        state, metrics = trainer.update(state, 0)
        return metrics

    floors: list[float] = []

    def time_update() -> float:
        floors.append(least())
        return floors[-1]

    results = []
    samples: tuple[Sample, Sample] = ("dialogue", "turn")
    for sample in samples:
        name = f"{games} games x {rounds} rounds, by {sample}"
        theirs = partial(peers.iterate, sample)
        results.append(compare(name, ours, theirs, machine, repeat, least=time_update))
    show(f"A training iteration, medians of {repeat} pairs", results, machine, json_file)
    print(
        f"Our step's own products alone take {median(floors):.2f} s, "
        f"the step {results[0].ours / median(floors):.2f} times that."
    )


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
