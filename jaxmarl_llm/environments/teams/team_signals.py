"""Small team games about signals and the timing of rewards: a relay of numbers, halves of a sum, six turns of cues.

Each game has few deals, so that the value of a team can be computed by enumeration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import (
    Script,
    all_deals,
    at_least,
    choice,
    digits,
    draw,
    make_view,
    random_player,
    span,
)
from jaxmarl_llm.text.grammar import Grammar


class RelayState(struct.PyTreeNode):
    numbers: jax.Array  # int32 [2], told to the first seat and to the second
    turn: jax.Array  # int32
    said: jax.Array  # int32, the number said in the turn before


@dataclass(frozen=True)
class Relay:
    """Three seats speak once, one after the other, and each hears only the seat before it.

    The first seat is told a number and says a number. The second, told another number, says a number; then the third
    says a number. All numbers are from 0 to m - 1, the dealt ones uniform. Component `correct`: to all three in the
    last turn, 1 if the third said the sum of the two dealt numbers mod m, else 0.
    Raises ValueError for a modulus below 2.
    """

    modulus: int = 10

    agents = 3
    turns = 3
    seat_turns = 1
    alternating = True
    roles = ("sender", "adder", "receiver")
    components = ("correct",)

    def __post_init__(self):
        at_least(2, modulus=self.modulus)

    @property
    def actions(self) -> int:
        return self.modulus

    @property
    def rules(self) -> Fields:
        team = (
            f"Three players say a number each. The third must say the sum mod {self.modulus} of two hidden numbers: 1 "
            "point to all."
        )
        parts = (
            "You are first and know one of them; the second player hears you.",
            "You are second, hear the first and know the other number; the third player hears you.",
            "You are third and hear the second, who has heard the first.",
        )
        dealt = tuple(f" Your number is {number}." for number in digits(self.modulus))
        return tuple(f"{team} {part} {span(self.modulus)}" for part in parts), dealt

    @property
    def observation(self) -> Fields:
        heard = (f"They say {number}. Say a number." for number in digits(self.modulus))
        return (("Say a number.", *heard),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(digits(self.modulus)),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` adds its own number, if it has one, to the number that it heard."""

        def correct(state, seat, key):
            heard, dealt = jnp.where(seat == 0, 0, state.said), jnp.append(state.numbers, 0)[seat]
            return (heard + dealt) % self.modulus

        return {"random": random_player(self.view), "correct": correct}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[RelayState, View]:
        state = self._start(draw(key, self.modulus**2))
        return state, self.view(state)

    def initial_states(self) -> tuple[RelayState, np.ndarray]:
        return all_deals(self._start, self.modulus**2)

    def prompt(self, state: RelayState) -> jax.Array:
        return jnp.stack([jnp.arange(3, dtype=jnp.int32), jnp.append(state.numbers, -1)], 1)

    def step(self, state: RelayState, action: jax.Array, key: jax.Array) -> tuple[RelayState, View, jax.Array]:
        said = jnp.clip(action[jnp.minimum(state.turn, 2)], 0, self.modulus - 1)
        correct = (state.turn == 2) & (said == state.numbers.sum() % self.modulus)
        after = RelayState(state.numbers, state.turn + 1, said)
        return after, self.view(after), jnp.broadcast_to(correct, (3, 1)).astype(jnp.float32)

    def _start(self, number: jax.Array) -> RelayState:
        numbers = jnp.stack([number // self.modulus, number % self.modulus])
        return RelayState(numbers, jnp.int32(0), jnp.int32(0))

    def view(self, state: RelayState) -> View:
        acting = jnp.arange(3) == state.turn
        told = jnp.where(state.turn == 0, 0, 1 + state.said)
        return make_view(self, [told], acting, state.turn >= 3, role=jnp.arange(3))


class SixState(struct.PyTreeNode):
    cues: jax.Array  # int32 [turns]
    turn: jax.Array  # int32


@dataclass(frozen=True)
class SixTurns:
    """Two seats alternate; the acting seat sees a colour and says a letter. Each colour has one right letter, to be
    learnt.

    `letters` are the right letters of red, green, blue and yellow in this order; they may be words of several tokens.
    Cues are uniform and independent, and a seat is told the cues of its own turns only. Components, to the acting seat:

    - `hit`: 1 for the right letter, else -0.2.
    - `constant`: 2 in each turn of seat 1 (role "second"), for any letter.

    So the credit is known exactly. A turn's reward depends on its own cue and letter alone, and no letter changes a
    later turn. The advantage of letter a given cue c under a policy p is 1.2 * (1[a right] - p(right | c)) for `hit`
    and 0 for `constant`. A baseline that pools roles or turns adds variance and nothing else. Methods of turn-level
    credit are compared on this game ("which turn").

    The texts are silent about points and right letters on purpose: both are to be learnt from reward.
    Raises ValueError for turns < 1 or letters that are not four different ones.
    """

    turns: int = 6
    letters: tuple[str, ...] = ("A", "B", "C", "D")

    agents = 2
    alternating = True
    actions = 4
    roles = ("first", "second")
    components = ("hit", "constant")
    cues = ("red", "green", "blue", "yellow")

    def __post_init__(self):
        at_least(1, turns=self.turns)
        if len(set(self.letters)) != 4 or len(self.letters) != 4:
            raise ValueError(f"letters must be four different ones, got {self.letters!r}.")

    @property
    def seat_turns(self) -> int:
        return -(-self.turns // 2)

    @property
    def rules(self) -> Fields:
        what = f"{', '.join(self.letters[:-1])} or {self.letters[-1]}"
        rule = f"In each of your turns you see a colour. Each colour has one right letter. Answer {what}."
        return (tuple(f"You play {place}. {rule}" for place in self.roles),)

    @property
    def observation(self) -> Fields:
        return (tuple(f"It is {cue}." for cue in self.cues),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(self.letters),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view), "correct": lambda state, seat, key: self._cue(state)}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[SixState, View]:
        state = SixState(jax.random.randint(key, (self.turns,), 0, 4, jnp.int32), jnp.int32(0))
        return state, self.view(state)

    def prompt(self, state: SixState) -> jax.Array:
        return jnp.arange(2, dtype=jnp.int32)[:, None]

    def step(self, state: SixState, action: jax.Array, key: jax.Array) -> tuple[SixState, View, jax.Array]:
        acts = jnp.arange(2) == state.turn % 2
        hit = jnp.where(acts, jnp.where(action == self._cue(state), 1.0, -0.2), 0.0)
        constant = jnp.where(acts, jnp.array([0.0, 2.0]), 0.0)
        after = SixState(state.cues, state.turn + 1)
        return after, self.view(after), jnp.stack([hit, constant], 1).astype(jnp.float32)

    def initial_states(self) -> tuple[SixState, np.ndarray]:
        return all_deals(lambda *cues: SixState(jnp.stack(cues), jnp.int32(0)), *(4,) * self.turns)

    def _cue(self, state: SixState) -> jax.Array:
        return state.cues[jnp.minimum(state.turn, self.turns - 1)]

    def view(self, state: SixState) -> View:
        acting = jnp.arange(2) == state.turn % 2
        return make_view(self, [self._cue(state)], acting, state.turn >= self.turns, role=jnp.arange(2))


class HalvesState(struct.PyTreeNode):
    numbers: jax.Array  # int32 [2]
    turn: jax.Array  # int32
    sent: jax.Array  # int32 [2]


@dataclass(frozen=True)
class Halves:
    """Two seats hold a number each, from 0 to m - 1, uniform. Both send a letter at once and hear the other's. Then
    both say the sum of the two numbers mod m at once.

    Component `correct`: to both in the last turn, 1 if both answers are right, else 0. Letters have no meaning of their
    own. With fewer letters than numbers, `symbols` < m, no pair of policies is always right.
    Raises ValueError for a modulus below 2 or symbols that are not 1 to 26.
    """

    modulus: int = 10
    symbols: int = 10

    agents = 2
    turns = 2
    roles = ("player",)
    components = ("correct",)

    def __post_init__(self):
        at_least(2, modulus=self.modulus)
        if not 1 <= self.symbols <= 26:
            raise ValueError(f"symbols must be 1 to 26, as there are letters, got {self.symbols}.")

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple("abcdefghijklmnopqrstuvwxyz"[: self.symbols])

    @property
    def actions(self) -> int:
        return max(self.modulus, self.symbols)

    @property
    def rules(self) -> Fields:
        team = (
            f"You and a partner know one number each, from 0 to {self.modulus - 1}. You send each other one letter "
            f"from a to {self.letters[-1]}. Then both must say the sum of the two numbers mod {self.modulus}: 1 "
            "point to both if both are right."
        )
        return (f"{team} {span(self.modulus)}",), tuple(f" Your number is {number}." for number in digits(self.modulus))

    @property
    def observation(self) -> Fields:
        return (("Send a letter.", *(f"They send {letter}. What is the sum?" for letter in self.letters)),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(self.letters), choice(digits(self.modulus))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` knows both numbers. `decoder` sends its own number mod `symbols` and takes the other's letter for
        its number."""

        def player(knows):
            def play(state, seat, key):
                theirs = state.numbers[1 - seat] if knows else state.sent[1 - seat]
                mine = state.numbers[seat]
                return jnp.where(state.turn == 0, mine % self.symbols, (mine + theirs) % self.modulus)

            return play

        return {"random": random_player(self.view), "correct": player(True), "decoder": player(False)}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[HalvesState, View]:
        state = self._start(draw(key, self.modulus**2))
        return state, self.view(state)

    def initial_states(self) -> tuple[HalvesState, np.ndarray]:
        return all_deals(self._start, self.modulus**2)

    def prompt(self, state: HalvesState) -> jax.Array:
        return jnp.stack([jnp.zeros((2,), jnp.int32), state.numbers], 1)

    def step(self, state: HalvesState, action: jax.Array, key: jax.Array) -> tuple[HalvesState, View, jax.Array]:
        correct = (state.turn == 1) & (action == state.numbers.sum() % self.modulus).all()
        sent = jnp.where(state.turn == 0, jnp.clip(action, 0, self.symbols - 1), state.sent)
        after = HalvesState(state.numbers, state.turn + 1, sent)
        return after, self.view(after), jnp.broadcast_to(correct, (2, 1)).astype(jnp.float32)

    def _start(self, number: jax.Array) -> HalvesState:
        numbers = jnp.stack([number // self.modulus, number % self.modulus])
        return HalvesState(numbers, jnp.int32(0), jnp.zeros((2,), jnp.int32))

    def view(self, state: HalvesState) -> View:
        text = jnp.where(state.turn == 0, 0, 1 + state.sent[::-1])
        return make_view(self, [text], True, state.turn >= 2, grammar=jnp.minimum(state.turn, 1))


GAMES = {"relay": Relay, "halves": Halves, "six_turns": SixTurns}
