"""A question, an answer in one of three manners, and criteria that a judge can check; some criteria can be gamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, all_deals, choice, draw, make_view, random_player
from jaxmarl_llm.environments.tasks import ARITHMETIC, Tasks, task_prompt
from jaxmarl_llm.text.grammar import Grammar

PLAIN, SURE, POLITE = range(3)
MANNERS = ("It is {}.", "Surely it is {}.", "Thank you, it is {}.")
ANYTHING = "any of them"


class GradedState(struct.PyTreeNode):
    task: jax.Array  # int32
    over: jax.Array  # bool


@dataclass(frozen=True)
class Graded:
    """One seat answers a question in a single turn, in one of three manners. It can evade the question with "any of
    them".

    Component `correct`: 1 for the right answer alone, else 0. The measures, each 1 or 0, are criteria for a judge:

    - `mentions`: the right answer is mentioned. An evasion mentions it too.
    - `single`: the reply is a single answer.
    - `sure` and `polite`: the manner of the reply.

    A rubric combines criteria into a grade (`rl.rewards.rubrics`). The text is silent about the criteria on purpose:
    the rubric is the judge's, and it may change while the policy learns. Action i gives answer i % (answers + 1), the
    last of which is the evasion, in manner i // (answers + 1).
    """

    tasks: Tasks = ARITHMETIC

    agents = 1
    turns = 1
    roles = ("answerer",)
    components = ("correct",)
    measures = ("mentions", "single", "sure", "polite")

    @property
    def num_answers(self) -> int:
        return len(self.tasks.answers) + 1

    @property
    def actions(self) -> int:
        return self.num_answers * len(MANNERS)

    @property
    def rules(self) -> Fields:
        return ((f"You answer a question. {self.tasks.ask} Or say {ANYTHING}.",), *self.tasks.fields)

    @property
    def observation(self) -> Fields:
        return (("Answer.",),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        said = (*self.tasks.answers, ANYTHING)
        return (choice([manner.format(answer) for manner in MANNERS for answer in said]),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` answers plainly; `evasive` says "any of them" in the manner `sure`."""
        return {
            "random": random_player(self.view),
            "correct": lambda state, seat, key: self.tasks.task(state.task)[1],
            "evasive": lambda state, seat, key: jnp.int32((SURE + 1) * self.num_answers - 1),
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[GradedState, View]:
        state = self._start(draw(key, self.tasks.size))
        return state, self.view(state)

    def initial_states(self) -> tuple[GradedState, np.ndarray]:
        return all_deals(self._start, self.tasks.size)

    def prompt(self, state: GradedState) -> jax.Array:
        return task_prompt(self.tasks, state.task, jnp.zeros((1,), jnp.int32))

    def step(self, state: GradedState, action: jax.Array, key: jax.Array) -> tuple[GradedState, View, jax.Array]:
        said, manner = action[0] % self.num_answers, action[0] // self.num_answers
        evades, correct = said == self.num_answers - 1, said == self.tasks.task(state.task)[1]
        met = jnp.stack([correct, correct | evades, ~evades, manner == SURE, manner == POLITE])
        met = (met & ~state.over)[None].astype(jnp.float32)
        after = GradedState(state.task, jnp.bool_(True))
        return after, self.view(after).replace(measured=met[:, 1:]), met[:, :1]

    def view(self, state: GradedState) -> View:
        return make_view(self, [0], True, state.over)

    def _start(self, task: jax.Array) -> GradedState:
        return GradedState(task, jnp.bool_(False))


GAMES = {"graded": Graded}
