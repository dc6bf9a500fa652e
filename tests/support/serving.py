"""Tiny policies behind an endpoint: engines, services, and clients in process."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import jax
import openai

from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.serving.app import create
from jaxmarl_llm.serving.engine import Engine
from jaxmarl_llm.serving.service import Served, Service, running
from jaxmarl_llm.text.tokenizers import HFTokenizer, Tokenizer
from tests.support.tokenizer_files import QWEN_TOOLS, qwen, written
from tests.support.toys import ByteTokenizer

LORAS = (Lora(2, 4.0), Lora(3, 6.0, ("q_proj", "up_proj")))
SLOTS, CONTEXT = 4, 512


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """The toy of bytes, or a byte-level tokenizer from files whose template shows tools."""
    if kind == "toy":
        return ByteTokenizer()
    with TemporaryDirectory() as directory:
        return HFTokenizer(written(Path(directory) / "tokenizer", qwen(), QWEN_TOOLS, eos_token="<|im_end|>"))


def config_of(tokenizer: Tokenizer) -> Config:
    return Config(tokenizer.vocab_size, 16, 24, 2, 2, 1, 8, max_position_embeddings=CONTEXT)


@cache
def policies(kind: str, adapters: int = 0) -> tuple[PolicySet, dict]:
    """(policies, their random weights, which have marked preferences): `adapters` on a base, or the base alone."""
    tokenizer = tokenizer_of(kind)
    config = config_of(tokenizer)
    params = jax.tree.map(lambda x: 3 * x, jax.jit(lambda key: decoder.init(config, key))(jax.random.key(1)))
    if not adapters:
        return PolicySet(tokenizer, ("base",), config), {"params": params}
    shift = lambda index, own: jax.tree.map(lambda x: x + 0.2, lora.init(jax.random.key(index), params, own))
    weights = tuple(shift(index, own) for index, own in enumerate(LORAS[:adapters]))
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
