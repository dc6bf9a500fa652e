"""A tokenizer and a game made for tests: bytes with a few merges, and three seats that take turns and hide a number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environment import Fields, View
from jaxmarl_llm.grammar import Choice, Free, Grammar, Literal
from jaxmarl_llm.tokens import Markers

MERGED = (
    b"co",
    b"oper",
    b"cooper",
    b"ate",
    b"ll",
    b"ude",
    b"zer",
    b"tw",
    b"to",
    b"ow",
    b" number",
    b"Seat ",
    b" said ",
)


class ByteTokenizer:
    """Every byte is a token, some sequences are too, so most texts can be written in several ways; chat in ChatML."""

    def __init__(self):
        texts: list[bytes | None] = [bytes([byte]) for byte in range(256)]
        texts += MERGED
        start, self.end = len(texts), len(texts) + 1
        self.token_bytes: tuple[bytes | None, ...] = (*texts, None, None)
        self.vocab_size = len(self.token_bytes)
        line = ord("\n")
        self.markers = Markers(
            before_rules=(start, ord("s"), line),
            hear_first=(self.end, line, start, ord("u"), line),
            speak=(self.end, line, start, ord("a"), line),
            hear=(line, start, ord("u"), line),
        )

    def encode(self, text: str) -> list[int]:
        """The longest token that fits, again and again."""
        rest, ids = text.encode(), []
        while rest:
            fits = [token for token in MERGED if rest.startswith(token)]
            longest = max(fits, key=len, default=rest[:1])
            ids.append(self.token_bytes.index(longest))
            rest = rest[len(longest) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes[i] or b"|" for i in ids).decode(errors="replace")


NUMBERS = ("zero", "one", "two")
STOP = 3  # the guesser's fourth action
WORDS = (*NUMBERS, "stop", "low", "high")


class RelayState(struct.PyTreeNode):
    secret: jax.Array  # int32, told to seat 0
    first: jax.Array  # int32, the seat that begins
    limit: jax.Array  # int32, the turn after which the game is cut off
    turn: jax.Array  # int32
    last: jax.Array  # int32, the guess before, -1: none yet
    stopped: jax.Array  # bool
    broken: jax.Array  # bool: cut off by chance


@dataclass(frozen=True)
class Relay:
    """Three seats, one at a time. Seat 0 knows a number and gives hints in early turns, later it guesses like the rest.

    A guess may not be repeated; from turn 1 on a guesser may stop the game; the deal and chance may cut it off. Points
    never show in what is told. `shift` changes the number and nothing else; without `prompts` who acts is told nothing.
    """

    turns: int = 6
    shift: int = 0
    prompts: bool = True

    agents = 3
    actions = 4
    roles = ("guesser", "teller")
    components = ("hits", "cost")
    rules: Fields = (("A number.",), tuple(f" It is {word}!" for word in NUMBERS))
    observation: Fields = (
        tuple(f"Seat {seat} said {word}." for seat in range(3) for word in WORDS),
        (" Guess.", " Tell."),
    )
    grammars: tuple[Grammar, ...] = (
        (Literal("<"), Choice(tuple(enumerate((*NUMBERS, "stop")))), Literal(">")),
        (Choice(((0, "low"), (1, "high"))), Free(b">"), Literal(">")),
    )

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def fixed(state, seat, key):
            return jnp.where(self._role(state)[seat] == 1, 0, (state.last + 1) % 3)

        def lucky(state, seat, key):
            legal = self._legal(state)[seat]
            return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)).astype(jnp.int32)

        return {"fixed": fixed, "lucky": lucky}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[RelayState, View]:
        a, b, c = jax.random.split(key, 3)
        state = RelayState(
            secret=(jax.random.randint(a, (), 0, 3) + self.shift) % 3,
            first=(jax.random.randint(b, (), 0, 3) + group) % 3,
            limit=jax.random.randint(c, (), 3, self.turns + 1),
            turn=jnp.int32(0),
            last=jnp.int32(-1),
            stopped=jnp.bool_(False),
            broken=jnp.bool_(False),
        )
        return state, self._view(state, jnp.full((3,), -1, jnp.int32))

    def opening(self, state: RelayState) -> jax.Array:
        return jnp.stack([jnp.zeros((3,), jnp.int32), jnp.where(jnp.arange(3) == 0, state.secret, -1)], 1)

    def step(self, state: RelayState, action: jax.Array, key: jax.Array) -> tuple[RelayState, View, jax.Array]:
        actor = self._actor(state)
        said, tells, is_actor = action[actor], self._role(state)[actor] == 1, jnp.arange(3) == actor
        hits = jnp.where(is_actor & ~tells & (said == state.secret), 1.0, 0.0)
        after = state.replace(
            turn=state.turn + 1,
            last=jnp.where(tells | (said == STOP), state.last, said),
            stopped=~tells & (said == STOP),
            broken=jax.random.bernoulli(key, 0.08),
        )
        word = actor * len(WORDS) + jnp.where(tells, 4 + said, said)
        return (
            after,
            self._view(after, jnp.where(is_actor, -1, word)),
            jnp.stack([hits, jnp.where(is_actor, -0.1, 0)], 1),
        )

    def _actor(self, state: RelayState) -> jax.Array:
        return (state.first + state.turn) % 3

    def _role(self, state: RelayState) -> jax.Array:
        return jnp.where((jnp.arange(3) == 0) & (state.turn < 3), 1, 0).astype(jnp.int32)

    def _legal(self, state: RelayState) -> jax.Array:
        guesser = (jnp.arange(4) != state.last) & ((jnp.arange(4) != STOP) | (state.turn >= 1))
        teller = jnp.arange(4) < 2
        return jnp.where(self._role(state)[:, None] == 1, teller[None], guesser[None])

    def _view(self, state: RelayState, word: jax.Array) -> View:
        ended = state.stopped | state.broken | (state.turn >= state.limit)
        acting, role = (jnp.arange(3) == self._actor(state)) & ~ended, self._role(state)
        text = jnp.stack([word, jnp.where(acting, role, -1)], 1)
        return View(
            text=jnp.where((acting & (not self.prompts))[:, None], -1, text).astype(jnp.int32),
            acting=acting,
            role=role,
            grammar=role,
            legal=self._legal(state),
            terminated=state.stopped,
            truncated=ended & ~state.stopped,
        )


def play_out(environment: Any, key: jax.Array, groups: int) -> tuple[jax.Array, dict[str, Any]]:
    """Plays `groups` games with random legal actions: openings [G, A, K'] and a record of leaves [T, G, ...].

    `view` is what was seen before a turn, `after` what came of it; past the end a game stands still, as in a rollout.
    """
    numbers = jnp.arange(groups, dtype=jnp.int32)
    keys = jax.vmap(lambda group: jax.random.fold_in(key, group))(numbers)
    state, view = jax.vmap(environment.reset)(keys, numbers)

    def turn(carry, t):
        state, view = carry
        over = view.terminated | view.truncated
        chance = jax.vmap(lambda k: jax.random.fold_in(k, t))(keys)
        action = jax.vmap(lambda k, legal: jax.random.categorical(k, jnp.where(legal, 0.0, -jnp.inf)))(
            chance, view.legal
        )
        scripted = {
            name: jax.vmap(
                lambda s, k, f=script: jnp.stack([f(s, jnp.int32(a), k) for a in range(environment.agents)])
            )(state, chance)
            for name, script in environment.scripts.items()
        }
        after, told, reward = jax.vmap(environment.step)(state, action.astype(jnp.int32), chance)
        keep = lambda new, old: jnp.where(over.reshape(-1, *(1,) * (new.ndim - 1)), old, new)  # noqa: E731
        carry = jax.tree.map(keep, (after, told), (state, view))
        record = {"view": view, "after": carry[1], "action": action, "reward": reward, "over": over}
        return carry, {**record, "scripted": scripted}

    opening = jax.vmap(environment.opening)(state)
    _, record = jax.lax.scan(turn, (state, view), jnp.arange(environment.turns, dtype=jnp.int32))
    return opening, record
