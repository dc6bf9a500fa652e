"""Discussion: agents solve a question, evaluate each other's answers and score them; the deal pairs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.environments.tasks import ARITHMETIC, Tasks, asked
from jaxmarl_llm.text.grammar import Grammar

SOLVE, EVALUATE, SCORE = range(3)
RIGHT, WRONG = 0, 1


class DiscussionState(struct.PyTreeNode):
    task: jax.Array  # int32
    shifts: jax.Array  # int32 [rounds, 3]: in each phase seat k is shown the answer of seat k + shift (mod K)
    turn: jax.Array  # int32
    answers: jax.Array  # int32 [K], the last of each seat
    verdicts: jax.Array  # int32 [K], the last that each seat gave


@dataclass(frozen=True)
class Discussion:
    """K agents discuss a question for some rounds, all at once. In a round each solves it, then calls another's
    answer right or wrong, then scores an answer, shown with the verdict on it, from 1 (wrong) to 3 (right).

    The deal says which answer each is shown: each answer gets one verdict and one score in a round, from two other
    agents; while solving in a later round, each is shown another's answer of the round before with the verdict on it.
    Components: `solve`, (s - 1) / 2 to the agent whose answer is scored s; `evaluate`, 1 - (s - 1) / 2 to the one who
    evaluated it; both are paid in the scoring turn, nothing for scoring itself; and `correct`, 1 to an agent in its
    solving turn if its answer is right, else 0, which is the truth to compare with, not a reward of the paper. After
    CoMAS (https://arxiv.org/abs/2510.08529; there a critique is free text, and a score that does not parse costs the
    scorer 1).
    The texts are silent about the rewards on purpose, as in CoMAS: agents are asked to discuss, not to earn scores.
    Raises ValueError for fewer than three agents (someone would score itself) or rounds < 1.
    """

    tasks: Tasks = ARITHMETIC
    agents: int = 3
    rounds: int = 2

    roles = ("solver", "evaluator", "scorer")
    components = ("solve", "evaluate", "correct")

    def __post_init__(self):
        at_least(3, agents=self.agents)
        at_least(1, rounds=self.rounds)

    @property
    def turns(self) -> int:
        return 3 * self.rounds

    @property
    def actions(self) -> int:
        return max(len(self.tasks.answers), 3)

    @property
    def rules(self) -> Fields:
        """The same for all, then the question."""
        rule = (
            f"{self.agents} players discuss a question. In a round each answers it, judges another's answer as right "
            f"or wrong, then scores an answer from 1 (wrong) to 3 (right). Rounds: {self.rounds}. {self.tasks.ask}"
        )
        return ((rule,), *self.tasks.fields)

    @property
    def observation(self) -> Fields:
        answers = tuple(f"Someone answers {answer}." for answer in self.tasks.answers)
        verdicts = (" The verdict: right.", " The verdict: wrong.")
        return answers, verdicts, (" Your answer?", " Right or wrong?", " Score 1, 2 or 3?")

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(self.tasks.answers), choice(("right", "wrong")), choice(("1", "2", "3"))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` solves, evaluates and scores by the right answer."""

        def correct(state, seat, key):
            phase, truth = state.turn % 3, self.tasks.task(state.task)[1]
            right = state.answers[self._shown(state)[seat]] == truth
            return jnp.stack([truth, jnp.where(right, RIGHT, WRONG), jnp.where(right, 2, 0)])[phase].astype(jnp.int32)

        return {"random": random_player(self._view), "correct": correct}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[DiscussionState, View]:
        others, (a, b, c) = self.agents - 1, jax.random.split(key, 3)
        solver, evaluator = jax.random.randint(b, (2, self.rounds), 0, others, jnp.int32)
        scorer = (evaluator + jax.random.randint(c, (self.rounds,), 1, others, jnp.int32)) % others
        nobody = jnp.zeros((self.agents,), jnp.int32)
        shifts = 1 + jnp.stack([solver, evaluator, scorer], 1)
        state = DiscussionState(draw(a, self.tasks.size), shifts, jnp.int32(0), nobody, nobody)
        return state, self._view(state)

    def prompt(self, state: DiscussionState) -> jax.Array:
        return asked(self.tasks, state.task, jnp.zeros((self.agents,), jnp.int32))

    def step(
        self, state: DiscussionState, action: jax.Array, key: jax.Array
    ) -> tuple[DiscussionState, View, jax.Array]:
        phase, shown = state.turn % 3, self._shown(state)
        solved, score = jnp.clip(action, 0, len(self.tasks.answers) - 1), jnp.clip(action, 0, 2) / 2
        nothing = jnp.zeros((self.agents,))
        solve, evaluate = nothing.at[shown].set(score), nothing.at[self._evaluator(state, shown)].set(1 - score)
        correct = (phase == SOLVE) & (solved == self.tasks.task(state.task)[1])
        after = state.replace(
            turn=state.turn + 1,
            answers=jnp.where(phase == SOLVE, solved, state.answers),
            verdicts=jnp.where(phase == EVALUATE, jnp.clip(action, RIGHT, WRONG), state.verdicts),
        )
        reward = jnp.stack([jnp.where(phase == SCORE, paid, 0) for paid in (solve, evaluate)] + [correct], 1)
        return after, self._view(after), reward.astype(jnp.float32)

    def _shown(self, state: DiscussionState) -> jax.Array:
        """The seat whose answer each seat is shown, int32 [K]."""
        return (jnp.arange(self.agents) + state.shifts[state.turn // 3, state.turn % 3]) % self.agents

    def _evaluator(self, state: DiscussionState, seat: jax.Array) -> jax.Array:
        """The seats that gave the last verdict on the answers of these seats, int32 [K]; while solving, in the round
        before."""
        before = jnp.where(state.turn % 3 == SOLVE, 1, 0)
        return (seat - state.shifts[state.turn // 3 - before, EVALUATE]) % self.agents

    def _view(self, state: DiscussionState) -> View:
        phase, shown = state.turn % 3, self._shown(state)
        answer = jnp.where(state.turn == 0, -1, state.answers[shown])
        verdict = jnp.where((state.turn == 0) | (phase == EVALUATE), -1, state.verdicts[self._evaluator(state, shown)])
        ended = state.turn >= self.turns
        return make_view(self, [answer, verdict, phase], True, ended, role=phase, grammar=phase)


GAMES = {"discussion": Discussion}
