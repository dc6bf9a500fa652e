"""Preparation of a study's next program while the current one trains.

Tiny policies spend most of a study's time on compilation and on imitation, which leave a second core idle. A background
thread prepares the next program, and a second thread compiles its update meanwhile. No result depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax

from jaxmarl_llm.studies.lanes import Program
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.warm_start import warm_start_of
from jaxmarl_llm.view import records

KEPT = 8  # programs held in memory at most: each has about 2,000 memory maps, and Linux allows 65,530


class WarmStarts:
    """Initial weights of a study's tiny policies: programs with the same warm start and seeds share one imitation."""

    def __init__(self) -> None:
        self._known: list[tuple[tuple, dict]] = []
        self._lock = threading.Lock()

    def get(self, trainer: Trainer) -> dict | None:
        """The argument `tiny` of `Trainer.init`; None for a pretrained model or a recipe without a warm start."""
        if not (trainer.tiny and trainer.recipe.warm_start):
            return None
        wanted = warm_start_of(trainer.recipe), trainer.seeds
        with self._lock:
            weights = next((weights for known, weights in self._known if known == wanted), None)
            if weights is None:
                weights = trainer.init_tiny()
                self._known.append((wanted, weights))
        return weights


def warm_starts(plan: Sequence[Program], saved: Sequence[int]) -> list[int]:
    """The updates of imitation before each program: 0 where updates are saved, and where tiny policies share one."""
    known: list[Any] = []
    updates: list[int] = []
    for part, done in zip(plan, saved, strict=True):
        start = (warm_start_of(part.recipe), part.seeds) if part.recipe.warm_start else None
        makes_it = start and not done and (part.alone or start not in known)
        updates.append(part.recipe.warm_start_updates if makes_it else 0)
        known += [start] * bool(makes_it)
    return updates


class Ready(NamedTuple):
    """A program that is prepared for training."""

    trainer: Trainer
    evaluate: Callable[[dict, jax.Array], Mapping[str, Any]] | None
    record: Callable[[Any, Mapping[int, Mapping[str, Any]], int], list[list[records.Game]]]
    state: Any = None
    """The initial state, which training donates; None if `Trainer.init` has not run yet."""


class Preparation:
    """Prepares the programs of `plan` in order, and the next one in the background.

    `trainer_of` makes a program's trainer; `saved` returns the number of its updates that a checkpoint holds. Only tiny
    policies on one device, with a game in JAX, are prepared ahead: a pretrained model fills the memory. Devices that
    wait for each other take one program at a time. Every KEPT-th program, counted from the end of the plan, is not
    prepared ahead, so that `forget` can free memory before it.

    Every preparation makes the trainer, its evaluation and its recorder of games. For tiny policies as above it also
    compiles the update. Unless a checkpoint exists, it makes the initial state and compiles the recorder's games.

    `prepare` raises the errors of the background. On exit, the context waits for compilation and imitation in progress.
    If `stop` is set, no further work begins.
    """

    def __init__(
        self,
        plan: Sequence[Program],
        trainer_of: Callable[[Program], Trainer],
        saved: Callable[[Program], int],
        stop: threading.Event,
    ) -> None:
        self.warm_starts = WarmStarts()
        self._plan, self._trainer_of, self._saved, self._stop = list(plan), trainer_of, saved, stop
        self._background = ThreadPoolExecutor(1, "ahead")
        self._coming: dict[str, Future[Ready]] = {}

    def __enter__(self) -> Preparation:
        return self

    def __exit__(self, *raised: object) -> None:
        self._background.shutdown(cancel_futures=True)

    def prepare(self, program: Program) -> Ready:
        """The prepared program; a later program that is not finished begins its preparation in the background."""
        coming = self._coming.pop(program.name, None)
        ready = self._make(program) if coming is None else coming.result()
        later = self._plan[self._plan.index(program) + 1 :]
        following = next((x for x in later if self._saved(x) < x.recipe.updates), None)
        if following is not None and apart(ready.trainer) and len(later) % KEPT:
            self._coming[following.name] = self._background.submit(self._make, following)
        return ready

    def forget(self) -> None:
        """Frees compiled programs without a trainer, e.g. of an evaluation, unless a preparation is in progress."""
        if not self._coming:
            jax.clear_caches()

    def _make(self, program: Program) -> Ready:
        trainer = self._trainer_of(program)
        recipe = trainer.recipe
        ready = Ready(
            trainer, recipe.evaluate(trainer.parts) if recipe.evaluate is not None else None, records.recorder(trainer)
        )
        if not apart(trainer):
            return ready
        with ThreadPoolExecutor(1, "compile") as beside:
            update = beside.submit(trainer.compile_update)
            if not (self._saved(program) or self._stop.is_set()):
                ready = ready._replace(state=trainer.init(tiny=self.warm_starts.get(trainer)))
                if not self._stop.is_set():
                    trainer.examine(ready.state, program.display_lanes)
            update.result()
        return ready


def apart(trainer: Trainer) -> bool:
    """True if a trainer's programs may be compiled and run beside those of another trainer."""
    return (
        trainer.tiny and trainer.mesh.size == jax.process_count() == 1 and not (trainer.rollout_mesh or trainer.on_host)
    )
