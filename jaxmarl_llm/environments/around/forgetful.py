"""A game in which every answer has a context of its own."""

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
    turn: jax.Array  # int32, of the next answer


@dataclass(frozen=True)
class Forgetful(Around):
    """The same game for players who read the rules and what they are told right before they answer, and nothing else:
    neither what they were told earlier nor their own answers. Solvers, critics and judges of one text are such players.

    Seat a of the game inside has a fresh seat for each of the T turns, number a T + t, which speaks in turn t alone and
    is paid what seat a earns in it; `line_up` seats the players. Advantages that compare seats or follow a seat over
    turns are made of `whole` arrays and handed back by `parts`:

      Advantages(game.parts(advantages.rloo(game.whole(reward), game.whole(acted), group, groups)))

    A row for each turn makes an update wider; the rules of all turns of a seat are computed T times.
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
        """Of A players of the game inside, who keep their seats: the A T names of a line-up."""
        return tuple(player for player in players for _ in range(self.turns))

    def whole(self, x: jax.Array) -> jax.Array:
        """[B, T, A T, ...] -> [B, T, A, ...]: of each turn its own seats, as the game inside has them."""
        apart = x.reshape(*x.shape[:2], self.game.agents, self.turns, *x.shape[3:])
        return jnp.moveaxis(jnp.diagonal(apart, axis1=1, axis2=3), -1, 1)

    def parts(self, x: jax.Array) -> jax.Array:
        """[B, T, A, ...] -> [B, T, A T, ...]: the inverse of `whole`, 0 for seats whose turn it is not."""
        own = jnp.eye(self.turns, dtype=x.dtype).reshape(1, self.turns, 1, self.turns, *(1,) * (x.ndim - 3))
        return (x[:, :, :, None] * own).reshape(*x.shape[:2], self.agents, *x.shape[3:])

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
        own = jnp.tile(jnp.arange(self.turns) == turn, self.game.agents)  # [A T]
        fresh = lambda x: jnp.repeat(x, self.turns, 0)
        before = jnp.tile(jnp.arange(self.turns) == turn - 1, self.game.agents)
        columns = []
        for column, field in zip(view.phrases.T, self.game.observation, strict=True):
            columns += [fresh(column)] * (self.turns if isinstance(field, MessageFrom) else 1)
        hears = None
        if view.hears is not None:
            hears = jnp.repeat(fresh(view.hears), self.turns, 1) & before[:, None] & own[None]
        return View(
            phrases=jnp.where(own[:, None], jnp.stack(columns, 1), -1),
            acting=fresh(view.acting) & own,
            role=fresh(view.role),
            grammar=fresh(view.grammar),
            legal=fresh(view.legal),
            terminated=view.terminated,
            truncated=view.truncated,
            hears=hears,
            measured=None if view.measured is None else fresh(view.measured) * before[:, None],
        )
