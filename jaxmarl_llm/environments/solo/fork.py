"""A walk with one fork: of many answers a single one counts, and its credit is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, all_deals, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar

ROADS = ("A", "B")
DEALS, GOOD = 4, 3  # road A leads to the goal in GOOD deals out of DEALS
WALK, FORK, TO_GOAL, ELSEWHERE = range(4)


class ForkState(struct.PyTreeNode):
    place: jax.Array  # int32, turn of the fork
    luck: jax.Array  # int32 below DEALS; road A leads to the goal if it is below GOOD, else road B does
    turn: jax.Array  # int32
    road: jax.Array  # int32, road taken; -1 before the fork


@dataclass(frozen=True)
class Fork:
    """One seat answers A or B in each turn; one turn before the last is a fork, whose answer chooses the road.

    The fork's turn is uniform, and the seat is told when it stands there. Road A leads to the goal with probability
    3/4, otherwise road B does; the deal draws this. From the next turn on the seat is told whether its road leads to
    the goal. Component `points`: 1 in the last turn if it does, else 0.

    So the credit is known exactly: only the answer at the fork matters. Its advantage under a policy p is (1 - p(A)) /
    2 for A and -p(A) / 2 for B. The rest of the reward is luck.
    Raises ValueError for turns < 2.
    """

    turns: int = 4

    agents = 1
    actions = 2
    roles = ("walker",)
    components = ("points",)

    def __post_init__(self):
        at_least(2, turns=self.turns)

    @property
    def rules(self) -> Fields:
        return (
            (
                f"You walk for {self.turns} turns and answer A or B in each. In one turn before the last you stand at "
                "a fork, and your answer is the road you take; your other answers change nothing. Road A leads to the "
                "goal three times out of four, else road B does. At the end you get 1 point if your road leads to the "
                "goal.",
            ),
        )

    @property
    def observation(self) -> Fields:
        road = "You walk on. Your road leads "
        return (("You walk on.", "You stand at the fork.", f"{road}to the goal.", f"{road}elsewhere."),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(ROADS),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`likely` takes road A, which leads to the goal more often."""
        return {"random": random_player(self.view), "likely": lambda state, seat, key: jnp.int32(0)}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[ForkState, View]:
        number = draw(key, (self.turns - 1) * DEALS)
        state = self._start(number // DEALS, number % DEALS)
        return state, self.view(state)

    def initial_states(self) -> tuple[ForkState, np.ndarray]:
        return all_deals(self._start, self.turns - 1, DEALS)

    def _start(self, place: jax.Array, luck: jax.Array) -> ForkState:
        return ForkState(place, luck, jnp.int32(0), jnp.int32(-1))

    def prompt(self, state: ForkState) -> jax.Array:
        return jnp.zeros((1, 1), jnp.int32)

    def step(self, state: ForkState, action: jax.Array, key: jax.Array) -> tuple[ForkState, View, jax.Array]:
        road = jnp.where(state.turn == state.place, action[0], state.road).astype(jnp.int32)
        after = state.replace(turn=state.turn + 1, road=road)
        points = (after.turn >= self.turns) & self._good(after)
        return after, self.view(after), points.astype(jnp.float32).reshape(1, 1)

    def _good(self, state: ForkState) -> jax.Array:
        return state.road == (state.luck >= GOOD)

    def view(self, state: ForkState) -> View:
        before = jnp.where(state.turn == state.place, FORK, WALK)
        told = jnp.where(state.turn > state.place, jnp.where(self._good(state), TO_GOAL, ELSEWHERE), before)
        return make_view(self, [told], True, state.turn >= self.turns)


GAMES = {"fork": Fork}
