"""A wrapper that adds fields to the rules, in which training tells seats more: their opponent, the rule, advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, View


class Announcement(NamedTuple):
    """The deal of an `Announced` game, arranged by training (`Recipe.arrange`)."""

    told: jax.Array  # int32 [A, fields]: the phrase of each field that a seat is told, -1: nothing
    deal: Any = None  # the deal of the inner game


class AnnouncedState(struct.PyTreeNode):
    game: Any
    told: jax.Array  # int32 [A, fields]


@dataclass(frozen=True)
class Announced(Around):
    """The game with further fields at the end of its rules; an `Announcement` gives the phrases that each seat is told.

    Without an announcement these fields tell nothing, and the game is unchanged. The prompt has room for all fields.
    """

    fields: Fields

    @property
    def rules(self) -> Fields:
        return (*self.game.rules, *self.fields)

    def inside(self, state: AnnouncedState) -> Any:
        return state.game

    def prompt(self, state: AnnouncedState) -> jax.Array:
        inside = self.game.prompt(state.game)
        return jnp.concatenate([inside, state.told.astype(inside.dtype)], 1)

    def reset(self, key: jax.Array, group: jax.Array, given: Announcement | None = None) -> tuple[AnnouncedState, View]:
        told = jnp.full((self.agents, len(self.fields)), -1, jnp.int32)
        inside: tuple[Any, ...] = ()
        if given is not None:
            told = jnp.broadcast_to(jnp.asarray(given.told, jnp.int32), told.shape)
            inside = () if given.deal is None else (given.deal,)
        game, view = self.game.reset(key, group, *inside)
        return AnnouncedState(game, told), view

    def step(self, state: AnnouncedState, action: jax.Array, key: jax.Array) -> tuple[AnnouncedState, View, jax.Array]:
        game, view, reward = self.game.step(state.game, action, key)
        return AnnouncedState(game, state.told), view, reward
