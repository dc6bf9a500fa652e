"""Numbers of results as text, for pages and for the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number(value: float | None) -> str:
    """A value with three significant digits; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def interval(cell: Mapping[str, Any]) -> str:
    """`mean [low, high]` of {mean, low, high}; the mean alone where there is no interval."""
    ends = "" if cell["low"] is None else f" [{number(cell['low'])}, {number(cell['high'])}]"
    return number(cell["mean"]) + ends


def count(n: int, thing: str) -> str:
    """A number with its noun: `1 seed`, `2 seeds`."""
    return f"{n} {thing}{'s' * (n != 1)}"
