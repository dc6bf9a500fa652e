"""Team tasks with checkable answers: a solver with a verifier, or two seats that answer in turn.

All chance is in the deal. Right answers are paid, never a judge's opinion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, all_deals, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.environments.tasks import ARITHMETIC, Tasks, task_prompt
from jaxmarl_llm.text.grammar import Grammar

APPROVE, REJECT = 0, 1


class LoopState(struct.PyTreeNode):
    task: jax.Array  # int32
    turn: jax.Array  # int32, even: the solver's
    answer: jax.Array  # int32, the solver's last
    approved: jax.Array  # bool


@dataclass(frozen=True)
class SolverVerifier:
    """A solver answers a question; a verifier that sees both approves or rejects. After a rejection the loop repeats.

    A loop is one answer and one verdict, `loops` of them at most. The game ends with the first approval or with the
    verdict of the last loop, and the answer of that loop counts. Components:

    - `correct`: to both in the last turn, 1 if that answer is right, else 0.
    - `verdict`: to the verifier for each verdict, 1 if it approved a right or rejected a wrong answer, else 0.

    The orchestration is that of Dr. MAS (https://arxiv.org/abs/2602.08847), where a malformed verdict counts as an
    approval. Here the grammar allows only approve and reject. For policies that play unmasked, `wrappers.Illegal`
    decides.
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
        limit = f"{self.loops} answers at most. The last answer counts: both get 1 point if it is right."
        solver = f"You answer a question. A partner approves your answer or rejects it, then you answer again: {limit}"
        verifier = f"A partner answers a question. You approve the answer or reject it, then they answer again: {limit}"
        return (
            (
                f"{solver} {self.tasks.ask}",
                f"{verifier} You get 1 point for each true verdict. Answer approve or reject.",
            ),
            *self.tasks.fields,
        )

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
        return task_prompt(self.tasks, state.task, jnp.arange(2))

    def step(self, state: LoopState, action: jax.Array, key: jax.Array) -> tuple[LoopState, View, jax.Array]:
        verifying, approves = state.turn % 2 == 1, action[1] == APPROVE
        right = state.answer == self.tasks.task(state.task)[1]
        answer = jnp.where(verifying, state.answer, jnp.clip(action[0], 0, len(self.tasks.answers) - 1))
        after = LoopState(state.task, state.turn + 1, answer, verifying & approves)
        correct = jnp.broadcast_to(self._is_over(after) & right, (2,))
        verdict = jnp.stack([jnp.bool_(False), verifying & (approves == right)])
        return after, self.view(after), jnp.stack([correct, verdict], 1).astype(jnp.float32)

    def _start(self, task: jax.Array) -> LoopState:
        return LoopState(task, jnp.int32(0), jnp.int32(0), jnp.bool_(False))

    def _is_over(self, state: LoopState) -> jax.Array:
        return state.approved | (state.turn >= self.turns)

    def view(self, state: LoopState) -> View:
        acting = jnp.arange(2) == state.turn % 2
        told = jnp.stack([jnp.minimum(state.turn, 1), 2 + state.answer])
        seats = jnp.arange(2)
        return make_view(self, [told], acting, self._is_over(state), role=seats, grammar=seats)


class PioneerState(struct.PyTreeNode):
    task: jax.Array  # int32
    pioneer: jax.Array  # int32, a seat
    turn: jax.Array  # int32
    answer: jax.Array  # int32, the pioneer's


@dataclass(frozen=True)
class PioneerObserver:
    """The pioneer answers a question; the observer sees the question and the pioneer's answer, and answers too.

    Without `shown` the observer sees the question alone. Component `correct`: to each seat in its own turn, 1 if its
    own answer is right, else 0. CORY (https://arxiv.org/abs/2410.06101) trains on the sum of both, which the recipe
    forms.

    `exchange` chooses the pioneer: "group" seat 0 in even groups and seat 1 in odd ones, "deal" a random seat, "never"
    seat 0. Raises ValueError for another exchange.
    """

    tasks: Tasks = ARITHMETIC
    exchange: str = "group"
    shown: bool = True

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
    def group_period(self) -> int:
        return 2 if self.exchange == "group" else 1

    @property
    def actions(self) -> int:
        return len(self.tasks.answers)

    @property
    def rules(self) -> Fields:
        sees, you_see = (
            (" who sees your answer", ", and you see their answer. It may be wrong") if self.shown else ("", "")
        )
        pioneer = f"You answer a question first, then a partner{sees} does. A right answer is 1 point to its player."
        observer = f"A partner answers a question, then you do{you_see}. A right answer is 1 point to its player."
        return (tuple(f"{part} {self.tasks.ask}" for part in (pioneer, observer)), *self.tasks.fields)

    @property
    def observation(self) -> Fields:
        return (("Answer.", *(f"They answer {answer}. And you?" for answer in self.tasks.answers)),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(self.tasks.answers),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` knows the answer. `follower` repeats the pioneer's answer as observer, and answers 0 as pioneer."""
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
        """All initial states; with exchange "group", of an even and an odd group."""
        return all_deals(self._start, self.tasks.size, 1 if self.exchange == "never" else 2)

    def prompt(self, state: PioneerState) -> jax.Array:
        return task_prompt(self.tasks, state.task, self._role(state))

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
        told = jnp.where((state.turn == 0) | (not self.shown), 0, 1 + state.answer)
        return make_view(self, [told], acting, state.turn >= 2, role=role)


GAMES = {"solver_verifier": SolverVerifier, "pioneer_observer": PioneerObserver}
