"""Scripted players with errors, for teams that start at a chosen skill and for imperfect judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import View
from jaxmarl_llm.environments.helpers import uniform


class Errs(NamedTuple):
    """A script `name` that gives the answer of script `source` with probability `right`, else another legal action,
    uniformly."""

    name: str
    source: str
    right: float | tuple[float, ...]  # a probability, or one for each role of the game


class Noised(struct.PyTreeNode):
    game: Any
    view: View  # the view of the turn to come


@dataclass(frozen=True)
class Noisy(Around):
    """The same game with further scripts, each of which errs at its own rate, independently in every turn.

    A policy that imitates such a script (`Recipe.warm_start`) is about as often right at the start. Imitated errors are
    random, like those of a temperature, and no misconceptions. A script does not err if only one action is legal.

    Raises ValueError for a probability outside [0, 1] or a number of probabilities that differs from the roles. Raises
    it also for a name that a script already has, and for a script that the game lacks.
    """

    errs: tuple[Errs, ...]

    def __post_init__(self):
        super().__post_init__()
        for i, script in enumerate(self.errs):
            rates = (script.right,) if isinstance(script.right, int | float) else script.right
            if not all(0 <= rate <= 1 for rate in rates):
                raise ValueError(f"{script.name} is right with a probability within [0, 1], got {script.right}.")
            if not isinstance(script.right, int | float) and len(rates) != len(self.roles):
                raise ValueError(f"{script.name} needs {len(self.roles)} probabilities, one a role, got {len(rates)}.")
            if script.source not in self.game.scripts:
                raise ValueError(
                    f"{script.source!r} is no script of the game, whose scripts are {', '.join(self.game.scripts)}."
                )
            if script.name in (*self.game.scripts, *(other.name for other in self.errs[:i])):
                raise ValueError(f"The game has a script {script.name!r} already: give this one another name.")

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def err(script: Errs) -> Callable:
            play = self.game.scripts[script.source]
            rates = jnp.broadcast_to(jnp.asarray(script.right, jnp.float32), len(self.roles))

            def act(state: Noised, seat: jax.Array, key: jax.Array) -> jax.Array:
                inner, dice, other = jax.random.split(key, 3)
                meant = play(state.game, seat, inner)
                wrong = state.view.legal[seat] & (jnp.arange(self.actions) != meant)
                errs = jax.random.uniform(dice) >= rates[state.view.role[seat]]
                return jnp.where(errs & wrong.any(), uniform(other, wrong), meant)

            return act

        return {**super().scripts, **{script.name: err(script) for script in self.errs}}

    def inside(self, state: Noised) -> Any:
        return state.game

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Noised, View]:
        game, view = self.game.reset(key, group, *given)
        return Noised(game, view), view

    def step(self, state: Noised, action: jax.Array, key: jax.Array) -> tuple[Noised, View, jax.Array]:
        game, view, reward = self.game.step(state.game, action, key)
        return Noised(game, view), view, reward
