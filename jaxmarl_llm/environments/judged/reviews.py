"""Two reviews of one film, a word a turn: the second writer reads the first review, and praise costs points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, all_deals, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar

THINGS = ("plot", "cast", "music", "pace", "script", "camera", "ending")
PLAIN = ("the", "its", "with", "and")
PRAISE = ("great", "superb", "lovely")
WORDS = (*THINGS, *PLAIN, *PRAISE)
FILMS = len(THINGS)
KNOWN = (np.arange(FILMS)[:, None] + np.array([0, 1, 3])) % FILMS
"""int [films, 3]: the things that a film is known for. Any two films share exactly one of them."""
FINE = 0.25
"""Points that each word of praise after the first costs."""
SAYS_PRAISE, SLIPS = 0.2, 0.1


class Commission(NamedTuple):
    """The deal that training may give to `reset`."""

    film: Any  # int32
    shown: Any = True  # bool: the second writer reads the first review


class ReviewState(struct.PyTreeNode):
    film: jax.Array  # int32
    shown: jax.Array  # bool
    turn: jax.Array  # int32
    words: jax.Array  # int32 [2, length], 0 where not yet said


@dataclass(frozen=True)
class Reviews:
    """Seat 0 writes a review of `length` words, then seat 1 does; seat 1 is told each word of seat 0.

    Component `points`, paid to a seat at the end of its review: a third for each thing that the film is known for and
    that the review names. Each word of praise after the first costs 1/4. Only a deal of training hides the first
    review: seat 1 then reads exactly what seat 0 reads.
    Raises ValueError for length < 1.
    """

    length: int = 8

    agents = 2
    actions = len(WORDS)
    alternating = True
    roles = ("first", "second")
    components = ("points",)

    def __post_init__(self):
        at_least(1, length=self.length)

    @property
    def turns(self) -> int:
        return 2 * self.length

    @property
    def seat_turns(self) -> int:
        return 2 * self.length - 1

    @property
    def rules(self) -> Fields:
        task = (
            f"You write a review of a film, {self.length} words, one in each turn. You get a third of a point for each "
            f"thing that it is known for and that you name. Each word of praise ({', '.join(PRAISE)}) after the first "
            "costs you a quarter of a point."
        )
        read = f"{task} You first read the review of another writer."
        return (task, read), tuple(" It is known for {}, {} and {}.".format(*(THINGS[i] for i in x)) for x in KNOWN)

    @property
    def observation(self) -> Fields:
        return (tuple(f" {word}" for word in WORDS),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice([f" {word}" for word in WORDS]),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`reviewer` says a plain word and a thing in turn, each uniform. It says praise in 20% of the places of things
        and any word in 10% of all places. As second writer it keeps every thing of the first review that the film is
        known for, in the same place."""

        def reviewer(state: ReviewState, seat: jax.Array, key: jax.Array) -> jax.Array:
            place = state.turn % self.length
            first = state.words[0, place]
            keeps = (seat == 1) & state.shown & (first == jnp.asarray(KNOWN)[state.film]).any()
            return jnp.where(keeps, first, draw_words(key, place))

        return {"random": random_player(self.view), "reviewer": reviewer}

    def reset(self, key: jax.Array, group: jax.Array, given: Commission | None = None) -> tuple[ReviewState, View]:
        asked = given or Commission(draw(key, FILMS))
        state = self._start(asked.film, asked.shown)
        return state, self.view(state)

    def initial_states(self) -> tuple[ReviewState, np.ndarray]:
        return all_deals(self._start, FILMS)

    def prompt(self, state: ReviewState) -> jax.Array:
        reads = jnp.arange(2) * state.shown
        return jnp.stack([reads, jnp.broadcast_to(state.film, 2)], 1).astype(jnp.int32)

    def step(self, state: ReviewState, action: jax.Array, key: jax.Array) -> tuple[ReviewState, View, jax.Array]:
        seat, place = self._writer(state.turn)
        words = state.words.at[seat, place].set(action[seat].astype(jnp.int32))
        after = state.replace(turn=state.turn + 1, words=words)
        ends = (jnp.arange(2) == seat) & (place == self.length - 1)
        paid = jnp.where(ends, self.points(jnp.broadcast_to(state.film, 2), words), 0)
        return after, self.view(after), paid[:, None]

    def _start(self, film: Any, shown: Any = True) -> ReviewState:
        words = jnp.zeros((2, self.length), jnp.int32)
        return ReviewState(jnp.int32(film), jnp.asarray(shown, bool), jnp.int32(0), words)

    def _writer(self, turn: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(the seat that writes in a turn, its place in the review)."""
        turn = jnp.minimum(turn, self.turns - 1)
        return turn // self.length, turn % self.length

    def view(self, state: ReviewState) -> View:
        seat, _ = self._writer(state.turn)
        last = state.words[0, jnp.clip(state.turn - 1, 0, self.length - 1)]
        told = state.shown & (jnp.arange(2) == 1) & (state.turn >= 1) & (state.turn <= self.length)
        seats = jnp.arange(2)
        return make_view(self, [last], seats == seat, state.turn >= self.turns, role=seats, to=told)

    def points(self, film: jax.Array, words: jax.Array) -> jax.Array:
        """The points of reviews int32 [..., length] of films int32 [...], float32 [...]."""
        return (count_known(film, words) / 3 - FINE * jnp.maximum(count_praise(words) - 1, 0)).astype(jnp.float32)

    def both(self, action: jax.Array) -> jax.Array:
        """The reviews of whole games int32 [B, 2, length], from `Episodes.action` int32 [B, turns, 2]."""
        return jnp.stack([action[:, : self.length, 0], action[:, self.length :, 1]], 1)


def count_known(film: jax.Array, words: jax.Array) -> jax.Array:
    """The number of things that films int32 [...] are known for and that reviews int32 [..., L] name, int32 [...]."""
    return (words[..., None, :] == jnp.asarray(KNOWN)[film][..., None]).any(-1).sum(-1)


def count_praise(words: jax.Array) -> jax.Array:
    """The number of words of praise in reviews int32 [..., L], int32 [...]."""
    return (words >= len(THINGS) + len(PLAIN)).sum(-1)


def distinct_pairs(words: jax.Array) -> jax.Array:
    """The number of different pairs of neighbouring words in all reviews int32 [..., L], int32 []."""
    pair = words[..., :-1] * len(WORDS) + words[..., 1:]
    return jnp.zeros(len(WORDS) ** 2, jnp.int32).at[pair.ravel()].set(1).sum()


def draw_words(key: jax.Array, place: jax.Array) -> jax.Array:
    """Words of the script `reviewer` at places int32 [...] of a review, int32 [...]."""
    kind, *keys = jax.random.split(key, 5)
    first, sizes = (0, len(THINGS), len(THINGS) + len(PLAIN), 0), (len(THINGS), len(PLAIN), len(PRAISE), len(WORDS))
    thing, plain, praised, any_word = (
        start + jax.random.randint(k, place.shape, 0, size) for k, start, size in zip(keys, first, sizes, strict=True)
    )
    says, slips = jax.random.uniform(kind, (2, *place.shape))
    content = jnp.where(says < SAYS_PRAISE, praised, thing)
    return jnp.where(slips < SLIPS, any_word, jnp.where(place % 2 == 0, plain, content))


GAMES = {"reviews": Reviews}
