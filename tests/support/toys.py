"""Tokenizers and games made for tests: bytes with a few merges; three seats that take turns and hide a number; three
seats that talk, some of them in private."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.text.grammar import Choice, Free, Grammar, Literal
from jaxmarl_llm.text.templates import Trims
from jaxmarl_llm.text.tokenizers import Markers

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
FOREIGN = (b"<|im_end|>", b"es", b"e", b"\xc3\xa9", b"w>", b"g>", b"e\n", b"operate", b"you", b" they", b"lud")


class ByteTokenizer:
    """Bytes are tokens, some sequences are too, so most texts can be written in several ways; chat in ChatML.

    It cannot write bytes that are `missing`; with a `shuffle` its ids are in another order.
    """

    def __init__(self, merged: Sequence[bytes] = MERGED, missing: bytes = b"", shuffle: int = 0):
        texts: list[bytes | str] = [bytes([byte]) for byte in range(256) if byte not in missing]
        texts += [*(token for token in merged if token not in texts), "<|im_start|>", "<|im_end|>"]
        if shuffle:
            random.Random(shuffle).shuffle(texts)
        self.texts = texts
        self.token_bytes = tuple(None if isinstance(text, str) else text for text in texts)
        self.vocab_size = len(texts)
        words = sorted((text for text in texts if isinstance(text, bytes)), key=len, reverse=True)
        self.by_first = {byte: [word for word in words if word[0] == byte] for byte in range(256)}  # longest first
        start, self.end = texts.index("<|im_start|>"), texts.index("<|im_end|>")
        line, system, user, assistant = (texts.index(byte) for byte in (b"\n", b"s", b"u", b"a"))
        self.trims = Trims()
        self.markers = Markers(
            before_rules=(start, system, line),
            hear_first=(self.end, line, start, user, line),
            speak=(self.end, line, start, assistant, line),
            hear=(line, start, user, line),
        )

    def encode(self, text: str) -> list[int]:
        """The longest token that fits, again and again."""
        rest, ids = text.encode(), []
        while rest:
            longest = next(word for word in self.by_first[rest[0]] if rest.startswith(word))
            ids.append(self.texts.index(longest))
            rest = rest[len(longest) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        pieces = (self.texts[i] for i in ids)
        return b"".join(t.encode() if isinstance(t, str) else t for t in pieces).decode(errors="replace")


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

    What it adds to a hint in free words is told to the seat that is next, the hint itself to both. A guess may not be
    repeated; from turn 1 on a guesser may stop the game; the deal and chance may cut it off. Points never show in what
    is told. `shift` changes the number and nothing else; without `prompts` a seat that acts is told nothing.
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
        MessageFrom(0),
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

    def prompt(self, state: RelayState) -> jax.Array:
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
        text = jnp.stack([word, jnp.full((3,), -1), jnp.where(acting, role, -1)], 1)
        return View(
            phrases=jnp.where((acting & (not self.prompts))[:, None], -1, text).astype(jnp.int32),
            acting=acting,
            role=role,
            grammar=role,
            legal=self._legal(state),
            terminated=state.stopped,
            truncated=ended & ~state.stopped,
            hears=jnp.zeros((3, 3), bool).at[0, 1].set(self._actor(state) == 1),
        )


class WhispersState(struct.PyTreeNode):
    turn: jax.Array  # int32


@dataclass(frozen=True, eq=False)
class Whispers:
    """Three seats say a line in every turn, all at once, but seat 2 is silent in turn 1; then the game is over.

    `hears` bool [T, 3, 3], which may be traced, says who is told after turn t what a seat has said last.
    """

    hears: Any
    turns: int = 3

    agents = 3
    actions = 1
    roles = ("talker",)
    components = ("points",)
    rules: Fields = (("Talk.",),)
    observation: Fields = (("Heard: ",), MessageFrom(2), MessageFrom(0), MessageFrom(1), (" Speak.",))
    grammars: tuple[Grammar, ...] = ((Literal("<"), Free(b"\n"), Literal("\n")),)

    @property
    def scripts(self) -> Mapping[str, Callable]:
        return {"silent": lambda state, seat, key: jnp.int32(0)}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[WhispersState, View]:
        state = WhispersState(jnp.int32(0))
        return state, self._view(state)

    def prompt(self, state: WhispersState) -> jax.Array:
        return jnp.zeros((3, 1), jnp.int32)

    def step(self, state: WhispersState, action: jax.Array, key: jax.Array) -> tuple[WhispersState, View, jax.Array]:
        state = WhispersState(state.turn + 1)
        return state, self._view(state), jnp.zeros((3, 1), jnp.float32)

    def _view(self, state: WhispersState) -> View:
        ended = state.turn >= self.turns
        acting = ((jnp.arange(3) < 2) | (state.turn != 1)) & ~ended
        told = jnp.broadcast_to(jnp.where(state.turn > 0, 0, -1), (3,))
        text = [told, *jnp.full((3, 3), -1), jnp.where(acting, 0, -1)]
        return View(
            phrases=jnp.stack(text, 1).astype(jnp.int32),
            acting=acting,
            role=jnp.zeros((3,), jnp.int32),
            grammar=jnp.zeros((3,), jnp.int32),
            legal=jnp.ones((3, 1), bool),
            terminated=ended,
            truncated=jnp.bool_(False),
            hears=jnp.asarray(self.hears)[jnp.maximum(state.turn - 1, 0)],
        )


@dataclass(frozen=True)
class Erratic(Around):
    """A game that pays `value` to everybody in every turn."""

    value: float

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, View, jax.Array]:
        state, view, reward = self.game.step(state, action, key)
        return state, view, jnp.full_like(reward, self.value)


def play_out(environment: Any, key: jax.Array, groups: int, group_size: int = 1) -> tuple[jax.Array, dict[str, Any]]:
    """Plays `groups` deals `group_size` times with random legal actions: prompts [G, A, K'] and a record of leaves
    [T, G, ...], G = groups * group_size.

    `view` is what was seen before a turn, `after` what came of it; past the end a game stands still, as in a rollout.
    """
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    numbers = jnp.repeat(jnp.arange(groups, dtype=jnp.int32), group_size)
    deals, keys = fold(key, numbers), fold(key, jnp.arange(groups * group_size))
    state, view = jax.vmap(environment.reset)(deals, numbers)
    seats = jnp.arange(environment.agents, dtype=jnp.int32)

    def turn(carry, t):
        state, view = carry
        over = view.terminated | view.truncated
        chance = jax.vmap(lambda k: jax.random.fold_in(k, t))(keys)
        action = jax.vmap(lambda k, legal: jax.random.categorical(k, jnp.where(legal, 0.0, -jnp.inf)))(
            chance, view.legal
        )
        scripted = {
            name: jax.vmap(jax.vmap(script, (None, 0, None)), (0, None, 0))(state, seats, chance)
            for name, script in environment.scripts.items()
        }
        after, told, reward = jax.vmap(environment.step)(state, action.astype(jnp.int32), chance)
        keep = lambda new, old: jnp.where(over.reshape(-1, *(1,) * (new.ndim - 1)), old, new)
        carry = jax.tree.map(keep, (after, told), (state, view))
        record = {"view": view, "after": carry[1], "action": action, "reward": reward, "over": over}
        return carry, {**record, "scripted": scripted}

    prompt = jax.vmap(environment.prompt)(state)
    _, record = jax.lax.scan(turn, (state, view), jnp.arange(environment.turns, dtype=jnp.int32))
    return prompt, record
