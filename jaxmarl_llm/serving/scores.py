"""Rewards of a batch of answers, from functions that anybody wrote: wrong results become NaN and a sentence."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby
from reprlib import Repr
from typing import Any

import numpy as np

from jaxmarl_llm.environments.bridges.prompt_rewards import Exact, Number, Pattern, Reward, names_read
from jaxmarl_llm.environments.bridges.prompts import Prompts, Question
from jaxmarl_llm.rollout.python_game import finite_reward

PROBED = 16  # questions that a function answers for before training; the rewards in the box answer for all
ALONE = 4  # questions that a reward may fail in a row before it counts as broken for the whole batch
RETURNED = "returned"

_short = Repr()
_short.maxstring = _short.maxother = 80


def score(game: Prompts, questions: Sequence[Question], texts: Sequence[str]) -> tuple[np.ndarray, dict[int, str]]:
    """(rewards float32 [N, C] of N answers to as many questions, {index of an answer: why a reward of it is NaN}).

    Each reward is called once. If it raises, it is called again for each question alone, so that one question spoils no
    other. A reward that raises for the first ALONE questions has failed them all.
    """
    table, problems = np.full((len(texts), len(game.rewards)), np.nan, np.float32), dict[int, str]()
    for column, (name, reward) in enumerate(game.rewards.items()):
        for index, (value, problem) in enumerate(_column(game, name, reward, questions, texts)):
            table[index, column] = value
            if problem and index not in problems:
                question, said = questions[index], _short.repr(texts[index])
                asked = f"{question.place.rstrip(',')} ({_short.repr(question.messages[-1][1])})"
                problems[index] = f"The reward {name!r} {problem}, for the answer {said} to {asked}."
    return table, problems


@lru_cache(maxsize=8)  # a command checks its questions before it makes a run of them
def probe(game: Prompts) -> None:
    """Asks each reward for empty answers. Raises ValueError, with the question, for a reward that cannot be used."""
    for name, reward in game.rewards.items():
        every = [*game.training, *game.testing]
        questions = every if isinstance(reward, Exact | Number | Pattern) else every[:PROBED]
        for question, (_, problem) in zip(
            questions, _column(game, name, reward, questions, [""] * len(questions)), strict=True
        ):
            if problem:
                asked = f"{question.place.rstrip(',')} ({_short.repr(question.messages[-1][1])})"
                raise ValueError(f"The reward {name!r} {problem}, for an empty answer to {asked}.")


def _column(
    game: Prompts, name: str, reward: Reward, questions: Sequence[Question], texts: Sequence[str]
) -> list[tuple[float, str]]:
    """(reward, problem) of each answer for one reward."""
    values, problem = _ask(game, name, reward, questions, texts)
    if not problem:
        return values
    if problem.startswith(RETURNED):  # a wrong list is wrong for every question
        return [(np.nan, problem)] * len(texts)
    result: list[tuple[float, str]] = []
    failed = 0  # questions in a row, from the first
    for number, (_, members) in enumerate(groupby(range(len(texts)), key=lambda index: id(questions[index]))):
        at = list(members)
        alone, why = values, problem
        if failed < ALONE:
            alone, why = _ask(game, name, reward, [questions[i] for i in at], [texts[i] for i in at])
        failed += bool(why) and failed == number
        result += [(np.nan, why)] * len(at) if why else alone
    return result


def _ask(
    game: Prompts, name: str, reward: Reward, questions: Sequence[Question], texts: Sequence[str]
) -> tuple[list[tuple[float, str]], str]:
    """(each answer's reward and problem, the problem of the whole call)."""
    given = game.arguments(questions, texts)
    try:
        result = reward(**{known: given[known] for known in names_read(name, reward, game.names)})
        if inspect.isawaitable(result):
            with ThreadPoolExecutor(1, "reward") as beside:  # a notebook's thread has a loop of its own
                result = beside.submit(asyncio.run, _wait(result)).result()
        paid = _rewards_in(result)
    except Exception as error:  # a reward is anybody's code
        return [], f"raised {type(error).__name__}: {error}".rstrip(".")
    if paid is None or len(paid) != len(texts):
        return (
            [],
            f"returned {_short.repr(result)}, and a list with a number for each of {len(texts)} answers is wanted",
        )
    values = [finite_reward(x) for x in paid]
    wrong = lambda given, value: f"{RETURNED} {_short.repr(given)}, no finite number" if math.isnan(value) else ""
    return [(value, wrong(given, value)) for given, value in zip(paid, values, strict=True)], ""


async def _wait(result: Awaitable[Any]) -> Any:
    return await result


def _rewards_in(result: Any) -> list[Any] | None:
    """The rewards as a list; None for an object that is no sequence of them."""
    if isinstance(result, str | bytes | Mapping) or not hasattr(result, "__len__") or not hasattr(result, "__iter__"):
        return None
    return list(result) if getattr(result, "shape", None) != () else None
