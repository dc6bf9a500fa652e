"""What a file may hold: JSON of bounded size, values by tables of key -> kind, and one sentence for what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

MOST_SAID = 360  # characters of all problems together


class Kind(NamedTuple):
    """What a value may be: a sentence says `what` it is not, if it does not fit."""

    what: str
    fits: Callable[[Any], bool]


def whole(least: int, most: int) -> Kind:
    is_whole = lambda x: isinstance(x, int) and not isinstance(x, bool)  # noqa: E731
    return Kind(f"a whole number from {least} to {most}", lambda x: is_whole(x) and least <= x <= most)


def number(most: float = 1e30, least: float = 0.0) -> Kind:
    """A positive one."""
    is_number = lambda x: isinstance(x, int | float) and not isinstance(x, bool)  # noqa: E731
    what = f"a positive number{f' from {least:g}' * (least > 0)}{f' up to {most:g}' * (most < 1e30)}"
    return Kind(what, lambda x: is_number(x) and x > 0 and least <= x <= most)


def list_of(kind: Kind, what: str) -> Kind:
    return Kind(what, lambda x: isinstance(x, list) and all(map(kind.fits, x)))


def table_of(kind: Kind) -> Kind:
    """From names to values."""
    return Kind(
        f"a table from names to {kind.what.removeprefix('a ')}",
        lambda x: isinstance(x, dict) and all(map(kind.fits, x.values())),
    )


def either(*kinds: Kind) -> Kind:
    return Kind(" or ".join(kind.what for kind in kinds), lambda x: any(kind.fits(x) for kind in kinds))


FLAG = Kind("true or false", lambda x: isinstance(x, bool))
WORD = Kind("a text", lambda x: isinstance(x, str))
WORDS = list_of(WORD, "a list of texts")


def misfits(given: Mapping[str, Any], kinds: Mapping[str, Kind]) -> list[str]:
    """What is wrong with the values, null aside, that have a kind."""
    return [
        f"{key} is {shown(given[key])}, not {kind.what}"
        for key, kind in kinds.items()
        if given.get(key) is not None and not kind.fits(given[key])
    ]


def shown(value: Any, most: int = 60) -> str:
    """The repr of a value from a file, cut if it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**most:
        return f"a number of {math.floor(math.log10(abs(value))) + 1} digits"
    text = repr(value[: 2 * most] if isinstance(value, str | bytes | list | tuple) else value)
    return text if len(text) <= most else f"{text[:most]}..."


def listed(problems: Iterable[str], most: int = MOST_SAID) -> str:
    """The problems one after the other, as many as fit, and how many more there are."""
    problems = [problem if len(problem) <= most else f"{problem[:most]}..." for problem in problems]
    said = problems[:1]
    while len(said) < len(problems) and len("; ".join(said)) + 2 + len(problems[len(said)]) <= most:
        said.append(problems[len(said)])
    more = len(problems) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def read_json(path: Path, most: int = 1 << 26) -> dict[str, Any]:
    """The object in a JSON file of at most `most` bytes. Raises ValueError if there is none."""
    if not path.exists():
        raise ValueError(f"{path} does not exist, so {path.parent} is not a model directory.")
    if not path.is_file() or path.stat().st_size > most:  # a pipe would be read for ever
        raise ValueError(f"{path} is no file of at most {most} bytes.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({shown(str(error))[1:-1]}); fetch it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not the object that belongs there.")
    return value
