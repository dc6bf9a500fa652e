"""Checks of files: JSON of bounded size, tables key -> kind of the values allowed; and the words of refusals."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

MOST_SAID = 360  # characters of all problems together


class Kind(NamedTuple):
    """A kind of value: its name in an error, such as "a whole number", and a test of values."""

    what: str
    fits: Callable[[Any], bool]


def whole(least: int, highest: int) -> Kind:
    is_whole = lambda x: isinstance(x, int) and not isinstance(x, bool)
    return Kind(f"a whole number from {least} to {highest}", lambda x: is_whole(x) and least <= x <= highest)


def number(highest: float = 1e30, least: float = 0.0) -> Kind:
    """A positive number from `least` to `highest`."""
    is_number = lambda x: isinstance(x, int | float) and not isinstance(x, bool)
    what = f"a positive number{f' from {least:g}' * (least > 0)}{f' up to {highest:g}' * (highest < 1e30)}"
    return Kind(what, lambda x: is_number(x) and x > 0 and least <= x <= highest)


def list_of(kind: Kind, what: str) -> Kind:
    return Kind(what, lambda x: isinstance(x, list) and all(map(kind.fits, x)))


def table_of(kind: Kind) -> Kind:
    """A table from names to values of a kind."""
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
    """A problem for each value that is not of its kind; null is allowed, and so are keys without a kind."""
    return [
        f"{key} is {quote(given[key])}, not {kind.what}"
        for key, kind in kinds.items()
        if given.get(key) is not None and not kind.fits(given[key])
    ]


def quote(value: Any, length: int = 60) -> str:
    """The repr of a value from a file, cut to about `length` characters."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**length:
        return f"a number of {math.floor(math.log10(abs(value))) + 1} digits"
    text = repr(value[: 2 * length] if isinstance(value, str | bytes | list | tuple) else value)
    return text if len(text) <= length else f"{text[:length]}..."


def suggest(name: str, known: Iterable[str]) -> str:
    """ "Did you mean NAME? ", for the nearest known name or one that begins alike; empty if there is none."""
    names = [*known]
    near = difflib.get_close_matches(name, names, n=1) or [x for x in names if name and x.startswith(name)]
    return f"Did you mean {near[0]}? " if near else ""


def check_new(path: Path) -> None:
    """Raises ValueError for an existing file, and for a directory with files: a command would overwrite them."""
    if path.is_dir() and any(path.iterdir()):
        raise ValueError(f"{path} holds files already, which --out would overwrite: name a new directory.")
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file already, which --out would overwrite: give --out another name.")


def join_problems(problems: Iterable[str], length: int = MOST_SAID) -> str:
    """As many of the problems as `length` characters hold, and the number of the others."""
    problems = [problem if len(problem) <= length else f"{problem[:length]}..." for problem in problems]
    said = problems[:1]
    while len(said) < len(problems) and len("; ".join(said)) + 2 + len(problems[len(said)]) <= length:
        said.append(problems[len(said)])
    more = len(problems) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def read_json(path: Path, max_bytes: int = 1 << 26) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError for a file that is absent, too large, or holds no object."""
    if not path.exists():
        raise ValueError(f"{path} does not exist, so {path.parent} is not a model directory.")
    if not path.is_file() or path.stat().st_size > max_bytes:  # a pipe would be read for ever
        raise ValueError(f"{path} is no file of at most {max_bytes} bytes.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({quote(str(error))[1:-1]}); fetch it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not the object that belongs there.")
    return value
