"""Other places that show a run's numbers and texts: TensorBoard, trackio, Weights & Biases.

One sink is one seed of a run. Nothing that a sink does reaches the training: a run has the same bits with any of them.
"""

from __future__ import annotations

import html
import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text import metadata as text_plugin
from tensorboard.summary.writer.event_file_writer import EventFileWriter

PROJECT = "jaxmarl_llm"


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a described recipe that are one number, text or truth value; hparams and choices by name."""
    flat = {**config, **config.get("hparams", {}), **config.get("choices", {})}
    return {name: value for name, value in flat.items() if isinstance(value, bool | int | float | str)}


class Sink(Protocol):
    """Shows one seed of a run."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers of a step, those that are not finite too."""

    def text(self, step: int, tag: str, markdown: str) -> None:
        """A text, such as a transcript or a warning."""

    def histogram(self, step: int, tag: str, values: ArrayLike) -> None:
        """The distribution of finite numbers [N], N >= 1."""

    def restart(self, step: int) -> None:
        """Voids all that was shown of `step` and later, because the run continues from `step`."""

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `tensorboard/seed_N`: `tensorboard --logdir runs`. Its tab HPARAMS lists the numbers and choices
    of a recipe, and the seed."""

    def __init__(self, directory: Path, seed: int, config: Mapping[str, Any]):
        self._writer = EventFileWriter(str(directory / "tensorboard" / f"seed_{seed}"))
        self._add(0, summary=hparams_pb(settings(config) | {"seed": seed}, trial_id=f"{directory}/seed_{seed}"))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, **content))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        numbers = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=summary_pb2.Summary(value=numbers))

    def text(self, step: int, tag: str, markdown: str) -> None:
        tensor = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING,
            string_val=[markdown.encode()],
            tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)]),
        )
        metadata = text_plugin.create_summary_metadata(display_name=tag, description="")
        value = summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._add(step, summary=summary_pb2.Summary(value=[value]))

    def histogram(self, step: int, tag: str, values: ArrayLike) -> None:
        self._add(step, summary=histogram_pb(tag, np.asarray(values, float)))

    def restart(self, step: int) -> None:
        self._add(step, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def close(self) -> None:
        self._writer.close()


class _Tracker:
    """The common part of trackio and wandb: runs that begin at their first step, and `log`, `alert`, `finish`.

    The run of a seed is called DIRECTORY/seed_N. Neither can take back a step: a run that continues is a further run,
    called DIRECTORY/seed_N@STEP.
    """

    def __init__(self, directory: Path, seed: int, config: Mapping[str, Any]):
        self._directory, self._config, self._start = directory, dict(config), 0
        self._run: Any = None
        self._name = f"{directory.parent.name}/{directory.name}/seed_{seed}"

    def _init(self, name: str) -> Any:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        if self._run is None:
            self._run = self._init(f"{self._name}@{self._start}" if self._start else self._name)
        return self._run

    def restart(self, step: int) -> None:
        self._start = step

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log({name: value for name, value in values.items() if math.isfinite(value)}, step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


class Trackio(_Tracker):
    """trackio: `trackio show --project jaxmarl_llm`. Local, unless TRACKIO_SPACE_ID names a space."""

    def _init(self, name: str) -> Any:
        import trackio

        quiet: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        return trackio.init(PROJECT, name=name, config=self._config, **quiet)

    def text(self, step: int, tag: str, markdown: str) -> None:
        from trackio import Markdown

        self.run.log({tag: Markdown(markdown)}, step=step)

    def histogram(self, step: int, tag: str, values: ArrayLike) -> None:
        from trackio import Histogram

        self.run.log({tag: Histogram(np.asarray(values, float))}, step=step)


class Wandb(_Tracker):
    """Weights & Biases; its own variables (WANDB_MODE=offline, WANDB_ENTITY, ...) say where to."""

    def _init(self, name: str) -> Any:
        import wandb

        where: dict[str, Any] = {"name": name, "group": self._directory.parent.name, "dir": str(self._directory)}
        try:
            return wandb.init(project=PROJECT, config=self._config, reinit="create_new", **where)
        except wandb.errors.UsageError as error:
            raise ValueError(f"wandb refuses: {error} Or set WANDB_MODE=offline.") from error

    def text(self, step: int, tag: str, markdown: str) -> None:
        from wandb import Html

        self.run.log({tag: Html(f"<pre>{html.escape(markdown)}</pre>")}, step=step)

    def histogram(self, step: int, tag: str, values: ArrayLike) -> None:
        from wandb import Histogram

        self.run.log({tag: Histogram(np.asarray(values, float).tolist())}, step=step)


SINKS: dict[str, Callable[[Path, int, Mapping[str, Any]], Sink]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}


def check(names: Sequence[str]) -> None:
    """Raises ValueError for a name that is no sink, or whose package is missing."""
    for name in names:
        if name not in SINKS:
            raise ValueError(f"No log is called {name!r}: possible are {', '.join(SINKS)}.")
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"The log {name} needs its package: run `pip install {name}`.")
