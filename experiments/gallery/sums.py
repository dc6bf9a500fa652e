"""Sums of two numbers from 1 to 9, for a solver and a verifier that are told little."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import choice
from jaxmarl_llm.environments.tasks import Tasks
from jaxmarl_llm.environments.teams.team_tasks import LoopState, SolverVerifier
from jaxmarl_llm.text.grammar import Grammar

PAIRS = tuple((a, b) for a in range(1, 10) for b in range(1, 10))
HELD_OUT = tuple(pair for number, pair in enumerate(PAIRS) if number % 5 == 2)
TRAINED = tuple(pair for pair in PAIRS if pair not in HELD_OUT)


@dataclasses.dataclass(frozen=True)
class Sums:
    """Questions "What is a + b?" of these pairs; answers from 2 to 18, whatever the pairs."""

    pairs: tuple[tuple[int, int], ...] = TRAINED

    answers = tuple(str(number) for number in range(2, 19))
    ask = "Answer a number from 2 to 18."

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]:
        return (tuple(f"What is {a} + {b}?" for a, b in self.pairs),)

    @property
    def size(self) -> int:
        return len(self.pairs)

    def task(self, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        return number[None], jnp.asarray([a + b - 2 for a, b in self.pairs], jnp.int32)[number]


@dataclasses.dataclass(frozen=True)
class SumsWithVerifier(SolverVerifier):
    """A solver and a verifier, with short texts. The question stands in every message. An answer is a sentence, since
    SmolLM2 rarely begins one with a digit."""

    tasks: Tasks = Sums()
    loops: int = 1

    @property
    def rules(self) -> Fields:
        return (("Answer sums.", "A partner answers sums. Judge the answers."),)

    @property
    def observation(self) -> Fields:
        verify = (f" They answer {answer}. Right or wrong?" for answer in self.tasks.answers)
        return (*self.tasks.fields, (" Answer.", " Rejected. Answer again.", *verify))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        sentences = tuple(f"The answer is {answer}" for answer in self.tasks.answers)
        return choice(sentences), choice(("right", "wrong"))

    def prompt(self, state: LoopState) -> jax.Array:
        return jnp.arange(2, dtype=jnp.int32)[:, None]

    def view(self, state: LoopState) -> View:
        view = super().view(state)
        question = jnp.where(view.phrases < 0, -1, self.tasks.task(state.task)[0])
        return view.replace(phrases=jnp.concatenate([question, view.phrases], 1))


SUMS, OTHER_SUMS = SumsWithVerifier(), SumsWithVerifier(Sums(HELD_OUT))
