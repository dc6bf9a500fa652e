"""Rewards of single answers: those in the box, and the check of a function of one's own.

A reward is a function of a batch: `reward(completions, **fields) -> list of numbers`, called by name as in TRL.
`completions` is a list of texts, and `prompts` the list of their prompts. Each further field of the questions is a list
of the same length. A function gets the fields that its signature names, or all with `**fields`.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

Reward = Callable[..., Any]  # (completions, **fields) -> the rewards, in a list; also an async function

NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?")


def last_number(text: Any) -> float | None:
    """The last number in a text, such as 1234.5 in "It is 1,234.5."; None without one that is finite."""
    matches = NUMBER.findall(str(text))
    value = float(matches[-1].replace(",", "")) if matches else math.nan
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Exact:
    """1 for an answer that equals the question's field, else 0.

    Spaces at both ends do not count; with `case` false, neither do capitals.
    """

    field: str = "answer"
    case: bool = True

    def __call__(self, completions: Sequence[str], **fields: Sequence[Any]) -> list[float]:
        fold = str if self.case else str.casefold
        clean = lambda text: fold(str(text).strip())
        wanted = fields_of(self, fields)
        return [float(clean(said) == clean(right)) for said, right in zip(completions, wanted, strict=True)]


@dataclass(frozen=True)
class Pattern:
    """1 for an answer in which a regular expression is found, else 0; with `whole`, the stripped answer must match.

    Raises ValueError for an expression that `re` cannot read.
    """

    pattern: str
    whole: bool = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ValueError(f"{self.pattern!r} is no regular expression: {error}.") from None

    def __call__(self, completions: Sequence[str], **fields: Sequence[Any]) -> list[float]:
        find = re.compile(self.pattern).fullmatch if self.whole else re.compile(self.pattern).search
        return [float(find(text.strip()) is not None) for text in completions]


@dataclass(frozen=True)
class Number:
    """1 for an answer whose last number is that of the question's field, else 0.

    They are equal if they differ by at most `tolerance`, times the field's number where that is above 1. The field is a
    number, or a text whose last number counts ("... #### 72").
    """

    field: str = "answer"
    tolerance: float = 1e-6

    def __call__(self, completions: Sequence[str], **fields: Sequence[Any]) -> list[float]:
        scores = []
        for said, right in zip(completions, fields_of(self, fields), strict=True):
            number, wanted = last_number(said), last_number(right)
            if wanted is None:
                raise ValueError(f"the field {self.field!r} holds no number: {right!r}")
            scores.append(float(number is not None and abs(number - wanted) <= self.tolerance * max(1.0, abs(wanted))))
        return scores


def fields_of(reward: Exact | Number, fields: dict[str, Sequence[Any]]) -> Sequence[Any]:
    """The field of the questions that a reward reads. Raises ValueError if they do not have it."""
    if reward.field not in fields or any(value is None for value in fields[reward.field]):
        near = difflib.get_close_matches(reward.field, [name for name in fields if name != reward.field], n=1)
        raise ValueError(f"there is no field {reward.field!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return fields[reward.field]


def names_read(name: str, reward: Reward, known: Collection[str]) -> list[str]:
    """The names among `known` that a reward is called with; all with `**fields`, or for a function without a signature.

    Raises ValueError for an object that is no function of `completions`, or that needs a name which nobody gives.
    """
    if not callable(reward) or isinstance(reward, type):
        raise ValueError(
            f"The reward {name!r} is a function of completions, or an object such as Exact(): got {reward!r}."
        )
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError):
        return [*known]
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if "completions" not in named and not every:
        raise ValueError(f"The reward {name!r} takes no completions: write def {name}(completions, **fields).")
    for p in parameters:
        needed = p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        if needed and (p.name not in known or p.kind is p.POSITIONAL_ONLY):
            given = ", ".join(sorted(known))
            raise ValueError(
                f"The reward {name!r} wants {p.name!r}, and it is given {given}: the fields of the questions."
            )
    return [given for given in known if every or given in named]
