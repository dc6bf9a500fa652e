"""Does SmolLM2-135M learn sums with a verifier on two cores, and do each agent's own statistics help? Dr. MAS.

A solver and a verifier have an adapter of rank 4 each. The solver answers a sum of two numbers from 1 to 9, and the
verifier calls the answer right or wrong. Both earn a point if it is right, and the verifier one more for a true
verdict. 65 of the 81 sums are trained.

  agent_wise  one mean and deviation for each agent of a question; a sample is a call
  episode     one mean and deviation for all agents of a question; a sample is an agent in an episode
  untrained   the model as it comes

  score           share of right answers in 128 new games of the trained sums
  held-out score  the same in 128 games of the other 16 sums

  python -m experiments small_sums --frozen

Paper: Feng et al. 2026, Dr. MAS, https://arxiv.org/abs/2602.08847
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.credit_assignment.dr_mas import STATISTICS
from experiments.gallery import small_model
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import choice
from jaxmarl_llm.environments.tasks import Tasks
from jaxmarl_llm.environments.teams.team_tasks import LoopState, SolverVerifier
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.studies.study import Paper, Study
from jaxmarl_llm.text.grammar import Grammar
from jaxmarl_llm.training.recipe import Parts

PAIRS = tuple((a, b) for a in range(1, 10) for b in range(1, 10))
HELD_OUT = tuple(pair for number, pair in enumerate(PAIRS) if number % 5 == 2)
TRAINED = tuple(pair for pair in PAIRS if pair not in HELD_OUT)
TEAM = (("solver", "verifier"),)


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


def evaluate(parts: Parts) -> Callable[[dict, jax.Array], dict[str, Any]]:
    """measure(weights, key): `score` and `held-out score`, of 128 games each."""
    other = dataclasses.replace(parts, recipe=dataclasses.replace(parts.recipe, game=SumsWithVerifier(Sums(HELD_OUT))))
    seen, unseen = (small_model.evaluate(each, seats={"score": TEAM}, games=128) for each in (parts, other))
    return lambda weights, key: seen(weights, key) | {"held-out score": unseen(weights, key)["score"]}


AGENT_WISE = small_model.task(
    SumsWithVerifier(),
    TEAM,
    (7, 2),
    advantage=STATISTICS["agent_wise"],
    lora=Lora(4, 8.0, ("*",)),
    evaluate=evaluate,
    groups=8,
    group_size=8,
    distinct=5,
    grad_accumulation=4,
    updates=16,
    eval_every=8,
    hparams={"learning_rate": 3e-4, "entropy": 0.01},
)
STUDY = Study(
    paper=Paper("Dr. MAS (Feng et al.)", "https://arxiv.org/abs/2602.08847", 2026, checked="release"),
    question="Does SmolLM2-135M learn sums with a verifier on two cores, and do each agent's own statistics help?",
    claim="Right answers become more.",
    arms={
        "agent_wise": AGENT_WISE,
        "episode": dataclasses.replace(AGENT_WISE, advantage=STATISTICS["episode"]),
    },
    method="agent_wise",
    metrics=("score", "held-out score"),
    scope="smollm2",
)
