"""A wrapper in which a seat predicts the other seat's move before it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.environments.extras import Extras, clear_measures


def stages(action: jax.Array, rounds: int) -> jax.Array:
    """Splits actions by stage: [B, T, 2] -> [stages of a round, B, rounds, 2]. A round of `Foreseen` has two stages,
    predictions and moves; a round of another game has moves alone. The last stage is always the moves."""
    return jnp.moveaxis(action.reshape(len(action), rounds, -1, 2), 2, 0)


class ForeseenState(struct.PyTreeNode):
    game: Any
    view: View  # the view of the inner game before its next turn
    predicts: jax.Array  # bool: predictions come next, not moves


@dataclass(frozen=True)
class Foreseen(Around):
    """The same game of two seats that move at once; before every move each seat predicts the other's move.

    A prediction is a legal answer of the other seat. It takes a turn of its own, pays nothing, and no seat is told it.
    In `Episodes.action` the even turns are predictions, the odd ones moves. A script predicts its own move. After Akata
    et al. (2023), https://arxiv.org/abs/2305.16867, who ask a model to predict first.
    Raises ValueError unless there are two seats, for an alternating game, and for a game in which free words are heard.
    """

    def __post_init__(self):
        super().__post_init__()
        talk = any(isinstance(field, MessageFrom) for field in self.game.observation)
        if self.game.agents != 2 or Extras(self.game).alternating or talk:
            raise ValueError(
                f"Predictions are of two seats that move at once, without talk: not of {type(self.game).__name__}."
            )

    @property
    def turns(self) -> int:
        return 2 * self.game.turns

    @property
    def seat_turns(self) -> int:
        return 2 * Extras(self.game).seat_turns

    @property
    def rules(self) -> Fields:
        return (*self.game.rules, (" Before each answer you say what theirs will be; they are not told.",))

    @property
    def observation(self) -> Fields:
        return (*self.game.observation, (" First say what they will answer.", "Now your answer."))

    def inside(self, state: ForeseenState) -> Any:
        return state.game

    def prompt(self, state: ForeseenState) -> jax.Array:
        told = self.game.prompt(state.game)
        return jnp.concatenate([told, jnp.zeros((2, 1), told.dtype)], 1)

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[ForeseenState, View]:
        state = ForeseenState(*self.game.reset(key, group, *given), jnp.bool_(True))
        return state, self._view(state)

    def step(self, state: ForeseenState, action: jax.Array, key: jax.Array) -> tuple[ForeseenState, View, jax.Array]:
        game, view, reward = self.game.step(state.game, action, key)
        played = ForeseenState(game, view, jnp.bool_(True))
        predicted = state.replace(view=clear_measures(state.view), predicts=jnp.bool_(False))
        after = jax.tree.map(lambda a, b: jnp.where(state.predicts, a, b), predicted, played)
        return after, self._view(after), jnp.where(state.predicts, 0, reward)

    def _view(self, state: ForeseenState) -> View:
        asks, view = state.predicts, state.view
        inside = jnp.where(asks, view.phrases, -1)
        more = jnp.where(view.acting, jnp.where(asks, 0, 1), -1).astype(inside.dtype)
        legal, grammar = (jnp.where(asks, x[::-1], x) for x in (view.legal, view.grammar))
        return view.replace(phrases=jnp.concatenate([inside, more[:, None]], 1), legal=legal, grammar=grammar)
