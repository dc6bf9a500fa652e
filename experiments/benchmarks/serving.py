"""Answers a second of `python -m jaxmarl_llm.serve` and of `transformers serve`, asked by the same clients.

Clients ask SmolLM2 for answers of 4 to 64 tokens, each its next question as soon as it has an answer. Both servers run
in processes of their own and are asked in turn, in float32. Theirs needs torch and fastapi; without them ours is asked
alone. "Utilisation" is the share of our slots that spoke, after the warm-up and while more answers than slots are
missing. About five minutes.

  pip install 'jaxmarl_llm[bench,serve]' 'transformers[serving]'
  python -m experiments.benchmarks.serving [--clients 32] [--answers 64] [--slots 16] [--repeat 3] [--json FILE]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import numpy as np
import openai
import tyro

from jaxmarl_llm.models import loading

TOPICS = "the sea", "a river", "two foxes", "an old clock", "the moon", "a market", "snow", "a letter"

BLOCKS = "--cb-num-blocks", "512", "--cb-max-batch-tokens", "512"  # their default takes all memory of the machine


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Requests with prompts of unlike lengths; the same for both servers."""
    generator = random.Random(seed)
    requests = []
    for number in range(count):
        topics = ", ".join(generator.choices(TOPICS, k=generator.randint(1, 20)))
        text = f"Story {seed}-{number}. Tell a long story about {topics}."
        budget = generator.randint(4, 64)
        requests.append({"messages": [{"role": "user", "content": text}], "max_tokens": budget, "seed": number})
    return requests


async def ask_all(
    port: int, model: str, requests: list[dict[str, Any]], clients: int, rest: int, end: Callable[[], None]
) -> int:
    """Asks everything, at most `clients` requests at a time: the number of tokens that were said.

    Calls `end` when `rest` answers are still missing.
    """
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", timeout=600, max_retries=0)
    limit, left = asyncio.Semaphore(clients), len(requests)

    async def ask(request: dict[str, Any]) -> int:
        async with limit:
            answer = await client.chat.completions.create(model=model, temperature=1.0, **request)
        nonlocal left
        left -= 1
        if left == rest:
            end()
        assert answer.usage is not None  # both servers send it
        return answer.usage.completion_tokens

    async with client:
        return sum(await asyncio.gather(*map(ask, requests)))


@contextlib.contextmanager
def serving(command: list[str], port: int) -> Iterator[None]:
    """A context in which a server runs in a process of its own. Raises RuntimeError if it ends before it answers."""
    with subprocess.Popen([sys.executable, "-m", *command, "--port", str(port)], stdout=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                with contextlib.suppress(httpx.TransportError):
                    httpx.get(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                time.sleep(0.5)
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with status {process.returncode}.")
            yield
        finally:
            process.terminate()


def slot_counts(port: int) -> np.ndarray:
    """(tokens that our server's slots said, tokens that they could have said) so far."""
    lines = httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()
    value = lambda name: next(float(line.split()[-1]) for line in lines if line.startswith(f"jaxmarl_llm_{name}{{"))
    return np.array([value("tokens_said_total"), value("places_total")])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(
    clients: int = 32,
    answers: int = 64,
    slots: int = 16,
    repeat: int = 3,
    batching: bool = True,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints tokens a second of each round, and their ratio. Without `batching` theirs answers one by one."""
    home, ports = str(loading.load("smollm2").directory), (free_port(), free_port())
    theirs = ["transformers.cli.transformers", "serve", home, "--dtype", "float32", "--log-level", "error"]
    theirs += ["--continuous-batching", *BLOCKS] * batching
    beside = all(find_spec(name) for name in ("torch", "fastapi"))
    sides = [("ours", ports[0], "smollm2")] + [("theirs", ports[1], home)] * beside
    rates: dict[str, list[float]] = {name: [] for name, _, _ in sides}
    used = np.zeros(2)
    with contextlib.ExitStack() as stack:
        ours = ["jaxmarl_llm.serve", "smollm2", "--slots", str(slots), "--context", "2048"]
        stack.enter_context(serving(ours, ports[0]))
        if beside:
            stack.enter_context(serving(theirs, ports[1]))
        for number in range(repeat + 1):  # the first round compiles
            requests = questions(answers, number)
            for name, port, model in sides:
                marks = [slot_counts(ports[0])]
                begun = time.perf_counter()
                said = asyncio.run(
                    ask_all(port, model, requests, clients, slots, lambda: marks.append(slot_counts(ports[0])))  # noqa: B023
                )
                rate = said / (time.perf_counter() - begun)
                used += (marks[-1] - marks[0]) * (name == "ours" and number > 0)
                print(
                    f"{'warm-up' if not number else f'round {number}'}, {name}: {said} tokens, {rate:.1f} tokens/s",
                    flush=True,
                )
                rates[name] += [rate] * bool(number)
    result: dict[str, Any] = {"clients": clients, "slots": slots, "utilisation": used[0] / used[1], "tokens/s": rates}
    print(f"ours: {median(rates['ours']):.1f} tokens/s, utilisation of slots {used[0] / used[1]:.2f}")
    if beside:
        result["ratio"] = median(a / b for a, b in zip(rates["ours"], rates["theirs"], strict=True))
        print(f"theirs: {median(rates['theirs']):.1f} tokens/s; ratio {result['ratio']:.2f}")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
