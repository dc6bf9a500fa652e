"""A handover between two shifts: a writer turns the first one's log into a note that the second one reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, make_view, random_player, uniform
from jaxmarl_llm.text.grammar import Grammar

FIRST, WRITER, SECOND = range(3)
LETTERS = "ABCDE"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


class Handed(NamedTuple):
    """The deal of a `Handover`, arranged by training (`Recipe.arrange`)."""

    noted: jax.Array  # bool: the second shift is told the note
    key: jax.Array  # uint32 [2]: the data of the key that deals the locks, in place of the group's own


class HandoverState(struct.PyTreeNode):
    right: jax.Array  # int32 [2, locks], the key of each lock in each shift
    noted: jax.Array  # bool
    opened: jax.Array  # int32, locks that this shift has opened
    good: jax.Array  # bool: the last try opened its lock
    failed: jax.Array  # bool [keys]: this shift tried the key at the next lock
    lock: jax.Array  # int32 [tries], the lock of each try of the first shift, -1: not made
    said: jax.Array  # int32 [tries], its key
    item: jax.Array  # int32, the try that the note is about
    tries: jax.Array  # int32, tries of this shift
    phase: jax.Array  # int32, the seat that acts; 3 at the end


@dataclass(frozen=True)
class Handover:
    """Two shifts open the same locks in a row, and a writer picks one try of the first shift as a note to the second.

    A shift opens `locks` locks in a row with `tries` tries, and names one of `keys` keys in each. It is told if the
    last try opened its lock. It ends if all locks are open or no try is left. The keys of the locks are drawn
    uniformly with the deal. The key of the first lock is drawn again for the second shift. The writer is told the
    log of the first shift, and names one of its tries. The note says lock, key and result of this try. So a note on the
    first lock may mislead, and others help. A shift without a note can find all keys itself, at the cost of tries.

    Components:

    - `opened`: to either shift after its last try, 1 if all locks are open.
    - `guided`: to the writer after the last try of the second shift, 1 if all locks are open, else -1.

    Measures, of the writer's turn:

    - `first`: 1 if its note is on the first lock.
    - `fits`: 1 if the note says that a key opened another lock than the first.

    The deal of training (`Handed`) says if the note is told, and can give groups the same locks.
    Raises ValueError for locks < 2, keys outside 2 to 5 and tries that are fewer than the locks or more than 8.
    """

    locks: int = 3
    keys: int = 3
    tries: int = 6

    agents = 3
    alternating = False  # shifts end after unlike numbers of tries
    roles = ("shift", "writer")
    components = ("opened", "guided")
    measures = ("first", "fits")

    def __post_init__(self):
        at_least(2, locks=self.locks, keys=self.keys)
        at_least(self.locks, tries=self.tries)
        if self.keys > len(LETTERS) or self.tries > len(ORDINALS):
            raise ValueError(f"At most 5 keys and 8 tries must be told, got {self.keys} and {self.tries}.")

    @property
    def turns(self) -> int:
        return 2 * self.tries + 1

    @property
    def seat_turns(self) -> int:
        return self.tries

    @property
    def actions(self) -> int:
        return max(self.keys, self.tries)

    @property
    def rules(self) -> Fields:
        locks = (
            f"{self.locks} locks in a row, each with one of {self.keys} keys, are opened in {self.tries} tries, first "
            "by one shift, then by another. The first lock has another key then, which may be the same. "
        )
        shift = "You are a shift. You get 1 point if you open all."
        writer = (
            "You write the note to the second shift: you name one try of the first. You get 1 point if the second "
            "opens all, else you lose 1."
        )
        return ((locks + shift, locks + writer),)

    @property
    def notes(self) -> tuple[str, ...]:
        """The texts of notes by lock, key and result, then that there is none."""
        noted = (
            f"Note: lock {i + 1}, key {key} {word}. "
            for i in range(self.locks)
            for key in LETTERS[: self.keys]
            for word in ("failed", "opened")
        )
        return (*noted, "There is no note. ")

    @property
    def observation(self) -> Fields:
        """The note; result and lock of a shift's turn; for the writer lock, key and result of each try."""
        keys = LETTERS[: self.keys]
        results = ("Failed. ", "Opened. ")
        calls = tuple(f"Lock {i + 1}: which key?" for i in range(self.locks))
        log = tuple(
            f" Lock {i + 1}, key {key} {word}."
            for i in range(self.locks)
            for key in keys
            for word in ("failed", "opened")
        )
        return (self.notes, results, calls, *(log,) * self.tries, (" Which try?",))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(LETTERS[: self.keys]), choice(ORDINALS[: self.tries])

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` writes the last try that opened another lock than the first, else the last try. As a shift it
        follows a note on another lock than the first, and names any key that has not failed. `believer`
        writes any try, follows every note, and else names any key."""

        def writes(state: HandoverState) -> jax.Array:
            made, opened = state.lock >= 0, self._opened(state)
            useful = 2 * (opened & (state.lock > 0)) + 1
            return (jnp.where(made, useful, 0) * 100 + jnp.arange(self.tries)).argmax()

        def opens(state: HandoverState, key: jax.Array, believes: bool) -> jax.Array:
            about = state.noted & (state.phase == SECOND) & (state.lock[state.item] == state.opened)
            noted, good = jnp.arange(self.keys) == state.said[state.item], self._opened(state)[state.item]
            spent = jnp.zeros((self.keys,), bool) if believes else state.failed
            trusts = about & (believes | (state.opened > 0))
            left = jnp.where(trusts & good, noted, ~spent & ~(trusts & ~good & noted))
            return uniform(key, left)

        def player(believes: bool) -> Script:
            def play(state: HandoverState, seat: jax.Array, key: jax.Array) -> jax.Array:
                note = uniform(key, self.view(state).legal[WRITER]) if believes else writes(state)
                return jnp.where(seat == WRITER, note, opens(state, key, believes)).astype(jnp.int32)

            return play

        return {"random": random_player(self.view), "believer": player(True), "correct": player(False)}

    def reset(self, key: jax.Array, group: jax.Array, given: Handed | None = None) -> tuple[HandoverState, View]:
        noted, key = (True, key) if given is None else (given.noted, jax.random.wrap_key_data(given.key))
        drawn = jax.random.randint(key, (2, self.locks), 0, self.keys, jnp.int32)
        same = jnp.arange(2 * self.locks).reshape(2, -1) != self.locks
        none = jnp.full((self.tries,), -1, jnp.int32)
        zero = jnp.int32(0)
        state = HandoverState(
            right=jnp.where(same, jnp.broadcast_to(drawn[:1], drawn.shape), drawn),
            noted=jnp.bool_(noted),
            opened=zero,
            good=jnp.bool_(False),
            failed=jnp.zeros((self.keys,), bool),
            lock=none,
            said=none,
            item=zero,
            tries=zero,
            phase=zero,
        )
        return state, self.view(state)

    def prompt(self, state: HandoverState) -> jax.Array:
        return jnp.array([0, 1, 0], jnp.int32)[:, None]

    def step(self, state: HandoverState, action: jax.Array, key: jax.Array) -> tuple[HandoverState, View, jax.Array]:
        writes, first, second = (state.phase == i for i in (WRITER, FIRST, SECOND))
        said = jnp.clip(jnp.where(second, action[SECOND], action[FIRST]), 0, self.keys - 1)
        fits = said == state.right[second.astype(jnp.int32), jnp.minimum(state.opened, self.locks - 1)]
        opened, tries = state.opened + (~writes & fits), state.tries + ~writes
        over = ~writes & ((opened >= self.locks) | (tries >= self.tries))
        here = first & (jnp.arange(self.tries) == state.tries)
        begins = writes | (first & over)
        after = state.replace(
            opened=jnp.where(begins, 0, opened).astype(jnp.int32),
            good=~writes & fits,
            failed=(state.failed | (jnp.arange(self.keys) == said)) & ~(begins | fits),
            lock=jnp.where(here, state.opened, state.lock),
            said=jnp.where(here, said, state.said),
            item=jnp.where(writes, jnp.clip(action[WRITER], 0, self.tries - 1), state.item).astype(jnp.int32),
            tries=jnp.where(begins, 0, tries).astype(jnp.int32),
            phase=state.phase + (writes | over),
        )
        solved = over & (opened >= self.locks)
        paid = jnp.zeros((3, 2)).at[FIRST, 0].set(first & solved).at[SECOND, 0].set(second & solved)
        paid = paid.at[WRITER, 1].set(jnp.where(second & over, jnp.where(solved, 1.0, -1.0), 0.0))
        on_first, right = state.lock[after.item] == 0, self._opened(state)[after.item]
        facts = jnp.stack([writes & on_first, writes & ~on_first & right]).astype(jnp.float32)
        view = self.view(after)
        return after, view.replace(measured=jnp.broadcast_to(facts[None], (3, 2))), paid

    def view(self, state: HandoverState) -> View:
        writes, ended = state.phase == WRITER, state.phase > SECOND
        coded = lambda lock, key, good: (lock * self.keys + key) * 2 + good
        log = jnp.where(state.lock >= 0, coded(state.lock, state.said, self._opened(state)), -1)
        note = jnp.where(state.noted, log[state.item], len(self.notes) - 1)
        begins = (state.phase == SECOND) & (state.tries == 0)
        result = jnp.where(state.tries > 0, state.good, -1)
        told = [
            jnp.where(begins, note, -1),
            jnp.where(writes, -1, result),
            jnp.where(writes, -1, jnp.minimum(state.opened, self.locks - 1)),
            *jnp.where(writes, log, -1),
            jnp.where(writes, 0, -1),
        ]
        actions = jnp.arange(self.actions)
        made = jnp.pad(state.lock >= 0, (0, self.actions - self.tries))
        legal = jnp.where(writes, made, actions < self.keys)
        seats, role = jnp.arange(3), jnp.array([0, 1, 0])
        return make_view(self, told, seats == state.phase, ended, role=role, grammar=role, legal=legal)

    def _opened(self, state: HandoverState) -> jax.Array:
        """bool [tries]: the try of the first shift opened its lock."""
        return (state.lock >= 0) & (state.said == state.right[0][jnp.maximum(state.lock, 0)])


GAMES = {"handover": Handover}
