"""Checkpoints of a run: arrays by orbax, and beside them the settings, the tree, and a digest of every file."""

import contextlib
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from jaxmarl_llm.log import writable_directory

State = TypeVar("State")
RECORD = "checkpoint.json"
MAY_DIFFER = ("steps", "out", "resume", "profile")


class ConfigMismatch(ValueError):
    """The checkpoint was made with other settings than this run asks for."""


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
            raise ConfigMismatch(f"checkpoint in {directory} was made with {name}={a}, this run asks for {name}={b}")


def signature(state: Any) -> dict[str, str]:
    """{path: "float32[2, 3]"} for each leaf of a tree of arrays, abstract arrays or Python numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path): f"{getattr(x, 'dtype', type(x).__name__)}{list(np.shape(x))}" for path, x in leaves
    }


def digests(directory: Path) -> dict[str, str]:
    """{relative path: SHA-256} of each file below a directory, without the record that holds them."""
    found = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file() and path.name != RECORD):
        with path.open("rb") as file:
            found[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def placed_like(example: Any, x: Any) -> Any:
    """A restored leaf, free to follow other arrays to their devices if the example's leaf was (orbax commits all)."""
    if not isinstance(example, jax.Array) or example.committed:
        return x
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.device_put(np.asarray(jax.random.key_data(x)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    return jax.device_put(np.asarray(x))


class Checkpoints:
    """The newest `keep` checkpoints of a run, as DIRECTORY/STEP.

    A checkpoint is written under another name and renamed when it is whole, so an interrupted write replaces nothing;
    every file's digest is compared before it is read, so damage that came later is noticed (orbax alone returns wrong
    numbers for a flipped bit). Leaves are arrays, typed keys or Python numbers; orbax refuses arrays of size zero.

    Raises ValueError if the directory cannot be written, or holds checkpoints although `resume` is False, and
    ConfigMismatch if it holds those of other settings: all before a state exists, so before anything compiles.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: Mapping[str, Any],
        keep: int = 2,
        *,
        resume: bool = False,
        may_differ: Collection[str] = MAY_DIFFER,
    ):
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the newest checkpoint is kept")
        self.directory = writable_directory(directory)
        self.config = config
        self.keep = keep
        steps = self.steps()
        if steps and not resume:
            raise ValueError(f"{self.directory} holds a run at step {steps[-1]}: resume it, or name another directory")
        for step in reversed(steps):
            # A record that cannot be read belongs to a damaged checkpoint, which `restore` reports.
            with contextlib.suppress(OSError, ValueError, KeyError):
                old = self._record(step)["config"]
                break
        else:
            return
        compare(self.directory, old, config, may_differ)

    def steps(self) -> list[int]:
        """The steps of the checkpoints that were written to their end, oldest first."""
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdigit())

    def save(self, step: int, state: Any) -> None:
        """Writes `state` as the checkpoint of `step` and removes what is older than the newest `keep`.

        Returns when it is on disk: the next step may be given the same buffers to overwrite.
        """
        partial, whole = self.directory / f"{step}.partial", self.directory / str(step)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        ocp.save(partial / "state", state)
        record = {"step": step, "config": self.config, "tree": signature(state), "files": digests(partial)}
        with (partial / RECORD).open("w") as file:
            json.dump(record, file, indent=1, default=str)
            file.flush()
            os.fsync(file.fileno())
        if whole.exists():
            whole.replace(self.directory / f"{step}.old.partial")
        partial.replace(whole)
        for leftover in [
            *self.directory.glob("*.partial"),
            *(self.directory / str(s) for s in self.steps()[: -self.keep]),
        ]:
            shutil.rmtree(leftover)

    def restore(self, example: State) -> tuple[int, State] | None:
        """(step, state) of the newest whole checkpoint, or None if there is none.

        `example` is a state, or an abstract one, with the structure, shapes, dtypes and shardings that are wanted; the
        restored leaves have the same bits as those saved. A damaged checkpoint is set aside as STEP.damaged with a
        warning, and the one before it is taken. Raises ValueError if all are damaged or if the tree is another one.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            directory = self.directory / str(step)
            problem = self._problem(step)
            if problem is None:
                break
            damaged[step] = problem
        else:
            if not damaged:
                return None
            what = "; ".join(f"step {step}: {problem}" for step, problem in damaged.items())
            raise ValueError(f"no checkpoint in {self.directory} is whole ({what}): remove them to start again")
        self._check_tree(step, example)
        restored = ocp.load(directory / "state", example)
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
        return json.loads((self.directory / str(step) / RECORD).read_text())

    def _problem(self, step: int) -> str | None:
        """What is damaged in a checkpoint, or None."""
        try:
            expected = self._record(step)["files"]
        except (OSError, ValueError, KeyError):
            return f"{RECORD} cannot be read"
        found = digests(self.directory / str(step))
        wrong = next((name for name in expected if found.get(name) != expected[name]), None)
        if wrong is None:
            return None
        return f"{wrong} {'has changed' if wrong in found else 'is missing'}"

    def _check_tree(self, step: int, example: Any) -> None:
        old, new = self._record(step)["tree"], signature(example)
        for path in [*new, *(path for path in old if path not in new)]:
            a, b = old.get(path, "nothing"), new.get(path, "nothing")
            if a != b:
                raise ValueError(
                    f"checkpoint {step} in {self.directory} holds {a} at {path or 'the root'}, this run has {b} there"
                )
