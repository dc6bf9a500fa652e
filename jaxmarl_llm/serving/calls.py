"""The records between an engine and its callers: a row to continue, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxmarl_llm.rollout.policy import PLAIN, Sampling
from jaxmarl_llm.text.grammar import Free, Grammar

FREE: Grammar = (Free(),)


class Candidates(NamedTuple):
    """The most probable tokens in place of one token of an answer, with their log-probabilities."""

    tokens: tuple[int, ...]
    logp: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """A row of tokens to continue, and how. `said` and `done` are called by `Engine.step`, in its thread.

    Token i of the answer is drawn with key_for(key, *event, i). The answer has at most `budget` tokens, with the end.
    `stop` gets the tokens so far and returns how many of them to keep, or None to go on.
    """

    tokens: Sequence[int]
    key: Any  # uint32 [2], the data of a key
    event: tuple[int, int, int, int]
    budget: int
    policy: int = 0  # the adapter; -1: the base alone
    sampling: Sampling = PLAIN
    grammar: Grammar = FREE
    top: bool = False  # the answer lists the most probable tokens of every place
    owner: Any = None  # names a row that goes on: it is looked for in the slot of its last call first
    stop: Callable[[list[int]], int | None] | None = None
    said: Callable[[Call, Answer], object] = lambda call, answer: None
    done: Callable[[Call, Answer], object] = lambda call, answer: None
    cancelled: Callable[[], bool] = lambda: False


@dataclass(eq=False)
class Answer:
    """The tokens said so far, the end token included, with their log-probabilities."""

    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    top: list[Candidates] = field(default_factory=list)
    finish: str = ""  # "end", "stop", "length" or "cancelled"; "": the answer goes on
    error: str = ""  # why the engine ended it
