"""A wrapper in which every answer has a context of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, MessageFrom, View


class Turned(struct.PyTreeNode):
    game: Any
    turn: jax.Array  # int32, the turn of the next answer


@dataclass(frozen=True)
class Forgetful(Around):
    """The same game for players without memory: they read the rules and the observation of the present turn alone.

    They forget earlier observations and their own answers. Solvers, critics and judges of one text are such players.

    Each seat becomes T seats, one for each turn. Seat a T + t answers in turn t for seat a of the inner game and earns
    its reward of that turn. `line_up` repeats the players accordingly. Advantages that compare seats, or follow a seat
    over turns, are computed on `whole` arrays; `parts` maps them back:

      Advantages(game.parts(advantages.rloo(game.whole(reward), game.whole(acted), group, groups)))

    A row for each turn makes an update wider, and the rules of a seat are computed T times.
    """

    @property
    def agents(self) -> int:
        return self.game.agents * self.turns

    @property
    def observation(self) -> Fields:
        fields: list[Any] = []
        for field in self.game.observation:
            if isinstance(field, MessageFrom):
                fields += [MessageFrom(field.seat * self.turns + t) for t in range(self.turns)]
            else:
                fields.append(field)
        return tuple(fields)

    @property
    def seat_turns(self) -> int:
        return 1

    @property
    def alternating(self) -> bool:
        return False

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def of_seat(play: Callable) -> Callable:
            return lambda state, seat, key: play(state, seat // self.turns, key)

        return {name: of_seat(play) for name, play in super().scripts.items()}

    def inside(self, state: Turned) -> Any:
        return state.game

    def line_up(self, *players: str) -> tuple[str, ...]:
        """The A T names of a line-up in which A players keep their seats of the inner game."""
        return tuple(player for player in players for _ in range(self.turns))

    def whole(self, x: jax.Array) -> jax.Array:
        """[B, T, A T, ...] -> [B, T, A, ...]: for each turn its own seats, in the order of the inner game."""
        apart = x.reshape(*x.shape[:2], self.game.agents, self.turns, *x.shape[3:])
        return jnp.moveaxis(jnp.diagonal(apart, axis1=1, axis2=3), -1, 1)

    def parts(self, x: jax.Array) -> jax.Array:
        """[B, T, A, ...] -> [B, T, A T, ...]: the inverse of `whole`, 0 for seats of other turns."""
        same = jnp.eye(self.turns, dtype=x.dtype).reshape(1, self.turns, 1, self.turns, *(1,) * (x.ndim - 3))
        return (x[:, :, :, None] * same).reshape(*x.shape[:2], self.agents, *x.shape[3:])

    def prompt(self, state: Turned) -> jax.Array:
        return jnp.repeat(self.game.prompt(state.game), self.turns, 0)

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Turned, View]:
        game, view = self.game.reset(key, group, *given)
        return Turned(game, jnp.int32(0)), self._view(view, jnp.int32(0))

    def step(self, state: Turned, action: jax.Array, key: jax.Array) -> tuple[Turned, View, jax.Array]:
        now = action.reshape(self.game.agents, self.turns)[:, state.turn]
        game, view, reward = self.game.step(state.game, now, key)
        speaks = jnp.arange(self.turns) == state.turn
        paid = (reward[:, None] * speaks[None, :, None]).reshape(self.agents, -1)
        return Turned(game, state.turn + 1), self._view(view, state.turn + 1), paid

    def _view(self, view: View, turn: jax.Array) -> View:
        present = jnp.tile(jnp.arange(self.turns) == turn, self.game.agents)  # [A T]
        fresh = lambda x: jnp.repeat(x, self.turns, 0)
        before = jnp.tile(jnp.arange(self.turns) == turn - 1, self.game.agents)
        columns = []
        for column, field in zip(view.phrases.T, self.game.observation, strict=True):
            columns += [fresh(column)] * (self.turns if isinstance(field, MessageFrom) else 1)
        hears = None
        if view.hears is not None:
            hears = jnp.repeat(fresh(view.hears), self.turns, 1) & before[:, None] & present[None]
        return View(
            phrases=jnp.where(present[:, None], jnp.stack(columns, 1), -1),
            acting=fresh(view.acting) & present,
            role=fresh(view.role),
            grammar=fresh(view.grammar),
            legal=fresh(view.legal),
            terminated=view.terminated,
            truncated=view.truncated,
            hears=hears,
            measured=None if view.measured is None else fresh(view.measured) * before[:, None],
        )
