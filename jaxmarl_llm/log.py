"""What a run writes down: TensorBoard (one run a seed), metrics.jsonl, its settings, and the versions it ran with."""

import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.text import metadata as text_plugin
from tensorboard.summary.writer.event_file_writer import EventFileWriter

PACKAGES = ("jaxmarl_llm", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers", "tokenizers")


def writable_directory(directory: str | os.PathLike[str]) -> Path:
    """The directory, made if it is missing. Raises ValueError if files cannot be written in it."""
    path = Path(directory).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"cannot write in the directory {path} ({reason}): name one that can be written") from None
    return path


def provenance() -> dict[str, Any]:
    """Where the numbers come from: package versions, Python, platform, command line, and the commit if there is one."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    commit = None
    with contextlib.suppress(OSError):
        commit = (
            subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip() or None
        )
    return {
        "command": sys.argv,
        "commit": commit,
        "packages": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def plain(value: Any) -> Any:
    """A scalar as JSON can hold it: a Python number, or None for NaN and infinities, which JSON lacks."""
    number = value.item()
    return None if isinstance(number, float) and not math.isfinite(number) else number


class RunLog:
    """Writes `metrics.jsonl`, `config.json`, `run.json` and `tensorboard/seed_N/` in a directory.

    `metrics.jsonl` has one line for each step and seed, {"step": 3, "seed": 0, name: value, ...}; values that are not
    finite are null. Lines already there are kept: call `truncate` with the step at which the run starts or continues.
    Raises ValueError if the directory cannot be written.
    """

    def __init__(self, directory: str | os.PathLike[str], seeds: int, config: Mapping[str, Any]):
        self.directory = writable_directory(directory)
        self.seeds = seeds
        for name, content in (("config.json", config), ("run.json", provenance())):
            (self.directory / name).write_text(json.dumps(content, indent=2, default=str) + "\n")
        self._path = self.directory / "metrics.jsonl"
        self._lines = self._path.open("a")
        self._boards = [EventFileWriter(str(self.directory / "tensorboard" / f"seed_{s}")) for s in range(seeds)]

    def scalars(self, step: int, metrics: Mapping[str, ArrayLike]) -> None:
        """Logs numbers, each [seeds] or [] (the same for every seed). Raises ValueError on another shape."""
        columns: dict[str, np.ndarray] = {}
        for name, value in metrics.items():
            array = np.asarray(value)
            if array.shape not in ((), (self.seeds,)):
                raise ValueError(
                    f"metric {name} has shape {array.shape}: log a scalar or one value a seed [{self.seeds}]"
                )
            columns[name] = np.broadcast_to(array, (self.seeds,))
        for seed, board in enumerate(self._boards):
            row = {name: plain(column[seed]) for name, column in columns.items()}
            self._lines.write(json.dumps({"step": step, "seed": seed, **row}) + "\n")
            values = [
                summary_pb2.Summary.Value(tag=name, simple_value=float(column[seed]))
                for name, column in columns.items()
            ]
            board.add_event(self._event(step, summary=summary_pb2.Summary(value=values)))
        self._lines.flush()

    def text(self, step: int, tag: str, markdown: str, seed: int = 0) -> None:
        """Shows a text, such as a transcript, in TensorBoard's TEXT tab."""
        tensor = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING,
            string_val=[markdown.encode()],
            tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)]),
        )
        metadata = text_plugin.create_summary_metadata(display_name=tag, description="")
        value = summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._boards[seed].add_event(self._event(step, summary=summary_pb2.Summary(value=[value])))

    def truncate(self, start: int) -> None:
        """Forgets step `start` and everything after it: what a run that continues at `start` writes again.

        A last line cut short by a kill goes too. TensorBoard keeps its files and hides what they say from `start` on.
        """
        self._lines.close()
        kept = []
        for line in self._path.read_text().splitlines(keepends=True):
            with contextlib.suppress(json.JSONDecodeError):
                if line.endswith("\n") and json.loads(line)["step"] < start:
                    kept.append(line)
        whole = self._path.with_suffix(".partial")
        whole.write_text("".join(kept))
        whole.replace(self._path)
        self._lines = self._path.open("a")
        restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        for board in self._boards:
            board.add_event(self._event(start, session_log=restart))

    def close(self) -> None:
        """Writes out what is buffered and closes the files."""
        self._lines.close()
        for board in self._boards:
            board.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @staticmethod
    def _event(step: int, **content: Any) -> event_pb2.Event:
        return event_pb2.Event(wall_time=time.time(), step=step, **content)
