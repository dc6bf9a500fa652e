"""Serves policies to any client of OpenAI's protocol. `pip install 'jaxmarl_llm[serve]'` brings a web server for it.

python -m jaxmarl_llm.serve smollm2                             # a model: a name, a directory, a hub id
python -m jaxmarl_llm.serve runs/demo                           # every policy of a run, by name
python -m jaxmarl_llm.serve runs/demo/naive-0/policies/seat_0   # a policy
python -m jaxmarl_llm.serve smollm2 --adapters first=DIR second=DIR  # adapters on one base, which share its slots
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro

from jaxmarl_llm.devices import surroundings
from jaxmarl_llm.models import loading, lora, peft_files
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy_files import ADAPTER, load_policy, policies_below
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.serving.dialogues import Dialogues, Message
from jaxmarl_llm.serving.engine import CHUNK, Engine
from jaxmarl_llm.serving.service import Served, Service
from jaxmarl_llm.serving.slots import cache_bytes
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.text.refusals import read_json
from jaxmarl_llm.text.tokenizers import SymbolTokenizer

MOST_CONNECTIONS = 4_000


@dataclasses.dataclass(frozen=True)
class Settings:
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """A model (smollm2, qwen3-0.6b, a directory, a hub id), a run directory, or a directory under a run's
    `policies`."""
    adapters: tuple[str, ...] = ()
    """Adapters on the model: NAME=DIRECTORY each, in PEFT's format."""
    host: str = "127.0.0.1"
    """The address to listen at. Any other than this computer's own needs --api-key."""
    port: int = 8000
    """0: any free port."""
    slots: int = 16
    """Answers that are computed at a time by each base model: a power of two."""
    context: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None
    """The most tokens of a dialogue; by default as many as the model reads."""
    api_key: str | None = None
    """Clients must send it."""


def check(settings: Settings) -> None:
    """Raises ValueError for settings that cannot be served."""
    try:
        alone = settings.host == "localhost" or ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        raise ValueError(f"host is an address of this computer, such as 127.0.0.1, got {settings.host!r}.") from None
    if settings.api_key is not None and not settings.api_key.strip():
        raise ValueError("The API key is empty: give another, or none.")
    if not alone and settings.api_key is None:
        raise ValueError(f"Everybody who reaches {settings.host} could ask the policies: give --api-key KEY.")
    if not 0 <= settings.port < 2**16:
        raise ValueError(f"port is from 0 to {2**16 - 1}, got {settings.port}.")
    if settings.slots < 1 or settings.slots & (settings.slots - 1):
        raise ValueError(f"slots is a power of two, got {settings.slots}.")


def directories(settings: Settings) -> tuple[dict[str, str], dict[str, dict[str, Path]]]:
    """({name: whole model}, {base model: {name: adapter}}) of all policies that the settings name.

    The name of a policy of a run is that of its directory, behind that of its arm if several have it. Raises ValueError
    for a run without policies, and for a name that two of them have.
    """
    path = Path(settings.source)
    if settings.adapters:
        pairs = [text.partition("=") for text in settings.adapters]
        if wrong := [name + sign + where for name, sign, where in pairs if not (name and where)]:
            raise ValueError(f"adapters are NAME=DIRECTORY each, got {wrong[0]!r}.")
        policies = [(name, Path(where)) for name, _, where in pairs]
        if missing := [where for _, where in policies if not (where / ADAPTER).is_file()]:
            raise ValueError(f"{missing[0]} holds no adapter: it has no {ADAPTER}.")
        return {}, {settings.source: _name_all(policies)}
    if not path.is_dir() or (path / "config.json").is_file():
        return {_name_of(settings.source): settings.source}, {}
    if (path / ADAPTER).is_file():
        policies = [(path.resolve().name, path)]
    else:
        if not (homes := policies_below(path)):
            raise ValueError(f"{path} is no model and holds no policies: a run writes them when it ends.")
        names = [home.name for home in homes]
        policies = [
            (name if names.count(name) == 1 else f"{home.parents[1].relative_to(path)}/{name}", home)
            for name, home in zip(names, homes, strict=True)
        ]
    whole = {name: str(home) for name, home in policies if not (home / ADAPTER).is_file()}
    adapted: dict[str, list[tuple[str, Path]]] = {}
    for name, home in policies:
        if name not in whole:
            base = read_json(home / ADAPTER).get("base_model_name_or_path")
            if not isinstance(base, str) or not base:
                raise ValueError(f"{home} does not name the model that it belongs to: name it, and give --adapters.")
            adapted.setdefault(base, []).append((name, home))
    return whole, {base: _name_all(group) for base, group in adapted.items()}


def _name_all(policies: list[tuple[str, Path]]) -> dict[str, Path]:
    names = [name for name, _ in policies]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"Two adapters are called {twice[0]!r}: give each a name.")
    return dict(policies)


def _name_of(source: str) -> str:
    """A short name for a model."""
    path = Path(source)
    return path.resolve().name.removesuffix(".gguf") if path.exists() else source


def load(settings: Settings) -> dict[str, Served]:
    """{name: policy} with an engine for each base model. Raises ValueError for files that cannot be loaded."""
    whole, adapted = directories(settings)
    bases = [_name_of(base) for base in adapted]
    names = [*whole, *bases, *(name for group in adapted.values() for name in group)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"Two policies or models are called {twice[0]!r}: rename a directory, or give --adapters.")
    served: dict[str, Served] = {}
    for name, source in whole.items():
        policy = load_policy(source)
        policy_set = PolicySet(policy.tokenizer, (name,), policy.model.config)
        served[name] = Served(_engine(settings, policy_set, {"params": policy.model.params}))
    for base, group in adapted.items():
        engine = _load_adapters(settings, base, group)
        served[_name_of(base)] = Served(engine, -1)
        served |= {name: Served(engine, index) for index, name in enumerate(group)}
    return served


def _load_adapters(settings: Settings, base: str, group: Mapping[str, Path]) -> Engine:
    """An engine of adapters on one base."""
    policy = load_policy(base)
    config, params = policy.model.config, policy.model.params
    pairs = [peft_files.load_adapter(home, config) for home in group.values()]
    names = [*group]
    if len(pairs) == 1:  # a set of one adapter has it in the weights, and the base alone is served as well
        least = Lora(1, 1.0, tuple(pairs[0][1]))
        pairs.append((least, jax.tree.map(jnp.zeros_like, lora.init(jax.random.key(0), params, least))))
        names.append("")
    loras, adapters = zip(*pairs, strict=True)
    policy_set = PolicySet(policy.tokenizer, tuple(names), config, loras)
    return _engine(settings, policy_set, {"params": params, "adapters": adapters})


def _engine(settings: Settings, policy_set: PolicySet, weights: dict) -> Engine:
    """An engine of the settings. Raises ValueError for caches that the memory of this computer cannot hold."""
    config = policy_set.config
    assert config is not None  # a saved policy has a model
    context = settings.context or config.max_position_embeddings
    need, memory = (
        cache_bytes(config, settings.slots, context, CHUNK),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    if jax.default_backend() == "cpu" and need > memory:
        raise ValueError(
            f"{settings.slots} slots of {context} tokens have caches of up to {need / 1e9:.1f} GB, and this computer "
            f"has {memory / 1e9:.1f} GB: give a smaller --context, or fewer --slots."
        )
    return Engine(policy_set, weights, settings.slots, settings.context)


def example(served: Mapping[str, Served], address: str, key: bool) -> str:
    """The curl command that sends one message to the last policy in `served`.

    The message is "Hello!", or one of the tokenizer's symbols if it cannot read "Hello!".
    """
    name, (engine, policy) = [*served.items()][-1]
    content, dialogues = "Hello!", Dialogues(engine.tokenizer)
    try:
        dialogues.open(policy, [Message("user", content)])
    except ValueError:
        if isinstance(engine.tokenizer, SymbolTokenizer):
            content = engine.tokenizer.strings[0]
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": content}]}, ensure_ascii=False)
    bearer = ' -H "Authorization: Bearer $API_KEY"' * key
    return f"curl {address}/v1/chat/completions{bearer} -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address. Raises ValueError if another program has it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        sentence = f"Cannot listen at {host}, port {port}: {error.strerror or error}; give another --port."
        raise ValueError(sentence) from None
    return listener


def main(settings: Settings) -> None:
    """Serves until it is interrupted. Raises ValueError for settings or files that cannot be served."""
    check(settings)
    server = _web_server()
    listener = listen(settings.host, settings.port)
    with listener:
        served = load(settings)
        listener.listen()  # a request that comes now is answered once the server runs
        port = listener.getsockname()[1]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        engines = list({id(policy.engine): policy.engine for policy in served.values()}.values())
        contexts = sorted({engine.context for engine in engines})
        caches = sum(cache_bytes(engine.config, settings.slots, engine.context, CHUNK) for engine in engines)
        print(
            f"{', '.join(served)}: {settings.slots} slots of up to {' or '.join(map(str, contexts))} tokens, ", end=""
        )
        print(f"with caches of up to {caches / 1e9:.2g} GB,")
        print(f"at {address}/v1 for clients of OpenAI's protocol, for example\n")
        print(example(served, address, settings.api_key is not None), flush=True)
        server(Service(served), settings.api_key, listener)


def _web_server() -> Any:
    """serve(service, api_key, listener), which returns when it is interrupted. Raises ValueError without the extra."""
    try:
        import uvicorn

        from jaxmarl_llm.serving.app import create
    except ModuleNotFoundError as error:
        raise ValueError(f"Serving needs {error.name}: pip install 'jaxmarl_llm[serve]'.") from None

    def serve(service: Service, api_key: str | None, listener: socket.socket) -> None:
        config = uvicorn.Config(
            create(service, api_key),
            log_level="warning",
            access_log=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=3,
        )

        class Server(uvicorn.Server):
            """A server that answers waiting requests with an error before it stops."""

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                if service.task is not None:
                    service.task.cancel()
                await super().shutdown(sockets)

        Server(config).run(sockets=[listener])

    return serve


def command() -> None:
    """The command line."""
    settings = read_arguments(Settings, "python -m jaxmarl_llm.serve", str(__doc__))

    def start() -> None:
        loading.keep_programs()
        main(settings)

    surroundings.run_command(start)


if __name__ == "__main__":
    with lasting():
        command()
