"""Curves in a terminal, drawn with block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = len(BLOCKS) - 1


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The last `width` values as a line of blocks, from the least of all values to the highest; a gap for NaN.

    The range of the blocks is at least a quarter of the largest size, and at least 0.1 for values from 0 to 1. Small
    changes are small steps, and constant values are a low line.
    """
    finite = [x for x in values if math.isfinite(x)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    least = max(max(abs(low), abs(high)) / 4, 0.1 if low >= 0 and high <= 1 else 0)
    scaled = [(x - low) / (max(high - low, least) or 1) for x in values[-width:]]
    return "".join(BLOCKS[1 + round(x * (EIGHTHS - 1))] if math.isfinite(x) else " " for x in scaled)


def plot(values: Sequence[float], low: float, high: float, height: int = 8, width: int = 60) -> list[str]:
    """Lines that show values as columns over an axis from `low` to `high`; columns are repeated up to `width`.

    NaN has no column. Raises ValueError for no values, and for more than `width`.
    """
    if not 0 < len(values) <= width:
        raise ValueError(f"A plot of width {width} takes 1 to {width} values, got {len(values)}.")
    wide = width // len(values)
    shares = [(min(max(x, low), high) - low) / (high - low) if math.isfinite(x) else 0.0 for x in values]
    levels = [round(share * height * EIGHTHS) for share in shares]
    lines = []
    for row in reversed(range(height)):
        filled = (BLOCKS[min(max(level - row * EIGHTHS, 0), EIGHTHS)] for level in levels)
        edge = f"{high:.2f}" if row == height - 1 else ""
        lines.append(f"{edge:>6} ┤" + "".join(block * wide for block in filled).rstrip())
    return [*lines, f"{low:>6.2f} ┼" + "─" * (wide * len(values))]
