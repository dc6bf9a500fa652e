"""Questions for a team, each with its one right answer: arithmetic, pairs read from a file, or boxes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.helpers import at_least, digits, span


class Tasks(Protocol):
    """Questions 0 to size - 1, all equally likely, each with its right answer."""

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]: ...  # Q fields of the text of a question

    @property
    def answers(self) -> tuple[str, ...]: ...  # all different

    @property
    def ask(self) -> str: ...  # a sentence that names the possible answers

    @property
    def size(self) -> int: ...

    def task(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(phrases of the question int32 [Q], its right answer, int32 index into `answers`)."""
        ...


class Reworded(Tasks, Protocol):
    """Questions that can be asked in other words."""

    def paraphrase(self, number: jax.Array) -> jax.Array:
        """The number of the same question in other words, which has the same right answer."""
        ...


@dataclass(frozen=True)
class Arithmetic:
    """Questions "What is (a + b) mod m?". Operands from 0 to m - 1 and the operation are uniform.

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
            tuple(f" What is ({number}" for number in numbers),
            tuple(f" {operation}" for operation in self.operations),
            tuple(f" {number}) mod {self.modulus}?" for number in numbers),
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

    def paraphrase(self, number: jax.Array) -> jax.Array:
        """The question with its operands exchanged. Raises ValueError if `operations` has "-": a difference then
        changes."""
        if "-" in self.operations:
            raise ValueError(f"Only + and * allow their operands to be exchanged, got {self.operations!r}.")
        operands, operation = number // len(self.operations), number % len(self.operations)
        exchanged = operands % self.modulus * self.modulus + operands // self.modulus
        return exchanged * len(self.operations) + operation


@dataclass(frozen=True)
class Questions:
    """Pairs of a prompt and its answer. Any answer of the set may be given to any question, so a grammar can check it.

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
        """Questions from a file with a line {"prompt": text, "answer": text or whole number} for each question.

        Raises ValueError that names the first line of another form, or the first line that answers an earlier prompt
        differently.
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


@dataclass(frozen=True)
class Boxes:
    """Questions "Which box is full?", after statements that all others are empty, one statement a box, in any order.

    To check an answer, a player looks for the box among the empty ones; to find it, all boxes must be excluded. The
    first half of the questions has even permutations of the boxes (the full one last), the second half odd ones. In
    each half every box is equally often in every place.

    Raises ValueError for fewer than three boxes, or more than six.
    """

    boxes: int = 5

    def __post_init__(self):
        at_least(3, boxes=self.boxes)
        if self.boxes > 6:
            raise ValueError(f"Six boxes have 720 questions already, got {self.boxes}.")

    @cached_property
    def orders(self) -> np.ndarray:
        """int32 [size, boxes]: the empty boxes in the order of the statements, then the full one."""
        parity = lambda order: sum(a > b for i, a in enumerate(order) for b in order[i:]) % 2
        return np.array(sorted(permutations(range(self.boxes)), key=parity), np.int32)

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]:
        return (tuple(f" Box {box} is empty." for box in self.answers),) * (self.boxes - 1) + ((" Which is full?",),)

    @property
    def answers(self) -> tuple[str, ...]:
        return tuple(str(box + 1) for box in range(self.boxes))

    @property
    def ask(self) -> str:
        return f"Answer a number from 1 to {self.boxes}."

    @property
    def size(self) -> int:
        return len(self.orders)

    def task(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        order = jnp.asarray(self.orders)[number]
        return order.at[-1].set(0), order[-1]


def task_prompt(tasks: Tasks, task: jax.Array, role: jax.Array) -> jax.Array:
    """A prompt int32 [A, 1 + Q]: the rules of the role, then the question."""
    question = tasks.task(task)[0]
    return jnp.concatenate([role[:, None], jnp.broadcast_to(question[None], (len(role), len(question)))], 1)


ARITHMETIC = Arithmetic()
CAPITALS = Questions(
    tuple(
        (f"What is the capital of {country}?", city)
        for country, city in {
            "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo",
            "Russia": "Moscow", "Greece": "Athens", "Peru": "Lima", "Cuba": "Havana", "Kenya": "Nairobi",
            "Norway": "Oslo", "Austria": "Vienna", "Poland": "Warsaw", "Iran": "Tehran", "Iraq": "Baghdad",
            "Germany": "Berlin",
        }.items()
    )
)  # fmt: skip
