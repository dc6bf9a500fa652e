"""A quiz of one turn: questions whose answers earn up to three points, each with a given probability under random
play."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    not_negative,
    random_player,
    uniform,
)
from jaxmarl_llm.text.grammar import Grammar
from jaxmarl_llm.text.tokenizers import SymbolTokenizer

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
STRIDES = (1, 11, 7)  # three nearly unrelated orders of the answers
WORD, STOP = " so", "."
NEW = {"described": "if changed"}  # younger than published results


class QuizState(struct.PyTreeNode):
    question: jax.Array  # int32, plus the number of questions for each shift before the drawn one
    over: jax.Array  # bool


@dataclass(frozen=True)
class Quiz:
    """One seat answers one of `questions` with one of `answers` letters, in one turn. The answer earns up to three
    points.

    Each point is a component, 0 or 1: `first`, `second`, `third`. Letter a earns point c of question q if (s_c (a - q))
    mod answers is below shares[c][q mod len(shares[c])] * answers, rounded. So a uniform player earns it with about the
    probability of that share. The strides s are 1, 11 and 7, which makes the points nearly independent. Letter q mod
    answers earns every point that any letter earns.

    With `filler` above 0 an answer has up to `filler` idle words, which earn nothing, so answers differ in length. With
    `words` the length is right or wrong as well. Question q asks for words[q mod len(words)] idle words, and an answer
    with over `slack` more or fewer earns nothing.

    A deal also draws one of `shifts`, uniformly, and letters are counted from letter q + shift in place of letter q.
    With several shifts a letter is right in some games with a question and wrong in others: an answer is a guess.

    The text is silent about points of letters, shifts and numbers of words on purpose: they are to be learnt from
    reward. All chance is in the deal.
    Raises ValueError for shares outside [0, 1] and for none or more than three points. Raises it also for more than 26
    letters, for a number of letters that 7 or 11 divides, for more `words` than `filler`, and without shifts.
    """

    shares: tuple[tuple[float, ...], ...] = ((0.9,), (0.5,), (0.1,))
    questions: int = 8
    answers: int = 20
    filler: int = 0
    words: tuple[int, ...] = field(default=(), metadata=NEW)
    slack: int = field(default=0, metadata=NEW)
    shifts: tuple[int, ...] = field(default=(0,), metadata=NEW)

    agents = 1
    turns = 1
    roles = ("player",)

    def __post_init__(self):
        at_least(1, questions=self.questions, shifts=len(self.shifts))
        at_least(2, answers=self.answers)
        at_least(0, filler=self.filler, slack=self.slack)
        for words in self.words:
            at_least(0, words=words)
            if words > self.filler:
                raise ValueError(f"An answer has at most {self.filler} idle words, and a question asks for {words}.")
        if not 1 <= len(self.shares) <= len(STRIDES) or not all(self.shares):
            raise ValueError(f"A quiz has 1 to {len(STRIDES)} points with their shares, got {self.shares!r}.")
        for share in (x for point in self.shares for x in point):
            not_negative(share=share)
            if share > 1:
                raise ValueError(f"A share of the answers is at most 1, got {share}.")
        if self.answers > len(LETTERS) or math.gcd(self.answers, math.prod(STRIDES)) > 1:
            raise ValueError(f"answers is at most {len(LETTERS)} and no multiple of 7 or 11, got {self.answers}.")

    @property
    def actions(self) -> int:
        return self.answers * (self.filler + 1)

    @property
    def components(self) -> tuple[str, ...]:
        return ("first", "second", "third")[: len(self.shares)]

    @property
    def rules(self) -> Fields:
        counts = "whose number counts" if self.words else "which counts nothing"
        words = f" and up to {self.filler} times{WORD}, {counts}" if self.filler else ""
        said = f"Answer a letter from A to {LETTERS[self.answers - 1]}{words}. It earns 0 to {len(self.shares)} points."
        return (tuple(f"Question {q}. {said}" for q in digits(self.questions)),)

    @property
    def observation(self) -> Fields:
        return (("Your answer?",),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        letters = LETTERS[: self.answers]
        if not self.filler:
            return (choice(letters),)
        return (choice([letter + WORD * n + STOP for n in range(self.filler + 1) for letter in letters]),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`best` earns all points that can be earned, with one letter and the words asked for, if any are. `half_right`
        does so in even questions, and says a letter that is five further on in odd ones. `fitting` says any letter with
        a number of words that the question takes; only a quiz with `words` has it. `common`, only with several shifts,
        is `best` for the first shift, whatever was drawn."""
        more = {"fitting": self._fitting} if self.words else {}
        if len(self.shifts) > 1:
            more["common"] = lambda state, seat, key: self._best(self._start(self._number(state)), seat, key)
        return {"random": random_player(self.view), "best": self._best, "half_right": self._half_right, **more}

    def right_answer(self, state: QuizState) -> str:
        """The letter that earns every point that any letter earns, with the words asked for, if any are."""
        letter = LETTERS[int(self._letter(state.question))]
        return letter + WORD * int(self._words_of(state.question)) + STOP if self.words else letter

    def letter_tokenizer(self) -> SymbolTokenizer:
        """A tokenizer with a token for each question, letter and idle word, so that answers differ in tokens."""
        said = [*LETTERS[: self.answers], WORD, STOP] if self.filler else [*LETTERS[: self.answers]]
        return SymbolTokenizer([*self.rules[0], *self.observation[0], *said])

    def score_answer(self, question: jax.Array, answer: jax.Array) -> jax.Array:
        """The points of a letter [...], float32 [..., points], to a question of a `QuizState`."""
        table = np.array([[point[q % len(point)] for point in self.shares] for q in range(self.questions)])
        right = jnp.asarray(np.round(table * self.answers).astype(np.int32))
        places = [stride * (answer - self._letter(question)) % self.answers for stride in STRIDES[: len(self.shares)]]
        return (jnp.stack(places, -1) < right[question % self.questions]).astype(jnp.float32)

    def score_length(self, question: jax.Array, words: jax.Array) -> jax.Array:
        """True for a number of idle words that the question takes, bool [...]."""
        return jnp.abs(words - self._words_of(question)) <= self.slack

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[QuizState, View]:
        state = self._start(draw(key, self.questions * len(self.shifts)))
        return state, self.view(state)

    def initial_states(self) -> tuple[QuizState, np.ndarray]:
        return all_deals(self._start, self.questions * len(self.shifts))

    def prompt(self, state: QuizState) -> jax.Array:
        return self._number(state).reshape(1, 1)

    def step(self, state: QuizState, action: jax.Array, key: jax.Array) -> tuple[QuizState, View, jax.Array]:
        after = QuizState(state.question, jnp.bool_(True))
        return after, self.view(after), self._score(state.question, action[0])[None]

    def _score(self, question: jax.Array, action: jax.Array) -> jax.Array:
        """The points of a letter with its words, float32 [points]."""
        points = self.score_answer(question, action % self.answers)
        return points * self.score_length(question, action // self.answers) if self.words else points

    def _number(self, state: QuizState) -> jax.Array:
        return state.question % self.questions

    def _letter(self, question: jax.Array) -> jax.Array:
        """The letter from which letters are counted, int32 [...]."""
        shift = jnp.asarray(self.shifts, jnp.int32)[question // self.questions]
        return (question % self.questions + shift) % self.answers

    def _words_of(self, question: jax.Array) -> jax.Array:
        """The number of idle words that the question asks for, int32 [...]."""
        return jnp.asarray(self.words, jnp.int32)[question % self.questions % len(self.words)]

    def _best(self, state: QuizState, seat: jax.Array, key: jax.Array) -> jax.Array:
        letter = self._letter(state.question)
        return letter + self.answers * self._words_of(state.question) if self.words else letter

    def _half_right(self, state: QuizState, seat: jax.Array, key: jax.Array) -> jax.Array:
        best = self._best(state, seat, key)
        other = best // self.answers * self.answers + (best + 5) % self.answers
        return jnp.where(self._number(state) % 2 == 0, best, other)

    def _fitting(self, state: QuizState, seat: jax.Array, key: jax.Array) -> jax.Array:
        return uniform(key, self.score_length(state.question, jnp.arange(self.actions) // self.answers))

    def _start(self, question: jax.Array) -> QuizState:
        return QuizState(question, jnp.bool_(False))

    def view(self, state: QuizState) -> View:
        return make_view(self, [jnp.int32(0)], True, state.over)


GAMES = {"quiz": Quiz}
