"""Tiny policies behind an endpoint: engines, services, and clients in process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import openai

from jaxmarl_llm.keys import SAY
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy import PLAIN, Sampling, Scorer
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.rollout.trajectory import Rows, gather_sampled
from jaxmarl_llm.serving.app import create
from jaxmarl_llm.serving.calls import FREE, Call
from jaxmarl_llm.serving.engine import Engine
from jaxmarl_llm.serving.service import Served, Service, running
from jaxmarl_llm.text.grammar import Grammar, lift
from jaxmarl_llm.text.tokenizers import HFTokenizer, Tokenizer
from tests.support.families import recurrent, sharing
from tests.support.tokenizer_files import QWEN_TOOLS, qwen, written
from tests.support.toys import ByteTokenizer

LORAS = (Lora(2, 4.0), Lora(3, 6.0, ("q_proj", "up_proj")))
SLOTS, CONTEXT = 4, 512


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """The toy of bytes, also for models with a "state" or "sharing" keys, or one from files that shows tools."""
    if kind in ("toy", "state", "sharing"):
        return ByteTokenizer()
    with TemporaryDirectory() as directory:
        return HFTokenizer(written(Path(directory) / "tokenizer", qwen(), QWEN_TOOLS, eos_token="<|im_end|>"))


def config_of(tokenizer: Tokenizer) -> Config:
    return Config(tokenizer.vocab_size, 16, 24, 2, 2, 1, 8, max_position_embeddings=CONTEXT)


@cache
def policies(kind: str, adapters: int = 0) -> tuple[PolicySet, dict]:
    """(policies, their random weights, which have marked preferences): `adapters` on a base, or the base alone."""
    tokenizer = tokenizer_of(kind)
    config = {"state": recurrent, "sharing": sharing}.get(kind, lambda _: config_of(tokenizer))(tokenizer.vocab_size)
    params = jax.tree.map(lambda x: 2 * x, jax.jit(lambda key: decoder.init(config, key))(jax.random.key(1)))
    if not adapters:
        return PolicySet(tokenizer, ("base",), config), {"params": params}
    generator = np.random.default_rng(2)
    draw = lambda x: jnp.asarray(generator.normal(size=x.shape) * 0.3, jnp.float32)
    shapes = [jax.eval_shape(partial(lora.init, lora=settings), jax.random.key(0), params) for settings in LORAS]
    weights = tuple(jax.tree.map(draw, shape) for shape in shapes[:adapters])
    names = tuple(f"adapter{index}" for index in range(adapters))
    return PolicySet(tokenizer, names, config, LORAS[:adapters]), {"params": params, "adapters": weights}


def engine_of(kind: str = "files", adapters: int = 0, slots: int = SLOTS, context: int = CONTEXT) -> Engine:
    policy_set, weights = policies(kind, adapters)
    return Engine(policy_set, weights, slots, context)


def service_of(kind: str = "files", adapters: int = 0, **options: Any) -> Service:
    """A service of the policy "tiny", and of its adapters by name."""
    engine = engine_of(kind, adapters, **options)
    named = {name: Served(engine, index) for index, name in enumerate(engine.policy_set.policies) if adapters}
    return Service({"tiny": Served(engine, -1 if adapters else 0), **named})


def call_of(prompt: Sequence[int], seed: int = 0, budget: int = 16, **options: Any) -> Call:
    return Call(list(prompt), (0, seed), (SAY, 0, 0, 0), budget, **options)


def with_client(service: Service, use: Callable[[openai.AsyncOpenAI], Awaitable[Any]], path: str = "/v1") -> Any:
    """The result of `use` with OpenAI's own client, in process, while the service runs."""

    async def serve() -> Any:
        async with running(service), http_client(service) as http:
            return await use(openai.AsyncOpenAI(base_url=f"http://test{path}", api_key="-", http_client=http))

    return asyncio.run(serve())


def http_client(service: Service, api_key: str | None = None) -> httpx.AsyncClient:
    """A client in process; the service has to run."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(create(service, api_key)), base_url="http://test", timeout=60
    )


class Said(NamedTuple):
    """An answer as it was given, for `rescore`."""

    prompt: list[int]
    tokens: list[int]
    sampling: Sampling = PLAIN
    grammar: Grammar = FREE
    budget: int = 16
    policy: int = 0


def rescore(kind: str, adapters: int, answers: Sequence[Said]) -> list[np.ndarray]:
    """Log-probabilities of the tokens of every answer by `Scorer`, which reads whole rows in one pass."""
    policy_set, weights = policies(kind, adapters)
    tokenizer, count = policy_set.tokenizer, len(answers)
    grammars = list(dict.fromkeys(answer.grammar for answer in answers))
    tables = lift(grammars, tokenizer.token_bytes, tokenizer.end)
    prompts = np.zeros((count, max(len(answer.prompt) for answer in answers)), np.int32)
    tokens, state, left = np.zeros((3, count, max(len(answer.tokens) for answer in answers)), np.int32)
    length = np.array([len(answer.tokens) for answer in answers])
    for r, answer in enumerate(answers):
        prompts[r, : len(answer.prompt)] = answer.prompt
        at = tables.start[grammars.index(answer.grammar)]
        for m, token in enumerate(answer.tokens):
            tokens[r, m], state[r, m], left[r, m] = token, at, answer.budget + (answer.grammar == FREE) - m
            at = tables.next[at, tables.token_class[token]]
    mask = np.arange(tokens.shape[1])[None] < length[:, None]
    nothing = np.zeros(tokens.shape, np.int32)
    rows = Rows(
        prompts=Prompts(prompts, np.array([len(answer.prompt) for answer in answers], np.int32)),
        prompt=np.arange(count, dtype=np.int32),
        tokens=tokens,
        length=length.astype(np.int32),
        loss_mask=mask,
        turn=nothing,
        logp=nothing.astype(np.float32),
        grammar_state=state.astype(np.int16),
        tokens_left=left.astype(np.int16),
        episode=np.arange(count, dtype=np.int32),
        seat=np.zeros(count, np.int32),
        policy=np.arange(count, dtype=np.int32),  # finds the settings
    )
    rows, legal = jax.tree.map(jnp.asarray, rows), np.ones((count, 1, 1, tables.distance.shape[1]), bool)
    sampled = gather_sampled(rows, jnp.asarray(legal), tokens.shape[1])
    assert policy_set.config is not None
    scorer = Scorer(policy_set.config, tables, tuple(answer.sampling for answer in answers))
    joined = lora.concatenate(weights["adapters"], policy_set.loras) if adapters else None
    owner = np.array([answer.policy for answer in answers], np.int32) if adapters else None
    scores = jax.jit(lambda params, joined: scorer(params, rows, sampled, joined, owner))(weights["params"], joined)
    return [np.asarray(scores.logp)[r, :n] for r, n in enumerate(length)]
