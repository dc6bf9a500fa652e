"""The files of a run: metrics.jsonl, warnings in health.jsonl, settings, provenance and end.

`sinks` show the same elsewhere, in TensorBoard by default.
"""

import contextlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxmarl_llm.devices.distributed import broadcast, is_main_process
from jaxmarl_llm.devices.sharding import hardware
from jaxmarl_llm.runs.health import Monitor, Warned, sentences
from jaxmarl_llm.runs.sinks import SINKS, Sink
from jaxmarl_llm.text.templates import PINNED
from jaxmarl_llm.training.watch import NonFiniteError

PACKAGES = ("jaxmarl_llm", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers", "tokenizers")
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "JAX_DEFAULT_MATMUL_PRECISION")


def writable_directory(directory: str | os.PathLike[str]) -> Path:
    """The directory, made if it is missing. Raises ValueError if files cannot be written in it."""
    try:
        path = Path(directory).resolve()  # tensorstore opens no path with `..`
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{directory} is no directory ({error}): name another one") from None
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"cannot write in the directory {path} ({reason}): name one that can be written") from None
    return path


@contextlib.contextmanager
def run_directory(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """The directory, writable. If it is new, a ValueError removes it again unless a file in it has contents.

    Raises ValueError if files cannot be written in it.
    """
    made = []
    with contextlib.suppress(OSError, RuntimeError):  # `writable_directory` says why
        wanted = Path(directory).resolve()
        for path in reversed((wanted, *wanted.parents)):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                made.append(path)
    path = writable_directory(directory)
    try:
        yield path
    except ValueError:
        with contextlib.suppress(OSError):  # another run is in it
            if (
                is_main_process()
                and path in made
                and not any(x.is_file() and x.stat().st_size for x in path.rglob("*"))
            ):
                shutil.rmtree(path)
                for parent in reversed(made[:-1]):
                    parent.rmdir()
        raise


def provenance() -> dict[str, Any]:
    """The origin of the numbers: package versions, Python, platform, devices, processes, command line, and the commit
    if there is one. Flags of XLA and jax, and the time and random seed of chat templates, are in it too."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    commit = None
    with contextlib.suppress(OSError):
        commit = (
            subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True).stdout.decode().strip() or None
        )
    return {
        "command": sys.argv,
        "commit": commit,
        "hardware": hardware(),
        "flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
        "packages": versions,
        "templates": PINNED,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def plain(value: Any) -> Any:
    """A scalar as JSON can hold it: a Python number, or None for NaN and infinities, which JSON lacks."""
    number = value.item()
    return None if isinstance(number, float) and not math.isfinite(number) else number


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class RunLog:
    """Writes `metrics.jsonl`, `health.jsonl`, `config.json` and `run.json` in a directory, and shows them in sinks.

    `seeds` are those of the runs, in the order of their values in a metric.
    `metrics.jsonl` has one line for each step and seed, {"step": 3, "seed": 0, name: value, ...}; values that are not
    finite are null. Lines already there are kept: call `truncate` with the step at which the run starts or continues.
    `health.jsonl` has a line for each warning of `health`; `tell` receives the first of each cause as a sentence.
    `drift` says that the policies began from a model or a warm start, so that leaving it is news.
    `run.json` is `provenance()` with `started` and `ended`. `ended` is null while the run lasts, then its reason
    (finished, stopped, not finite, interrupted, error), the steps logged and a sentence. `former` lists the same for
    the processes before this one. A killed process writes nothing: the next one finds `ended` null and notes that.
    `sinks` are names of `sinks.SINKS`; of several processes the leading one has them.
    Raises ValueError if the directory cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        seeds: Sequence[int],
        config: Mapping[str, Any],
        tell: Callable[[str], object] = warnings.warn,
        sinks: Sequence[str] = ("tensorboard",),
        drift: bool = True,
    ):
        self.directory = writable_directory(directory)
        self.seeds = tuple(seeds)
        self.tell = tell
        self._path = self.directory / "metrics.jsonl"
        self._steps = max((row["step"] + 1 for row in self._rows()), default=0)
        self.streak = np.zeros(len(self.seeds), int)
        """[seeds], updates in a row, up to the last, in which something was skipped."""
        self._why = ("finished", "")
        self._run = provenance() | {"started": _now(), "ended": None, "former": self._former()}
        self._write("config.json", config)
        self._write("run.json", self._run)
        self._lines = self._path.open("a", encoding="utf-8")
        self._health = (self.directory / "health.jsonl").open("a", encoding="utf-8")
        self._drift, self._monitor = drift, Monitor(drift=drift)
        self._causes: set[str] = set()
        names = sinks if is_main_process() else ()
        self._sinks = [[SINKS[name](self.directory, seed, config) for name in names] for seed in self.seeds]

    def _write(self, name: str, content: Any) -> None:
        partial = self.directory / f"{name}.partial"
        partial.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
        partial.replace(self.directory / name)

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl that are whole."""
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(json.JSONDecodeError):
                    if line.endswith("\n"):
                        yield json.loads(line)

    def _former(self) -> list[dict[str, Any]]:
        """[{command, commit, started, ended}] of the earlier processes of this run, from run.json."""
        try:
            last = json.loads((self.directory / "run.json").read_text(encoding="utf-8"))
            former, ended = last.pop("former"), last["ended"]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        if ended is None:
            sentence = f"The former process ended without saying why, after {self._steps} steps were logged."
            ended = {"reason": "unknown", "steps": self._steps, "sentence": sentence}
            self.tell(sentence)
        return [*former, {name: last.get(name) for name in ("command", "commit", "started")} | {"ended": ended}]

    def scalars(self, step: int, metrics: Mapping[str, ArrayLike]) -> None:
        """Logs numbers, each [seeds] or [] (the same for every seed). Raises ValueError on another shape."""
        columns: dict[str, np.ndarray] = {}
        for name, value in metrics.items():
            array = np.asarray(value)
            if array.shape not in ((), (len(self.seeds),)):
                raise ValueError(
                    f"metric {name} has shape {array.shape}: log a scalar or one value a seed [{len(self.seeds)}]"
                )
            columns[name] = np.broadcast_to(array, (len(self.seeds),))
        warned_now = []
        for place, (seed, shown) in enumerate(zip(self.seeds, self._sinks, strict=True)):
            row = {name: plain(column[place]) for name, column in columns.items()}
            warned_now += self._see(step, seed, row)
            self._lines.write(json.dumps({"step": step, "seed": seed, **row}) + "\n")
            values = {name: float(column[place]) for name, column in columns.items()}
            for sink in shown:
                sink.scalars(step, values)
        self._lines.flush()
        self._steps = step + 1
        new = [warned for warned in warned_now if warned.says not in self._causes]
        self._warn(warned_now)
        for warned in warned_now:
            self.text(step, "health", sentences([warned], len(self.seeds))[0], warned.seed)
        for sentence in sentences(new, len(self.seeds)):
            self.tell(sentence)

    def _see(self, step: int, seed: int, row: Mapping[str, float | None]) -> list[Warned]:
        place = self.seeds.index(seed)
        self.streak[place] = self.streak[place] + 1 if row.get("skipped") else 0
        return self._monitor.see(step, seed, row)

    def _warn(self, warned_now: list[Warned]) -> None:
        self._health.writelines(json.dumps(warned._asdict()) + "\n" for warned in warned_now)
        self._health.flush()
        self._causes |= {warned.says for warned in warned_now}

    def text(self, step: int, tag: str, markdown: str, seed: int) -> None:
        """Shows a text of a seed, such as a transcript, in its sinks."""
        for sink in self._sinks[self.seeds.index(seed)]:
            sink.text(step, tag, markdown)

    def histogram(self, step: int, tag: str, values: ArrayLike, seed: int) -> None:
        """Shows the distribution of a seed's numbers in its sinks; those that are not finite are left out."""
        finite = np.asarray(values, float)
        finite = finite[np.isfinite(finite)]
        for sink in self._sinks[self.seeds.index(seed)] if len(finite) else ():
            sink.histogram(step, tag, finite)

    def truncate(self, start: int) -> None:
        """Forgets step `start` and everything after it: a run that continues at `start` writes them again.

        A last line cut short by a kill goes too, and warnings are made again from the lines that stay. TensorBoard
        keeps its files and hides their content from `start` on. All processes call it. It raises ValueError, with
        nothing lost, unless the leading process finds one line for each earlier step and seed, in that order.
        """
        rows = [row for row in self._rows() if row["step"] < start]
        every = [(step, seed) for step in range(start) for seed in self.seeds]
        if not broadcast([(row["step"], row["seed"]) for row in rows] == every):  # the rest would be for nothing
            raise ValueError(
                f"{self._path} does not hold {start} steps of every seed, each once and in order: name another "
                "directory."
            )
        self._lines.close()
        self._health.close()
        self._health = (self.directory / "health.jsonl").open("w", encoding="utf-8")
        self._monitor, self._causes = Monitor(drift=self._drift), set()
        self.streak[:] = 0
        whole = self._path.with_suffix(".partial")
        with whole.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                self._warn(self._see(row["step"], row["seed"], row))
            file.flush()
            os.fsync(file.fileno())
        whole.replace(self._path)
        self._lines = self._path.open("a", encoding="utf-8")
        self._steps = start
        for sink in self._every_sink():
            sink.restart(start)

    def _every_sink(self) -> list[Sink]:
        return [sink for shown in self._sinks for sink in shown]

    def end(self, reason: str, sentence: str = "") -> None:
        """Says how the run ended, where that is not known from how the log is closed."""
        self._why = reason, sentence

    def close(self) -> None:
        """Writes out what is buffered and how the run ended, and closes the files."""
        reason, sentence = self._why
        self._run["ended"] = {"reason": reason, "steps": self._steps, "sentence": sentence, "at": _now()}
        self._write("run.json", self._run)
        for file in (self._lines, self._health):
            file.close()
        for sink in self._every_sink():
            sink.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.end("interrupted", "A second SIGINT was not waited for.")
        elif error is not None:
            reason = "not finite" if isinstance(error, NonFiniteError) else "error"
            self.end(reason, str(error) if reason == "not finite" else f"{type(error).__name__}: {error}")
        self.close()
