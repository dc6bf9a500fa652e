"""Team tasks of search: a router that calls a searcher or an answerer, and twenty questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    random_player,
    span,
)
from jaxmarl_llm.text.grammar import Grammar

ROUTER, SEARCHER, ANSWERER = range(3)
SEARCH, ANSWER = 0, 1
NO, YES = 0, 1
ANIMALS = (
    ("ant", ("small", "crawls")),
    ("bat", ("small", "furry", "flies")),
    ("bear", ("furry", "hunts")),
    ("bee", ("small", "flies", "crawls")),
    ("cow", ("furry", "tame")),
    ("crab", ("small", "swims", "crawls")),
    ("cat", ("small", "furry", "tame", "hunts")),
    ("duck", ("small", "flies", "swims", "tame")),
    ("eagle", ("flies", "hunts")),
    ("goldfish", ("small", "swims", "tame")),
    ("otter", ("small", "furry", "swims", "hunts")),
    ("penguin", ("swims", "hunts", "waddles")),
    ("rabbit", ("small", "furry", "tame")),
    ("shark", ("swims", "hunts")),
    ("spider", ("small", "crawls", "hunts")),
    ("whale", ("swims",)),
)


class SearchState(struct.PyTreeNode):
    question: jax.Array  # int32, the key asked for
    corpus: jax.Array  # int32 [keys], the value of each
    seen: jax.Array  # bool [keys], looked up
    turn: jax.Array  # int32
    seat: jax.Array  # int32, the seat that acts
    key: jax.Array  # int32, the key looked up in the turn before, -1: none
    answered: jax.Array  # bool


@dataclass(frozen=True)
class RouterSearch:
    """A team of a router, a searcher and an answerer is asked for the value of a key.

    The router says search or answer. After "search" the searcher names a key to look up, router and answerer are told
    its value, and the router acts again. After "answer" the answerer names a value, which ends the game. A game also
    ends after `turns` turns. Every deal draws new values and the asked key, uniformly, so nothing can be memorised.

    Components:

    - `correct`: to all three in the last turn, 1 if the answerer named the right value, else 0.
    - `invalid`: -0.01 to the searcher for a second look-up of a key, and to the router for a search after it was told
      the asked value.

    The router chooses the acting seat, as in Dr. MAS (https://arxiv.org/abs/2602.08847). Only in such a game does its
    normalisation differ from a global one.
    Raises ValueError for keys that are not 2 to 26, values < 2 or turns < 2.
    """

    keys: int = 8
    values: int = 10
    turns: int = 4

    agents = 3
    roles = ("router", "searcher", "answerer")
    components = ("correct", "invalid")

    def __post_init__(self):
        at_least(2, values=self.values, turns=self.turns)
        if not 2 <= self.keys <= 26:
            raise ValueError(f"keys must be 2 to 26, as there are letters, got {self.keys}.")

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: self.keys])

    @property
    def actions(self) -> int:
        return max(2, self.keys, self.values)

    @property
    def rules(self) -> Fields:
        team = (
            f"A team of three is asked for the value of a key, in {self.turns} turns at most, "
            "counting the turns of all three. All get 1 point if the right value is named in time."
        )
        parts = (
            "You are the router: you call the searcher or the answerer. A search after you were told the value "
            "costs you 0.01 points. Answer search or answer.",
            f"You are the searcher: you name a key to look up, from A to {self.letters[-1]}. Its value is told to the "
            "others. To name a key twice costs you 0.01 points.",
            f"You are the answerer: you name the value, once. {span(self.values)}",
        )
        return tuple(f"{team} {part}" for part in parts), tuple(f" What is {letter}?" for letter in self.letters)

    @property
    def observation(self) -> Fields:
        """All begin with a space: an answerer is told of several searches before it speaks."""
        values = tuple(f" {value}." for value in digits(self.values))
        calls = (" Search or answer?", " Which key?", " Which value?")
        return tuple(f" {letter} is" for letter in self.letters), values, calls

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(("search", "answer")), choice(self.letters), choice(digits(self.values))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` looks up the asked key, then answers; as answerer it knows the value.

        `hasty`, as router, never searches.
        """

        def player(hasty):
            def play(state, seat, key):
                route = jnp.where(state.seen[state.question] | hasty, ANSWER, SEARCH)
                return jnp.stack([route, state.question, state.corpus[state.question]])[seat].astype(jnp.int32)

            return play

        return {"random": random_player(self.view), "correct": player(False), "hasty": player(True)}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[SearchState, View]:
        a, b = jax.random.split(key)
        state = SearchState(
            question=draw(a, self.keys),
            corpus=jax.random.randint(b, (self.keys,), 0, self.values, jnp.int32),
            seen=jnp.zeros((self.keys,), bool),
            turn=jnp.int32(0),
            seat=jnp.int32(ROUTER),
            key=jnp.int32(-1),
            answered=jnp.bool_(False),
        )
        return state, self.view(state)

    def prompt(self, state: SearchState) -> jax.Array:
        return jnp.stack([jnp.arange(3, dtype=jnp.int32), jnp.broadcast_to(state.question, (3,))], 1)

    def step(self, state: SearchState, action: jax.Array, key: jax.Array) -> tuple[SearchState, View, jax.Array]:
        said, actor = action[state.seat], state.seat
        searches = (actor == ROUTER) & (said == SEARCH)
        looked = jnp.where(actor == SEARCHER, jnp.clip(said, 0, self.keys - 1), -1)
        again = state.seen[jnp.maximum(looked, 0)]
        useless = jnp.where(actor == SEARCHER, again, searches & state.seen[state.question])
        after = state.replace(
            seen=state.seen | (jnp.arange(self.keys) == looked),
            turn=state.turn + 1,
            seat=jnp.where(actor == SEARCHER, ROUTER, jnp.where(searches, SEARCHER, ANSWERER)).astype(jnp.int32),
            key=looked.astype(jnp.int32),
            answered=actor == ANSWERER,
        )
        correct = jnp.broadcast_to(after.answered & (said == state.corpus[state.question]), (3,))
        invalid = jnp.where((jnp.arange(3) == actor) & useless, -0.01, 0.0)
        return after, self.view(after), jnp.stack([correct, invalid], 1).astype(jnp.float32)

    def view(self, state: SearchState) -> View:
        acting = jnp.arange(3) == state.seat
        told = (jnp.arange(3) != SEARCHER) & (state.key >= 0)
        shown = [jnp.where(told, index, -1) for index in (state.key, state.corpus[jnp.maximum(state.key, 0)])]
        text = [*shown, jnp.where(acting, state.seat, -1)]
        seats, ended = jnp.arange(3), state.answered | (state.turn >= self.turns)
        return make_view(self, text, acting, ended, role=seats, grammar=seats, to=~ended)


class QuestionState(struct.PyTreeNode):
    secret: jax.Array  # int32, the object
    turn: jax.Array  # int32, even: the guesser's
    asked: jax.Array  # int32, the attribute of the last question
    replies: jax.Array  # int32 [attributes], the last reply on each, -1: not asked
    reply: jax.Array  # int32, the last reply
    guess: jax.Array  # int32, -1: none yet


@dataclass(frozen=True)
class TwentyQuestions:
    """A guesser asks for attributes of a hidden object, and an answerer that knows it says yes or no. A guess ends the
    game.

    `objects` pairs each name with its attributes, and both seats are told this table. The seats alternate. The guesser
    may ask `questions` times and may guess at any turn of its own; after the last question it must guess. Both seats
    are players: the guesser hears the answerer's word, true or not. A scripted `correct` answerer is the honest host of
    the parlour game.

    Components:

    - `correct`: to both in the last turn, 1 for the right guess, else 0.
    - `cost`: to the guesser, -cost for each question.
    - `truth`: to the answerer, 1 for each true reply, else 0.

    The texts name the aim but are silent about all three rewards on purpose: they are a designer's, not those of the
    parlour game.
    Raises ValueError for fewer than two objects, two objects with equal attributes, a name used twice, questions < 1,
    or a negative cost.
    """

    objects: tuple[tuple[str, tuple[str, ...]], ...] = ANIMALS
    questions: int = 20
    cost: float = 0.01

    agents = 2
    alternating = True
    roles = ("guesser", "answerer")
    components = ("correct", "cost", "truth")

    def __post_init__(self):
        at_least(1, questions=self.questions)
        at_least(2, objects=len(self.objects))
        if self.cost < 0:
            raise ValueError(f"cost must not be negative, got {self.cost}.")
        names = [*self.attributes, *(name for name, _ in self.objects)]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"Objects and attributes need different names, these are used twice: {twice}.")
        rows: dict[frozenset[str], str] = {}
        for name, holds in self.objects:
            if rows.setdefault(frozenset(holds), name) != name:
                raise ValueError(f"{rows[frozenset(holds)]!r} and {name!r} have the same attributes: {list(holds)}.")

    @property
    def attributes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(attribute for _, holds in self.objects for attribute in holds))

    @property
    def table(self) -> np.ndarray:
        """bool [objects, attributes]: the object has the attribute."""
        return np.array([[attribute in holds for attribute in self.attributes] for _, holds in self.objects])

    @property
    def turns(self) -> int:
        return 2 * self.questions + 1

    @property
    def seat_turns(self) -> int:
        return self.questions + 1

    @property
    def actions(self) -> int:
        return len(self.attributes) + len(self.objects)

    @property
    def rules(self) -> Fields:
        table = "; ".join(f"{name} ({', '.join(holds) or 'nothing'})" for name, holds in self.objects)
        team = f"The objects and what holds of each: {table}."
        guesser = f"One of them is hidden. Ask for a word in brackets, {self.questions} times at most, then name it."
        answerer = "You know the hidden one and are asked what holds of it. Answer yes or no."
        hidden = tuple(f" It is the {name}." for name, _ in self.objects)
        return (f"{team} {guesser}", f"{team} {answerer}"), hidden

    @property
    def observation(self) -> Fields:
        """One field: the guesser's five phrases, then a question on each attribute."""
        asked = (f"Does this hold: {attribute}?" for attribute in self.attributes)
        more = (f"They say {reply}. {call}" for call in ("Ask or name it.", "Now name it.") for reply in ("no", "yes"))
        return (("Ask or name it.", *more, *asked),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """The guesser's actions are the attributes, then the objects."""
        return choice((*self.attributes, *(name for name, _ in self.objects))), choice(("no", "yes"))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """All scripts but `random` answer truly. `correct` names the object at once. `halving` asks for the attribute
        that splits the remaining objects most evenly, the first of equal ones. It names the first remaining object if
        nothing splits them or no question is left."""
        holds, asks = jnp.asarray(self.table), len(self.attributes)

        def player(guesser):
            def play(state, seat, key):
                return jnp.where(seat == 0, guesser(state), holds[state.secret, state.asked]).astype(jnp.int32)

            return play

        def halving(state):
            left = ((state.replies[None] < 0) | (holds == (state.replies == YES)[None])).all(1)
            having = (left[:, None] & holds).sum(0)
            split = jnp.minimum(having, left.sum() - having)
            name = (split.max() == 0) | (state.turn >= 2 * self.questions)
            return jnp.where(name, asks + left.argmax(), split.argmax())

        return {
            "random": random_player(self.view),
            "correct": player(lambda state: asks + state.secret),
            "halving": player(halving),
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[QuestionState, View]:
        state = self._start(draw(key, len(self.objects)))
        return state, self.view(state)

    def initial_states(self) -> tuple[QuestionState, np.ndarray]:
        return all_deals(self._start, len(self.objects))

    def prompt(self, state: QuestionState) -> jax.Array:
        return jnp.stack([jnp.arange(2, dtype=jnp.int32), jnp.stack([jnp.int32(-1), state.secret])], 1)

    def step(self, state: QuestionState, action: jax.Array, key: jax.Array) -> tuple[QuestionState, View, jax.Array]:
        asks, asking = len(self.attributes), state.turn % 2 == 0
        said, reply = jnp.clip(action[0], 0, self.actions - 1), jnp.clip(action[1], NO, YES)
        asked = asking & (said < asks)
        answered = ~asking & (jnp.arange(asks) == state.asked)
        after = QuestionState(
            secret=state.secret,
            turn=state.turn + 1,
            asked=jnp.where(asked, said, state.asked),
            replies=jnp.where(answered, reply, state.replies),
            reply=jnp.where(asking, state.reply, reply),
            guess=jnp.where(asking & ~asked, said - asks, state.guess),
        )
        zero = jnp.float32(0)
        correct = jnp.where(after.guess == state.secret, 1.0, zero)
        cost = jnp.where(asked, -self.cost, zero)
        truth = jnp.where(~asking & (jnp.asarray(self.table)[state.secret, state.asked] == (reply == YES)), 1.0, zero)
        reward = jnp.stack([jnp.stack([correct, cost, zero]), jnp.stack([correct, zero, truth])])
        return after, self.view(after), reward

    def _start(self, secret: jax.Array) -> QuestionState:
        unasked = jnp.full((len(self.attributes),), -1, jnp.int32)
        return QuestionState(secret, jnp.int32(0), jnp.int32(0), unasked, jnp.int32(0), jnp.int32(-1))

    def view(self, state: QuestionState) -> View:
        asks, last = len(self.attributes), state.turn >= 2 * self.questions
        acting = jnp.arange(2) == state.turn % 2
        guesser = jnp.where(state.turn == 0, 0, jnp.where(last, 3, 1) + state.reply)
        text = jnp.stack([guesser, 5 + state.asked])
        action = jnp.arange(self.actions)
        legal = jnp.stack([(action >= asks) | ~last, action < 2])
        ended = (state.guess >= 0) | (state.turn >= self.turns)
        seats = jnp.arange(2)
        return make_view(self, [text], acting, ended, role=seats, grammar=seats, legal=legal)


GAMES = {"router_search": RouterSearch, "twenty_questions": TwentyQuestions}
