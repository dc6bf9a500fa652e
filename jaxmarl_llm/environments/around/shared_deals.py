"""A wrapper for matches: groups of other line-ups play the same deals with the same chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import View
from jaxmarl_llm.keys import CHANCE, DEAL, key_for


class Shared(struct.PyTreeNode):
    game: Any
    key: jax.Array  # uint32 [2], of the deal and of all chance after it
    turn: jax.Array  # int32


@dataclass(frozen=True)
class SharedDeals(Around):
    """The game with deal and chance from the third argument of `reset`, in place of the group's own.

    The argument is (key data uint32 [2], number int32). The number stands for the group's in games that balance a draw
    over groups. Groups with equal arguments are dealt the same, and meet the same chance as long as they play alike.
    """

    def inside(self, state: Shared) -> Any:
        return state.game

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Shared, View]:
        ((data, number),) = given
        game, view = self.game.reset(key_for(jax.random.wrap_key_data(data), DEAL), number)
        return Shared(game, data, jnp.int32(0)), view

    def step(self, state: Shared, action: jax.Array, key: jax.Array) -> tuple[Shared, View, jax.Array]:
        chance = key_for(jax.random.wrap_key_data(state.key), CHANCE, state.turn)
        game, view, reward = self.game.step(state.game, action, chance)
        return Shared(game, state.key, state.turn + 1), view, reward
