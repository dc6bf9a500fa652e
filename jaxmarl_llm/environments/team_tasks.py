"""Team tasks with answers that can be checked: one solves and another verifies, or both answer in turn.

What a team is asked comes from `Tasks`: a finite set of questions, each with its one right answer. All chance is in the
deal; a team is paid by what is right, never by what a judge likes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.text.grammar import Choice, Grammar

APPROVE, REJECT = 0, 1
Script = Callable[[Any, jax.Array, jax.Array], jax.Array]


class Tasks(Protocol):
    """Questions 0 to size - 1, all equally likely, each with its right answer."""

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]: ...  # Q fields of the text of a question

    @property
    def answers(self) -> tuple[str, ...]: ...  # all different

    @property
    def ask(self) -> str: ...  # a sentence: what may be answered

    @property
    def size(self) -> int: ...

    def task(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Phrases of the question, int32 [Q], and its right answer, int32 index into `answers`."""
        ...


@dataclass(frozen=True)
class Arithmetic:
    """What is a + b mod m? Operands from 0 to m - 1 and the operation are uniform.

    Raises ValueError for a modulus below 2 or operations that are not different ones of + - *.
    """

    modulus: int = 10
    operations: str = "+-*"

    def __post_init__(self):
        at_least(2, modulus=self.modulus)
        if not self.operations or sorted(set(self.operations) & set("+-*")) != sorted(self.operations):
            raise ValueError(f"operations must be different ones of '+-*', got {self.operations!r}.")

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]:
        numbers = digits(self.modulus)
        return (
            tuple(f" What is {number}" for number in numbers),
            tuple(f" {operation}" for operation in self.operations),
            tuple(f" {number} mod {self.modulus}?" for number in numbers),
        )

    @property
    def answers(self) -> tuple[str, ...]:
        return digits(self.modulus)

    @property
    def ask(self) -> str:
        return span(self.modulus)

    @property
    def size(self) -> int:
        return self.modulus**2 * len(self.operations)

    def task(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        operands, operation = number // len(self.operations), number % len(self.operations)
        a, b = operands // self.modulus, operands % self.modulus
        results = jnp.stack([{"+": a + b, "-": a - b, "*": a * b}[name] for name in self.operations])
        return jnp.stack([a, operation, b]), results[operation] % self.modulus


@dataclass(frozen=True)
class Questions:
    """Pairs of a prompt and its answer; what may be answered is any answer of the set, so a grammar can check it.

    Raises ValueError for an empty text or fewer than two different answers.
    """

    pairs: tuple[tuple[str, str], ...]

    def __post_init__(self):
        for prompt, answer in self.pairs:
            if not (prompt and answer):
                raise ValueError(f"A question needs a prompt and an answer, got {prompt!r} and {answer!r}.")
        if len(self.answers) < 2:
            raise ValueError(f"Questions need at least two different answers, got {list(self.answers)}.")

    @classmethod
    def read(cls, path: str | Path) -> Questions:
        """From a file with a line {"prompt": text, "answer": text or whole number} for each question.

        Raises ValueError that names the first line that is something else, or that answers an earlier prompt anew.
        """
        pairs: dict[str, str] = {}
        for number, line in enumerate(Path(path).read_bytes().split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}.") from error
            prompt, answer = (entry.get(name) if isinstance(entry, dict) else None for name in ("prompt", "answer"))
            if isinstance(answer, int) and not isinstance(answer, bool):
                answer = str(answer)
            if not (isinstance(prompt, str) and isinstance(answer, str) and prompt and answer):
                raise ValueError(
                    f'{path}, line {number} must be {{"prompt": text, "answer": text}}, got {entry!r:.80}.'
                )
            if pairs.setdefault(prompt, answer) != answer:
                raise ValueError(
                    f"{path}, line {number} answers {prompt!r:.80} with {answer!r}, an earlier line with "
                    f"{pairs[prompt]!r}."
                )
        return cls(tuple(pairs.items()))

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]:
        return (tuple(f" {prompt}" for prompt, _ in self.pairs),)

    @property
    def answers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(answer for _, answer in self.pairs))

    @property
    def ask(self) -> str:
        few = len(self.answers) <= 20
        return f"Answer one of: {', '.join(self.answers)}." if few else "Say the answer and nothing else."

    @property
    def size(self) -> int:
        return len(self.pairs)

    def task(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        answers = [self.answers.index(answer) for _, answer in self.pairs]
        return number[None], jnp.asarray(answers, jnp.int32)[number]


def at_least(least: int, **values: int) -> None:
    """Raises ValueError for the first of the values that is smaller."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")


def digits(size: int) -> tuple[str, ...]:
    """Numbers below `size` in digits of one width: where 1 begins 11, who speaks without an end token cannot stop."""
    width = len(str(size - 1))
    return tuple(f"{number:0{width}d}" for number in range(size))


def span(size: int) -> str:
    """What may be answered, for numbers below `size`."""
    return f"Answer a number from {digits(size)[0]} to {size - 1}."


def choice(texts: tuple[str, ...]) -> Grammar:
    return (Choice(tuple(enumerate(texts))),)


def show(
    game: Any, text: list, acting: jax.Array, role: Any, grammar: Any, ended: jax.Array, legal: jax.Array | None = None
) -> View:
    """The view of a game that is over at `ended`; text is K fields [A]. Legal is what the grammar can say."""
    sizes = jnp.array([len(options.options) for (options,) in game.grammars])
    grammar = jnp.broadcast_to(grammar, (game.agents,)).astype(jnp.int32)
    sayable = jnp.arange(game.actions)[None] < sizes[grammar][:, None]
    return View(
        phrases=jnp.where(ended, -1, jnp.stack(text, 1)).astype(jnp.int32),
        acting=acting & ~ended,
        role=jnp.broadcast_to(role, (game.agents,)).astype(jnp.int32),
        grammar=grammar,
        legal=sayable if legal is None else legal,
        terminated=ended,
        truncated=jnp.bool_(False),
    )


def random_player(view: Callable[[Any], View]) -> Script:
    """The script that draws a legal action uniformly; `view` is of a state."""

    def play(state: Any, seat: jax.Array, key: jax.Array) -> jax.Array:
        return jax.random.categorical(key, jnp.where(view(state).legal[seat], 0.0, -jnp.inf)).astype(jnp.int32)

    return play


def draw(key: jax.Array, count: int) -> jax.Array:
    """The number of a deal, uniform."""
    return jax.random.randint(key, (), 0, count, jnp.int32)


def all_deals(start: Callable, *counts: int) -> tuple[Any, np.ndarray]:
    """Initial states start(i, j, ...) for i, j, ... below the counts, stacked, and their equal probabilities."""
    numbers = [index.ravel() for index in np.indices(counts, np.int32)]
    return jax.vmap(start)(*map(jnp.asarray, numbers)), np.full(len(numbers[0]), 1 / len(numbers[0]))


ARITHMETIC = Arithmetic()


class LoopState(struct.PyTreeNode):
    task: jax.Array  # int32
    turn: jax.Array  # int32, even: the solver's
    answer: jax.Array  # int32, the solver's last
    approved: jax.Array  # bool


@dataclass(frozen=True)
class SolverVerifier:
    """A solver answers a question, a verifier who sees both approves or rejects; after a rejection the loop goes on.

    A loop is one answer and one verdict, `loops` of them at most. With the first approval, or with the last loop's
    verdict whatever it is, the game ends and the answer of that loop counts. Components: `correct`, to both in the
    last turn, 1 if that answer is right, else 0; `verdict`, to the verifier for each verdict, 1 if it approved a right
    or rejected a wrong answer, else 0. The orchestration is that of Dr. MAS; theirs reads a malformed verdict as
    approval, here nothing but `approve` is one.
    Raises ValueError for loops < 1.
    """

    tasks: Tasks = ARITHMETIC
    loops: int = 3

    agents = 2
    alternating = True
    roles = ("solver", "verifier")
    components = ("correct", "verdict")

    def __post_init__(self):
        at_least(1, loops=self.loops)

    @property
    def turns(self) -> int:
        return 2 * self.loops

    @property
    def seat_turns(self) -> int:
        return self.loops

    @property
    def actions(self) -> int:
        return max(len(self.tasks.answers), 2)

    @property
    def rules(self) -> Fields:
        most = f"{self.loops} answers at most. The last answer counts."
        solver = f"You answer a question. A partner approves your answer or rejects it, then you answer again: {most}"
        verifier = f"A partner answers a question. You approve the answer or reject it, then they answer again: {most}"
        return ((f"{solver} {self.tasks.ask}", f"{verifier} Answer approve or reject."), *self.tasks.fields)

    @property
    def observation(self) -> Fields:
        verify = (f"They answer {answer}. Approve or reject?" for answer in self.tasks.answers)
        return (("Answer.", "Rejected. Answer again.", *verify),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return choice(self.tasks.answers), choice(("approve", "reject"))

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` knows the answer in either seat."""

        def correct(state, seat, key):
            truth = self.tasks.task(state.task)[1]
            return jnp.where(seat == 0, truth, jnp.where(state.answer == truth, APPROVE, REJECT))

        return {"random": random_player(self.view), "correct": correct}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[LoopState, View]:
        state = self._start(draw(key, self.tasks.size))
        return state, self.view(state)

    def initial_states(self) -> tuple[LoopState, np.ndarray]:
        return all_deals(self._start, self.tasks.size)

    def prompt(self, state: LoopState) -> jax.Array:
        return asked(self.tasks, state.task, jnp.arange(2))

    def step(self, state: LoopState, action: jax.Array, key: jax.Array) -> tuple[LoopState, View, jax.Array]:
        verifying, approves = state.turn % 2 == 1, action[1] == APPROVE
        right = state.answer == self.tasks.task(state.task)[1]
        answer = jnp.where(verifying, state.answer, jnp.clip(action[0], 0, len(self.tasks.answers) - 1))
        after = LoopState(state.task, state.turn + 1, answer, verifying & approves)
        correct = jnp.broadcast_to(self._ended(after) & right, (2,))
        verdict = jnp.stack([jnp.bool_(False), verifying & (approves == right)])
        return after, self.view(after), jnp.stack([correct, verdict], 1).astype(jnp.float32)

    def _start(self, task: jax.Array) -> LoopState:
        return LoopState(task, jnp.int32(0), jnp.int32(0), jnp.bool_(False))

    def _ended(self, state: LoopState) -> jax.Array:
        return state.approved | (state.turn >= self.turns)

    def view(self, state: LoopState) -> View:
        acting = jnp.arange(2) == state.turn % 2
        told = jnp.stack([jnp.minimum(state.turn, 1), 2 + state.answer])
        return show(self, [jnp.where(acting, told, -1)], acting, jnp.arange(2), jnp.arange(2), self._ended(state))


def asked(tasks: Tasks, task: jax.Array, role: jax.Array) -> jax.Array:
    """An opening [A, 1 + Q]: the rules of the role, then the question."""
    question = tasks.task(task)[0]
    return jnp.concatenate([role[:, None], jnp.broadcast_to(question[None], (len(role), len(question)))], 1)


class PioneerState(struct.PyTreeNode):
    task: jax.Array  # int32
    pioneer: jax.Array  # int32, a seat
    turn: jax.Array  # int32
    answer: jax.Array  # int32, the pioneer's


@dataclass(frozen=True)
class PioneerObserver:
    """The pioneer answers a question; the observer sees the question and the pioneer's answer, and answers too.

    Component `correct`: to each seat in its own turn, 1 if its own answer is right, else 0. What CORY trains on is the
    sum of both, which is for the recipe to form. Who is the pioneer: with exchange "group" seat 0 in even groups and
    seat 1 in odd ones, with "deal" a fair coin of the deal, with "never" seat 0.
    Raises ValueError for another exchange.
    """

    tasks: Tasks = ARITHMETIC
    exchange: str = "group"

    agents = 2
    turns = 2
    seat_turns = 1
    alternating = True
    roles = ("pioneer", "observer")
    components = ("correct",)

    def __post_init__(self):
        if self.exchange not in ("group", "deal", "never"):
            raise ValueError(f"exchange must be 'group', 'deal' or 'never', got {self.exchange!r}.")

    @property
    def actions(self) -> int:
        return len(self.tasks.answers)

    @property
    def rules(self) -> Fields:
        pioneer = "You answer a question first, then a partner who sees your answer does."
        observer = "A partner answers a question, then you do, and you see their answer. It may be wrong."
        return (tuple(f"{part} {self.tasks.ask}" for part in (pioneer, observer)), *self.tasks.fields)

    @property
    def observation(self) -> Fields:
        return (("Answer.", *(f"They answer {answer}. And you?" for answer in self.tasks.answers)),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(self.tasks.answers),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` knows the answer; `follower` says in the observer's seat what the pioneer said, else 0."""
        return {
            "random": random_player(self.view),
            "correct": lambda state, seat, key: self.tasks.task(state.task)[1],
            "follower": lambda state, seat, key: jnp.where(seat == state.pioneer, 0, state.answer),
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[PioneerState, View]:
        seats = 2 if self.exchange == "deal" else 1
        number = draw(key, self.tasks.size * seats)
        state = self._start(number // seats, group % 2 if self.exchange == "group" else number % seats)
        return state, self.view(state)

    def initial_states(self) -> tuple[PioneerState, np.ndarray]:
        """With exchange "group", those of an even and an odd group."""
        return all_deals(self._start, self.tasks.size, 1 if self.exchange == "never" else 2)

    def prompt(self, state: PioneerState) -> jax.Array:
        return asked(self.tasks, state.task, self._role(state))

    def step(self, state: PioneerState, action: jax.Array, key: jax.Array) -> tuple[PioneerState, View, jax.Array]:
        acting = self._role(state) == state.turn
        said = jnp.clip(jnp.where(acting, action, 0).sum(), 0, self.actions - 1).astype(jnp.int32)
        correct = acting & (said == self.tasks.task(state.task)[1])
        after = PioneerState(state.task, state.pioneer, state.turn + 1, said)
        return after, self.view(after), correct[:, None].astype(jnp.float32)

    def _start(self, task: jax.Array, pioneer: jax.Array) -> PioneerState:
        return PioneerState(task, pioneer.astype(jnp.int32), jnp.int32(0), jnp.int32(0))

    def _role(self, state: PioneerState) -> jax.Array:
        return (jnp.arange(2) != state.pioneer).astype(jnp.int32)

    def view(self, state: PioneerState) -> View:
        role = self._role(state)
        acting = role == state.turn
        told = jnp.where(state.turn == 0, 0, 1 + state.answer)
        return show(self, [jnp.where(acting, told, -1)], acting, role, 0, state.turn >= 2)
