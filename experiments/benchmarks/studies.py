"""Where the seconds of a study's ten seeds go: a table of phases, for all studies.

Each study runs in a process of its own, with its ten seeds but few updates, while a thread beside looks a hundred times
a second at what the main thread does. What an update does is multiplied by the updates that were left out, and so is
each evaluation but the first of a program, which compiles. Programs are made ready one after the other, and not, as in
a run, beside the one that trains, which would be measured too slow: so the sum is more than a run takes.

  start          imports, and what comes before the first program
  ready          waiting for a program: compiling it, teaching its warm start
  play, update   the time of updates, parted as a profiler's trace of one update of each program says
  evaluate       `Recipe.evaluate`
  write          checkpoints, games to look at, logs, results, plot and page
  computed       arms without policies
  compile        seconds of all threads in tracing and in XLA, most of them beside other phases: no part of the sum

  python -m experiments.benchmarks.studies [NAME ...] [--updates 6] [--json FILE]

FILE keeps the rows of other studies that it holds already. `studies.json` beside this module, a page of the docs, has
73, each with its commit: not `small_model`, which is about a pretrained model, and not `progress_first`, whose sum came
out at seven times what a run takes, which is not understood.
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
from jaxmarl_llm.studies import prepared, registry, runner
from jaxmarl_llm.studies.settings import Settings
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer

EVERY = 0.01  # seconds between two looks
TRACED = 3  # the call of a program's update that is traced
START, READY, PLAY, UPDATE, EVALUATE, WRITE, COMPUTED = PHASES = (
    "start", "ready", "play", "update", "evaluate", "write", "computed",
)  # fmt: skip
COLUMNS = (*PHASES, "sum", "compile")
UPDATES, AGAIN, LOG, LEFT_OUT = "updates", "evaluate again", "log", "left out"
# the phase of what the innermost of these functions calls
WHERE = {
    "Preparation.of": READY,
    "Training.init": READY,
    "Training.evaluate": EVALUATE,
    "Training.step": UPDATES,
    "train.<locals>.report": UPDATES,  # it waits for the metrics
    "Training.report": LOG,
    "train_program": WRITE,
    "collect_results": WRITE,
    "write": WRITE,
    "plot": WRITE,
    "show": WRITE,
    "Computed.curves": COMPUTED,
    "trace_updates.<locals>.update": LEFT_OUT,
}
COMPILING = {"backend_compile_and_load", "trace_to_jaxpr", "lower_jaxpr_to_module"}


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A stack, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


class Watch:
    """Looks at what all threads do until it ends: the main thread's seconds by (program, phase), all in compiling."""

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
                if COMPILING & {one.f_code.co_name for one in stack} and phase_of(stack)[1] != LEFT_OUT:
                    self.compiling += took
                if thread == self._main:
                    self.seconds[phase_of(stack)] += took


def phase_of(stack: list[FrameType]) -> tuple[str, str]:
    """(name of the program or nothing, phase) of the main thread."""
    calls = [one.f_code.co_qualname for one in stack]
    phase = next((WHERE[call] for call in calls if call in WHERE), START)
    if phase == EVALUATE and "Training.step" in calls:
        phase = AGAIN
    training = next((one for one in stack if one.f_code.co_qualname == "train_program"), None)
    return "" if training is None else training.f_locals["program"].name, phase


@contextlib.contextmanager
def trace_updates(home: Path) -> Iterator[dict[str, float]]:
    """One update of each trainer is traced: seconds of playing and of learning, of all of them."""
    found = {PLAY: 0.0, UPDATE: 0.0}
    calls: Counter[int] = Counter()
    plain, init = Trainer.update, Trainer.init

    def update(self: Trainer, state: Any, number: int) -> Any:
        with jax.profiler.trace(str(home)), jax.profiler.TraceAnnotation(profile.STEP):
            updated = jax.block_until_ready(plain(self, state, number))
        spent = profile.breakdown(home, profile.scopes(self.lower_update().compile().as_text() or ""))
        for phase, names in ((PLAY, scopes.ROLLOUT_PARTS), (UPDATE, scopes.UPDATE_PARTS)):
            found[phase] += sum(spent[name] for name in names)
        return updated

    def perhaps(self: Trainer, state: Any, number: int) -> Any:
        calls[id(self)] += 1
        own = update if calls[id(self)] == TRACED and not self.on_host else plain
        return jax.block_until_ready(own(self, state, number))  # else what comes next would wait for it

    def start_trace(self: Trainer, *given: Any, **named: Any) -> Any:
        return jax.block_until_ready(init(self, *given, **named))

    Trainer.update, Trainer.init = perhaps, start_trace  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Trainer.update, Trainer.init = plain, init  # type: ignore[method-assign]


def watch_run(name: str, updates: int, begun: float) -> dict[str, Any]:
    """Seconds by phase of a whole run of a study, `compile` beside them, the commit and the machine. The process began
    at `start_trace` [s]."""
    about = {
        "commit": provenance()["commit"] or "",
        "machine": f"{platform.machine()}, {surroundings.usable_cores()} threads",
    }
    distributed.use_cores()
    entry = registry.load("experiments", name)
    study = entry.study
    prepared.KEPT = 1  # nothing is made ready ahead
    fewer = updates if max((one.updates for one in study.recipes.values()), default=0) > updates else 0
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(name, updates=fewer, out=Path(home) / "run")
        watch = Watch()
        with trace_updates(Path(home) / "trace") as parts:
            runner.run(entry, settings, threading.Event(), Console(quiet=True))
        watch.end()
    found: defaultdict[str, float] = defaultdict(float)
    found[START] = time.time() - begun - sum(watch.seconds.values())
    for (own, phase), seconds in watch.seconds.items():
        arms = [study.recipes[arm] for arm in own.split("+")] if own else []
        found[phase] += seconds * left_out(arms, phase, fewer)
    for phase, seconds in parts.items():
        found[phase] = found[UPDATES] * seconds / max(sum(parts.values()), 1e-9)
    found[EVALUATE] += found[AGAIN]
    found[WRITE] += found[LOG]
    found["compile"] = watch.compiling
    found["sum"] = sum(found[phase] for phase in PHASES)
    return {**{phase: round(seconds, 1) for phase, seconds in found.items() if phase in COLUMNS}, **about}


def left_out(arms: list[Recipe], phase: str, made: int) -> float:
    """By what a program's seconds in a phase are multiplied, because `made` updates were made instead of all."""
    if not (arms and made):
        return 1.0
    whole, every = arms[0].updates, arms[0].eval_every
    if phase == AGAIN:
        return math.ceil(whole / every) / math.ceil(made / every)
    return whole / (made - 1) if phase == UPDATES else whole / made if phase == LOG else 1.0  # one was traced


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    updates: int = 6,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
) -> None:
    """Prints a line a study as it ends, then a table."""
    if updates <= TRACED:
        sys.exit(f"--updates must be over {TRACED}, for one is traced: got {updates}.")
    found: dict[str, dict[str, Any]] = {}
    if json_file is not None and json_file.exists():
        found = json.loads(json_file.read_text(encoding="utf-8"))
    for name in names or registry.find("experiments"):
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as alone:
            found[name] = alone.submit(watch_run, name, updates, time.time()).result()
        print(f"{name:20}", *(f"{column} {found[name][column]:.0f}" for column in COLUMNS), flush=True)
        if json_file is not None:
            json_file.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
    table = Table(title="Seconds of ten seeds, by phase")
    for column in ("study", *COLUMNS):
        table.add_column(column, justify="left" if column == "study" else "right")
    for name, own in sorted(found.items(), key=lambda item: -item[1]["sum"]):
        table.add_row(name, *(f"{own[column]:.0f}" for column in COLUMNS))
    Console(width=120).print(table)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
