"""Parts of the benchmarks: paired timings of ours and theirs, memory growth, and a table with limits."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxmarl_llm.planning.machine import Machine, seconds


def need(*packages: str) -> None:
    """Ends the program with one sentence if a package of the other side is missing."""
    if missing := [name for name in packages if find_spec(name) is None]:
        sys.exit(f"This benchmark runs transformers beside ours and needs {missing[0]}: pip install -e '.[bench]'.")


def measure_growth(function: Callable[[], float]) -> tuple[float, int]:
    """(result of a function, peak growth of the process's resident memory during the call in bytes)."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096

    gc.collect()  # garbage that is freed during the call would hide new memory
    ctypes.CDLL(None).malloc_trim(0)  # freed pages would be reused without growth
    before, peak, ended = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = function()
    ended.set()
    watcher.join()
    return result, max(peak - before, 0)


@dataclass
class Result:
    """A row of a table; `ratio` is the median over pairs of their seconds / our seconds."""

    name: str
    ours: float
    theirs: float
    ratio: float
    unit: str
    share_of_limit: float | None = None
    their_share: float | None = None
    megabytes: float = 0.0  # peak growth of memory
    their_megabytes: float = 0.0


def compare(
    name: str,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    machine: Machine,
    repeat: int,
    amount: float = 1,
    unit: str = "s",
    least: Callable[[], float] | None = None,
    measures: tuple[Callable, Callable] = (seconds, seconds),
) -> Result:
    """Times ours and theirs in `repeat` pairs, after one warm-up of each: medians in seconds, or `amount` a second.

    `unit` selects seconds by "s" or "ms". `least` returns the seconds that the machine's limit allows; it is called at
    the end. `measures` are the timers of ours and theirs.
    """
    seconds(ours), seconds(theirs)  # waits for the result: asynchronous work would run beside theirs
    pairs, memory = [], []
    for _ in range(repeat):
        machine.measure()
        both = [
            measure_growth(lambda pair=pair: pair[0](pair[1]))  # type: ignore[misc]
            for pair in zip(measures, (ours, theirs), strict=True)
        ]
        pairs.append((both[0][0], both[1][0]))
        memory.append((both[0][1], both[1][1]))
    machine.measure()
    our, their = (median(side) for side in zip(*pairs, strict=True))
    megabytes = [max(side) / 1e6 for side in zip(*memory, strict=True)]
    shares = (None, None) if least is None else (least() / our, least() / their)
    values = (our, their) if unit in ("s", "ms") else (amount / our, amount / their)
    return Result(name, *values, median(b / a for a, b in pairs), unit, *shares, *megabytes)


def show(title: str, results: list[Result], machine: Machine, json_file: Path | None) -> None:
    """Prints the table, and writes it to `json_file` unless that is None."""
    table, share = Table(title=title), lambda x: "" if x is None else f"{x:.0%}"
    for column in ("", "ours", "theirs", "ratio", "of limit", "theirs", "MB", "theirs"):
        table.add_column(column, justify="left" if not column else "right")
    for row in results:
        values = (f"{row.ours:,.3g} {row.unit}", f"{row.theirs:,.3g} {row.unit}", f"{row.ratio:.2f}x")
        shares = (share(row.share_of_limit), share(row.their_share))
        table.add_row(row.name, *values, *shares, f"{row.megabytes:,.0f}", f"{row.their_megabytes:,.0f}")
    console = Console()
    console.print(table, str(machine))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in results], indent=1) + "\n", encoding="utf-8")


def label_of(name: str, x: Sequence[float], y: Sequence[float | None], last: float, reason: str) -> str:
    """The name of a line in a legend. A line that ends before `last`, the largest x of the plot, says where and why."""
    measured = [place for place, value in zip(x, y, strict=True) if value is not None]
    return name if not measured or measured[-1] == last else f"{name}\n(to {measured[-1]:g}: {reason})"
