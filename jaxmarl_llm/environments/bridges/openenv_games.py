"""Environments of an OpenEnv server as games for our policies.

https://github.com/meta-pytorch/OpenEnv, `pip install 'jaxmarl_llm[openenv]'`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jaxmarl_llm.environments.bridges.python_games import TextEnvironment, Turn

UNTOLD = ("done", "reward", "metadata")  # fields of every observation that the player is not told


def openenv(
    connect: str | Callable[[], Any],
    rules: str = "",
    tell: Callable[[Any], str] | None = None,
    read: Callable[[str], Any] | None = None,
) -> Callable[[], TextEnvironment]:
    """A function that makes games of an OpenEnv server for one seat: an argument of PythonRollout.

    `connect` is the server's address, or a function that makes a synchronous client (`SomeEnv(base_url=...).sync()`).
    Every game has its own session until it ends, and the server must allow that many.

    `tell` turns an observation into a text; by default this is its only field if that is a text, else all its fields as
    JSON. `read` turns an answer into an action or raises ValueError; by default the action is {"message": answer}. An
    answer that is no action is invalid: nothing is sent, and the seat is told the same text again. A reward of None
    counts as 0. The seed goes to the server's `reset`.

    Raises ValueError without the package. A game raises ConnectionError if the server fails.
    """
    if isinstance(connect, str):
        try:
            from openenv.core.generic_client import GenericEnvClient
        except ImportError as error:
            raise ValueError("OpenEnv is not installed: run `pip install openenv-core`.") from error
        address = connect
        connect = lambda: GenericEnvClient(base_url=address).sync()
    make = connect
    return lambda: _OpenEnv(make, rules, tell or written_out, read or message)


def written_out(observation: Any) -> str:
    """The text of an observation with one field, or all fields as JSON; empty fields (None) are no fields."""
    given = observation if isinstance(observation, dict) else vars(observation)
    fields = {name: value for name, value in given.items() if name not in UNTOLD and value is not None}
    values = list(fields.values())
    return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(fields, default=str)


def message(text: str) -> dict[str, str]:
    return {"message": text}


class _OpenEnv:
    agents = 1

    def __init__(self, make: Callable[[], Any], rules: str, tell: Callable[[Any], str], read: Callable[[str], Any]):
        self._make, self._rules, self._tell, self._read = make, rules, tell, read
        self._client: Any = None

    def __del__(self):
        self._close()

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def reset(self, seed: int) -> tuple[list[str], Turn]:
        if self._client is None:
            self._client = self._make()
        result = self._ask(self._client.reset, seed=seed % 2**31)
        self._told = {0: self._tell(result.observation)}
        return [self._rules], Turn(self._told, (0,))

    def step(self, said: dict[int, str]) -> Turn:
        try:
            action = self._read(said[0])
        except ValueError:
            return Turn(self._told, (0,), {0: 0.0}, invalid=(0,))
        result = self._ask(self._client.step, action)
        self._told, paid = {0: self._tell(result.observation)}, {0: 0.0 if result.reward is None else result.reward}
        if result.done:
            self._close()
        return Turn(self._told, () if result.done else (0,), paid, done=bool(result.done))

    def _ask(self, call: Callable, *arguments: Any, **settings: Any) -> Any:
        try:
            return call(*arguments, **settings)
        except Exception as error:  # from sockets, timeouts or the server
            raise ConnectionError(f"The OpenEnv server did not answer: {error or type(error).__name__}") from error
