"""How far rollout and update of the demo are from the machine's limit: SmolLM2-135M, LoRA, the dilemma.

The limit, the rate of large float32 matrix products, is measured between the repetitions of the same run. Operations
are counted from shapes: 2 a weight and token forward, as many again for the gradient of the activations; attention and
adapters are not counted, padding that is computed is not useful work. About three minutes.

  python -m experiments.benchmarks.step [--repeat 5] [--games 64] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.social_dilemma import Choice, defaults, models, recipe
from experiments.trainer import Trainer

SIZE = 2048


def seconds(function: Callable, *inputs) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function(*inputs))
    return time.perf_counter() - start


def main(
    repeat: int = 5,
    games: int = 64,
    rounds: int = 3,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints one table; `json_file` keeps it as a list of {name, tokens_a_second, gflops, share_of_limit}."""
    settings = dataclasses.replace(defaults(Choice(model="smollm2")), games=games, rounds=rounds)
    dilemma = recipe(settings)
    trainer = Trainer(dilemma, [dilemma.all_numbers], [0], models(settings))
    base, state = trainer.base, trainer.begin()
    one, numbers = jax.tree.map(lambda x: x[0], (state, trainer.numbers))
    rollout, learn = jax.jit(trainer.rollout), jax.jit(partial(trainer.learn, past={}, numbers=numbers))
    weights, key = trainer.lane(state, 0), trainer.keys[0]
    played = rollout(weights, key)
    jax.block_until_ready(learn(base, one, trajectory=played, event=key))
    square = jnp.ones((SIZE, SIZE))
    product = jax.jit(lambda a, b: a @ b)
    product(square, square)

    times: dict[str, list[float]] = {"rollout": [], "update": [], "limit": []}
    for _ in range(repeat):
        times["limit"].append(seconds(product, square, square))
        times["rollout"].append(seconds(rollout, weights, key))
        times["update"].append(seconds(partial(learn, base, one, trajectory=played, event=key)))
        times["limit"].append(seconds(product, square, square))

    rows = jax.device_get(played.rows["smollm2"])
    head = int(np.prod(base["smollm2"]["embed_tokens"].shape))
    body = sum(int(np.prod(x.shape)) for x in jax.tree.leaves(base["smollm2"]["layers"]))
    openings, said = int(rows.openings.length.sum()), int(rows.mine.sum())
    fed = openings + int(rows.length.sum())
    work = {"rollout": 2 * (fed * body + said * head), "update": 4 * (fed * body + said * head)}
    limit = 2 * SIZE**3 / median(times["limit"])
    results = []
    table = Table(title=f"{games} games x {rounds} rounds, {fed} tokens of which {said} sampled, medians of {repeat}")
    for column in ("", "seconds", "tokens / s", "GFLOP/s", "of the matrix limit"):
        table.add_column(column, justify="right")
    for name, flops in work.items():
        spent = median(times[name])
        share = flops / spent / limit
        results.append(
            {"name": name, "tokens_a_second": fed / spent, "gflops": flops / spent / 1e9, "share_of_limit": share}
        )
        table.add_row(name, f"{spent:.2f}", f"{fed / spent:.0f}", f"{flops / spent / 1e9:.0f}", f"{share:.0%}")
    table.add_row("matrix product", f"{median(times['limit']):.2f}", "", f"{limit / 1e9:.0f}", "")
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
