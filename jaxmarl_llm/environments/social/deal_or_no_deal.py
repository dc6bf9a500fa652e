"""Deal or No Deal: two seats with private values talk and divide items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.environments.helpers import (
    MESSAGE,
    Script,
    all_deals,
    at_least,
    choice,
    draw,
    everyone_else,
    make_view,
    random_player,
)
from jaxmarl_llm.text.grammar import Grammar

ITEMS = ("book", "hat", "ball")
MOST_OF_AN_ITEM = 5
SPLITS = np.array(list(product(range(MOST_OF_AN_ITEM + 1), repeat=3)), np.int32)  # [216, 3], items of each proposal


@cache
def scenarios() -> tuple[np.ndarray, np.ndarray]:
    """All pools of items with pairs of values: counts int32 [n, 3], values of an item to each seat int32 [n, 2, 3].

    The conditions are those of Lewis et al. 2017: a pool has 5 to 7 items, at least one of each kind. All items
    together are worth 10 to each seat. Every kind has a value for at least one seat, and some kind for both.
    """
    counts, values = [], []
    for pool in SPLITS[(SPLITS.min(1) >= 1) & (SPLITS.sum(1) >= 5) & (SPLITS.sum(1) <= 7)]:
        worth = [v for v in product(range(11), repeat=3) if np.dot(v, pool) == 10]
        for mine, theirs in product(worth, worth):
            either, both = np.maximum(mine, theirs) > 0, np.minimum(mine, theirs) > 0
            if either.all() and both.any():
                counts.append(pool)
                values.append((mine, theirs))
    return np.array(counts, np.int32), np.array(values, np.int32)


class DealState(struct.PyTreeNode):
    turn: jax.Array  # int32, turns played
    first: jax.Array  # int32, the seat that speaks first
    counts: jax.Array  # int32 [3], number of each kind of ITEMS
    values: jax.Array  # int32 [2, 3], value of an item to each seat


@dataclass(frozen=True)
class DealOrNoDeal:
    """Two seats divide books, hats and balls. The values of the kinds are private; all items together are worth 10 to
    each seat.

    The seats say one line each in turn, `messages` in all; the deal draws the seat that begins. Then both name their
    items at once. If these are together exactly all the items, component `points` pays each seat the value of its own
    items, else 0.

    Lewis et al. 2017, "Deal or No Deal?"; a deal is one of `scenarios()`, drawn uniformly. Raises ValueError for a
    negative number of messages.
    """

    messages: int = 4

    agents = 2
    actions = len(SPLITS)
    roles = ("player",)
    components = ("points",)

    def __post_init__(self):
        at_least(0, messages=self.messages)

    @property
    def turns(self) -> int:
        return self.messages + 1

    @property
    def seat_turns(self) -> int:
        return -(-self.messages // 2) + 1

    @property
    def rules(self) -> Fields:
        """The rules, then for each kind the number of items and their value to the seat."""
        text = (
            "Two of you divide some items. Each item is worth points to you; to the other it may be worth something "
            "else, and neither knows the other's values. "
            + f"You say one line in turn, {self.messages} in all. "
            * (self.messages > 0)
            + f"{'Then both' if self.messages else 'Both'} of you say at once what you take. If the two of you take "
            "exactly what there is, you get the points of what you take; otherwise both get 0. "
            "Answer such as book=1 hat=0 ball=1. There are"
        )
        items: list[tuple[str, ...]] = []
        for item, end in zip(ITEMS, (",", ",", "."), strict=True):
            items.append(tuple(f" {n} {item}{'s' * (n != 1)}" for n in range(MOST_OF_AN_ITEM + 1)))
            items.append(tuple(f" (worth {v} each to you){end}" for v in range(11)))
        return ((text,), *items)

    @property
    def observation(self) -> Fields:
        ask = ("Say one line to them.", "What do you take?")
        talk: Fields = (("They say:\n",), MessageFrom(0), MessageFrom(1))
        return (*(talk if self.messages else ()), (*ask, *(f"\n{text}" for text in ask)))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """Proposals; second, with messages, a message."""
        take = choice([" ".join(f"{item}={n}" for item, n in zip(ITEMS, split, strict=True)) for split in SPLITS])
        return (take, MESSAGE) if self.messages else (take,)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """The scripts say nothing. `even` takes half of each kind, seat 0 the odd item, so it always agrees with
        itself."""

        def silent(take: Callable) -> Callable:
            def script(state, seat, key):
                index = (take(state.counts, seat) * jnp.array([36, 6, 1])).sum()
                return jnp.where(state.turn < self.messages, 0, index).astype(jnp.int32)

            return script

        return {
            "random": random_player(self._view),
            "greedy": silent(lambda counts, seat: counts),
            "yielding": silent(lambda counts, seat: 0 * counts),
            "even": silent(lambda counts, seat: (counts + 1 - seat) // 2),
        }

    def initial_states(self) -> tuple[DealState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64."""
        return all_deals(self._deal, 2 * len(scenarios()[0]))

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[DealState, View]:
        state = self._deal(draw(key, 2 * len(scenarios()[0])))
        return state, self._view(state)

    def prompt(self, state: DealState) -> jax.Array:
        counts = jnp.broadcast_to(state.counts[None, :], (2, 3))
        items = jnp.stack([counts, state.values], 2).reshape(2, 6)
        return jnp.concatenate([jnp.zeros((2, 1), jnp.int32), items], 1)

    def step(self, state: DealState, action: jax.Array, key: jax.Array) -> tuple[DealState, View, jax.Array]:
        take = jnp.asarray(SPLITS)[action]
        deal = (take.sum(0) == state.counts).all() & (state.turn >= self.messages)
        points = jnp.where(deal, (take * state.values).sum(1), 0)
        state = state.replace(turn=state.turn + 1)
        return state, self._view(state), points[:, None].astype(jnp.float32)

    def _deal(self, number: jax.Array) -> DealState:
        counts, values = scenarios()
        return DealState(jnp.int32(0), number % 2, jnp.asarray(counts)[number // 2], jnp.asarray(values)[number // 2])

    def _legal(self, state: DealState) -> jax.Array:
        """bool [N], the same for both seats."""
        possible = (jnp.asarray(SPLITS) <= state.counts[None, :]).all(1)
        return jnp.where(state.turn < self.messages, jnp.arange(self.actions) == 0, possible)

    def _view(self, state: DealState) -> View:
        ended, talking = state.turn > self.messages, state.turn < self.messages
        speaker = (jnp.arange(2) - state.first) % 2 == state.turn % 2  # the seat that speaks now, or would
        acting = (speaker | ~talking) & ~ended
        heard = speaker & (state.turn > 0) & ~ended & (self.messages > 0)
        ask = jnp.where(talking, 0, 1) + 2 * heard
        told = [jnp.where(heard, 0, -1), *jnp.full((2, 2), -1)] if self.messages else []
        hears = heard[None, :] & everyone_else(2) if self.messages else None
        return make_view(self, [*told, ask], acting, ended, grammar=talking, legal=self._legal(state), hears=hears)


GAMES = {"deal_or_no_deal": DealOrNoDeal}
