"""A wrapper that repeats a deal from its beginning after a failed attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.environments.helpers import at_least


class Tried(struct.PyTreeNode):
    game: Any
    start: Any  # the deal
    attempt: jax.Array  # int32, from 0
    begins: jax.Array  # bool, an attempt other than the first begins
    succeeded: jax.Array  # bool


@dataclass(frozen=True)
class Retry(Around):
    """The same game with `attempts` attempts at a deal: a player that fails begins again and keeps its context.

    An attempt succeeds if the component `success` (default: the first) has paid a positive reward to a seat in it. The
    game ends after the first success or the last attempt. The rewards of every attempt count. A game that draws after
    the deal draws anew in each attempt. The game needs `view(state)`.
    Raises ValueError for attempts < 1, for a component that the game lacks, and for a game without a view.
    """

    attempts: int = 2
    success: str = ""

    def __post_init__(self):
        super().__post_init__()
        at_least(1, attempts=self.attempts)
        if self.success and self.success not in self.game.components:
            raise ValueError(f"The game pays {', '.join(self.game.components)}, and no {self.success!r}.")
        if Extras(self.game).view is None:
            raise ValueError(f"{type(self.game).__name__} has no view(state), from which an attempt begins again.")

    @property
    def turns(self) -> int:
        return self.game.turns * self.attempts

    @property
    def seat_turns(self) -> int:
        return Extras(self.game).seat_turns * self.attempts

    @property
    def alternating(self) -> bool:  # episodes of a group may begin again at different turns
        return super().alternating and self.attempts == 1

    @property
    def rules(self) -> Fields:
        told = f" If you fail, you begin again, {self.attempts} attempts in all, and the points of all count."
        return (*self.game.rules, (told,)) if self.attempts > 1 else self.game.rules

    @property
    def observation(self) -> Fields:
        return (("That failed. You begin again.\n",), *self.game.observation)

    def inside(self, state: Tried) -> Any:
        return state.game

    def prompt(self, state: Tried) -> jax.Array:
        told = self.game.prompt(state.start)
        more = self.attempts > 1
        return jnp.concatenate([told, jnp.zeros((self.agents, 1), told.dtype)], 1) if more else told

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Tried, View]:
        game, _ = self.game.reset(key, group, *given)
        return self._fresh(game), self.view(self._fresh(game))

    @property
    def initial_states(self) -> Callable[[], tuple[Tried, np.ndarray]]:
        inside = self.game.initial_states  # type: ignore[attr-defined]  # if the inner game has them

        def states() -> tuple[Tried, np.ndarray]:
            games, probability = inside()
            return jax.vmap(self._fresh)(games), probability

        return states

    def step(self, state: Tried, action: jax.Array, key: jax.Array) -> tuple[Tried, View, jax.Array]:
        game, view, reward = self.game.step(state.game, action, key)
        component = self.components.index(self.success) if self.success else 0
        succeeded = state.succeeded | (reward[:, component] > 0).any()
        again = (view.terminated | view.truncated) & ~succeeded & (state.attempt + 1 < self.attempts)
        after = state.replace(
            game=jax.tree.map(lambda old, new: jnp.where(again, old, new), state.start, game),
            attempt=state.attempt + again,
            begins=again,
            succeeded=succeeded,
        )
        return after, self.view(after).replace(measured=view.measured), reward

    def view(self, state: Tried) -> View:
        view = self.game.view(state.game)  # type: ignore[attr-defined]
        told = jnp.where(state.begins & view.acting, 0, -1)[:, None].astype(view.phrases.dtype)
        hears = None if view.hears is None else view.hears & ~state.begins
        return view.replace(phrases=jnp.concatenate([told, view.phrases], 1), hears=hears)

    def _fresh(self, game: Any) -> Tried:
        return Tried(game, game, jnp.int32(0), jnp.bool_(False), jnp.bool_(False))
