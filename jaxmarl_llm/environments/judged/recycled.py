"""Answers to a question, then judgements of them and second answers: one batch of answers gives three kinds of
tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.environments.tasks import ARITHMETIC, Tasks, task_prompt
from jaxmarl_llm.text.grammar import Grammar

SOLVER, JUDGE, COMPARER, REVISER = range(4)
FIRST, SECOND = 0, 1  # also yes and no


class RecycledState(struct.PyTreeNode):
    task: jax.Array  # int32
    plain: jax.Array  # bool: judges and revisers are shown the first attempt, right or wrong
    turn: jax.Array  # int32
    pair: jax.Array  # bool: judges compare two attempts
    shown: jax.Array  # int32 [2]: the answers that judges read; only the first if `pair` is False
    wrong: jax.Array  # int32: the answer that revisers read; -1: nobody revises


@dataclass(frozen=True)
class Recycled:
    """Solvers answer a question, each alone. In a second turn judges and revisers are asked about these answers.

    The correctness of the answers is known. There are `attempts` solvers, as many judges and as many revisers. All
    judges get the same task, and so do all revisers, each in a fresh context.

    Judges: if all answers are right or all are wrong, they say whether a random answer is right. If answers are mixed,
    they do so with probability `pointwise`, for a right or a wrong answer with equal probability. Otherwise they choose
    the right one of a right and a wrong answer, in random order.

    Revisers read a random wrong answer and answer again. If all answers are right, they do not act.

    If training arranges the deal True, the game is a test: judges and revisers read the answer of the first solver,
    right or wrong.

    Components `solve`, `judge` and `revise`: 1 for a right answer or verdict, paid in its turn. After SPARK
    (https://arxiv.org/abs/2509.22624), whose judges also read the reasoning.
    Raises ValueError for fewer than two attempts and for a probability outside [0, 1].
    """

    tasks: Tasks = ARITHMETIC
    attempts: int = 4
    pointwise: float = 0.3

    turns = 2
    seat_turns = 1
    roles = ("solver", "judge", "comparer", "reviser")
    components = ("solve", "judge", "revise")

    def __post_init__(self):
        at_least(2, attempts=self.attempts)
        if not 0 <= self.pointwise <= 1:
            raise ValueError(f"pointwise is a share within [0, 1], got {self.pointwise}.")

    @property
    def agents(self) -> int:
        return 3 * self.attempts

    @property
    def actions(self) -> int:
        return len(self.tasks.answers)

    @property
    def rules(self) -> Fields:
        return (
            (
                f"Answer the question. A right answer earns 1 point. {self.tasks.ask}",
                "Others have answered the question. You are asked about their answers, and earn 1 point if you are "
                "right.",
                f"Somebody has answered the question. Reconsider it. A right answer earns 1 point. {self.tasks.ask}",
            ),
            *self.tasks.fields,
        )

    @property
    def observation(self) -> Fields:
        answers = self.tasks.answers
        return (
            tuple(f" Answer A is {answer}." for answer in answers),
            tuple(f" Answer B is {answer}." for answer in answers),
            (" Your answer?", " Is it right?", " Which one is right?", " Your answer now?"),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(self.tasks.answers), choice(("yes", "no")), choice(("A", "B"))

    @property
    def scripts(self) -> Mapping[str, Script]:
        def correct(state: RecycledState, seat: jax.Array, key: jax.Array) -> jax.Array:
            judges = (state.turn == 1) & (seat // self.attempts == 1)
            return jnp.where(judges, self._verdict(state), self._truth(state)).astype(jnp.int32)

        return {"random": random_player(self._view), "correct": correct}

    def reset(self, key: jax.Array, group: jax.Array, plain: Any = False) -> tuple[RecycledState, View]:
        task, nothing = draw(key, self.tasks.size), jnp.zeros(2, jnp.int32)
        state = RecycledState(task, jnp.bool_(plain), jnp.int32(0), jnp.bool_(False), nothing, jnp.int32(-1))
        return state, self._view(state)

    def prompt(self, state: RecycledState) -> jax.Array:
        return task_prompt(self.tasks, state.task, jnp.repeat(jnp.arange(3, dtype=jnp.int32), self.attempts))

    def step(self, state: RecycledState, action: jax.Array, key: jax.Array) -> tuple[RecycledState, View, jax.Array]:
        part, truth = jnp.arange(self.agents) // self.attempts, self._truth(state)
        solving, judging = (state.turn == 0) & (part == 0), (state.turn == 1) & (part == 1)
        revising = (state.turn == 1) & (part == 2) & (state.wrong >= 0)
        good = jnp.where(judging, action == self._verdict(state), action == truth)
        reward = jnp.stack([good & solving, good & judging, good & revising], 1).astype(jnp.float32)
        after = self._items(state, action[: self.attempts], key).replace(turn=state.turn + 1)
        after = jax.tree.map(lambda new, old: jnp.where(state.turn == 0, new, old), after, state.replace(turn=2))
        return after, self._view(after), reward

    def _items(self, state: RecycledState, answers: jax.Array, key: jax.Array) -> RecycledState:
        """The state with the tasks about these answers, int32 [attempts]."""
        a, b, c, d, e = jax.random.split(key, 5)
        right = answers == self._truth(state)
        pick = lambda key, where: answers[jax.random.categorical(key, jnp.where(where, 0.0, -jnp.inf))]
        either, mixed = pick(a, jnp.ones_like(right)), right.any() & ~right.all()
        good, bad = (jnp.where(where.any(), pick(k, where), either) for k, where in ((b, right), (c, ~right)))
        dice, swapped = jax.random.uniform(d), jax.random.bernoulli(e)
        pair = mixed & (dice >= self.pointwise) & ~state.plain
        shown = jnp.where(swapped, jnp.stack([bad, good]), jnp.stack([good, bad]))  # pointwise: the first, by a coin
        wrong = jnp.where(right.all(), -1, bad)
        plain = state.plain
        return state.replace(
            pair=pair, shown=jnp.where(plain, answers[0], shown), wrong=jnp.where(plain, answers[0], wrong)
        )

    def _truth(self, state: RecycledState) -> jax.Array:
        return self.tasks.task(state.task)[1]

    def _verdict(self, state: RecycledState) -> jax.Array:
        """The right verdict of a judge: A or B, yes or no."""
        return jnp.where(state.shown[0] == self._truth(state), FIRST, SECOND)

    def _view(self, state: RecycledState) -> View:
        part, first = jnp.arange(self.agents) // self.attempts, state.turn == 0
        later = jnp.where(part == 2, REVISER, jnp.where(state.pair, COMPARER, JUDGE))
        role = jnp.where(first | (part == 0), SOLVER, later)
        a = jnp.where(first, -1, jnp.where(part == 2, state.wrong, state.shown[0]))
        b = jnp.where(role == COMPARER, state.shown[1], -1)
        acting = jnp.where(first, part == 0, (part == 1) | ((part == 2) & (state.wrong >= 0)))
        grammar = jnp.where(role == JUDGE, 1, jnp.where(role == COMPARER, 2, 0))
        return make_view(self, [a, b, role], acting, state.turn > 1, role=role, grammar=grammar)


GAMES = {"recycled": Recycled}
