"""Parts of every command of studies: exit codes, a lock of the run directory, numbers with their intervals."""

from __future__ import annotations

import contextlib
import fcntl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxmarl_llm.devices import distributed, surroundings
from jaxmarl_llm.models import loading
from jaxmarl_llm.runs.loop import stop_on_signals
from jaxmarl_llm.text.console import lasting
from jaxmarl_llm.training.watch import NonFiniteError

STOPPED = 75  # in the words of sysexits.h, a temporary failure: try again


def execute(run: Callable[[threading.Event, Console], bool | None], cores: int | None = None) -> None:
    """Runs a command on at most `cores` CPU cores, and turns its errors into one sentence on stderr and an exit code.

    `run` takes an event that SIGINT and SIGTERM set, and a console. In a run of several processes, the first one alone
    prints. Exit codes:

      0        the command reached its end
      1        OSError: a file cannot be read or written, e.g. on a full disk
      2        ValueError: the settings cannot work
      3        NonFiniteError: training ended after too many updates that were not finite
      STOPPED  `run` returned False: a signal stopped it, and its state is saved

    An encoding of the console that lacks a character ends no command (`lasting`).
    """
    with lasting():
        _execute(run, cores)


def _execute(run: Callable[[threading.Event, Console], bool | None], cores: int | None) -> None:
    try:
        surroundings.settle()
        loading.keep_programs()
        with stop_on_signals() as stop:
            distributed.initialize()
            distributed.use_cores(cores)
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
    """Locks a run directory for one process. Raises ValueError if another process holds the lock."""
    with (out / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"Another process runs in {out}: wait for it, or name another --out.") from None
        yield


def span(cell: dict[str, Any], digits: int = 2) -> str:
    """`mean ±half` of {mean, low, high}: half the width of the interval; `never met` for a mean of None."""
    if cell["mean"] is None:
        return "never met"
    half = "" if cell["low"] is None else f" ±{(cell['high'] - cell['low']) / 2:.{digits}f}"
    return f"{cell['mean']:.{digits}f}{half}"
