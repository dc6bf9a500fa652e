"""What comes before the first update of a program, done while the program before it trains.

Tiny policies spend most of a study's time on compiling and on imitation, which leave a second core idle. One thread
makes the next program ready, and in it another one compiles its update. Every number stays as it is.
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

KEPT = 8  # so many programs, of some 2,000 memory maps each, of which Linux allows 65,530, are held at most


class WarmStarts:
    """What the tiny policies of a study's programs begin with: programs with one warm start are taught once."""

    def __init__(self) -> None:
        self._known: list[tuple[tuple, dict]] = []
        self._lock = threading.Lock()

    def of(self, trainer: Trainer) -> dict | None:
        """What `Trainer.init` takes as `tiny`; None where there is nothing to share."""
        if not (trainer.tiny and trainer.recipe.warm_start):
            return None
        wanted = warm_start_of(trainer.recipe)
        with self._lock:
            found = next((weights for known, weights in self._known if known == wanted), None)
            if found is None:
                found = trainer.init_tiny()
                self._known.append((wanted, found))
        return found


class Ready(NamedTuple):
    """What a program trains with."""

    trainer: Trainer
    evaluate: Callable[[dict], Mapping[str, Any]] | None
    record: Callable[[Any, Mapping[int, Mapping[str, Any]], int], list[list[records.Game]]]
    state: Any = None
    """Before training, which uses it up; None where it is not known yet."""


class Preparation:
    """Makes programs ready, `of` each in the order of `plan`, and the next one in the background.

    `trainer_of` makes a program's trainer, `saved` says how many of its updates are made already. Only what is tiny, on
    one device and played in JAX is made ready ahead: a pretrained model fills the memory, and devices that wait for
    each other take one program at a time. What is raised in the background is raised by `of`. As a context it waits at
    its end for what is being compiled or taught; with `stop` set, nothing further is begun.
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

    def of(self, program: Program) -> Ready:
        coming = self._coming.pop(program.name, None)
        ready = self._make(program) if coming is None else coming.result()
        later = self._plan[self._plan.index(program) + 1 :]
        following = next((one for one in later if self._saved(one) < one.recipe.updates), None)
        if following is not None and apart(ready.trainer) and len(later) % KEPT:
            self._coming[following.name] = self._background.submit(self._make, following)
        return ready

    def forget(self) -> None:
        """Frees compiled programs that no trainer holds, e.g. those of an evaluation, unless the next program is being
        made ready."""
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
                ready = ready._replace(state=trainer.init(tiny=self.warm_starts.of(trainer)))
                if not self._stop.is_set():
                    trainer.examine(ready.state, program.display_lanes)
            update.result()
        return ready


def apart(trainer: Trainer) -> bool:
    """Whether a trainer's programs may run beside another's."""
    return (
        trainer.tiny and trainer.mesh.size == jax.process_count() == 1 and not (trainer.rollout_mesh or trainer.on_host)
    )
