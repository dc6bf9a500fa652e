"""Instruments for one seat: calls of a tool whose replies are new in each game, and an answer after each reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, all_deals, at_least, choice, make_view, random_player, uniform
from jaxmarl_llm.text.grammar import Grammar

NAMES = ("clock", "compass", "scale", "gauge", "barometer", "thermometer")
READINGS = ("low", "middle", "high", "none", "broken")
LETTERS = "ABCDE"


class InstrumentState(struct.PyTreeNode):
    readings: jax.Array  # int32 [rounds]
    called: jax.Array  # int32, the instrument of the last call, 0 before the first
    right: jax.Array  # int32, right answers so far
    turn: jax.Array  # int32


@dataclass(frozen=True)
class Instruments:
    """One seat reads instruments in turn: it calls one, is told its reading, and answers the reading.

    A round has two turns. In the first the seat is told which instrument is due, and names one. In the second it is
    told the reading of the named instrument, and answers a letter. The deal draws each reading uniformly from `values`.
    Round i asks for instrument i, and reading v of it has the right answer of letter (v + i) mod values. The naming of
    another instrument costs nothing but the knowledge of the reading.

    Component `solved`, paid after the last answer: 1 if all answers were right. Measure `right`: 1 for a right answer.
    A reply is news. A policy that has imitated `half_right` is certain of its calls, and unsure after every second
    reply.

    The text is silent about the right answers on purpose: they are to be learnt from reward. All chance is in the deal.
    Raises ValueError for rounds outside 1 to 6 and for values outside 2 to 5.
    """

    rounds: int = 4
    values: int = 3

    agents = 1
    roles = ("reader",)
    components = ("solved",)
    measures = ("right",)

    def __post_init__(self):
        at_least(1, rounds=self.rounds)
        at_least(2, values=self.values)
        if self.rounds > len(NAMES) or self.values > len(READINGS):
            raise ValueError(
                f"There are {len(NAMES)} instruments, one a round, of {len(READINGS)} readings each, got "
                f"rounds={self.rounds} and values={self.values}."
            )

    @property
    def turns(self) -> int:
        return 2 * self.rounds

    @property
    def actions(self) -> int:
        return max(self.rounds, self.values)

    @property
    def rules(self) -> Fields:
        letters = f"{', '.join(LETTERS[: self.values - 1])} or {LETTERS[self.values - 1]}"
        return (
            (
                f"You read {self.rounds} instruments. For each you first name it, then you are told its reading and "
                f"answer {letters}. Each reading of each instrument has one right answer. If all answers are right, "
                "you get 1 point at the end.",
            ),
        )

    @property
    def observation(self) -> Fields:
        names, readings = NAMES[: self.rounds], READINGS[: self.values]
        return (
            tuple(f"Read the {name}." for name in names),
            tuple(f"The {name} says {reading}. Your answer?" for name in names for reading in readings),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(NAMES[: self.rounds]), choice(LETTERS[: self.values])

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` names the instrument that is due and answers right. `half_right` does so too, but its answer is
        random for every second instrument."""
        return {"random": random_player(self.view), "half_right": self._half_right, "correct": self._correct}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[InstrumentState, View]:
        state = self._start(jax.random.randint(key, (self.rounds,), 0, self.values, jnp.int32))
        return state, self.view(state)

    def initial_states(self) -> tuple[InstrumentState, np.ndarray]:
        return all_deals(lambda *readings: self._start(jnp.stack(readings)), *(self.values,) * self.rounds)

    def prompt(self, state: InstrumentState) -> jax.Array:
        return jnp.zeros((1, 1), jnp.int32)

    def step(
        self, state: InstrumentState, action: jax.Array, key: jax.Array
    ) -> tuple[InstrumentState, View, jax.Array]:
        calls = self._calling(state)
        right = ~calls & (action[0] == self._right(state))
        after = state.replace(
            called=jnp.where(calls, action[0], state.called).astype(jnp.int32),
            right=state.right + right,
            turn=state.turn + 1,
        )
        solved = (after.turn >= self.turns) & (after.right == self.rounds)
        paid, measured = (fact.astype(jnp.float32).reshape(1, 1) for fact in (solved, right))
        return after, self.view(after).replace(measured=measured), paid

    def view(self, state: InstrumentState) -> View:
        calls = self._calling(state)
        reading = state.called * self.values + state.readings[state.called]
        told = [jnp.where(calls, self._round(state), -1), jnp.where(calls, -1, reading)]
        return make_view(self, told, True, state.turn >= self.turns, grammar=jnp.where(calls, 0, 1))

    def _start(self, readings: jax.Array) -> InstrumentState:
        return InstrumentState(readings.astype(jnp.int32), jnp.int32(0), jnp.int32(0), jnp.int32(0))

    def _calling(self, state: InstrumentState) -> jax.Array:
        return state.turn % 2 == 0

    def _round(self, state: InstrumentState) -> jax.Array:
        return jnp.minimum(state.turn // 2, self.rounds - 1)

    def _right(self, state: InstrumentState) -> jax.Array:
        at = self._round(state)
        return (state.readings[at] + at) % self.values

    def _half_right(self, state: InstrumentState, seat: jax.Array, key: jax.Array) -> jax.Array:
        letter = uniform(key, jnp.arange(self.actions) < self.values)
        guesses = ~self._calling(state) & (self._round(state) % 2 == 1)
        return jnp.where(guesses, letter, self._correct(state, seat, key)).astype(jnp.int32)

    def _correct(self, state: InstrumentState, seat: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.where(self._calling(state), self._round(state), self._right(state)).astype(jnp.int32)


GAMES = {"instruments": Instruments}
