"""A team with a memory: a builder keeps few facts, a question comes later, and a reader answers it from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, digits, draw, make_view, random_player, uniform
from jaxmarl_llm.text.grammar import Grammar

BUILDER, READER = range(2)
LETTERS = "ABCDEF"
PLACES = ("first", "second", "third")


class MemoryState(struct.PyTreeNode):
    counts: jax.Array  # int32 [facts], index into `mentions`
    plan: jax.Array  # int32, the fact about a plan
    asked: jax.Array  # int32, the fact that the question is about
    facts: jax.Array  # int32 [facts], the value of each
    works: jax.Array  # bool: the reader has the memory
    kept: jax.Array  # int32, index into `sets`
    place: jax.Array  # int32, the place that the reader names
    turn: jax.Array  # int32


@dataclass(frozen=True)
class FactMemory:
    """Facts pass by, a builder keeps `kept` of them, and a reader is asked for one.

    A deal has `facts` facts. `kept` of them were heard often, all as often, `often[i]` times with i drawn with the
    deal; the others were heard once. One fact is about a plan. The question is about that fact with a chance of
    `planned`, and else about any of the others. The draws are independent, so that mentions tell nothing of the
    question. The builder is told all but the values, and names the facts to keep. The reader is told which facts are
    kept, and the question. It names the place of a fact to read, or says neither, is told the value there, and answers.
    A value is drawn uniformly from `values`, so that a reader without it guesses.

    Components:

    - `coverage`: to the builder, the share of all mentions that are of kept facts.
    - `retrieved`: to the reader in the last turn, 1 if it named the place of the asked fact and answers the value
      there, or said neither where that fact is not kept.
    - `right`: to both, 1 for the right answer.

    Measure `known`: 1 in the last turn if the asked fact is kept.

    The deal of training is a bool, by default true. If it is false the reader has an empty memory; all else, with its
    chance, stays the same.
    Raises ValueError for facts outside 2 to 6, kept outside 1 to 3 or not below the facts, and values < 2. Raises it
    also for counts that are not two or more, and a chance outside 0 to 1.
    """

    facts: int = 4
    kept: int = 2
    values: int = 4
    often: tuple[int, ...] = (2, 3, 4, 8)
    planned: float = 0.9

    agents = 2
    alternating = True
    turns = 3
    roles = ("builder", "reader")
    components = ("coverage", "retrieved", "right")
    measures = ("known",)

    def __post_init__(self):
        at_least(1, kept=self.kept)
        at_least(2, facts=self.facts, values=self.values)
        if self.facts > len(LETTERS) or self.kept > len(PLACES) or self.kept >= self.facts:
            raise ValueError(f"1 to 3 of 2 to 6 facts are kept, not all, got {self.kept} of {self.facts} facts.")
        if not self.often or min(self.often) < 2:
            raise ValueError(f"A fact that is heard often is heard at least twice, got {self.often}.")
        if not 0 <= self.planned <= 1:
            raise ValueError(f"planned is a chance, got {self.planned}.")

    @property
    def sets(self) -> tuple[tuple[int, ...], ...]:
        """The sets of facts that can be kept, by action of the builder."""
        return tuple(combinations(range(self.facts), self.kept))

    @property
    def actions(self) -> int:
        return max(len(self.sets), self.kept + 1, self.values)

    @property
    def rules(self) -> Fields:
        team = (
            f"{self.facts} facts pass by, the builder keeps {self.kept}, and the reader is asked for one of them. The "
            f"question is about the fact on a plan in {round(100 * self.planned)} of 100 cases. A right answer is 1 "
            "point to both."
        )
        builder = "You are the builder. You also get the share of all mentions that are of the facts you keep."
        reader = (
            "You are the reader. You name the place of a fact to read, or neither, then the value. You also get 1 "
            "point for the place of the fact asked for with the value there, or for neither if it is not kept."
        )
        return ((f"{team} {builder}", f"{team} {reader}"),)

    @property
    def observation(self) -> Fields:
        """The mentions of each fact and the fact on a plan; for the reader the kept facts, the question, the value."""
        names, times = LETTERS[: self.facts], ("once", *(f"{n} times" for n in self.often))
        heard = tuple(tuple(f" {name} was heard {n}." for n in times) for name in names)
        plans = tuple(f" {name} is on a plan. Which do you keep?" for name in names)
        sets = tuple(f"Kept: {text}." for text in self._names)
        asked = tuple(f" The question is {name}. Which place?" for name in names)
        values = tuple(f"It is {value}. Your answer?" for value in digits(self.values))
        return (*heard, plans, (*sets, "Kept: nothing."), asked, (*values, "Nothing is read. Your answer?"))

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(" and ".join(LETTERS[i] for i in some) for some in self.sets)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(self._names), choice((*PLACES[: self.kept], "neither")), choice(digits(self.values))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` keeps the fact on a plan with the most mentions beside it, and reads right. `covering` keeps the
        facts that were heard often, and reads right. `unsure` keeps any facts, and names any place in every second
        game; it answers what it reads."""

        def player(kind: str) -> Script:
            def play(state: MemoryState, seat: jax.Array, key: jax.Array) -> jax.Array:
                keys = jax.random.split(key, 3)
                drawn = uniform(keys[0], jnp.arange(self.actions) < len(self.sets))
                plan = 1000 * (jnp.arange(self.facts) == state.plan) * (kind == "correct")
                worth = jnp.where(jnp.asarray(self._holds), (self._mentions(state) + plan)[None], 0).sum(1)
                keeps = drawn if kind == "unsure" else worth.argmax()
                place = self._right_place(state)
                any_place = uniform(keys[1], jnp.arange(self.actions) <= self.kept)
                guesses = (kind == "unsure") & jax.random.bernoulli(keys[2])
                said = jnp.where(state.turn == 1, jnp.where(guesses, any_place, place), self._read(state))
                said = jnp.where((state.turn == 2) & (said >= self.values), 0, said)
                return jnp.where(seat == BUILDER, keeps, said).astype(jnp.int32)

            return play

        named = {kind: player(kind) for kind in ("unsure", "covering", "correct")}
        return {"random": random_player(self.view), **named}

    def reset(self, key: jax.Array, group: jax.Array, given: jax.Array | None = None) -> tuple[MemoryState, View]:
        keys = jax.random.split(key, 6)
        often, plan = draw(keys[0], len(self.sets)), draw(keys[1], self.facts)
        level = 1 + draw(keys[2], len(self.often))
        other = (plan + 1 + draw(keys[3], self.facts - 1)) % self.facts
        state = MemoryState(
            counts=jnp.where(jnp.asarray(self._holds)[often], level, 0).astype(jnp.int32),
            plan=plan,
            asked=jnp.where(jax.random.bernoulli(keys[4], self.planned), plan, other).astype(jnp.int32),
            facts=jax.random.randint(keys[5], (self.facts,), 0, self.values, jnp.int32),
            works=jnp.bool_(True if given is None else given),
            kept=jnp.int32(0),
            place=jnp.int32(0),
            turn=jnp.int32(0),
        )
        return state, self.view(state)

    def prompt(self, state: MemoryState) -> jax.Array:
        return jnp.arange(2, dtype=jnp.int32)[:, None]

    def step(self, state: MemoryState, action: jax.Array, key: jax.Array) -> tuple[MemoryState, View, jax.Array]:
        keeps, places, answers = (state.turn == i for i in range(3))
        after = state.replace(
            kept=jnp.where(keeps, jnp.clip(action[BUILDER], 0, len(self.sets) - 1), state.kept).astype(jnp.int32),
            place=jnp.where(places, jnp.clip(action[READER], 0, self.kept), state.place).astype(jnp.int32),
            turn=state.turn + 1,
        )
        mentions, holds = self._mentions(state), jnp.asarray(self._holds)[after.kept]
        coverage = jnp.where(keeps, (mentions * holds).sum() / mentions.sum(), 0)
        right = answers & (action[READER] == state.facts[state.asked])
        retrieved = answers & (state.place == self._right_place(state)) & (right | (state.place == self.kept))
        facts = jnp.stack([coverage, retrieved, right]).astype(jnp.float32)
        paid = facts[None] * jnp.array([[1.0, 0, 1], [0, 1, 1]])
        known = answers & (self._right_place(state) < self.kept)
        view = self.view(after).replace(measured=jnp.full((2, 1), known, jnp.float32))
        return after, view, paid

    def view(self, state: MemoryState) -> View:
        builds, reads = state.turn == 0, state.turn == 1
        memory = jnp.where(state.works, state.kept, len(self.sets))
        told = [
            *jnp.where(builds, state.counts, -1),
            jnp.where(builds, state.plan, -1),
            jnp.where(reads, memory, -1),
            jnp.where(reads, state.asked, -1),
            jnp.where(state.turn == 2, self._read(state), -1),
        ]
        acting, grammar = jnp.arange(2) == jnp.where(builds, BUILDER, READER), jnp.minimum(state.turn, 2)
        return make_view(self, told, acting, state.turn >= self.turns, role=jnp.arange(2), grammar=grammar)

    @property
    def _holds(self) -> np.ndarray:
        """bool [sets, facts]: the set has the fact."""
        return np.array([[i in some for i in range(self.facts)] for some in self.sets])

    def _mentions(self, state: MemoryState) -> jax.Array:
        """int32 [facts]."""
        return jnp.array([1, *self.often])[state.counts]

    def _right_place(self, state: MemoryState) -> jax.Array:
        """The place of the asked fact, or the number of places if the memory has none."""
        here = jnp.asarray(self.sets)[state.kept] == state.asked
        return jnp.where(state.works & here.any(), here.argmax(), self.kept)

    def _read(self, state: MemoryState) -> jax.Array:
        """The value at the named place, or the number of values if nothing is read."""
        read = state.facts[jnp.asarray(self.sets)[state.kept, jnp.minimum(state.place, self.kept - 1)]]
        return jnp.where(state.works & (state.place < self.kept), read, self.values)


GAMES = {"fact_memory": FactMemory}
