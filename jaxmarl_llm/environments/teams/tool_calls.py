"""Sums with a calculator: a solver that answers at once, thinks, or calls a tool, which is a seat of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import (
    Script,
    at_least,
    choice,
    digits,
    make_view,
    not_negative,
    random_player,
)
from jaxmarl_llm.text.grammar import Grammar

SOLVER, CALCULATOR = range(2)
MODES = ("instant", "think", "call")
INSTANT, THINK, CALL = range(3)
NUMBERS, WORDS = 0, 1  # grammars
NOVICE = (0.4, 0.3, 0.3)  # its chances of the modes
REPLY, LAST = 4, 5  # turns of a game with a call: the calculator's, and the solver's answer


class Sum(NamedTuple):
    """The deal of a game of `Calls`, arranged by training (`Recipe.arrange`)."""

    numbers: Any  # int32 [3]
    modes: Any  # bool [3]: the modes that the solver may choose, at least one


class CallState(struct.PyTreeNode):
    numbers: jax.Array  # int32 [3], of the sum that is wanted
    modes: jax.Array  # bool [3]
    mode: jax.Array  # int32
    value: jax.Array  # int32: the thought, or the calculator's reply
    posed: jax.Array  # int32 [3], the numbers told to the calculator
    turn: jax.Array  # int32
    ended: jax.Array  # bool


@dataclass(frozen=True)
class Calls:
    """A solver is asked for the sum of three numbers modulo `size`, with a calculator as second seat.

    The solver first says its mode. After "instant" it answers. After "think" it is told a thought, which is right with
    the chance `thought` and else any other value, and answers. After "call" it names three numbers in three turns, the
    calculator is told these and says a value, and the solver is told this value and answers. Half of the deals are
    easy, with numbers below `small`. The others have numbers from `small` on: `(size - small)^3` sums.

    A deal (`Sum`) gives the numbers and the modes that are legal. A mode without an alternative is no choice of a
    policy and is not trained. The calculator is meant to be a script: `correct` adds the numbers that it is told.

    Components, to the solver:

    - `correct`: 1 for the right answer, else 0.
    - `cost`: -`think_cost` for a thought, -`call_cost` for a call.

    Measure `posed`, of the solver: 1 if the numbers that it named have the sum that is wanted.
    The chance of a thought is drawn in play, so that the games of a group have thoughts of their own.
    Raises ValueError for small < 1, size <= small, `thought` outside 0 to 1, and costs that are negative.
    """

    size: int = 20
    small: int = 3
    thought: float = 0.7
    think_cost: float = 0.05
    call_cost: float = 0.2

    agents = 2
    turns = 6
    alternating = True
    roles = ("solver", "calculator")
    components = ("correct", "cost")
    measures = ("posed",)

    def __post_init__(self):
        at_least(1, small=self.small)
        at_least(max(3, self.small + 1), size=self.size)
        not_negative(think_cost=self.think_cost, call_cost=self.call_cost)
        if not 0 <= self.thought <= 1:
            raise ValueError(f"thought is a chance from 0 to 1, got {self.thought}.")

    @property
    def actions(self) -> int:
        return self.size

    @property
    def rules(self) -> Fields:
        solver = (
            f"You are asked for the sum of three numbers, modulo {self.size}. A right answer is 1 point. You say "
            f"instant, think or call, as far as this game allows them. After instant you answer. After think you are "
            f"told a value, right with a chance of {self.thought:g}, for {self.think_cost:g} points. After call you "
            f"name three numbers for a calculator and are told its value, for {self.call_cost:g} points. You wait for:"
        )
        calculator = f"You are a calculator. You are told three numbers and say their sum, modulo {self.size}."
        numbers = digits(self.size)
        return (solver, calculator), (" ",), numbers, (" + ",), numbers, (" + ",), numbers, (".",)

    @property
    def observation(self) -> Fields:
        heads = (" You think it is ", " The calculator says ", " Add ")
        asks = (
            " Instant, think or call?",
            " The first number?",
            " The second number?",
            " The third number?",
            " Your answer?",
            ". Your answer?",
        )
        return heads, digits(self.size), asks

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(digits(self.size)), choice(MODES)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` says the first legal mode, names the numbers of the sum, and answers right; as calculator it adds.

        `novice` is instant in 40% of its games, thinks in 30% and calls in 30%, as far as these modes are legal. At
        once it answers an easy sum right in 60% of its games, else at random. It names each number right with a chance
        of 0.9, and repeats a value that it is told with a chance of 0.8; else it says any number. As calculator it
        adds.
        """
        return {"random": random_player(self.view), "correct": self._correct, "novice": self._novice}

    def numbers(self, key: jax.Array, easy: jax.Array) -> jax.Array:
        """Numbers int32 [3] of an easy sum, or of another one; `easy` is bool."""
        low, high = jnp.where(easy, 0, self.small), jnp.where(easy, self.small, self.size)
        return jax.random.randint(key, (3,), low, high, jnp.int32)

    def reset(self, key: jax.Array, group: jax.Array, given: Sum | None = None) -> tuple[CallState, View]:
        if given is None:
            drawn, kind = jax.random.split(key)
            given = Sum(self.numbers(drawn, jax.random.bernoulli(kind)), jnp.ones(3, bool))
        zero = jnp.int32(0)
        state = CallState(
            numbers=given.numbers.astype(jnp.int32),
            modes=given.modes,
            mode=zero,
            value=zero,
            posed=jnp.zeros(3, jnp.int32),
            turn=zero,
            ended=jnp.bool_(False),
        )
        return state, self.view(state)

    def prompt(self, state: CallState) -> jax.Array:
        a, b, c = state.numbers
        solver = jnp.stack([jnp.zeros_like(a), 0 * a, a, 0 * a, b, 0 * a, c, 0 * a])
        return jnp.stack([solver, jnp.full(8, -1).at[0].set(1)]).astype(jnp.int32)

    def step(self, state: CallState, action: jax.Array, key: jax.Array) -> tuple[CallState, View, jax.Array]:
        turn, said = state.turn, jnp.clip(action, 0, self.size - 1)
        asked, first = said[SOLVER], turn == 0
        mode = jnp.where(first, jnp.minimum(asked, CALL), state.mode)
        naming = (mode == CALL) & (turn >= 1) & (turn < REPLY)
        posed = jnp.where(naming & (jnp.arange(3) == turn - 1), asked, state.posed)
        value = jnp.where(first, self._think(state, key), state.value)
        value = jnp.where(turn == REPLY, said[CALCULATOR], value)
        answers = ~first & ((mode != CALL) | (turn == LAST))
        after = state.replace(mode=mode, posed=posed, value=value, turn=turn + 1, ended=state.ended | answers)
        correct = answers & (asked == self._sum(state.numbers))
        costs = jnp.array([0.0, self.think_cost, self.call_cost])
        paid = jnp.stack([correct.astype(jnp.float32), -jnp.where(first, costs[mode], 0.0)])
        right = (turn == REPLY - 1) & (self._sum(posed) == self._sum(state.numbers))
        view = self.view(after).replace(measured=jnp.zeros((2, 1)).at[SOLVER, 0].set(right.astype(jnp.float32)))
        return after, view, jnp.stack([paid, jnp.zeros(2)]).astype(jnp.float32)

    def view(self, state: CallState) -> View:
        turn, call = state.turn, state.mode == CALL
        informed = ((turn == 1) & (state.mode == THINK)) | (turn == LAST)
        asks = jnp.where((turn == 0) | call, jnp.minimum(turn, 4), 4)
        solver = [jnp.where(call, 1, 0), state.value, jnp.where(informed, 5, asks)]
        calculator = [jnp.int32(2), state.posed[jnp.clip(turn - 2, 0, 2)], jnp.where(turn == REPLY, 5, -1)]
        solver[:2] = (jnp.where(informed, x, -1) for x in solver[:2])
        acting = jnp.arange(2) == jnp.where(turn == REPLY, CALCULATOR, SOLVER)
        told = jnp.stack([turn != REPLY, call & (turn >= 2) & (turn <= REPLY)]) & ~state.ended
        grammar = jnp.where((turn == 0) & (jnp.arange(2) == SOLVER), WORDS, NUMBERS)
        modes = jnp.pad(state.modes, (0, self.size - 3)) | (turn > 0)
        legal = jnp.stack([modes, jnp.ones(self.size, bool)])
        shown = [jnp.stack(column).astype(jnp.int32) for column in zip(solver, calculator, strict=True)]
        seats = jnp.arange(2)
        return make_view(self, shown, acting, state.ended, role=seats, grammar=grammar, legal=legal, to=told)

    def _sum(self, numbers: jax.Array) -> jax.Array:
        return numbers.sum(dtype=jnp.int32) % self.size

    def _think(self, state: CallState, key: jax.Array) -> jax.Array:
        lucky, other = jax.random.split(key)
        wrong = jax.random.randint(other, (), 1, self.size, jnp.int32) * ~jax.random.bernoulli(lucky, self.thought)
        return (self._sum(state.numbers) + wrong) % self.size

    def _correct(self, state: CallState, seat: jax.Array, key: jax.Array) -> jax.Array:
        named = state.numbers[jnp.clip(state.turn - 1, 0, 2)]
        naming = (state.mode == CALL) & (state.turn < REPLY)
        says = jnp.where(naming, named, self._sum(state.numbers))
        says = jnp.where(state.turn == 0, state.modes.argmax(), says)
        return jnp.where(seat == CALCULATOR, self._sum(state.posed), says).astype(jnp.int32)

    def _novice(self, state: CallState, seat: jax.Array, key: jax.Array) -> jax.Array:
        chance, number, mode = jax.random.split(key, 3)
        naming = (state.mode == CALL) & (state.turn < REPLY)
        knows = jnp.where((state.numbers < self.small).all(), 0.6, 0.0)
        chances = jnp.where(naming, 0.9, jnp.where(state.mode == INSTANT, knows, 0.8))
        right = jax.random.bernoulli(chance, chances)
        said = jnp.where(naming | (state.mode == INSTANT), self._correct(state, seat, key), state.value)
        says = jnp.where(right, said, jax.random.randint(number, (), 0, self.size, jnp.int32))
        odds = jnp.where(state.modes, jnp.log(jnp.array(NOVICE)), -jnp.inf)
        says = jnp.where(state.turn == 0, jax.random.categorical(mode, odds), says)
        return jnp.where(seat == CALCULATOR, self._sum(state.posed), says).astype(jnp.int32)


GAMES = {"calls": Calls}
