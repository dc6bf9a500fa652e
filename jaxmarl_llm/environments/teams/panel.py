"""A panel: every seat answers the same question alone. Its scripts know some questions and are misled about others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    random_player,
    uniform,
)
from jaxmarl_llm.environments.tasks import ARITHMETIC, Tasks
from jaxmarl_llm.text.grammar import Grammar


class Member(NamedTuple):
    """A script that knows some questions and has a wrong belief about every other question.

    If it knows a question, it is right with probability `right`, else it gives another answer, uniformly. If it does
    not know it, it says its belief with probability `sure`, else any answer, uniformly. With `sure` 0 it guesses, with
    1 it is confidently wrong.
    """

    name: str
    knows: float  # the share of known questions; a question and its paraphrase count as two
    right: float = 1.0
    sure: float = 0.0
    questions: int = 0  # members of equal numbers know the same questions, of different numbers independent ones
    beliefs: int = 0  # members of equal numbers have the same beliefs, of different numbers independent ones


class PanelState(struct.PyTreeNode):
    minds: jax.Array  # int32, the number of the draw of what members know and believe
    task: jax.Array  # int32
    over: jax.Array  # bool


@dataclass(frozen=True)
class Panel:
    """All seats answer one question in one turn, at once, and no seat is told another's answer.

    With two views, odd seats are asked a paraphrase (`Arithmetic.paraphrase`): the same question in other words.
    Component `correct`: 1 to a seat with a right answer, else 0, also for an answer that is no legal action (-1). It is
    the truth. A study may pay votes instead (`rl.votes`); they need all samples of a question, so no single game can
    pay them.

    A deal is the number of a draw of what the members know and believe (`draw_minds`), 0 unless it is arranged.

    After RLCCF (https://arxiv.org/abs/2508.12338) and Co-rewarding (https://arxiv.org/abs/2508.00410).
    Raises ValueError without seats, for other than one or two views, and for two views of tasks without paraphrases.
    Raises it also for shares outside [0, 1], and for names that another script has.
    """

    tasks: Tasks = ARITHMETIC
    agents: int = 4
    views: int = 1
    members: tuple[Member, ...] = ()

    turns = 1
    accepts_illegal = True
    roles = ("member",)
    components = ("correct",)

    def __post_init__(self):
        at_least(1, agents=self.agents)
        if self.views not in (1, 2):
            raise ValueError(f"A question is asked in one view or in two, not in {self.views}.")
        if self.views == 2:
            if not hasattr(self.tasks, "paraphrase"):
                raise ValueError(f"{type(self.tasks).__name__} cannot be asked in other words: choose one view.")
            jax.eval_shape(self.tasks.paraphrase, jnp.int32(0))
        names = ("random", "correct", *(member.name for member in self.members))
        for i, member in enumerate(self.members, 2):
            if not all(0 <= share <= 1 for share in (member.knows, member.right, member.sure)):
                raise ValueError(f"Shares of {member.name} lie within [0, 1], got {member}.")
            if member.name in names[:i]:
                raise ValueError(f"The panel has a script {member.name!r} already: give this one another name.")

    @property
    def actions(self) -> int:
        return len(self.tasks.answers)

    @property
    def rules(self) -> Fields:
        rule = f"{self.agents} players answer a question, each alone. A right answer is 1 point to its player."
        return ((f"{rule} {self.tasks.ask}",), *self.tasks.fields)

    @property
    def observation(self) -> Fields:
        return (("Answer.",),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(self.tasks.answers),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        correct = lambda state, seat, key: self.tasks.task(state.task)[1]
        members = {member.name: self._script(member) for member in self.members}
        return {"random": random_player(self.view), "correct": correct, **members}

    def reset(self, key: jax.Array, group: jax.Array, minds: Any = 0) -> tuple[PanelState, View]:
        state = self._start(draw(key, self.tasks.size)).replace(minds=jnp.int32(minds))
        return state, self.view(state)

    def initial_states(self) -> tuple[PanelState, np.ndarray]:
        return all_deals(self._start, self.tasks.size)

    def prompt(self, state: PanelState) -> jax.Array:
        question = jax.vmap(lambda number: self.tasks.task(number)[0])(self._question_number(state))
        return jnp.concatenate([jnp.zeros((self.agents, 1), question.dtype), question], 1)

    def step(self, state: PanelState, action: jax.Array, key: jax.Array) -> tuple[PanelState, View, jax.Array]:
        correct = (action == self.tasks.task(state.task)[1]) & ~state.over
        after = state.replace(over=jnp.bool_(True))
        return after, self.view(after), correct[:, None].astype(jnp.float32)

    def view(self, state: PanelState) -> View:
        return make_view(self, [0], True, state.over)

    def _start(self, task: jax.Array) -> PanelState:
        return PanelState(jnp.int32(0), task, jnp.bool_(False))

    def _question_number(self, state: PanelState) -> jax.Array:
        """The number of the question in each seat's view, int32 [A]."""
        tasks: Any = self.tasks
        other = tasks.paraphrase(state.task) if self.views == 2 else state.task
        return jnp.where(jnp.arange(self.agents) % 2 == 0, state.task, other)

    def _script(self, member: Member) -> Script:
        size, answers = self.tasks.size, len(self.tasks.answers)

        def play(state: PanelState, seat: jax.Array, key: jax.Array) -> jax.Array:
            dice, other = jax.random.split(key)
            number, truth = self._question_number(state)[seat], self.tasks.task(state.task)[1]
            questions, beliefs = (
                jax.random.fold_in(jax.random.fold_in(jax.random.key(kind), which), state.minds)
                for kind, which in enumerate((member.questions, member.beliefs))
            )
            known = jax.random.permutation(questions, size)[number] < round(member.knows * size)
            wrong_by = jax.random.randint(beliefs, (size,), 1, answers)[number]
            meant = jnp.where(known, truth, (truth + wrong_by) % answers)
            errs = jax.random.uniform(dice) >= jnp.where(known, member.right, member.sure)
            possible = ~known | (jnp.arange(answers) != meant)
            return jnp.where(errs, uniform(other, possible), meant).astype(jnp.int32)

        return play


def draw_minds(key: jax.Array) -> jax.Array:
    """The number of a random draw of what the members of a panel know and believe, int32."""
    return jax.random.randint(key, (), 0, 2**31 - 1, jnp.int32)


GAMES = {"panel": Panel}
