"""Discussion: agents solve a question, evaluate each other's answers and score them; the deal assigns the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.environments.helpers import MESSAGE, Script, at_least, choice, make_view, random_player
from jaxmarl_llm.environments.tasks import ARITHMETIC, Tasks, task_prompt
from jaxmarl_llm.text.grammar import Grammar

SOLVE, EVALUATE, SCORE = range(3)
RIGHT, WRONG = 0, 1
UNSCORED = 3  # the action of a score that does not parse


class DiscussionState(struct.PyTreeNode):
    task: jax.Array  # int32
    shifts: jax.Array  # int32 [rounds, 3]: in each phase seat k is shown the answer of seat k + shift (mod K)
    turn: jax.Array  # int32
    answers: jax.Array  # int32 [K], the last answer of each seat
    verdicts: jax.Array  # int32 [K], the last verdict of each seat


@dataclass(frozen=True)
class Discussion:
    """K agents discuss a question for some rounds. A round has three turns, in each of which all act at once.

    - Each agent solves the question.
    - Each agent calls another agent's answer right or wrong.
    - Each agent scores an answer, shown with its verdict, from 1 (wrong) to 3 (right).

    The deal assigns the answers. In a round each answer gets one verdict and one score, from two other agents. While it
    solves in a later round, each agent is shown another agent's last answer with its verdict.

    With `critique` a verdict is a line of free words that only the scorer is told. The question then stands in each
    turn and not among the rules, where a small language model forgets it. Without an `evaluator` an answer is scored
    without a verdict. With `self_score` agents score their own answers. A fourth option, "none", stands for a score
    that does not parse.

    Components, for a score s and tau = (s - 1) / 2:

    - `solve`: tau to the agent whose answer is scored.
    - `evaluate`: 1 - tau to the agent that evaluated the answer.
    - `format`: -1 to a scorer without a score; the other two agents then get nothing.

    They are paid in the scoring turn, and a score itself pays nothing; `credit_acts` moves each reward to the act that
    earned it. Measures: `correct`, 1 to an agent whose answer is right, in its solving turn; `judged`, to a scorer: 1 -
    |tau - truth|, or 0 without a score.

    After CoMAS (https://arxiv.org/abs/2510.08529; there a critique is free text). The texts are silent about the
    rewards on purpose, as in CoMAS: agents are asked to discuss, not to earn scores.
    Training can choose among the questions: a deal is two numbers, the first question's and the one after the last's.

    Raises ValueError for fewer than three agents, as an agent would score itself, for rounds < 1, and for a critique
    without an evaluator.
    """

    tasks: Tasks = ARITHMETIC
    agents: int = 3
    rounds: int = 2
    evaluator: bool = True
    self_score: bool = False
    critique: bool = False

    voices = 1
    roles = ("solver", "evaluator", "scorer")
    components = ("solve", "evaluate", "format")
    measures = ("correct", "judged")

    def __post_init__(self):
        at_least(3, agents=self.agents)
        at_least(1, rounds=self.rounds)
        if self.critique and not self.evaluator:
            raise ValueError("A critique is what an evaluator writes: give it one.")

    @property
    def phases(self) -> tuple[int, ...]:
        """The phases of a round."""
        return (SOLVE, EVALUATE, SCORE) if self.evaluator else (SOLVE, SCORE)

    @property
    def turns(self) -> int:
        return len(self.phases) * self.rounds

    @property
    def actions(self) -> int:
        return max(len(self.tasks.answers), UNSCORED + 1)

    @property
    def rules(self) -> Fields:
        """The rules, the same for all, then the question."""
        judges = "judges another's answer as right or wrong, then "
        if self.critique:
            judges = "points out every mistake in another's answer in one line, then "
        rule = (
            f"{self.agents} players discuss a question. In a round each answers it, {judges * self.evaluator}scores "
            f"{'its own' if self.self_score else 'an'} answer from 1 (wrong) to 3 (right). Rounds: {self.rounds}. "
            f"{self.tasks.ask}"
        )
        return ((rule,), *self.tasks.fields)

    @property
    def observation(self) -> Fields:
        answers = tuple(f"{' ' * self.critique}Someone answers {answer}." for answer in self.tasks.answers)
        verdicts: Fields = ((" The verdict: right.", " The verdict: wrong."),)
        judge = " Right or wrong?"
        if self.critique:
            verdicts = ((" Of this somebody says:\n",), *(MessageFrom(seat) for seat in range(self.agents)))
            judge = " Is it right? Say in one line what is wrong with it."
        again = self.tasks.fields if self.critique else ()
        return *again, answers, *verdicts, (" Your answer?", judge, " Score 1, 2 or 3?")

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        judge = MESSAGE if self.critique else choice(("right", "wrong"))
        return choice(self.tasks.answers), judge, choice(("1", "2", "3", "none"))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` solves, evaluates and scores by the right answer. With `critique` no script says a word."""

        def correct(state, seat, key):
            phase, truth = self._phase(state.turn), self.tasks.task(state.task)[1]
            right = state.answers[self._shown_seat(state)[seat]] == truth
            judged = jnp.where(right | self.critique, RIGHT, WRONG)
            return jnp.stack([truth, judged, jnp.where(right, 2, 0)])[phase].astype(jnp.int32)

        return {"random": random_player(self._view), "correct": correct}

    def credit_acts(self, reward: jax.Array) -> jax.Array:
        """Moves each component from the scoring turn to the act that earned it: [B, T, A, C] -> [B, T, A, C]."""
        solve, evaluate, *others = jnp.moveaxis(reward, -1, 0)
        sooner = lambda x, turns: jnp.pad(x[:, turns:], ((0, 0), (0, turns), (0, 0)))
        return jnp.stack([sooner(solve, len(self.phases) - 1), sooner(evaluate, 1), *others], -1)

    def reset(
        self, key: jax.Array, group: jax.Array, among: tuple[jax.Array, jax.Array] | None = None
    ) -> tuple[DiscussionState, View]:
        others, (a, b, c) = self.agents - 1, jax.random.split(key, 3)
        solver, evaluator = jax.random.randint(b, (2, self.rounds), 0, others, jnp.int32)
        scorer = (evaluator + jax.random.randint(c, (self.rounds,), 1, others, jnp.int32)) % others
        nobody = jnp.zeros((self.agents,), jnp.int32)
        shifts = 1 + jnp.stack([solver, evaluator, scorer], 1)
        if self.self_score:
            shifts = shifts.at[:, SCORE].set(0)
        first, end = (0, self.tasks.size) if among is None else (among[0], among[1])
        task = jax.random.randint(a, (), first, end, jnp.int32)
        state = DiscussionState(task, shifts, jnp.int32(0), nobody, nobody)
        return state, self._view(state)

    def prompt(self, state: DiscussionState) -> jax.Array:
        told = task_prompt(self.tasks, state.task, jnp.zeros((self.agents,), jnp.int32))
        return told.at[:, 1:].set(-1) if self.critique else told

    def step(
        self, state: DiscussionState, action: jax.Array, key: jax.Array
    ) -> tuple[DiscussionState, View, jax.Array]:
        phase, shown, truth = self._phase(state.turn), self._shown_seat(state), self.tasks.task(state.task)[1]
        solved = jnp.clip(action, 0, len(self.tasks.answers) - 1)
        parsed, tau = (action >= 0) & (action < UNSCORED), jnp.clip(action, 0, 2) / 2
        nothing = jnp.zeros((self.agents,))
        solve = nothing.at[shown].set(parsed * tau)
        evaluate = nothing.at[self._evaluator(state, shown)].set(parsed * (1 - tau)) * self.evaluator
        judged = parsed * (1 - abs(tau - (state.answers[shown] == truth)))
        paid = [jnp.where(phase == SCORE, x, 0) for x in (solve, evaluate, parsed - 1.0, judged)]
        correct = (phase == SOLVE) & (solved == truth)
        after = state.replace(
            turn=state.turn + 1,
            answers=jnp.where(phase == SOLVE, solved, state.answers),
            verdicts=jnp.where(phase == EVALUATE, jnp.clip(action, RIGHT, WRONG), state.verdicts),
        )
        view = self._view(after).replace(measured=jnp.stack([correct, paid[3]], 1).astype(jnp.float32))
        return after, view, jnp.stack(paid[:3], 1).astype(jnp.float32)

    def _phase(self, turn: jax.Array) -> jax.Array:
        return jnp.array(self.phases)[turn % len(self.phases)]

    def _shown_seat(self, state: DiscussionState) -> jax.Array:
        """The seat whose answer each seat is shown, int32 [K]."""
        shift = state.shifts[state.turn // len(self.phases), self._phase(state.turn)]
        return (jnp.arange(self.agents) + shift) % self.agents

    def _evaluator(self, state: DiscussionState, seat: jax.Array) -> jax.Array:
        """The seats that gave the last verdict on the answers of these seats, int32 [K]; while solving, the verdict of
        the round before."""
        before = jnp.where(self._phase(state.turn) == SOLVE, 1, 0)
        return (seat - state.shifts[state.turn // len(self.phases) - before, EVALUATE]) % self.agents

    def _view(self, state: DiscussionState) -> View:
        phase, shown = self._phase(state.turn), self._shown_seat(state)
        evaluator, ended = self._evaluator(state, shown), state.turn >= self.turns
        answer: list[jax.Array] = [jnp.where(state.turn == 0, -1, state.answers[shown])]
        if self.critique:
            hears = (jnp.arange(self.agents)[:, None] == evaluator[None]) & (phase == SCORE) & ~ended
            verdict = [jnp.where(phase == SCORE, 0, -1), *[-1] * self.agents]
            answer = [*self.tasks.task(state.task)[0], *answer]
        else:
            hears, judged = None, (state.turn > 0) & (phase != EVALUATE) & self.evaluator
            verdict = [jnp.where(judged, state.verdicts[evaluator], -1)]
        return make_view(self, [*answer, *verdict, phase], True, ended, role=phase, grammar=phase, hears=hears)


GAMES = {"discussion": Discussion}
