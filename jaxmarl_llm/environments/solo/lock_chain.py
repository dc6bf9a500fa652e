"""A chain of locks for one seat: many turns, a reward at the end, and a known contribution of every turn."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, all_deals, at_least, choice, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar

COLOURS = ("red", "green", "blue", "yellow", "white", "black", "brown", "orange", "purple", "pink")
DECOYS = ("E", "F", "G", "H")
START, OPENS, SHUT, NOTHING = range(4)
PAYS = ("solved", "progress")


class LockState(struct.PyTreeNode):
    colours: jax.Array  # int32 [locks]
    length: jax.Array  # int32, locks of this chain
    opened: jax.Array  # int32
    turn: jax.Array  # int32
    told: jax.Array  # int32: START, OPENS, SHUT or NOTHING


@dataclass(frozen=True)
class LockChain:
    """One seat opens locks in a row with one key a turn. Each colour has one right key, to be learnt.

    A chain has up to `locks` locks. `reset` is given its length, or draws it uniformly. The seat sees one lock at a
    time: the next lock when the present one opens. The game ends with the last lock or after `turns` turns. `pays`
    names the component, `solved` or `progress`; the other one is a measure:

    - `solved`: 1 in the turn that opens the last lock.
    - `progress`: 1 / length for each lock that opens.

    So every turn's contribution is known. A right key moves the chain on by one lock, a wrong key costs a turn, and
    nothing else matters.

    Keys are the words of `spelled` letters of the alphabet, A to D by default. There are as many colours, and each lock
    has one of them, drawn independently. With `in_order` lock n has the nth of ten colours, so only a player that gets
    there can learn a late lock's key.

    With `decoys` there are that many more keys, which fit no lock. After such a key the seat is told that nothing
    happens, after another wrong key that the lock stays shut. The further measure `fits` is then 1 for each key that
    fits some lock, right or wrong.

    With a `shift` every colour's right key is that many keys further on, and the rules end with the number of this
    series. Chains of different shifts have all other words in common. Without the number no policy could open the first
    lock of two such chains with certainty.

    The text is silent about the right keys on purpose: they are to be learnt from reward. It mentions the point for the
    last lock even if `progress` is paid.
    Raises ValueError for another `pays`, for locks or turns < 1, for fewer turns than locks, and for more than ten
    locks in order. Raises it also for fewer than two keys or more than ten, and for a shift of as many keys or more.
    Decoys outside 0 to 4, or called as a letter of the alphabet, raise it too.
    """

    locks: int = 3
    turns: int = 6
    in_order: bool = False
    decoys: int = 0
    shift: int = 0
    pays: Literal["solved", "progress"] = "solved"
    alphabet: str = "ABCD"
    spelled: int = 1

    agents = 1
    roles = ("opener",)

    def __post_init__(self):
        if self.pays not in PAYS:
            raise ValueError(f"pays must be {' or '.join(PAYS)}, got {self.pays!r}.")
        at_least(1, locks=self.locks)
        at_least(0, decoys=self.decoys, shift=self.shift)
        at_least(1, spelled=self.spelled)
        if not 2 <= len({*self.alphabet}) ** self.spelled <= len(COLOURS) or len({*self.alphabet}) < len(self.alphabet):
            raise ValueError(
                f"The alphabet must spell 2 to {len(COLOURS)} keys, each letter once: got {self.alphabet!r} and "
                f"{self.spelled} letters a key."
            )
        if self.decoys > len(DECOYS):
            raise ValueError(f"decoys must be {len(DECOYS)} at most, got {self.decoys}.")
        if self.decoys and {*DECOYS} & {*self.alphabet}:
            raise ValueError(f"decoys are called {', '.join(DECOYS)}: keep these letters out of {self.alphabet!r}.")
        if self.shift >= self.fitting:
            raise ValueError(f"shift must be {self.fitting - 1} at most, got {self.shift}.")
        at_least(self.locks, turns=self.turns)
        if self.in_order and self.locks > len(COLOURS):
            raise ValueError(f"LockChain has {len(COLOURS)} colours in order: locks={self.locks} is more.")

    @property
    def words(self) -> tuple[str, ...]:
        """The keys that fit locks."""
        return tuple("".join(letters) for letters in itertools.product(self.alphabet, repeat=self.spelled))

    @property
    def keys(self) -> tuple[str, ...]:
        return self.words + DECOYS[: self.decoys]

    @property
    def fitting(self) -> int:
        """The number of `words`, and of colours."""
        return len(self.alphabet) ** self.spelled

    @property
    def actions(self) -> int:
        return len(self.keys)

    @property
    def components(self) -> tuple[str, ...]:
        return (self.pays,)

    @property
    def measures(self) -> tuple[str, ...]:
        return (*(part for part in PAYS if part != self.pays), *("fits",) * (self.decoys > 0))

    @property
    def rules(self) -> Fields:
        answers = f"{', '.join(self.keys[:-1])} or {self.keys[-1]}"
        end = f"When all are open, you get 1 point. You have {self.turns} turns. Answer {answers}."
        keys = "Each has a colour, and each colour has one right key. Try one key a turn. A right key opens the lock,"
        chains = tuple(
            f"There {'is 1 lock' if n == 1 else f'are {n} locks'} in a row. {keys} and you see the next. {end}"
            for n in range(1, self.locks + 1)
        )
        return (chains, (f" These locks are of series {self.shift}.",)) if self.shift else (chains,)

    @property
    def observation(self) -> Fields:
        told = ("", "It opens. ", "It stays shut. ", *("Nothing happens. ",) * (self.decoys > 0))
        return (told, tuple(f"The lock is {colour}." for colour in COLOURS))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(self.keys),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view), "correct": lambda state, seat, key: self._right(state)}

    def reset(self, key: jax.Array, group: jax.Array, given: jax.Array | None = None) -> tuple[LockState, View]:
        colour_key, length_key = jax.random.split(key)
        length = jax.random.randint(length_key, (), 1, self.locks + 1) if given is None else given
        drawn = jax.random.randint(colour_key, (self.locks,), 0, self.fitting, jnp.int32)
        colours = jnp.arange(self.locks, dtype=jnp.int32) if self.in_order else drawn
        state = self._start(colours, jnp.clip(length, 1, self.locks).astype(jnp.int32))
        return state, self.view(state)

    def initial_states(self) -> tuple[LockState, np.ndarray]:
        if self.in_order:
            return all_deals(lambda n: self._start(jnp.arange(self.locks, dtype=jnp.int32), n + 1), self.locks)
        start = lambda length, *colours: self._start(jnp.stack(colours), length + 1)
        return all_deals(start, self.locks, *(self.fitting,) * self.locks)

    def prompt(self, state: LockState) -> jax.Array:
        return jnp.stack([state.length - 1, jnp.zeros_like(state.length)][: len(self.rules)])[None]

    def step(self, state: LockState, action: jax.Array, key: jax.Array) -> tuple[LockState, View, jax.Array]:
        right = action[0] == self._right(state)
        opened = state.opened + right
        fits = action[0] < self.fitting
        told = jnp.where(right, jnp.int32(OPENS), jnp.where(fits, jnp.int32(SHUT), NOTHING))
        after = state.replace(opened=opened, turn=state.turn + 1, told=told)
        facts = {"solved": right & (opened == state.length), "progress": right / state.length, "fits": fits}
        paid, measured = (
            jnp.stack([facts[name] for name in names]).astype(jnp.float32)[None]
            for names in (self.components, self.measures)
        )
        return after, self.view(after).replace(measured=measured), paid

    def _start(self, colours: jax.Array, length: jax.Array) -> LockState:
        return LockState(colours, length, jnp.int32(0), jnp.int32(0), jnp.int32(START))

    def _colour(self, state: LockState) -> jax.Array:
        return state.colours[jnp.minimum(state.opened, self.locks - 1)]

    def _right(self, state: LockState) -> jax.Array:
        return (self._colour(state) + self.shift) % self.fitting

    def view(self, state: LockState) -> View:
        ended = (state.opened == state.length) | (state.turn >= self.turns)
        return make_view(self, [state.told, self._colour(state)], True, ended)


GAMES = {"lock_chain": LockChain}
