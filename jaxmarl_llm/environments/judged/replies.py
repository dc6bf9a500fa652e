"""One answer to one question in a chosen manner, for a reward model to judge; an exact check is paid beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, all_deals, choice, draw, make_view, random_player
from jaxmarl_llm.environments.tasks import ARITHMETIC, Tasks
from jaxmarl_llm.text.grammar import Grammar


class Asked(NamedTuple):
    """The deal that training may give to `reset`: this record, or another one that has these fields and more."""

    task: Any  # int32, number of the question
    note: Any = 0  # int32, number of the note


class ReplyState(struct.PyTreeNode):
    asked: Asked
    ended: jax.Array  # bool


@dataclass(frozen=True)
class Replies:
    """A seat answers a question once. A reply combines a manner of speaking and an answer: manner * answers + answer.

    Component `correct`: 1 for a right answer in any manner, else 0. With `notes` the prompt ends with a note, drawn
    like the question; training decides the meaning of notes, and no rule reads them. The reference, i.e. the right
    answer, stands in no text of the game. Only a reward model reads it, in `judge_input`, with the question and the
    reply.
    Raises ValueError without manners, or for two equal manners.
    """

    tasks: Tasks = ARITHMETIC
    manners: tuple[str, ...] = ("",)
    notes: tuple[str, ...] = ()

    agents = 1
    turns = 1
    roles = ("solver",)
    components = ("correct",)

    def __post_init__(self):
        if not self.manners or len(set(self.manners)) < len(self.manners):
            raise ValueError(f"Replies need different manners, one at least, got {self.manners}.")

    @property
    def actions(self) -> int:
        return len(self.manners) * len(self.tasks.answers)

    @property
    def rules(self) -> Fields:
        how = f" Begin with one of: {', '.join(self.manners)}." if len(self.manners) > 1 else ""
        rule = (f"You answer a question. {self.tasks.ask}{how} You get 1 point if the answer is right.",)
        return rule, *self.tasks.fields, *((self.notes,) if self.notes else ())

    @property
    def observation(self) -> Fields:
        return (("Answer.",),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice([f"{manner} {answer}".strip() for manner in self.manners for answer in self.tasks.answers]),)

    def right_answer(self, state: ReplyState) -> str:
        """The reference."""
        return self.tasks.answers[int(self.tasks.task(state.asked.task)[1])]

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` gives the right answer with a random opening of `manners`, `correct/N` with opening N."""

        def right(state: ReplyState, manner: Any) -> jax.Array:
            return self.reply(manner, self.tasks.task(state.asked.task)[1])

        fixed = {
            f"correct/{n}": lambda state, seat, key, n=n: right(state, jnp.int32(n)) for n in range(len(self.manners))
        }
        some = lambda state, seat, key: right(state, draw(key, len(self.manners)))
        return {"random": random_player(self.view), "correct": some, **fixed}

    def reset(self, key: jax.Array, group: jax.Array, given: Asked | None = None) -> tuple[ReplyState, View]:
        keys = jax.random.split(key)
        asked = given or Asked(draw(keys[0], self.tasks.size), draw(keys[1], max(len(self.notes), 1)))
        state = self._start(asked.task, asked.note)
        return state, self.view(state)

    def initial_states(self) -> tuple[ReplyState, np.ndarray]:
        return all_deals(self._start, self.tasks.size, max(len(self.notes), 1))

    def prompt(self, state: ReplyState) -> jax.Array:
        question = self.tasks.task(state.asked.task)[0]
        note = (state.asked.note[None],) if self.notes else ()
        return jnp.concatenate([jnp.zeros(1, jnp.int32), question, *note])[None]

    def step(self, state: ReplyState, action: jax.Array, key: jax.Array) -> tuple[ReplyState, View, jax.Array]:
        right = self.parts(action[0])[1] == self.tasks.task(state.asked.task)[1]
        after = state.replace(ended=jnp.bool_(True))
        return after, self.view(after), right.astype(jnp.float32).reshape(1, 1)

    def _start(self, task: Any, note: Any) -> ReplyState:
        return ReplyState(Asked(jnp.int32(task), jnp.int32(note)), jnp.bool_(False))

    def view(self, state: ReplyState) -> View:
        return make_view(self, [0], True, state.ended)

    def reply(self, manner: jax.Array, answer: jax.Array) -> jax.Array:
        """The action of a manner and an answer, int32 [...]."""
        return manner * len(self.tasks.answers) + answer

    def parts(self, action: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(manner, answer) of an action, int32 [...] each."""
        return action // len(self.tasks.answers), action % len(self.tasks.answers)

    def truth(self, task: jax.Array) -> jax.Array:
        """The right answers of questions, int32 [...]."""
        return jax.vmap(self.tasks.task)(task.ravel())[1].reshape(task.shape)

    def draw_replies(self, key: jax.Array, shape: tuple[int, ...], right: float) -> tuple[jax.Array, jax.Array]:
        """Questions with two replies each, int32 [*shape, 2] both. A reply is right with probability `right`, otherwise
        a uniform wrong answer; its manner is uniform."""
        keys, two, answers = jax.random.split(key, 4), (*shape, 2), len(self.tasks.answers)
        task = jnp.repeat(jax.random.randint(keys[0], (*shape, 1), 0, self.tasks.size), 2, -1)
        wrong = jax.random.bernoulli(keys[1], 1 - right, two) * jax.random.randint(keys[2], two, 1, answers)
        manner = jax.random.randint(keys[3], two, 0, len(self.manners))
        return task, self.reply(manner, (self.truth(task) + wrong) % answers)

    @property
    def judged_words(self) -> int:
        """The vocabulary size of `judge_input`."""
        return len(self.tasks.answers) + len(self.manners) + sum(map(len, self.tasks.fields))

    @property
    def judged_length(self) -> int:
        """The number of words of `judge_input`."""
        return len(self.tasks.fields) + 4

    def judge_input(self, task: jax.Array, action: jax.Array, reference: jax.Array | None = None) -> jax.Array:
        """The input of a reward model, int32 [..., judged_length]: the question, a reference reply and a reply. `task`,
        `action` and `reference` are numbers of the same shape [...]; the default reference is the right answer in
        manner 0. An answer is the same word in both replies, and so is a manner."""
        reference = self.reply(jnp.int32(0), self.truth(task)) if reference is None else reference
        answers, question = len(self.tasks.answers), jax.vmap(self.tasks.task)(task.ravel())[0]
        sizes = [answers + len(self.manners), *map(len, self.tasks.fields)]
        question = question.reshape(*task.shape, -1) + jnp.cumsum(jnp.array(sizes))[:-1].reshape(*(1,) * task.ndim, -1)
        replies = [
            part + first for x in (reference, action) for part, first in zip(self.parts(x), (answers, 0), strict=True)
        ]
        return jnp.concatenate([question, *(part[..., None] for part in replies)], -1)


GAMES = {"replies": Replies}
