"""A duel of sums: two seats write private partial sums, then answer; the host wins unless the guest alone is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, digits, make_view, random_player, zero_sum
from jaxmarl_llm.text.grammar import Grammar


class DuelState(struct.PyTreeNode):
    terms: jax.Array  # int32 [2, terms], the digits of each seat
    turn: jax.Array  # int32
    answer: jax.Array  # int32 [2], -1: none yet


@dataclass(frozen=True)
class SumDuel:
    """Each of two seats is told `terms` digits below `modulus` of its own; its right answer is their sum modulo
    `modulus`.

    In each turn a seat writes a symbol that nobody else reads, or answers and is done. Its symbols so far are a
    thought. A seat without an answer after `limit` turns is wrong, so a thought may be too long. With `marks` equal to
    `modulus` symbols are digits, which can carry partial sums. With `marks` 1 the only symbol is a dot, and a thought
    carries its length alone. Action a < modulus answers a; action modulus + s writes symbol s.

    Component `points`, paid at the end: the guest (seat 1) wins 1 from the host if it is right and the host is wrong.
    Otherwise the host wins 1 from the guest. So the host's value is 1 - 2 P(guest right) P(host wrong).
    Measure `right`, after a seat's answer: 1 if it is right. All chance is in the deal.
    Raises ValueError for other marks, a modulus below 2 or above 10, and terms or limit below 1.
    """

    terms: int = 4
    modulus: int = 4
    limit: int = 6
    marks: int = 4
    stops: float = 0.15

    agents = 2
    roles = ("host", "guest")
    components = ("points",)
    measures = ("right",)
    observation: Fields = ((" Begin.",),)

    def __post_init__(self):
        at_least(1, terms=self.terms, limit=self.limit)
        at_least(2, modulus=self.modulus)
        if self.modulus > 10:
            raise ValueError(f"The modulus is at most 10, so that a digit has one symbol, got {self.modulus}.")
        if self.marks not in (1, self.modulus):
            raise ValueError(f"marks is 1 or the modulus {self.modulus}, got {self.marks}.")

    @property
    def turns(self) -> int:
        return self.limit

    @property
    def actions(self) -> int:
        return self.modulus + self.marks

    @property
    def rules(self) -> Fields:
        """A phrase for each role, then the digits."""
        write = "a digit" if self.marks > 1 else "a dot"
        text = (
            f"Answer the sum of your digits modulo {self.modulus}, as in =1. In each turn write {write}, which the "
            f"other does not read, or answer. After {self.limit} turns without an answer you are wrong. The guest wins "
            "1 point from the host if the guest is right and the host is wrong; otherwise the host wins 1 point from "
            "the guest."
        )
        number = tuple(f" {digit}" for digit in digits(self.modulus))
        return (tuple(f"{text} You are the {role}. Your digits:" for role in self.roles), *[number] * self.terms)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        numbers = digits(self.modulus)
        symbols = numbers if self.marks > 1 else (".",)
        return (choice([*(f" ={number}" for number in numbers), *(f" {symbol}" for symbol in symbols)]),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`careful` writes in each turn the sum of one more digit, and answers the whole sum as soon as it has it, or
        in the last turn. `rambling` writes such sums, too. In any turn it answers its sum so far with probability
        `stops`, so it is often too early or too late."""
        return {"random": random_player(self.view), "careful": self._be_careful, "rambling": self._ramble}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[DuelState, View]:
        terms = jax.random.randint(key, (2, self.terms), 0, self.modulus, jnp.int32)
        state = DuelState(terms, jnp.int32(0), jnp.full(2, -1, jnp.int32))
        return state, self.view(state)

    def prompt(self, state: DuelState) -> jax.Array:
        return jnp.concatenate([jnp.arange(2, dtype=jnp.int32)[:, None], state.terms], 1)

    def step(self, state: DuelState, action: jax.Array, key: jax.Array) -> tuple[DuelState, View, jax.Array]:
        answers = (state.answer < 0) & (action < self.modulus)
        after = state.replace(turn=state.turn + 1, answer=jnp.where(answers, action, state.answer))
        right, view = after.answer == state.terms.sum(-1) % self.modulus, self.view(after)
        points = jnp.where(right[1] & ~right[0], -1, 1)
        measured = jnp.where(answers, right, 0).astype(jnp.float32)[:, None]
        return after, view.replace(measured=measured), zero_sum(jnp.where(view.terminated, points, 0))

    def view(self, state: DuelState) -> View:
        ended = (state.turn >= self.limit) | (state.answer >= 0).all()
        told = jnp.where(state.turn == 0, 0, -1)
        return make_view(self, [told], state.answer < 0, ended, role=jnp.arange(2))

    def _be_careful(self, state: DuelState, seat: jax.Array, key: jax.Array) -> jax.Array:
        total, symbol = state.terms[seat].sum() % self.modulus, self._write_sum(state, seat)
        return jnp.where(state.turn >= min(self.terms, self.limit) - 1, total, symbol).astype(jnp.int32)

    def _ramble(self, state: DuelState, seat: jax.Array, key: jax.Array) -> jax.Array:
        answers = jax.random.uniform(key) < self.stops
        return jnp.where(answers, self._sum_so_far(state, seat), self._write_sum(state, seat)).astype(jnp.int32)

    def _write_sum(self, state: DuelState, seat: jax.Array) -> jax.Array:
        """The symbol that a careful thought has in this turn."""
        return self.modulus + self._sum_so_far(state, seat) * (self.marks > 1)

    def _sum_so_far(self, state: DuelState, seat: jax.Array) -> jax.Array:
        return (state.terms[seat].cumsum() % self.modulus)[jnp.minimum(state.turn, self.terms - 1)]


GAMES = {"sum_duel": SumDuel}
