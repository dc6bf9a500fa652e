"""Numbers of results as text, for pages and for the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def number(value: float | None) -> str:
    """A value with three significant digits; a dash for None, and 0 for what is below a millionth."""
    if value is None:
        return "–"
    if abs(value) < 1e-6:
        return "0"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def interval(cell: Mapping[str, Any]) -> str:
    """`mean [low, high]` of {mean, low, high}; the mean alone where there is no interval."""
    ends = "" if cell["low"] is None else f" [{number(cell['low'])}, {number(cell['high'])}]"
    return number(cell["mean"]) + ends


def count(n: int, thing: str, things: str = "") -> str:
    """A number with its noun: `1 seed`, `2 seeds`."""
    return f"{n} {thing if n == 1 else things or f'{thing}s'}"


def duration(seconds: float) -> str:
    """`0.5 s`, `42 s` or `4.4 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def markdown(table: Iterable[Sequence[Any]]) -> str:
    """A table of Markdown, from its head and its rows."""
    head, *lines = [[str(cell).replace("|", "\\|") for cell in line] for line in table]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))
