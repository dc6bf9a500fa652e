"""The result of a match in words: a sentence, and the rows of its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Interval = tuple[float, float, float]  # mean, low, high


def number(x: float) -> str:
    return f"{x:.3g}" if abs(x) < 1000 else f"{x:.0f}"


def interval(values: Interval) -> str:
    """`mean [low, high]`, the mean alone without an interval."""
    mean, low, high = values
    return number(mean) if np.isnan(low) or low == high else f"{number(mean)} [{number(low)}, {number(high)}]"


def unit_of(game: Any) -> str:
    """The unit of a game's scores: the name of its only component if that ends in "s", otherwise "points"."""
    plural = len(game.components) == 1 and game.components[0].endswith("s")
    return game.components[0] if plural else "points"


def sentence(names: Sequence[str], game: Any, result: dict[str, Any]) -> str:
    """The result of two players in one sentence."""
    first, second = names
    unit = unit_of(game)
    over = f"{result['games']} games, {'both' if game.agents == 2 else 'all'} seats"
    mean, low, high = result["difference"]
    if first == second:
        second = "itself"
    if mean == low == high == 0:
        return f"{first} and {second} earn the same, {interval(result['first']['points'])} {unit} a game over {over}."
    size = interval((mean, low, high) if mean >= 0 else (-mean, -high, -low))
    clear = "" if low * high > 0 else ": no clear difference"
    return f"{first} earns {size} {unit} a game {'more' if mean >= 0 else 'less'} than {second} over {over}{clear}."


def rows(game: Any, result: dict[str, Any], known: dict[str, Any] | None) -> Iterator[tuple[str, list[str]]]:
    """(title, a cell for each player) of all values of a result; `known` are the exact ones."""
    both = result["first"], result["second"]
    unit = unit_of(game)
    yield f"{unit} [95%]", [interval(x["points"]) for x in both]
    if known:
        yield "  exact, all deals", [number(x) for x in known["points"]]
    for seat in result["first"]["by_seat"]:
        yield f"{unit}, A in seat {seat}", [interval(x["by_seat"][seat]["points"]) for x in both]
        if known:
            yield "  exact, all deals", [number(x) for x in known["by_seat"][seat]]
    for case in ("win", "draw", "loss"):
        yield case, [interval(x[case]) for x in both]
    for seat in result["first"]["by_seat"]:
        yield f"win, A in seat {seat}", [interval(x["by_seat"][seat]["win"]) for x in both]
    for name, cells in result["means"].items():
        yield name, [interval(x) for x in cells]
    for case, cells in result.get("cooperation", {}).items():
        title = "cooperates at first" if case == "first" else f"cooperates after {case} (own move, other's)"
        yield title, [count_of(*cell) for cell in cells]
    if known:
        yield "NashConv, in all seats", [number(x) for x in known["nash_conv"]]


def count_of(share: float, rounds: int) -> str:
    """The rounds in which a player cooperates, among those that had the outcome: `40 of 40 rounds`."""
    return f"{round(share * rounds)} of {rounds} rounds" if rounds else "never met"
