"""A wrapper that asks simultaneous movers one after another, so that each node of the game tree has one mover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import MessageFrom, View
from jaxmarl_llm.environments.extras import Extras, clear_measures


class Asked(struct.PyTreeNode):
    game: Any
    view: View  # the view of the inner game before its next turn
    held: jax.Array  # int32 [A], the answers of this turn so far
    seat: jax.Array  # int32, the seat that answers next


@dataclass(frozen=True)
class OneByOne(Around):
    """The same game; seats that move at once are asked one after another, in the order of their numbers.

    All are told the game's phrases before the first of them answers. No seat is told an answer before all have
    answered; then the game pays. Knowledge, texts and payoffs therefore stay the same. `evaluation.solve` enumerates
    the game if it has `initial_states()` and `view(state)`.
    Raises ValueError for a game in which free words are heard.
    """

    def __post_init__(self):
        super().__post_init__()
        if any(isinstance(field, MessageFrom) for field in self.game.observation):
            raise ValueError("Words said at once would be heard too early: OneByOne is for games without them.")

    @property
    def turns(self) -> int:
        return self.game.turns * self.agents

    @property
    def seat_turns(self) -> int:
        return min(2 * Extras(self.game).seat_turns, self.turns)  # told something, then asked

    def inside(self, state: Asked) -> Any:
        return state.game

    def initial_states(self) -> tuple[Asked, np.ndarray]:
        states, chance = self.game.initial_states()  # type: ignore[attr-defined]
        return jax.vmap(lambda state: self._turn(state, self.game.view(state)))(states), chance  # type: ignore[attr-defined]

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Asked, View]:
        state = self._turn(*self.game.reset(key, group, *given))
        return state, self.view(state)

    def step(self, state: Asked, action: jax.Array, key: jax.Array) -> tuple[Asked, View, jax.Array]:
        held = state.held.at[state.seat].set(action[state.seat])
        later = state.view.acting & (jnp.arange(self.agents) > state.seat)
        asking = state.replace(view=clear_measures(state.view), held=held, seat=jnp.argmax(later).astype(jnp.int32))
        game, view, reward = self.game.step(state.game, held, key)
        after = jax.tree.map(lambda a, b: jnp.where(later.any(), a, b), asking, self._turn(game, view))
        return after, self.view(after), jnp.where(later.any(), 0, reward)

    def _turn(self, game: Any, view: View) -> Asked:
        first = jnp.argmax(view.acting).astype(jnp.int32)
        return Asked(game, view, jnp.zeros(self.agents, jnp.int32), first)

    def view(self, state: Asked) -> View:
        acting = state.view.acting
        asked = acting & (jnp.arange(self.agents) == state.seat)
        fresh = state.seat == jnp.argmax(acting)
        return state.view.replace(phrases=jnp.where(fresh, state.view.phrases, -1), acting=asked)
