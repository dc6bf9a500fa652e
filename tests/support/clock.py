"""A game made for tests of exact judges: three seats, an action that nobody hears of, rewards that sum to nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.text.grammar import Choice, Grammar

STAY, GO = 0, 1
PAY = np.random.default_rng(5).integers(-4, 5, (3, 2, 3, 2, 3))  # [deal, seat 0's action, 2's (2: none), 1's, seat]


class ClockState(struct.PyTreeNode):
    deal: jax.Array  # int32, told to seat 0
    moves: jax.Array  # int32 [3], of each seat, 2: none yet


@dataclass(frozen=True)
class Clock:
    """Seat 0 is told the deal; if it says go, seat 1 is next, if it says stay, seat 2 has a turn before. Seat 1 is
    asked once and cannot tell how many turns went by. To go costs seat 0 one, at once, as a component of its own.

    With a `leak` seat 1 hears of the deal; with a `hint` it has one action only in deal 0; `crowded`: all act at once.
    """

    leak: bool = False
    hint: bool = False
    crowded: bool = False

    agents = 3
    turns = 3
    actions = 2
    roles = ("player",)
    components = ("points", "cost")
    rules: Fields = (("Clock.",),)
    observation: Fields = ((" Zero?", " One?", " Two?", " Now?"),)
    grammars: tuple[Grammar, ...] = ((Choice(((STAY, "stay"), (GO, "go"))),),)
    chances = (0.5, 0.3, 0.2)

    @property
    def scripts(self) -> Mapping[str, Callable]:
        return {"goes": lambda state, seat, key: jnp.int32(GO)}

    def initial_states(self) -> tuple[ClockState, np.ndarray]:
        return jax.vmap(self._deal)(jnp.arange(3, dtype=jnp.int32)), np.array(self.chances)

    def _deal(self, number: jax.Array) -> ClockState:
        return ClockState(number, jnp.full((3,), 2, jnp.int32))

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[ClockState, View]:
        number = jnp.searchsorted(jnp.cumsum(jnp.array(self.chances)), jax.random.uniform(key), side="right")
        state = self._deal(jnp.minimum(number, 2).astype(jnp.int32))
        return state, self.view(state)

    def prompt(self, state: ClockState) -> jax.Array:
        return jnp.zeros((3, 1), jnp.int32)

    def step(self, state: ClockState, action: jax.Array, key: jax.Array) -> tuple[ClockState, View, jax.Array]:
        actor = self._actor(state)
        moves = jnp.where(jnp.arange(3) == actor, action, state.moves)
        points = jnp.asarray(PAY, jnp.float32)[state.deal, moves[0], moves[2], jnp.minimum(moves[1], 1)]
        points = jnp.where(actor == 1, points, 0)
        cost = jnp.where((jnp.arange(3) == 0) & (actor == 0) & (action[0] == GO), -1.0, 0)
        state = ClockState(state.deal, moves)
        return state, self.view(state), jnp.stack([points, cost], 1)

    def view(self, state: ClockState) -> View:
        seats, ended = jnp.arange(3), state.moves[1] < 2
        acting = ((seats == self._actor(state)) | self.crowded) & ~ended
        told = jnp.where((seats == 0) | ((seats == 1) & self.leak), state.deal, 3)
        legal = jnp.stack([jnp.ones((3,), bool), ~((seats == 1) & (state.deal == 0) & self.hint)], 1)
        return View(
            phrases=jnp.where(acting, told, -1)[:, None].astype(jnp.int32),
            acting=acting,
            role=jnp.zeros((3,), jnp.int32),
            grammar=jnp.zeros((3,), jnp.int32),
            legal=legal,
            terminated=ended,
            truncated=jnp.bool_(False),
        )

    def _actor(self, state: ClockState) -> jax.Array:
        first, second = state.moves[0], state.moves[2]
        return jnp.where(first == 2, 0, jnp.where((first == STAY) & (second == 2), 2, 1)).astype(jnp.int32)


def value(first: Any, second: Any, third: Any, weights: Any = (1.0, 1.0)) -> np.ndarray:
    """What the seats of a Clock without options expect, [3], if they go with these probabilities: seat 0's for each
    deal, seat 1's, seat 2's. A plain loop."""
    total, chance = np.zeros(3), lambda action, go: go if action == GO else 1 - go
    for deal, a, b in product(range(3), range(2), range(2)):
        here = Clock.chances[deal] * chance(a, first[deal]) * chance(b, second)
        for c in (2,) if a == GO else (0, 1):
            total += here * (1 if c == 2 else chance(c, third)) * PAY[deal, a, c, b] * weights[0]
        total[0] -= weights[1] * here * a
    return total
