"""Reports rewards that are not finite, and stops a training that skips too many updates in a row."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.devices.distributed import is_main_process
from jaxmarl_llm.text.grammar import options_of
from jaxmarl_llm.training.left_out import COUNT, FIRST

MOST = 10  # sentences about rewards per training


class NonFiniteError(Exception):
    """Training stopped after too many skipped updates in a row: a loss, a gradient or new weights were not finite.

    `step` is the last update whose metrics were read. `lanes` are the runs that reached the limit of skips ([0] if
    there is one run); all of them skipped `step`. `state` is the state when training stopped: the one after `step`, or
    with `Trainer.update` one update later. If these runs skipped whole updates, that later one too, it is their state
    before the first of them. `skipped` is the number of minibatches of `step` that the first of these runs skipped.
    """

    def __init__(self, step: int, lanes: Iterable[int], state: Any, skipped: int):
        runs = [int(lane) for lane in lanes]
        super().__init__(f"Up to step {step}, updates of lanes {runs} were skipped: something was not finite.")
        self.step, self.lanes, self.state, self.skipped = step, runs, state, int(skipped)


class Watch:
    """Names the game that paid a reward that is not finite, and ends a training whose updates are skipped in a row.

    Metrics are read after the next update is dispatched, so that no device waits. `tell` receives at most ten
    sentences, one for each turn, seat and action. Each tells the run by its name in `names`, if there are several; of
    runs with the same reward it tells one. Without a `game` it receives none, since a rollout on the host reports by
    itself. After `max_skipped` skipped updates in a row (0: never) it raises NonFiniteError.
    """

    def __init__(self, game: Any, names: Sequence[str], max_skipped: int):
        self.game, self.names, self.max_skipped = game, names, max_skipped
        self.tell: Callable[[str], object] = warnings.warn
        self.begin()

    def begin(self) -> None:
        """Resets the state for another training."""
        self._late: tuple[int, dict[str, Any]] | None = None
        self._streak = np.zeros(len(self.names), int)
        self._known: set[tuple[Any, ...]] = set()

    def __call__(self, number: int, metrics: Mapping[str, Any], state: Any) -> None:
        """Takes the metrics of update `number`, which led to `state`, and checks the metrics of the update before."""
        kept = {name: x for name, x in metrics.items() if COUNT in name or name == "skipped"}
        late, self._late = self._late, (number, kept)
        if late is None:
            return
        before, host = late[0], jax.device_get(late[1])
        turns = [name for name in host if name.endswith(f"{FIRST}turn")]
        for name in turns if self.game is not None and is_main_process() else ():
            self._look(before, name.removesuffix(f"{FIRST}turn"), host)
        if "skipped" not in host:  # a step that only plays
            return
        self._streak = np.where(np.asarray(host["skipped"]) > 0, self._streak + 1, 0)
        if 0 < self.max_skipped <= self._streak.max():
            lanes = np.flatnonzero(self._streak >= self.max_skipped)
            raise NonFiniteError(before, lanes, state, host["skipped"][lanes[0]])

    def _look(self, number: int, prefix: str, host: Mapping[str, np.ndarray]) -> None:
        """Reports rewards of a game; with several games, `prefix` is the game's in the names of metrics."""
        places = {name: host[f"{prefix}{FIRST}{name}"] for name in ("episode", "turn", "seat", "speaker", "action")}
        for run in np.flatnonzero(places["turn"] >= 0).tolist():
            first = {name: int(x[run]) for name, x in places.items()}
            known = prefix, *(first[name] for name in ("turn", "seat", "speaker", "action"))
            if known in self._known or len(self._known) == MOST:
                continue
            self._known.add(known)
            game = prefix.rstrip("/") or type(self.game).__name__
            said = f"action {first['action']}" if prefix else spell_action(self.game, first["action"])
            subject = "it" if first["speaker"] == first["seat"] else f"seat {first['speaker']}"
            count = int(host[f"{prefix}{COUNT}"][run])
            effect = f"left out: {count}" if count else "all of them, so the update is skipped"
            of_run = f" of {self.names[run]}" if len(self.names) > 1 else ""
            self.tell(
                f"Update {number + 1}{of_run}: {game} paid seat {first['seat']} what is not finite, or beyond 1e30, in "
                f"turn {first['turn']} of episode {first['episode']}, after {subject} said {said} "
                f"(episodes with such rewards: {effect})."
            )


def spell_action(game: Any, action: int) -> str:
    """The texts of an action in a game's grammars, quoted."""
    if action < 0:
        return "no legal answer"
    options = [options_of(grammar) for grammar in getattr(game, "grammars", ())]
    texts = dict.fromkeys(answers[action].strip() for answers in options if action in answers)
    return " or ".join(map(repr, texts)) or f"action {action}"
