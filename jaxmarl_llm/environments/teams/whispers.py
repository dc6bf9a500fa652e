"""Whispers: a word is passed on in free lines, and the last seat that hears of it must name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    make_view,
    random_player,
)
from jaxmarl_llm.text.grammar import Grammar

ANIMALS = ("bee", "cat", "dog", "eagle", "horse", "penguin", "shark", "snake")


class WhispersState(struct.PyTreeNode):
    word: jax.Array  # int32
    turn: jax.Array  # int32


@dataclass(frozen=True)
class Whispers:
    """Each seat speaks once, in order, and hears only the seat before it. All but the last say a line; the last names a
    word.

    Only the first seat is told the word, drawn uniformly from `words`. The rules do not restrict a line, so a seat may
    name the word. Component `correct`: to all in the last turn, 1 if the last seat named the word, else 0.
    Raises ValueError for fewer than two agents or two words, or for words that are not all different.
    """

    words: tuple[str, ...] = ANIMALS
    agents: int = 3

    seat_turns = 1
    voices = 1
    alternating = True
    components = ("correct",)

    def __post_init__(self):
        at_least(2, agents=self.agents, words=len(self.words))
        lines = {word for word in self.words if word and "\n" not in word}
        if isinstance(self.words, str) or len(lines) < len(self.words):
            raise ValueError(f"words must be different texts of one line, got {self.words!r}.")

    @property
    def turns(self) -> int:
        return self.agents

    @property
    def actions(self) -> int:
        return len(self.words)

    @property
    def roles(self) -> tuple[str, ...]:
        return ("first", *("between",) * (self.agents > 2), "last")

    @property
    def rules(self) -> Fields:
        """Rules for the first seat, the seats between and the last seat; then the word."""
        team = f"{self.agents} players pass on a word, each to the next. If the last one names it, all get 1 point."
        words = f"{', '.join(self.words[:-1])} or {self.words[-1]}"
        parts = (
            "You are the first. Tell the next player about it in one line, so that the last player can name it.",
            "You hear a line of the player before. Pass it on in one line, so that the last player can name the word.",
            f"You are the last and hear a line of the player before. Name the word. Answer {words}.",
        )
        return tuple(f"{team} {part}" for part in parts), tuple(f" The word is {word}." for word in self.words)

    @property
    def observation(self) -> Fields:
        """The line that is heard, the question."""
        heard: Fields = (("They say:\n",), *(MessageFrom(seat) for seat in range(self.agents - 1)))
        return (*heard, ("Say one line.", "\nSay one line.", "\nWhich word is it?"))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(self.words), MESSAGE

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`random` names a random word; `correct` reads the word in the state and names it. Both say empty lines."""
        return {"random": random_player(self.view), "correct": lambda state, seat, key: self._last(seat) * state.word}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[WhispersState, View]:
        state = self._start(draw(key, len(self.words)))
        return state, self.view(state)

    def initial_states(self) -> tuple[WhispersState, np.ndarray]:
        return all_deals(self._start, len(self.words))

    def prompt(self, state: WhispersState) -> jax.Array:
        seat = jnp.arange(self.agents)
        return jnp.stack([self._place(seat), jnp.where(seat == 0, state.word, -1)], 1)

    def step(self, state: WhispersState, action: jax.Array, key: jax.Array) -> tuple[WhispersState, View, jax.Array]:
        correct = (state.turn == self.agents - 1) & (action[-1] == state.word)
        after = WhispersState(state.word, state.turn + 1)
        return after, self.view(after), jnp.broadcast_to(correct, (self.agents, 1)).astype(jnp.float32)

    def _start(self, word: jax.Array) -> WhispersState:
        return WhispersState(word, jnp.int32(0))

    def _last(self, seat: jax.Array) -> jax.Array:
        return (seat == self.agents - 1).astype(jnp.int32)

    def _place(self, seat: jax.Array) -> jax.Array:
        """0 for the first seat, 1 for the seats between, 2 for the last seat."""
        return (seat > 0).astype(jnp.int32) + self._last(seat)

    def view(self, state: WhispersState) -> View:
        seat, ended = jnp.arange(self.agents), state.turn >= self.agents
        acting, last = seat == state.turn, self._last(seat)
        fields = [jnp.where(seat > 0, 0, -1), *[-1] * (self.agents - 1), self._place(seat)]
        hears = (seat[:, None] == state.turn - 1) & acting[None, :]
        role = self._place(seat) if self.agents > 2 else last
        return make_view(self, fields, acting, ended, role=role, grammar=1 - last, hears=hears)


GAMES = {"whispers": Whispers}
