"""What the commands of all experiments share: a progress bar, numbers with intervals, errors in one sentence."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jaxmarl_llm.devices import distributed, surroundings
from jaxmarl_llm.models import loading
from jaxmarl_llm.runs.loop import stop_on_signals
from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.training.watch import NonFiniteError

STOPPED = 75  # in the words of sysexits.h, a temporary failure: try again


def execute(run: Callable[[threading.Event, Console], bool | None]) -> None:
    """Runs a command, in each of its processes if there are several, of which the first speaks.

    It ends with 0; with STOPPED where `run` returns False, as a signal kept it from its end and it is saved; with one
    sentence and 2 where settings cannot work, 3 where training stopped because something was not finite, 1 where a file
    cannot be written or read, as on a full disk. A poor console ends none (`lasting`).
    """
    with lasting():
        _execute(run)


def _execute(run: Callable[[threading.Event, Console], bool | None]) -> None:
    try:
        surroundings.settle()
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # a second start compiles nothing again
            jax.config.update("jax_compilation_cache_dir", str(loading.cache_directory() / "xla"))
        with stop_on_signals() as stop:
            distributed.initialize()
            distributed.use_cores()
            surroundings.check_devices()
            distributed.check_same(sys.argv[1:])
            finished = run(stop, Console(quiet=not distributed.is_main_process()))
    except (ValueError, OSError, NonFiniteError) as error:
        # the files of a NonFiniteError are those of the leading process
        if not isinstance(error, NonFiniteError) or distributed.is_main_process():
            print(f"error: {error}", file=sys.stderr)
        code = 2 if isinstance(error, ValueError) else 3 if isinstance(error, NonFiniteError) else 1
        distributed.exit_all(code)
        raise SystemExit(code) from None
    except (Exception, KeyboardInterrupt):
        distributed.exit_all(distributed.UNKNOWN)
        raise
    if finished is False:
        raise SystemExit(STOPPED)


@contextlib.contextmanager
def lock_directory(out: Path) -> Iterator[None]:
    """Keeps a run directory to one process at a time. Raises ValueError if another one runs in it."""
    with (out / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"Another process runs in {out}: wait for it, or name another --out.") from None
        yield


def span(cell: dict[str, Any], digits: int = 2) -> str:
    """A mean and half of its interval."""
    if cell["mean"] is None:
        return "never met"
    half = "" if cell["low"] is None else f" ±{(cell['high'] - cell['low']) / 2:.{digits}f}"
    return f"{cell['mean']:.{digits}f}{half}"


@contextlib.contextmanager
def progress(
    console: Console, updates: int, start: int, describe: Callable[[Mapping[str, Any]], str]
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """A bar with the time left; without a terminal, a line now and then that says the same."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    first: float | None = None  # when the first update was done: it holds the compilation, and says nothing of the rest
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=updates, completed=start)

        def on_step(step: int, metrics: Mapping[str, Any]) -> None:
            nonlocal first
            text = describe(metrics)
            bar.update(task, completed=step + 1, description=text)
            done, now = step + 1 - start, time.monotonic()
            first = now if first is None else first
            if not console.is_terminal and (done == 1 or (step + 1) % max(1, updates // 10) == 0):
                left = (now - first) / max(1, done - 1) * (updates - step - 1)
                eta = f", about {left / 60:.1f} minutes left" if done > 1 else ""
                console.print(f"update {step + 1} of {updates}: {text}{eta}")

        yield on_step
