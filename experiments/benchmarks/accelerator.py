"""On one accelerator, in bfloat16, at Qwen3's sizes with random weights: decoding, games, updates, memory, `plan`.

Decoding alone stands beside transformers.generate on the same device. A training step of `social_dilemma`'s arm `talk`
(LoRA; both seats say a line before each move) stands beside the seconds and the memory that `plan` expects, with plain
and with flash attention, and is profiled. Each measurement has a process of its own, and with it a peak of memory of
its own. What fails is printed, and the others go on. Two minutes a model for decoding and as much for each attention,
most of it compiling.

  pip install 'jaxmarl_llm[cuda,bench]'
  python -m experiments.benchmarks.accelerator [--models qwen3-1.7b qwen3-8b] [--rows 8 64] [--group-size 16]
      [--only decoding step] [--tokenizer DIR] [--json FILE]
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmarks.decoding import decode_with_cache, generator
from experiments.social.social_dilemma import TALK
from jaxmarl_llm.models import decoder, loading
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.hf_families import KNOWN
from jaxmarl_llm.planning import accelerators, cost_model, plan
from jaxmarl_llm.planning.machine import Machine, seconds
from jaxmarl_llm.studies.profiled import profile
from jaxmarl_llm.training.recipe import for_pretrained
from jaxmarl_llm.training.setup import LORA, Model
from jaxmarl_llm.training.trainer import Trainer

DTYPE = "bfloat16"
LIMITS = 8192, 2**30, 20  # of `Machine`: an accelerator needs more than a CPU to be busy
PROMPT, NEW = 64, 128  # tokens
Attention = Literal["plain", "fused"]
Row = dict[str, Any]


def random_weights(
    source: str | Path, dtype: Any = jnp.float32, sharding: Any = None, tokenizer: str | Path = "smollm2"
) -> loading.Loaded:
    """What `loading.abstract` returns, with random numbers for weights: what a model costs whose files are not here."""
    where = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if sharding is None else sharding
    config, params, directory = loading.abstract(source, dtype, where, tokenizer)
    init = jax.jit(partial(decoder.init, config), out_shardings=jax.tree.map(lambda leaf: leaf.sharding, params))
    return loading.Loaded(config, init(jax.random.key(0)), directory)


def most_memory() -> float:
    """Bytes of the device at most since the process began; 0 where it does not say."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def decoding(source: str, tokenizer: str, rows: tuple[int, ...], repeat: int) -> list[Row]:
    """Tokens a second by rows, and their share of what reading and multiplying allow."""
    config, params, _ = random_weights(source, DTYPE, tokenizer=tokenizer)
    config = dataclasses.replace(config, dtypes=Dtypes(DTYPE, DTYPE, DTYPE))
    machine, random, found = Machine(DTYPE, *LIMITS), np.random.default_rng(0), []
    width = jnp.dtype(DTYPE).itemsize
    size = sum(x.size for x in jax.tree.leaves(params))
    size -= 0 if config.tie_word_embeddings else params["embed_tokens"].size  # of it only some rows are read
    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    for batch in rows:
        own = decode_with_cache(config, params, random.integers(0, config.vocab_size, (batch, PROMPT)), NEW)
        seconds(own)
        took = median(seconds(own) for _ in range(repeat))
        machine.measure()
        read = size + batch * (PROMPT + NEW / 2) * kept
        limit = NEW * (width * read / machine.reading + 2 * size * batch / machine.products)
        found.append({"rows": batch, "tokens/s": batch * NEW / took, "of limit": limit / took, "limits": str(machine)})
    return found


def theirs(source: str, rows: tuple[int, ...], repeat: int) -> list[Row]:
    """Tokens a second of transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device, found = "cuda" if torch.cuda.is_available() else "cpu", []
    about = AutoConfig.for_model(
        **(KNOWN[source] if source in KNOWN else json.loads(config_file(source).read_text(encoding="utf-8")))
    )
    with torch.device(device):
        language_model = AutoModelForCausalLM.from_config(about, dtype=torch.bfloat16).eval()
    for batch in rows:
        tokens = np.random.default_rng(0).integers(0, about.vocab_size, (batch, PROMPT))
        generate = generator(language_model, tokens)
        last = lambda new, generate=generate: generate(new)[0, -1].item()
        last(2)
        took = median(seconds(lambda: last(NEW + 1)) - seconds(lambda: last(1)) for _ in range(repeat))  # noqa: B023
        found.append({"rows": batch, "tokens/s": batch * NEW / took})
    return found


def config_file(source: str) -> Path:
    return loading.locate(source, loading.ABOUT) / "config.json"


def games_alone(trainer: Trainer, state: Any, repeat: int) -> tuple[float, int]:
    """Seconds of the games of a step, and the tokens sampled in them."""
    weights, play = trainer.weights(state, 0), jax.jit(trainer.rollout)
    games = lambda: play(weights, trainer.keys[0])
    tokens = sum(int(rows.loss_mask.sum()) for rows in games().rows.values())
    return median(seconds(games) for _ in range(repeat)), tokens


def step(source: str, tokenizer: str, attention: Attention, group_size: int, repeat: int) -> Row:
    """Seconds of a training step and of its games alone, as measured and as planned; parts by the profile; memory."""
    recipe = dataclasses.replace(for_pretrained(TALK), group_size=group_size)
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
    kind = jax.devices()[0].device_kind.lower()
    of = next((own for name, own in accelerators.ACCELERATORS.items() if name in kind), None)
    expected = accelerators.seconds(jobs, None, of or accelerators.this_machine(1), jnp.dtype(DTYPE).itemsize)
    return {
        "device": kind,
        "rows": jobs[0].rows,
        "skipped": int(metrics["skipped"].sum()),  # not finite
        "first step": took[0],
        "step": median(took[1:]),
        "games": played,
        "update": median(took[1:]) - played,
        "sampled tokens": tokens,
        "parts": parts,
        "planned games": max(expected["rollout"]),
        "planned update": max(expected["update"]),
        "memory": memory,
        "planned memory": cost_model.peak(cost_model.memory(jobs)),
    }


def alone(function: Callable[..., Any], *given: Any) -> Any:
    """What the function returns in a process of its own; None if it fails, which is printed."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(function, *given).result()
        except Exception as error:  # the others go on
            print(f"{function.__name__}{given} failed: {type(error).__name__}: {str(error)[:2000]}", flush=True)
            return None


def main(
    models: tuple[str, ...] = ("qwen3-1.7b", "qwen3-8b"),
    rows: tuple[int, ...] = (8, 64),
    group_size: int = 16,
    attentions: tuple[Attention, ...] = ("plain", "fused"),
    only: tuple[Literal["decoding", "step"], ...] = ("decoding", "step"),
    tokenizer: str = "smollm2",
    repeat: int = 3,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints two tables; `tokenizer` is the model whose tokenizer measures texts."""
    measures: dict[str, tuple] = {}
    if "decoding" in only:
        measures |= {"decoding": (decoding, tokenizer, rows, repeat), "transformers": (theirs, rows, repeat)}
    if "step" in only:
        measures |= {attention: (step, tokenizer, attention, group_size, repeat) for attention in attentions}
    found: dict[str, dict[str, Any]] = {source: {} for source in models}
    for source in models:
        for what, (function, *given) in measures.items():
            if (measured := alone(function, source, *given)) is not None:
                found[source][what] = measured
                if json_file is not None:
                    json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    show(found)


def show(found: dict[str, dict[str, Any]]) -> None:
    console = Console(width=120)
    table = Table("model", "rows", "tokens/s", "transformers", "ratio", "of limit", title="Decoding")
    for source, own in found.items():
        for i, row in enumerate(own.get("decoding", ())):
            other = own["transformers"][i]["tokens/s"] if "transformers" in own else float("nan")
            rates = (row["tokens/s"], other, row["tokens/s"] / other)
            table.add_row(source, str(row["rows"]), *(f"{x:.3g}" for x in rates), f"{row['of limit']:.0%}")
    if table.rows:
        console.print(table, *{row["limits"] for own in found.values() for row in own.get("decoding", ())})
    columns = "games", "planned games", "update", "planned update", "step"
    table = Table("model", "attention", *columns, "first step", "GB", "planned GB", title="A step, seconds")
    for source, own in found.items():
        for attention in get_args(Attention):
            if (row := own.get(attention)) is None:
                continue
            values = [f"{row[name]:.3g}" for name in (*columns, "first step")]
            table.add_row(
                source, attention, *values, *(f"{row[name] / 1e9:.1f}" for name in ("memory", "planned memory"))
            )
    if table.rows:
        console.print(table)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
