"""Speed and memory on one accelerator, in bfloat16, of models with Qwen3's sizes and random weights.

- Decoding is compared with the measured rates of reading and of products, and with transformers.generate on the same
  device (in the shortest rows alone).
- A training step of the arm `talk` of `social_dilemma` is compared with the seconds and memory of `plan`, and its
  update with the measured rate of products. It uses LoRA; both seats say a line before each move. It runs with plain
  and with fused attention, and is profiled. `--policies 2` gives each seat a policy of its own.

Each measurement runs in a separate process, so it has a separate peak of memory. A failure is printed, and the other
measurements continue. A model takes two minutes for decoding and two for each attention, mostly compilation.

  pip install 'jaxmarl_llm[cuda,bench]'
  python -m experiments.benchmarks.accelerator [--models qwen3-1.7b qwen3-8b] [--rows 8 64] [--slots 192 4096]
      [--group-size 16] [--policies 1 2] [--only decoding transformers step] [--tokenizer DIR] [--json FILE]
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.decoding import decode_with_cache, generator
from experiments.benchmarks.pairs import need
from experiments.social.social_dilemma import GROUPS, TALK, self_play
from jaxmarl_llm.models import decoder, loading
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.hf_families import KNOWN
from jaxmarl_llm.planning import accelerators, cost_model, plan
from jaxmarl_llm.planning.machine import Machine, seconds
from jaxmarl_llm.studies.profiled import profile
from jaxmarl_llm.training.setup import LORA, Model, for_pretrained
from jaxmarl_llm.training.trainer import Trainer

DTYPE = "bfloat16"
NEW = 128  # decoded tokens; a row's other slots hold its prompt
ROOM = 0.6  # share of the device's memory that the caches of a measurement may take
Attention = Literal["plain", "fused"]
Row = dict[str, Any]


def random_weights(
    source: str | Path, dtype: Any = jnp.float32, sharding: Any = None, tokenizer: str | Path = "smollm2"
) -> loading.Loaded:
    """A model with random weights, from its configuration alone: cost is measured without the files of its weights."""
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if sharding is None else sharding
    config, params, directory = loading.abstract(source, dtype, where, tokenizer)
    init = jax.jit(partial(decoder.init, config), out_shardings=jax.tree.map(lambda leaf: leaf.sharding, params))
    return loading.Loaded(config, init(jax.random.key(0)), directory)


def limits() -> Machine:
    """The measured rates of this device; an accelerator needs larger sizes than a CPU."""
    machine = Machine(DTYPE) if jax.default_backend() == "cpu" else Machine(DTYPE, 8192, 2**30, 20)
    machine.measure()
    return machine


def most_memory() -> float:
    """The peak of the device's memory since the process began, bytes; 0 if the device does not report it."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def decoding(source: str, tokenizer: str, rows: tuple[int, ...], slots: tuple[int, ...], repeat: int) -> list[Row]:
    """Tokens a second for each number of rows and of slots, and their shares of what the device can do.

    `of reading` is the share of the measured rate of reading; `of limit` counts the products' seconds beside it.
    """
    config, params, _ = random_weights(source, DTYPE, tokenizer=tokenizer)
    config = dataclasses.replace(config, dtypes=Dtypes(DTYPE, DTYPE, DTYPE))
    machine, random, rates = limits(), np.random.default_rng(0), []
    width = jnp.dtype(DTYPE).itemsize
    size = sum(x.size for x in jax.tree.leaves(params))
    size -= 0 if config.tie_word_embeddings else params["embed_tokens"].size  # few of its rows are read
    kept = 2 * sum(math.prod(config.heads_of(config.kinds[layer])) for layer in config.with_keys)
    room = ROOM * (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", float("inf"))
    for length, batch in itertools.product(slots, rows):
        if width * batch * length * kept > room:
            print(f"{source}: the caches of {batch} rows of {length} slots do not fit.", flush=True)
            continue
        prompts = random.integers(0, config.vocab_size, (batch, length - NEW))
        decode = decode_with_cache(config, params, prompts, NEW)
        seconds(decode)
        took = median(seconds(decode) for _ in range(repeat))
        machine.measure()
        read = NEW * width * (size + batch * (length - NEW / 2) * kept) / machine.reading
        limit = read + NEW * 2 * size * batch / machine.products
        row: Row = {"rows": batch, "slots": length, "tokens/s": batch * NEW / took}
        rates.append(row | {"of reading": read / took, "of limit": limit / took, "limits": str(machine)})
    return rates


def theirs(source: str, rows: tuple[int, ...], slots: int, repeat: int) -> list[Row]:
    """Tokens a second of transformers.generate for each number of rows of `slots` slots."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device, results = "cuda" if torch.cuda.is_available() else "cpu", []
    about = AutoConfig.for_model(
        **(KNOWN[source] if source in KNOWN else json.loads(config_file(source).read_text(encoding="utf-8")))
    )
    with torch.device(device):
        language_model = AutoModelForCausalLM.from_config(about, dtype=torch.bfloat16).eval()
    for batch in rows:
        tokens = np.random.default_rng(0).integers(0, about.vocab_size, (batch, slots - NEW))
        generate = generator(language_model, tokens)
        last = lambda new, generate=generate: generate(new)[0, -1].item()
        last(2)
        took = median(seconds(lambda: last(NEW + 1)) - seconds(lambda: last(1)) for _ in range(repeat))  # noqa: B023
        results.append({"rows": batch, "slots": slots, "tokens/s": batch * NEW / took})
    return results


def config_file(source: str) -> Path:
    return loading.locate(source, loading.ABOUT) / "config.json"


def games_alone(trainer: Trainer, state: Any, repeat: int) -> tuple[float, int]:
    """(seconds of the games of a step, number of tokens sampled in them)."""
    weights, play = trainer.weights(state, 0), jax.jit(trainer.rollout)
    games = lambda: play(weights, trainer.keys[0])
    tokens = sum(int(rows.loss_mask.sum()) for rows in games().rows.values())
    return median(seconds(games) for _ in range(repeat)), tokens


def step(source: str, tokenizer: str, attention: Attention, policies: int, group_size: int, repeat: int) -> Row:
    """A training step: seconds and memory, measured and planned, of its games and its update, and the profile."""
    recipe = dataclasses.replace(for_pretrained(TALK), group_size=group_size)
    if policies == 2:
        measure = partial(self_play, alone=GROUPS, talk=True)
        recipe = dataclasses.replace(recipe, seats=(("seat_0", "seat_1"),), snapshots=None, measure=measure)
    models = {name: Model(source, LORA, recipe.sampling, DTYPE, attention) for name in recipe.learners}
    load = partial(random_weights, tokenizer=tokenizer)
    trainer = Trainer(recipe, [recipe.all_hparams], [0], models, load=load)
    state, took = trainer.init(), []
    for number in range(1 + repeat):
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(trainer.update(state, number))
        took.append(time.perf_counter() - start)
    memory = most_memory()
    played, tokens = games_alone(trainer, state, repeat)
    del state
    with tempfile.TemporaryDirectory() as home:
        parts = profile(trainer, Path(home) / "run", Console())
    jobs = plan.jobs_of(trainer)
    machine, kind = limits(), jax.devices()[0].device_kind.lower()
    operations = sum(cost_model.operations(job)["update"] for job in jobs)
    known = next((x for name, x in accelerators.ACCELERATORS.items() if name in kind), None)
    expected = accelerators.seconds(jobs, None, known or accelerators.this_machine(1), jnp.dtype(DTYPE).itemsize)
    return {
        "device": kind,
        "rows": jobs[0].rows,
        "skipped": int(metrics["skipped"].sum()),  # updates that were not finite
        "first step": took[0],
        "step": median(took[1:]),
        "games": played,
        "update": (update := median(took[1:]) - played),
        "of products": operations / update / machine.products,
        "sampled tokens": tokens,
        "parts": parts,
        "planned games": max(expected["rollout"]),
        "planned update": max(expected["update"]),
        "memory": memory,
        "planned memory": cost_model.peak(cost_model.memory(jobs)),
    }


def alone(function: Callable[..., Any], *given: Any) -> Any:
    """The result of a function in a new process; None, with a printed message, if it fails."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(function, *given).result()
        except Exception as error:  # the other measurements continue
            print(f"{function.__name__}{given} failed: {type(error).__name__}: {str(error)[:2000]}", flush=True)
            return None


def main(
    models: tuple[str, ...] = ("qwen3-1.7b", "qwen3-8b"),
    rows: tuple[int, ...] = (8, 64),
    slots: tuple[int, ...] = (192,),
    group_size: int = 16,
    policies: tuple[Literal[1, 2], ...] = (1,),
    attentions: tuple[Attention, ...] = ("plain", "fused"),
    only: tuple[Literal["decoding", "transformers", "step"], ...] = ("decoding", "transformers", "step"),
    tokenizer: str = "smollm2",
    repeat: int = 3,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints two tables. `tokenizer` names the model whose tokenizer encodes the texts."""
    measures: dict[str, tuple] = {}
    if "decoding" in only:
        measures["decoding"] = decoding, tokenizer, rows, slots, repeat
    if "transformers" in only:
        need("torch")
        measures["transformers"] = theirs, rows, min(slots), repeat
    if "step" in only:
        for attention, number in itertools.product(attentions, policies):
            measures[f"{attention}, policies: {number}"] = step, tokenizer, attention, number, group_size, repeat
    results: dict[str, dict[str, Any]] = {source: {} for source in models}
    for source in models:
        for what, (function, *given) in measures.items():
            if (measured := alone(function, source, *given)) is not None:
                results[source][what] = measured
                if json_file is not None:
                    json_file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results)


def show(results: dict[str, dict[str, Any]]) -> None:
    console = Console(width=140)
    columns = "tokens/s", "transformers", "ratio", "of reading", "of limit"
    table = Table("model", "rows", "slots", *columns, title="Decoding")
    for source, model in results.items():
        others = {(row["rows"], row["slots"]): row["tokens/s"] for row in model.get("transformers", ())}
        for row in model.get("decoding", ()):
            other = others.get((row["rows"], row["slots"]), float("nan"))
            rates = (f"{x:.3g}" for x in (row["tokens/s"], other, row["tokens/s"] / other))
            shares = f"{row['of reading']:.0%}", f"{row['of limit']:.0%}"
            table.add_row(source, str(row["rows"]), str(row["slots"]), *rates, *shares)
    if table.rows:
        console.print(table, *{row["limits"] for model in results.values() for row in model.get("decoding", ())})
    times = "games", "planned games", "update", "planned update", "step", "first step"
    table = Table("model", "attention", *times, "of products", "GB", "planned GB", title="A step, seconds")
    for source, model in results.items():
        for name, row in model.items():
            if "update" in row:
                sizes = (f"{row[x] / 1e9:.1f}" for x in ("memory", "planned memory"))
                table.add_row(source, name, *(f"{row[x]:.3g}" for x in times), f"{row['of products']:.0%}", *sizes)
    if table.rows:
        console.print(table)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
