"""Seconds of a study's ten seeds by phase: a table for all studies.

Each study runs in a new process with ten seeds and few updates. A second thread samples the main thread's stack a
hundred times a second. The seconds of updates are scaled to the study's number of updates. So are evaluations, except
the first of a program, which compiles. Programs are prepared one after the other; a run prepares the next one during
training, which would slow down the measured training. So the sum exceeds the seconds of a run.

  start          imports, and all work before the first program
  ready          waiting for a program: its compilation and its warm start
  play, update   the seconds of updates, split by a profiler's trace of one update of each program
  evaluate       `Recipe.evaluate`
  write          checkpoints, recorded games, logs, results, plot and page
  computed       arms without policies
  compile        seconds of all threads in tracing and in XLA, mostly during other phases: no part of the sum

  python -m experiments.benchmarks.studies [NAME ...] [--updates 6] [--json FILE]

FILE keeps its rows of other studies. `studies.json` beside this module holds 73 studies, each with its commit, and is
a page of the docs. It lacks `small_model`, which needs a pretrained model, `progress_first`, whose sum was seven times
the seconds of a run, for an unknown reason, and the studies that came later.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import platform
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console
from rich.table import Table

from jaxmarl_llm.devices import distributed, scopes, surroundings
from jaxmarl_llm.runs import profile
from jaxmarl_llm.runs.log import provenance
from jaxmarl_llm.studies import catalogue, prepared, registry, runner
from jaxmarl_llm.studies.settings import Settings
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer

EVERY = 0.01  # seconds between two samples
TRACED = 3  # number of the traced update of a program, from 1
START, READY, PLAY, UPDATE, EVALUATE, WRITE, COMPUTED = PHASES = (
    "start", "ready", "play", "update", "evaluate", "write", "computed",
)  # fmt: skip
COLUMNS = (*PHASES, "sum", "compile")
UPDATES, AGAIN, LOG, LEFT_OUT = "updates", "evaluate again", "log", "left out"
# {function: phase of its calls}; the innermost of these functions on the stack counts
WHERE = {
    "Preparation.prepare": READY,
    "Training.init": READY,
    "Training.evaluate": EVALUATE,
    "Training.step": UPDATES,
    "train.<locals>.report": UPDATES,  # waits for the metrics of an update
    "Training.report": LOG,
    "train_program": WRITE,
    "collect_results": WRITE,
    "write": WRITE,
    "draw": WRITE,
    "show": WRITE,
    "Computed.curves": COMPUTED,
    "trace_updates.<locals>.update": LEFT_OUT,
}
COMPILING = {"backend_compile_and_load", "trace_to_jaxpr", "lower_jaxpr_to_module"}


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of a stack, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


class Watch:
    """Samples all stacks until `end`: seconds of the main thread by (program, phase), and compilation in any thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.compiling = 0.0
        self._ended, self._main = threading.Event(), threading.get_ident()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._ended.wait(EVERY):
            now = time.perf_counter()
            took, last = now - last, now
            for thread, innermost in sys._current_frames().items():
                stack = list(frames(innermost))
                if COMPILING & {x.f_code.co_name for x in stack} and phase_of(stack)[1] != LEFT_OUT:
                    self.compiling += took
                if thread == self._main:
                    self.seconds[phase_of(stack)] += took


def phase_of(stack: list[FrameType]) -> tuple[str, str]:
    """(name of the program, or "" outside any; phase) of a stack, the innermost frame first."""
    calls = [x.f_code.co_qualname for x in stack]
    phase = next((WHERE[call] for call in calls if call in WHERE), START)
    if phase == EVALUATE and "Training.step" in calls:
        phase = AGAIN
    training = next((x for x in stack if x.f_code.co_qualname == "train_program"), None)
    return "" if training is None else training.f_locals["program"].name, phase


@contextlib.contextmanager
def trace_updates(home: Path) -> Iterator[dict[str, float]]:
    """Traces one update of each trainer, and yields {phase: seconds of play and of update}, summed over trainers."""
    traced_seconds = {PLAY: 0.0, UPDATE: 0.0}
    calls: Counter[int] = Counter()
    plain, init = Trainer.update, Trainer.init

    def update(self: Trainer, state: Any, number: int) -> Any:
        with jax.profiler.trace(str(home)), jax.profiler.TraceAnnotation(profile.STEP):
            updated = jax.block_until_ready(plain(self, state, number))
        spent = profile.breakdown(home, profile.scopes(self.lower_update().compile().as_text() or ""))
        for phase, names in ((PLAY, scopes.ROLLOUT_PARTS), (UPDATE, scopes.UPDATE_PARTS)):
            traced_seconds[phase] += sum(spent[name] for name in names)
        return updated

    def update_and_wait(self: Trainer, state: Any, number: int) -> Any:
        calls[id(self)] += 1
        chosen = update if calls[id(self)] == TRACED and not self.on_host else plain
        return jax.block_until_ready(chosen(self, state, number))  # else a later phase would wait for it

    def init_and_wait(self: Trainer, *given: Any, **named: Any) -> Any:
        return jax.block_until_ready(init(self, *given, **named))

    Trainer.update, Trainer.init = update_and_wait, init_and_wait  # type: ignore[method-assign]
    try:
        yield traced_seconds
    finally:
        Trainer.update, Trainer.init = plain, init  # type: ignore[method-assign]


def watch_run(name: str, updates: int, begun: float) -> dict[str, Any]:
    """{phase: seconds} of a whole run of a study, with `compile`, the sum, the commit and the machine.

    `begun` is the time at which the process was started, in seconds since the epoch.
    """
    about = {
        "commit": provenance()["commit"] or "",
        "machine": f"{platform.machine()}, {surroundings.usable_cores()} threads",
    }
    distributed.use_cores()
    entry = registry.load("experiments", name)
    study = entry.study
    prepared.KEPT = 1  # no program is prepared ahead
    fewer = updates if max((x.updates for x in study.recipes.values()), default=0) > updates else 0
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(name, updates=fewer, out=Path(home) / "run")
        watch = Watch()
        with trace_updates(Path(home) / "trace") as parts:
            runner.run(entry, settings, threading.Event(), Console(quiet=True))
        watch.end()
    by_phase: defaultdict[str, float] = defaultdict(float)
    by_phase[START] = time.time() - begun - sum(watch.seconds.values())
    for (program, phase), seconds in watch.seconds.items():
        arms = [study.recipes[arm] for arm in program.split("+")] if program else []
        by_phase[phase] += seconds * left_out(arms, phase, fewer)
    for phase, seconds in parts.items():
        by_phase[phase] = by_phase[UPDATES] * seconds / max(sum(parts.values()), 1e-9)
    by_phase[EVALUATE] += by_phase[AGAIN]
    by_phase[WRITE] += by_phase[LOG]
    by_phase["compile"] = watch.compiling
    by_phase["sum"] = sum(by_phase[phase] for phase in PHASES)
    return {**{phase: round(seconds, 1) for phase, seconds in by_phase.items() if phase in COLUMNS}, **about}


def left_out(arms: list[Recipe], phase: str, made: int) -> float:
    """The factor for a program's seconds in a phase, from `made` updates to the study's number of updates."""
    if not (arms and made):
        return 1.0
    whole, every = arms[0].updates, arms[0].eval_every
    if phase == AGAIN:
        return math.ceil(whole / every) / math.ceil(made / every)
    return whole / (made - 1) if phase == UPDATES else whole / made if phase == LOG else 1.0  # less the traced one


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    updates: int = 6,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints a line after each study, then a table."""
    if updates <= TRACED:
        sys.exit(f"--updates must be over {TRACED}, for one is traced: got {updates}.")
    rows: dict[str, dict[str, Any]] = {}
    if json_file is not None and json_file.exists():
        rows = json.loads(json_file.read_text(encoding="utf-8"))
    for name in names or catalogue.find("experiments"):
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as alone:
            rows[name] = alone.submit(watch_run, name, updates, time.time()).result()
        print(f"{name:20}", *(f"{column} {rows[name][column]:.0f}" for column in COLUMNS), flush=True)
        if json_file is not None:
            json_file.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n", encoding="utf-8")
    table = Table(title="Seconds of ten seeds, by phase")
    for column in ("study", *COLUMNS):
        table.add_column(column, justify="left" if column == "study" else "right")
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["sum"]):
        table.add_row(name, *(f"{row[column]:.0f}" for column in COLUMNS))
    Console(width=120).print(table)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
