"""Checkpoints of a run: arrays by orbax, and beside them the settings, the tree, and a digest of every file.

They are written while training continues, and loaded onto any devices.

The state of a study is a `training.records.Run`: weights and optimiser states, the estimator's state, past selves. Its
leaves begin with [runs]; with a rollout mesh it is a `training.trainer.Ahead`. The docstring of `runs.loop.train` says
when a state is saved, `runs.loop.resume` how it is loaded. The settings of a study are `studies.program.identity`:
arms, seeds, models, digests of frozen policies, and the use of a rollout mesh.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike
from orbax.checkpoint import v1 as ocp

from jaxmarl_llm.devices.distributed import broadcast, is_main_process
from jaxmarl_llm.runs.log import plain, writable_directory
from jaxmarl_llm.runs.saved_arrays import array_shapes, check_stored, plain_path

State = TypeVar("State")
RECORD = "checkpoint.json"
STEP = re.compile(r"0|[1-9]\d*", re.ASCII)  # the name of a checkpoint's directory
MAY_DIFFER = ("steps", "out", "resume", "profile", "keep")


class ConfigMismatch(ValueError):
    """The checkpoint was made with other settings than this run asks for."""


class CheckpointError(OSError):
    """A checkpoint could not be written: the disk is full, or the directory cannot be written any more."""


@dataclasses.dataclass(frozen=True)
class Keep:
    """The checkpoints that stay when a newer one is whole: all that any of these rules names."""

    last: int = 2
    """The number of newest checkpoints, 1 or more."""
    best: str = ""
    """The checkpoint with the best value of this metric, the mean over seeds; empty: no such rule."""
    lowest: bool = False
    """The best value is the lowest; otherwise the highest."""
    every: int = 0
    """Checkpoints of steps that this number divides; 0: no such rule."""
    wait: bool = False
    """Each is on disk before training continues, so that a kill costs the step in flight alone. Otherwise it is
    written meanwhile, and a kill may cost the step before it too."""

    def check(self) -> None:
        """Raises ValueError for rules that cannot work."""
        if self.last < 1:
            raise ValueError(f"keep.last={self.last}: at least the newest checkpoint is kept")
        if self.every < 0:
            raise ValueError(f"keep.every={self.every}: give a number of steps, or 0 for none")

    def best_of(self, values: Mapping[int, float | None]) -> int | None:
        """The step with the highest value, or with `lowest` the lowest; the oldest among equals.

        A value is None if it was not measured or is not finite; without other values the result is None.
        """
        known = {step: value for step, value in sorted(values.items()) if value is not None}
        return (min if self.lowest else max)(known, key=known.__getitem__) if known else None

    def stay(self, values: Mapping[int, float | None]) -> set[int]:
        """The steps that stay, of {step: value of the metric `best`, or None}."""
        steps = sorted(values)
        periodic = {step for step in steps if self.every and step % self.every == 0}
        return {*steps[-self.last :], *periodic} | {step for step in [self.best_of(values)] if step is not None}


LAST_TWO = Keep()


def flat(config: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as ("training.games", "32"), values written as JSON."""
    if isinstance(config, Mapping) and config:
        for name, value in config.items():
            yield from flat(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, json.dumps(config, default=str)


def compare(directory: Path, old: Mapping[str, Any], new: Mapping[str, Any], may_differ: Collection[str]) -> None:
    """Raises ConfigMismatch on the first setting that differs, in the order of `new`.

    `may_differ` names settings to leave out, with their dots or by their first part.
    """
    before, now = dict(flat(old)), dict(flat(new))
    for name in [*now, *(name for name in before if name not in now)]:
        a, b = before.get(name, "(not set)"), now.get(name, "(not set)")
        if a != b and name not in may_differ and name.split(".")[0] not in may_differ:
            alike = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
            begin = max(0, alike - 20)  # JSON can be long
            a, b = (x if len(x) <= 60 else f"{'...' * (begin > 0)}{x[begin : begin + 57]}..." for x in (a, b))
            raise ConfigMismatch(f"checkpoint in {directory} was made with {name}={a}, this run asks for {name}={b}")


def signature(state: Any) -> dict[str, str]:
    """{path: "float32[2, 3]"} for each leaf of a tree of arrays, abstract arrays or Python numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path): f"{getattr(x, 'dtype', type(x).__name__)}{list(np.shape(x))}" for path, x in leaves
    }


def digests(directory: Path) -> dict[str, str]:
    """{relative path: SHA-256} of each file below a directory, without the record that holds them."""
    hashes = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file() and path.name != RECORD):
        with path.open("rb") as file:
            hashes[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def seal(record: Mapping[str, Any]) -> str:
    """SHA-256 of a record as JSON."""
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def settle(path: Path) -> None:
    """Returns when a file, or the list of names in a directory, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason(error: Exception) -> str:
    """The cause of an error in a line: the words of the system if there are any, else the first line of a library."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0].split(" [source locations=")[0]


def placed_like(example: Any, x: Any) -> Any:
    """A restored leaf, free to follow other arrays to their devices if the example's leaf was (orbax commits all)."""
    if not isinstance(example, jax.Array) or example.committed:
        return x
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.device_put(np.asarray(jax.random.key_data(x)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    return jax.device_put(np.asarray(x))


class Checkpoints:
    """The checkpoints of a run that `keep` names, as DIRECTORY/STEP.

    A checkpoint is written in the background, under another name, read back, and renamed when it is whole and on disk.
    So an interrupted write replaces nothing, and an older checkpoint stays until the index of the new one was opened
    again. Every file's digest is compared before it is read, so damage that came later is noticed (orbax alone returns
    wrong numbers for a flipped bit). Leaves are arrays, typed keys or Python numbers; orbax refuses arrays of size
    zero. As a context it waits at the end for unfinished writes. Each of several processes
    writes its parts into the directory, which all must share, and the first one does the rest. The files `beside`, such
    as metrics.jsonl, which a resumed run reads, are on disk before a checkpoint is.

    Raises ValueError if the directory cannot be written, or holds checkpoints although `resume` is False. Raises
    ConfigMismatch if it holds checkpoints of other settings. Both come before a state exists and anything compiles.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: Mapping[str, Any],
        keep: Keep = LAST_TWO,
        *,
        resume: bool = False,
        may_differ: Collection[str] = MAY_DIFFER,
        beside: Collection[Path] = (),
    ):
        keep.check()
        self.directory = writable_directory(directory)
        self.config = config
        self.keep = keep
        self.beside = beside
        self._background = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        steps = self.steps()
        if steps and not resume:
            raise ValueError(f"{self.directory} holds a run at step {steps[-1]}: resume it, or name another directory")
        for step in reversed(steps):
            # A record that cannot be read belongs to a damaged checkpoint, which `restore` reports.
            with contextlib.suppress(OSError, ValueError):
                old = self._record(step)["config"]
                break
        else:
            return
        compare(self.directory, old, config, may_differ)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *raised: object) -> None:
        self.wait()

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are whole, oldest first; of the one being written when it is."""
        return sorted(int(path.name) for path in self.directory.glob("*") if STEP.fullmatch(path.name))

    def best(self) -> int | None:
        """The step of the best checkpoint by the metric `keep.best`; None if none of them knows it."""
        return self.keep.best_of(self._values())

    def save(self, step: int, state: Any, metrics: Mapping[str, ArrayLike] | None = None) -> None:
        """Copies `state` off the devices and begins to write it as the checkpoint of `step`.

        When it returns, the next step may be given the same buffers to overwrite. `save` first waits for the previous
        checkpoint, so at most one is being written. Once the new checkpoint is complete, those that `keep` does not
        name are removed. `metrics`, each [seeds] or [], are those of the step that made the state. With `keep.wait`,
        `save` returns once the new checkpoint is complete.

        Raises CheckpointError if the new checkpoint, or the previous one, cannot be written.
        """
        self.wait()
        metrics = metrics or {}
        if self.keep.best and metrics and self.keep.best not in metrics:
            warnings.warn(
                f"a checkpoint without the metric {self.keep.best!r} is never the best: there are {', '.join(metrics)}",
                stacklevel=2,
            )
        record = {
            "step": step,
            "config": self.config,
            "tree": signature(state),
            "metrics": {name: plain(np.asarray(value).mean()) for name, value in metrics.items()},
        }
        partial = self.directory / f"{step}.partial"
        with self._report_errors(step), contextlib.ExitStack() as stack:
            shapes = array_shapes(state)
            if is_main_process():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
            place = stack.enter_context(plain_path(self.directory)) / partial.name / "state"
            written = ocp.save_async(place, state)
            link = stack.pop_all()  # lasts until all is written

        def finish() -> None:  # in the background: all that follows the copy
            with self._report_errors(step), link:
                written.result()  # by all processes
                if is_main_process():
                    check_stored(place, shapes)
                    self._complete(step, record)
            if is_main_process():
                self._remove_old()

        self._writing = self._background.submit(finish)
        if self.keep.wait:
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written. Raises CheckpointError if the last checkpoint could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _complete(self, step: int, record: dict[str, Any]) -> None:
        """Writes the record of a checkpoint and gives the whole its name, once all is on disk."""
        partial, whole = self.directory / f"{step}.partial", self.directory / str(step)
        record["files"] = digests(partial)
        record = json.loads(json.dumps(record, default=str))
        text = json.dumps({"digest": seal(record), **record}, indent=1)
        (partial / RECORD).write_text(text, encoding="utf-8")
        for path in (*self.beside, *partial.rglob("*"), partial):
            settle(path)
        if (partial / RECORD).read_text(encoding="utf-8") != text:
            raise ValueError(f"{RECORD} is not read as it was written")
        if whole.exists():
            whole.replace(self.directory / f"{step}.old.partial")
        partial.replace(whole)
        settle(self.directory)

    def _remove_old(self) -> None:
        values = self._values()
        for gone in values.keys() - self.keep.stay(values):  # renamed first: a kill leaves no half of one
            (self.directory / str(gone)).replace(self.directory / f"{gone}.old.partial")
        for leftover in self.directory.glob("*.partial"):
            shutil.rmtree(leftover)

    @contextlib.contextmanager
    def _report_errors(self, step: int) -> Iterator[None]:
        """Errors in writing become one sentence, and what is half written makes room."""
        try:
            yield
        except jax.errors.JaxRuntimeError:  # not of the disk: another process died
            raise
        except Exception as error:  # a full disk is an OSError, or a ValueError of tensorstore
            shutil.rmtree(self.directory / f"{step}.partial", ignore_errors=True)
            before = f"the last whole one is {self.steps()[-1]}" if self.steps() else "there is none before it"
            raise CheckpointError(
                f"checkpoint {step} cannot be written in {self.directory} ({reason(error)}): {before}"
            ) from error

    def restore(self, example: State) -> tuple[int, State] | None:
        """(step, state) of the newest whole checkpoint, or None if there is none.

        `example` is a state, or an abstract one, with the wanted structure, shapes, dtypes and shardings. The mesh of
        the checkpoint may be another one, and the restored leaves have the same bits as those saved. A damaged
        checkpoint is set aside as STEP.damaged with a warning, and the one before it is taken. Raises ValueError if all
        are damaged or if the tree is another one.
        """
        self.wait()
        damaged: dict[int, str] = {}
        step = -1
        for candidate in reversed(self.steps() if is_main_process() else []):
            problem = self._problem(candidate)
            if problem is None:
                step = candidate
                break
            damaged[candidate] = problem
        if step < 0 and damaged:
            what = "; ".join(f"step {step}: {problem}" for step, problem in damaged.items())
            raise ValueError(f"no checkpoint in {self.directory} is whole ({what}): remove them to start again")
        step = int(broadcast(step))
        if step < 0:
            return None
        self._check_tree(step, example)
        with plain_path(self.directory) as directory:
            restored = ocp.load(directory / str(step) / "state", example)
        for bad, problem in damaged.items():
            aside = self.directory / f"{bad}.damaged"
            shutil.rmtree(aside, ignore_errors=True)
            (self.directory / str(bad)).replace(aside)
            warnings.warn(
                f"checkpoint {bad} in {self.directory} is damaged ({problem}) and is set aside as {aside.name}; "
                f"continuing from step {step}",
                stacklevel=2,
            )
        return step, jax.tree.map(placed_like, example, restored)

    def _record(self, step: int) -> dict[str, Any]:
        """Raises OSError or ValueError if it is damaged."""
        record = json.loads((self.directory / str(step) / RECORD).read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.pop("digest", None) != seal(record):
            raise ValueError(f"{RECORD} has changed")
        return record

    def _values(self) -> dict[int, float | None]:
        """{step: value of the metric `keep.best`, None where it is not known} of the checkpoints that are whole."""
        values: dict[int, float | None] = dict.fromkeys(self.steps())
        for step in values if self.keep.best else ():
            with contextlib.suppress(OSError, ValueError):
                values[step] = self._record(step)["metrics"].get(self.keep.best)
        return values

    def _problem(self, step: int) -> str | None:
        """The damage of a checkpoint in a few words, or None."""
        try:
            expected = self._record(step)["files"]
        except (OSError, ValueError):
            return f"{RECORD} is missing or has changed"
        present = digests(self.directory / str(step))
        wrong = next((name for name in expected if present.get(name) != expected[name]), None)
        if wrong is None:
            return None
        return f"{wrong} {'has changed' if wrong in present else 'is missing'}"

    def _check_tree(self, step: int, example: Any) -> None:
        old, new = self._record(step)["tree"], signature(example)
        for path in [*new, *(path for path in old if path not in new)]:
            a, b = old.get(path, "nothing"), new.get(path, "nothing")
            if a != b:
                raise ValueError(
                    f"checkpoint {step} in {self.directory} holds {a} at {path or 'the root'}, this run has {b} there"
                )
