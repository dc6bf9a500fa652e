"""Stairs for one seat: an answer counts only if no wrong answer follows, so late turns must be learnt first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, make_view, one_deal, random_player
from jaxmarl_llm.text.grammar import Grammar

LETTERS = ("A", "B", "C")


class StairsState(struct.PyTreeNode):
    turn: jax.Array  # int32
    right: jax.Array  # int32, right answers since the last wrong one


@dataclass(frozen=True)
class Stairs:
    """One seat answers A, B or C in each turn; in turn t the right answer is letter t mod 3.

    Component `points`, paid at the end: 1 / turns for every right answer that no wrong answer follows. So the value of
    an early answer depends on later ones. Under uniform play the answer of turn t counts with probability
    3^-(turns-1-t). The text is silent about the right answers on purpose: they are to be learnt from reward. Nothing is
    random.
    Raises ValueError for turns < 1.
    """

    turns: int = 4

    agents = 1
    actions = 3
    roles = ("climber",)
    components = ("points",)

    def __post_init__(self):
        at_least(1, turns=self.turns)

    @property
    def rules(self) -> Fields:
        return (
            (
                f"There are {self.turns} stairs, and each has one right answer, always the same: A, B or C. At the end "
                f"you get 1/{self.turns} points for every right answer that no wrong one follows.",
            ),
        )

    @property
    def observation(self) -> Fields:
        return (tuple(f"Stair {turn + 1}: answer A, B or C." for turn in range(self.turns)),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(LETTERS),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view), "correct": lambda state, seat, key: state.turn % len(LETTERS)}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[StairsState, View]:
        state = StairsState(jnp.int32(0), jnp.int32(0))
        return state, self.view(state)

    def initial_states(self) -> tuple[StairsState, np.ndarray]:
        return one_deal(self)

    def prompt(self, state: StairsState) -> jax.Array:
        return jnp.zeros((1, 1), jnp.int32)

    def step(self, state: StairsState, action: jax.Array, key: jax.Array) -> tuple[StairsState, View, jax.Array]:
        right = jnp.where(action[0] == state.turn % len(LETTERS), state.right + 1, 0)
        after = StairsState(state.turn + 1, right)
        points = jnp.where(after.turn >= self.turns, right / self.turns, 0.0)
        return after, self.view(after), points.astype(jnp.float32).reshape(1, 1)

    def view(self, state: StairsState) -> View:
        return make_view(self, [jnp.minimum(state.turn, self.turns - 1)], True, state.turn >= self.turns)


GAMES = {"stairs": Stairs}
