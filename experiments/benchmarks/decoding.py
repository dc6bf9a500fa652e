"""Decoding speed of our sampler and of transformers.generate (torch, float32), for SmolLM2-135M.

Both sample from the whole distribution at temperature 1. A decoded token reads every weight once, and the keys and
values of its row, which limits small batches. It costs two operations a weight and row, which limits large batches. The
column "of limit" is the sum of both times, at speeds measured in the same run, over the measured time. Neither side's
prompt counts: theirs is the time of all new tokens minus that of the first. About eight minutes.

  pip install 'jaxmarl_llm[bench]'
  python -m experiments.benchmarks.decoding [--rows 1 8 32 64] [--repeat 2] [--json FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.benchmarks.pairs import Result, compare, need, show
from jaxmarl_llm.models import decoder, loading
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.planning.machine import Machine, seconds
from jaxmarl_llm.rollout.policy import PLAIN, distribution, sample


def decode_with_cache(config: Config, params: dict, tokens: np.ndarray, new: int) -> Callable[[], jax.Array]:
    """A function that samples `new` tokens [R, new] after tokens [R, T], whose keys and values are cached."""
    rows, length = tokens.shape
    prepared = jax.jit(lambda params: decoder.prepare(config, params))(params)

    @jax.jit
    def prompt(prepared: dict, tokens: jax.Array) -> tuple[decoder.Cache, jax.Array]:
        cache = decoder.empty_cache(config, rows, length + new)
        cache, hidden = decoder.append(config, prepared, cache, tokens, jnp.full((rows,), length, jnp.int32))
        return cache, hidden[:, -1]

    @jax.jit
    def decode(prepared: dict, cache: decoder.Cache, hidden: jax.Array, key: jax.Array) -> jax.Array:
        def step(i, carry):
            cache, hidden, said = carry
            logp = distribution(decoder.logits(config, prepared, hidden), None, PLAIN)
            token = sample(logp, jax.random.uniform(jax.random.fold_in(key, i), (rows,)))
            cache, hidden = decoder.append(config, prepared, cache, token[:, None], jnp.ones((rows,), jnp.int32))
            return cache, hidden[:, 0], said.at[:, i].set(token)

        return jax.lax.fori_loop(0, new, step, (cache, hidden, jnp.zeros((rows, new), jnp.int32)))[2]

    cache, hidden = prompt(prepared, jnp.asarray(tokens, jnp.int32))
    return lambda: decode(prepared, cache, hidden, jax.random.key(0))


def generator(language_model: Any, tokens: np.ndarray) -> Callable[[int], Any]:
    """generate(new): transformers.generate of `new` tokens for every row of tokens [R, T]."""
    import torch

    ids = torch.tensor(tokens, device=language_model.device)
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}

    def generate(new: int) -> Any:
        with torch.no_grad():
            return language_model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=new, max_new_tokens=new, **options
            )

    return generate


def main(
    rows: tuple[int, ...] = (1, 8, 32, 64),
    prompt: int = 64,
    new: int = 64,
    slots: int = 400,
    repeat: int = 2,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints a table: batches of `rows` with a short prompt, and 32 rows with a cache of `slots` tokens."""
    need("torch")
    import torch
    from transformers import AutoModelForCausalLM

    loaded, machine, random = loading.load("smollm2"), Machine(), np.random.default_rng(0)
    language_model = AutoModelForCausalLM.from_pretrained(loaded.directory, dtype=torch.float32).eval()
    size, config = sum(x.size for x in jax.tree.leaves(loaded.params)), loaded.config
    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim  # keys and values of a token
    results: list[Result] = []
    for batch, length in (*((batch, prompt) for batch in rows), *([(32, slots - new)] if slots else [])):
        tokens = random.integers(0, loaded.config.vocab_size, (batch, length))
        ours, generate = decode_with_cache(loaded.config, loaded.params, tokens, new), generator(language_model, tokens)

        def least(batch: int = batch, length: int = length) -> float:
            read = size + batch * (length + new / 2) * kept
            return new * (4 * read / machine.reading + 2 * size * batch / machine.products)

        def theirs(_: Callable, generate: Callable[[int], Any] = generate) -> float:
            return seconds(lambda: generate(new + 1)) - seconds(lambda: generate(1))

        name, amount = f"{batch} rows, {length} + {new} tokens", batch * new
        both = (ours, lambda generate=generate: generate(2))
        results.append(compare(name, *both, machine, repeat, amount, "tokens/s", least, (seconds, theirs)))
    show(f"Decoding, medians of {repeat} pairs", results, machine, json_file)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
