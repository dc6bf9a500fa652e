"""The Python loop around the compiled programs: metrics one step late, checkpoints, and a clean stop on a signal."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike

from jaxmarl_llm.devices.distributed import any_process, broadcast
from jaxmarl_llm.runs.checkpoint import Checkpoints
from jaxmarl_llm.runs.log import RunLog
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.watch import NonFiniteError

State = TypeVar("State")
Metrics = Mapping[str, Any]


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set instead of ending the process; the former handlers return at the end.

    A second SIGINT raises KeyboardInterrupt, for users who do not want to wait. A second SIGTERM does nothing, because
    `timeout` sends it both to the process and to its group. Outside the main thread, where Python allows no handlers,
    only the event is made.
    """
    stop = threading.Event()
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            raise KeyboardInterrupt
        interrupted = interrupted or number == signal.SIGINT
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    former = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def train(
    step_fn: Callable[[int, State], tuple[State, Metrics]],
    state: State,
    *,
    start: int,
    steps: int,
    log: RunLog | None = None,
    checkpoints: Checkpoints | None = None,
    every: int = 100,
    on_step: Callable[[int, Metrics], None] | None = None,
    stop: threading.Event | None = None,
    patience: int = 0,
    streak: ArrayLike = 0,
) -> tuple[State, bool]:
    """Runs steps start, ..., steps - 1; returns the state after them and whether the run is finished.

    `step_fn(step, state) -> (state, metrics)` dispatches jitted work. The metrics of step n - 1 (each [seeds] or [])
    are fetched after step n was dispatched, so that the device does not wait. They are logged and given to
    `on_step(step, metrics)`. Checkpoint n holds the state after n steps, saved each time `every` divides n and at the
    end; everything before it is logged by then. It is written while the next steps run, and this function ends when the
    last one is on disk. A run resumes from `start, state = checkpoints.restore(example)` after `log.truncate(start)`.

    On SIGTERM, SIGINT, or `stop` set from elsewhere, the step in flight ends, its state is saved, and False is
    returned. The run is whole and can be resumed. A caller that also works before or after training wraps all of it in
    `stop_on_signals` and passes the event. If one of several processes receives a signal, all stop at the same step.

    Raises ValueError if `every` is below 1, and CheckpointError if a checkpoint cannot be written. Raises
    NonFiniteError after `patience` consecutive skips of a run (0: never; `streak` counts those before `start`). Metrics
    come one step late, so it is raised only if the next step is skipped too. At a checkpoint, a stop or the end it is
    raised at once. Nothing is saved then.
    """
    if every < 1:
        raise ValueError(f"every={every}: a checkpoint is written every 1 or more steps")
    row = broadcast(streak)  # [seeds] or []

    def report(step: int, metrics: Metrics) -> Metrics:
        nonlocal row
        host = jax.device_get(metrics)
        row = np.where(np.asarray(host.get("skipped", 0)) > 0, row + 1, 0)
        if log is not None:
            log.scalars(step, host)
        if on_step is not None:
            on_step(step, host)
        return host

    saving = contextlib.nullcontext() if checkpoints is None else checkpoints
    with stop_on_signals() if stop is None else contextlib.nullcontext(stop) as stop, saving:
        late: tuple[int, Metrics] | None = None
        stopping = any_process(stop.is_set())
        for step in range(start, start if stopping else steps):
            state, metrics = step_fn(step, state)
            if late is not None:
                report(*late)
            late = step, metrics
            done = step + 1
            stopping = any_process(stop.is_set())
            due = stopping or done == steps or (checkpoints is not None and done % every == 0)
            if due or 0 < patience <= row.max():
                host = report(*late)
                late = None
                if 0 < patience <= row.max():
                    lanes = np.flatnonzero(row >= patience)
                    raise NonFiniteError(step, lanes, state, np.atleast_1d(host["skipped"])[lanes[0]])
                if due and checkpoints is not None:
                    checkpoints.save(done, state, host)
            if stopping:
                break
        return state, not (stopping or any_process(stop.is_set()))


def resume(trainer: Trainer, checkpoints: Checkpoints, init: Callable[[], Any] | None = None) -> tuple[int, Any]:
    """(updates made, state): the newest checkpoint, or else the state before training, as `init` makes it."""
    init = init or trainer.init
    if not broadcast(bool(checkpoints.steps())):
        return 0, init()
    return checkpoints.restore(trainer.abstract()) or (0, init())
