"""The progress of a study's run: which program is compiled or trains, the updates that are done, and the time left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from jaxmarl_llm.studies.pages.format import duration

LINES = 10  # lines of a run without a terminal, besides one a program


class Estimate:
    """The time left of programs that train one after the other, from what those before took.

    A program takes a start (compilation, warm start, evaluations and games before), its updates, and an end
    (evaluations and games after). Later programs are mostly prepared while others train. Until a second start is known,
    it is taken for the seconds by which the first start is longer than the updates of its program.

    `updates` and `saved` are the updates of each program, and those that a checkpoint holds. `clock` is in seconds.
    """

    def __init__(self, updates: Sequence[int], saved: Sequence[int], clock: Callable[[], float] = time.monotonic):
        self._rest = [total - kept for total, kept in zip(updates, saved, strict=True)]
        self._clock = clock
        self._number = -1
        self._done = 0  # updates of the present program
        self._began = self._first = self._last = 0.0  # begin, first and latest update of the present program
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._busy, self._timed = 0.0, 0  # seconds of all updates but the first of each program, and their number

    def rest(self, number: int) -> int:
        """The updates of a program that no checkpoint holds."""
        return self._rest[number]

    def begin(self, number: int) -> None:
        """Starts the clock of the program at index `number`, and ends that of the program before it."""
        now = self._clock()
        if self._done:
            self._ends.append(now - self._last)
        self._number, self._done, self._began = number, 0, now

    def step(self) -> None:
        """An update of the present program has ended."""
        now = self._clock()
        if self._done:
            self._busy, self._timed = self._busy + now - self._last, self._timed + 1
        else:
            self._first = now
            self._starts.append(now - self._began)
        self._done, self._last = self._done + 1, now

    @property
    def seconds(self) -> float | None:
        """Seconds left; None before a second update has ended."""
        if not self._timed:
            return None
        rate = self._busy / self._timed
        later = [rest for rest in self._rest[self._number + 1 :] if rest]
        beside = rate * (self._rest[self._number] - 1)
        starts = self._starts[1:] or [max(0.0, self._starts[0] - beside)]
        present = self._rest[self._number] - self._done + (0 if self._done else -1)
        start = sum(starts) / len(starts)
        waited = 0.0 if self._done else self._clock() - self._began
        ends = sum(self._ends) / max(1, len(self._ends)) * (len(later) + 1)
        return (
            rate * (present + sum(later) - len(later))
            + start * len(later)
            + (0.0 if self._done else max(0.0, start - waited))
            + ends
        )


class Shown:
    """A run on the console: `begin` a program, then `step` after each of its updates."""

    def __init__(
        self,
        console: Console,
        bar: Progress,
        names: Sequence[str],
        imitating: Sequence[int],
        estimate: Estimate,
        done: int,
        total: int,
    ):
        self._console, self._bar, self._names, self._estimate = console, bar, names, estimate
        self._imitating = imitating
        self._done, self._total = done, total
        self._task: TaskID = bar.add_task("", total=total, completed=done, left="")
        self._next = done  # the update from which on a line is due

    def begin(self, number: int) -> None:
        """The program of that index is compiled, and its warm start made, unless all its updates are saved."""
        self._estimate.begin(number)
        place = f"({number + 1} of {len(self._names)}): {escape(self._names[number])}"
        first = f", and imitating for {self._imitating[number]} updates" if self._imitating[number] else ""
        text = f"compiling{first} {place}" if self._estimate.rest(number) else f"trained already {place}"
        self._bar.update(self._task, description=text)
        if not self._console.is_terminal:
            self._console.print(text, soft_wrap=True)

    def step(self, text: str) -> None:
        """An update has ended; `text` says what it measured."""
        self._done += 1
        self._estimate.step()
        seconds = self._estimate.seconds
        left = "" if seconds is None else f"about {duration(seconds)} left"
        if self._done == self._total:
            left = "finishing"  # evaluations, games and the table are still to come
        self._bar.update(self._task, completed=self._done, description=text, left=left)
        if not self._console.is_terminal and left and (self._done >= self._next or self._done == self._total):
            self._console.print(f"update {self._done} of {self._total}: {text}, {left}", soft_wrap=True)
            self._next = self._done + max(1, self._total // LINES)


@contextlib.contextmanager
def progress(
    console: Console, names: Sequence[str], updates: Sequence[int], saved: Sequence[int], imitating: Sequence[int]
) -> Iterator[Shown]:
    """Shows the progress of programs, given their names, updates, saved updates and updates of the warm start.

    A terminal shows a bar. Without one, a line is printed for every program and ten times in the run.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield Shown(console, bar, names, imitating, Estimate(updates, saved), sum(saved), sum(updates))
