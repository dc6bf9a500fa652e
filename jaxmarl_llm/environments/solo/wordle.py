"""Wordle for one seat: a hidden word of a short list, and a reply on each letter of a guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

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
    draw,
    make_view,
    not_negative,
    random_player,
)
from jaxmarl_llm.text.grammar import Grammar

WORDS = (
    *("bake", "cake", "lake", "make"),
    *("bark", "dark", "lark", "mark"),
    *("bold", "cold", "gold", "mold"),
    *("dine", "line", "mine", "wine"),
)
RIGHT, ELSEWHERE, ABSENT = range(3)


class WordState(struct.PyTreeNode):
    secret: jax.Array  # int32
    guess: jax.Array  # int32, the last guess, -1: none yet
    fits: jax.Array  # bool [words]: the word fits all replies so far
    turn: jax.Array  # int32


@dataclass(frozen=True)
class Wordle:
    """One seat guesses a hidden word, at most `turns` times. The word is uniform over a list that the rules tell.

    After a wrong guess it is told of each letter that it is right in its place, elsewhere in the word, or not in it.
    Components: `correct`, 1 for the right word, which ends the game; `cost`, -cost for each wrong guess. The words have
    equal lengths, and the letters of a word differ, so these three replies are complete.

    LMRL Gym has it as a task for language agents (https://arxiv.org/abs/2311.18232); a wrong guess costs 1 there.
    Raises ValueError for turns < 1, a negative cost, fewer than two words, repeated words, words of different lengths,
    and words with a repeated letter.
    """

    words: tuple[str, ...] = WORDS
    turns: int = 6
    cost: float = 0.1

    agents = 1
    roles = ("guesser",)
    components = ("correct", "cost")

    def __post_init__(self):
        at_least(1, turns=self.turns)
        at_least(2, words=len(self.words))
        not_negative(cost=self.cost)
        if len({len(word) for word in self.words}) > 1:
            raise ValueError(f"The words must have one length, got {sorted({len(word) for word in self.words})}.")
        if len(set(self.words)) < len(self.words):
            raise ValueError(f"A word stands twice in {self.words}.")
        for word in self.words:
            if len(set(word)) < len(word):
                raise ValueError(f"The letters of a word must differ, and {word!r} has one twice.")

    @property
    def length(self) -> int:
        return len(self.words[0])

    @property
    def actions(self) -> int:
        return len(self.words)

    @property
    def replies(self) -> np.ndarray:
        """int32 [guesses, secrets, letters]: RIGHT, ELSEWHERE or ABSENT."""
        letters = np.array([list(word) for word in self.words])
        there = (letters[:, None, :, None] == letters[None, :, None, :]).any(3)
        return np.where(letters[:, None] == letters[None], RIGHT, np.where(there, ELSEWHERE, ABSENT)).astype(np.int32)

    def right_answer(self, state: WordState) -> str:
        """The hidden word."""
        return self.words[int(state.secret)]

    @property
    def rules(self) -> Fields:
        return (
            (
                f"One of these words is hidden: {', '.join(self.words)}. Guess it, {self.turns} times at most. After a "
                "wrong guess you are told of each of its letters whether it is right in its place, elsewhere in the "
                f"word, or not in it. The right word gets 1 point, and each wrong guess costs {self.cost:g} points.",
            ),
        )

    @property
    def observation(self) -> Fields:
        reply = lambda i: tuple(f"Letter {i + 1} is {what}. " for what in ("right", "elsewhere", "not in it"))
        return *(reply(i) for i in range(self.length)), ("Which word?",)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(self.words),)

    @property
    def facts(self) -> Fields:
        """The facts about the state that `Oracle` tells: the words that still fit."""
        return tuple((f" It may be {word}.",) for word in self.words)

    def told_facts(self, state: WordState) -> jax.Array:
        return jnp.where(state.fits, 0, -1)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` names the word at once; `fitting` names the first word that fits all replies. `splitting` names the
        word that leaves the fewest words on average; of several it prefers a word that fits, then the first. `best` has
        the lowest possible mean number of guesses, if there are enough turns. After guesses of another player it goes
        on as `splitting`."""
        code = _code(self)
        same = jnp.asarray(code[:, :, None] == np.unique(code), jnp.int32)  # [guess, secret, reply]
        left, says = (jnp.asarray(x) for x in _plan(self))

        def splitting(state: WordState, seat: jax.Array, key: jax.Array) -> jax.Array:
            counts = (same * state.fits[None, :, None]).sum(1)
            return (2 * (counts**2).sum(1) - state.fits).argmin().astype(jnp.int32)

        def best(state: WordState, seat: jax.Array, key: jax.Array) -> jax.Array:
            planned = (left == state.fits[None]).all(1)
            return jnp.where(planned.any(), says[planned.argmax()], splitting(state, seat, key))

        return {
            "random": random_player(self.view),
            "correct": lambda state, seat, key: state.secret,
            "fitting": lambda state, seat, key: state.fits.argmax().astype(jnp.int32),
            "splitting": splitting,
            "best": best,
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[WordState, View]:
        state = self._start(draw(key, len(self.words)))
        return state, self.view(state)

    def initial_states(self) -> tuple[WordState, np.ndarray]:
        return all_deals(self._start, len(self.words))

    def _start(self, secret: jax.Array) -> WordState:
        return WordState(secret, jnp.int32(-1), jnp.ones(len(self.words), bool), jnp.int32(0))

    def prompt(self, state: WordState) -> jax.Array:
        return jnp.zeros((1, 1), jnp.int32)

    def step(self, state: WordState, action: jax.Array, key: jax.Array) -> tuple[WordState, View, jax.Array]:
        guess, replies = jnp.clip(action[0], 0, self.actions - 1), jnp.asarray(self.replies)
        fits = state.fits & (replies[guess] == replies[guess, state.secret][None]).all(1)
        after = WordState(state.secret, guess.astype(jnp.int32), fits, state.turn + 1)
        right = guess == state.secret
        paid = [right, jnp.where(right, 0.0, -self.cost)]
        return after, self.view(after), jnp.stack(paid).astype(jnp.float32)[None]

    def view(self, state: WordState) -> View:
        reply = jnp.asarray(self.replies)[jnp.maximum(state.guess, 0), state.secret]
        told = jnp.where(state.guess < 0, -1, reply)
        ended = (state.guess == state.secret) | (state.turn >= self.turns)
        return make_view(self, [*told, jnp.int32(0)], True, ended)


def _code(game: Wordle) -> np.ndarray:
    """int [guesses, secrets]: a number for each reply."""
    return (game.replies * 3 ** np.arange(game.length)).sum(2)


@cache
def _plan(game: Wordle) -> tuple[np.ndarray, np.ndarray]:
    """The best player's plan: (the words left before each guess, bool [n, words]; the guess, int32 [n])."""
    code = _code(game)
    split = lambda guess, left: [tuple(s for s in left if code[guess, s] == c) for c in {code[guess, s] for s in left}]

    @cache
    def solve_rest(left: tuple[int, ...]) -> tuple[int, int]:
        """(the least sum of guesses over the remaining secrets, a first guess that attains it)."""
        if len(left) == 1:
            return 1, left[0]
        options = []
        for guess in range(len(code)):
            parts = split(guess, left)
            if len(parts) > 1:
                options.append((len(left) + sum(solve_rest(part)[0] for part in parts if part != (guess,)), guess))
        return min(options)

    met, ahead = {}, [tuple(range(len(code)))]
    while ahead:
        left = ahead.pop()
        met[left] = guess = solve_rest(left)[1]
        ahead += [part for part in split(guess, left) if part != (guess,)]
    return np.array([np.isin(range(len(code)), left) for left in met]), np.array([*met.values()], np.int32)


GAMES = {"wordle": Wordle}
