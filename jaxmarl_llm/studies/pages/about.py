"""The words about a study: `about.toml` in its folder of results, written by hand.

  run        the run that `found` is about (`results.run_of`); another run shows only its verdicts
  found      what was found, in one to three plain sentences with the effect and its interval
  recounted  true if `found` of a table that is not frozen has the table's own intervals, not those of an earlier rule
  short      the same in at most twelve words, for the index
  claim      the paper's claim in one sentence
  setting    the setting: models, sizes, game
  disclosed  what was known and changed before the table ran: pilots, moved bounds, former settings
  noise      what is drawn with the seed, and what is the same in all seeds
  [arms], [metrics]  a line for each
  [counts]   {metric: the metric whose rise it counts}, for tables whose run did not record it

Words in the line of a metric shape its axis in figures:

  "lower is better"            the direction; also nearer, steadier, calmer, faster
  "0 to 8"                     the range; "share", "accuracy" and "probability" mean 0 to 1, except in a difference
  "at least 0", "at most 1"    one end of the range
  "chance 0.25"                a line

A range that a measured value leaves is ignored.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FILE = "about.toml"

NUMBER = r"(-?\d+(?:\.\d+)?)"
DIRECTION = re.compile(r"\b(higher|lower) (?:is )?(better|nearer|steadier|calmer|faster)\b")
RATE, DIFFERENCE = re.compile(r"\b(?:share|accuracy|probability)\b"), re.compile(r"\b(?:less|minus)\b")
RANGE = re.compile(rf"(?<![\w.-]){NUMBER} to {NUMBER}(?!\.?\d)")
LEAST, MOST, CHANCE = (re.compile(rf"\b{words} {NUMBER}") for words in ("at least", "at most", "chance"))


class Axis(NamedTuple):
    """Facts about a metric that its axis shows. A limit that is not known is infinite."""

    direction: str = ""  # e.g. "lower is better"
    low: float = float("-inf")
    high: float = float("inf")
    chance: float | None = None


def read_about(folder: Path) -> dict[str, Any]:
    """The words of a page; {} without a file. Raises ValueError for a file that is not TOML."""
    file = folder / FILE
    if not file.exists():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is not TOML ({error}).") from None


def read_lines(folder: Path, study: str) -> dict[str, str]:
    """{metric: line} of a folder of results. The folder of the study has the lines that this one lacks."""
    return {**read_about(folder.parent / study).get("metrics", {}), **read_about(folder).get("metrics", {})}


def axis_of(line: str, measured: Iterable[float]) -> Axis:
    """The `Axis` that a metric's line in about.toml states, e.g. "success, 0 to 1, higher is better".

    A stated range or limit that a value of `measured` leaves is ignored.
    """
    values = list(measured)
    smallest, largest = min(values, default=0.0), max(values, default=0.0)
    spans = [(float(a), float(b)) for a, b in RANGE.findall(line)]
    spans += [(0.0, 1.0)] * bool(RATE.search(line) and not DIFFERENCE.search(line))
    low, high = next((span for span in spans if span[0] <= smallest and largest <= span[1]), Axis()[1:3])
    if (stated := LEAST.search(line)) and float(stated[1]) <= smallest:
        low = max(low, float(stated[1]))
    if (stated := MOST.search(line)) and float(stated[1]) >= largest:
        high = min(high, float(stated[1]))
    direction, chance = DIRECTION.search(line), CHANCE.search(line)
    return Axis(
        f"{direction[1]} is {direction[2]}" if direction else "", low, high, float(chance[1]) if chance else None
    )


def axis_in(results: Mapping[str, Any], metric: str, lines: Mapping[str, str]) -> Axis:
    """The axis of a metric in a results.json; its measured values are numbers of seeds and means of curves."""
    values = [
        *(x for arm in results["arms"].values() if metric in arm for x in arm[metric]["per_seed"]),
        *(x for arm in results["curves"].values() if metric in arm for x in arm[metric]["mean"]),
    ]
    return axis_of(lines.get(metric, ""), (x for x in values if x is not None))
