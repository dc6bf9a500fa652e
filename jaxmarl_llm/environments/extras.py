"""The optional attributes of a game with their defaults, and a check of one of them, the measures.

Shapes: A seats, M measures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.base import Environment, View


@dataclass(frozen=True)
class Extras:
    """The optional attributes of a game: the game's own value, or the default. No other file reads them off a game.

    `seat_turns`, `voices` and `alternating` set buffer sizes or save computation. They are not checked: a game for
    which they do not hold loses tokens.
    """

    game: Any

    @property
    def measures(self) -> tuple[str, ...]:
        """M names of the facts in `View.measured`. Default: none."""
        return getattr(self.game, "measures", ())

    @property
    def seat_turns(self) -> int:
        """The largest number of turns in which a seat acts or is told something. Default: all."""
        return getattr(self.game, "seat_turns", self.game.turns)

    @property
    def voices(self) -> int:
        """The largest number of seats whose words a seat is told before a turn. Default: all."""
        return getattr(self.game, "voices", self.game.agents)

    @property
    def alternating(self) -> bool:
        """One seat acts at a time, and it is the same seat in all running episodes of a group, for any answers.
        Default: false."""
        return getattr(self.game, "alternating", False)

    @property
    def accepts_illegal(self) -> bool:
        """`step` takes action -1, an answer that is no legal action. Default: false."""
        return getattr(self.game, "accepts_illegal", False)

    @property
    def group_period(self) -> int:
        """The period with which `reset` balances a draw over groups: 2 if even groups have one labeling and odd groups
        the other. Default: 1."""
        return getattr(self.game, "group_period", 1)

    @property
    def moves(self) -> tuple[str, ...]:
        """N names of the actions, for the records of games whose answers are mere labels. Default: none."""
        return getattr(self.game, "moves", ())

    @property
    def right_answer(self) -> Callable[[Any], str] | None:
        """(a state of `reset`) -> the right answer to the deal, for the records; no seat is told it.

        Default: the answer to `state.task` in a game with `tasks`, else None."""
        tasks = getattr(self.game, "tasks", None)
        return getattr(self.game, "right_answer", partial(_task_answer, tasks) if hasattr(tasks, "task") else None)

    @property
    def note(self) -> Callable[[Any], str] | None:
        """(a state of `reset`) -> a sentence on the deal for people who read the records. Default: None."""
        return getattr(self.game, "note", None)

    @property
    def initial_states(self) -> Callable[[], tuple[Any, np.ndarray]] | None:
        """() -> (all D states that `reset` deals, stacked on a leading axis, their probabilities float64 [D]). Default:
        None, no exact solving."""
        return getattr(self.game, "initial_states", None)

    @property
    def view(self) -> Callable[[Any], View] | None:
        """(state) -> the view that `reset` or `step` returned with it. Default: None, no exact solving."""
        return getattr(self.game, "view", None)


def _task_answer(tasks: Any, state: Any) -> str:
    return tasks.answers[int(tasks.task(state.task)[1])]


OPTIONAL = tuple(name for name, part in vars(Extras).items() if isinstance(part, property))
"""Names of the optional attributes."""


def clear_measures(view: View) -> View:
    """The view with measures of 0, for a turn of a wrapper in which the inner game was not played."""
    return view.replace(measured=jax.tree.map(jnp.zeros_like, view.measured))


def check_measured(environment: Environment, view: View, batch: int = 0) -> None:
    """Raises ValueError unless a view holds the measures that the game names, float32 [A, M] after `batch` axes."""
    measures = Extras(environment).measures
    wanted = (environment.agents, len(measures)) if measures else None
    shape = None if view.measured is None else jnp.shape(view.measured)[batch:]
    name = type(environment).__name__
    if shape != wanted:
        says = f"names the measures {', '.join(measures)}" if measures else "names no measures"
        raise ValueError(f"{name} {says}, and its view.measured is of shape {shape}: {wanted} is wanted.")
    if measures and jnp.result_type(view.measured) != jnp.float32:
        raise ValueError(f"{name} gives view.measured as {jnp.result_type(view.measured)}: float32 is wanted.")
