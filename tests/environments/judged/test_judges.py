"""Who judges is told neither what is right, nor who said it, nor what others said that it is not shown."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.forgetful import Forgetful
from jaxmarl_llm.environments.judged.recycled import Recycled
from jaxmarl_llm.environments.judged.refereed import OPEN, Refereed
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.discussion import EVALUATE, SCORE, Discussion


@dataclass(frozen=True)
class Relabelled(Arithmetic):
    """The same questions in the same words; with `shift` another answer counts as right."""

    shift: Any = 0

    def task(self, number):
        told, truth = super().task(number)
        return told, (truth + self.shift) % len(self.answers)


GAMES = {
    "critique": (lambda tasks: Forgetful(Discussion(tasks, rounds=1, critique=True)), ()),
    "self-score": (lambda tasks: Discussion(tasks, rounds=1, evaluator=False, self_score=True), ()),
    "open": (lambda tasks: Refereed(tasks, 3), (OPEN,)),
    "recycled": (lambda tasks: Recycled(tasks, 3), (True,)),  # a test: in training the label chooses the task
}


def played(shift, key, *, make, given):
    """All that any seat can read in a game of random legal actions, and all that is paid and measured."""
    game = make(Relabelled(5, "+", shift))

    def turn(carry, key):
        state, view = carry
        action = jax.random.categorical(key, jnp.where(view.legal, 0.0, -1e9)).astype(jnp.int32)
        state, after, reward = game.step(state, action, key)
        facts = [] if after.measured is None else [after.measured]
        return (state, after), ((game.prompt(state), view.replace(measured=None)), jnp.concatenate([reward, *facts], 1))

    start = game.reset(key, jnp.int32(0), *map(jnp.asarray, given))
    return jax.lax.scan(turn, start, jax.random.split(key, game.turns))[1]


@pytest.mark.parametrize("name", GAMES)
def test_nothing_that_is_told_depends_on_the_label(name):
    make, given = GAMES[name]
    games = jax.jit(jax.vmap(jax.vmap(partial(played, make=make, given=given), (None, 0)), (0, None)))
    read, paid = jax.device_get(games(jnp.arange(2), jax.random.split(jax.random.key(0), 20)))
    for leaf in jax.tree.leaves(read):
        np.testing.assert_array_equal(leaf[0], leaf[1])
    assert (paid[0] != paid[1]).any()  # what is right does count


def test_a_judge_reads_one_answer_whoever_gave_it_and_whatever_others_say():
    """Who evaluates or scores, over all authors and other answers: the answer and its verdict are all that it reads."""
    game = Discussion(Arithmetic(5, "+"), agents=5, rounds=1)
    dealt, _ = game.reset(jax.random.key(0), jnp.int32(0))
    seats = jnp.arange(5)

    @partial(jax.vmap, in_axes=(0, 0, None))
    def reads(shift, others, phase):
        """Seat 0's phrases where the author of what it is shown, `shift` seats on, says 3 and the others these."""
        state = dealt.replace(turn=phase, shifts=dealt.shifts.at[0, phase].set(shift))
        evaluator = (shift - state.shifts[0, EVALUATE]) % 5
        state = state.replace(
            answers=jnp.where(seats == shift, 3, others), verdicts=jnp.where(seats == evaluator, 1, others % 2)
        )
        return game._view(state).phrases[0]

    shifts, others = jnp.repeat(jnp.arange(1, 5), 8), jax.random.randint(jax.random.key(1), (32, 5), 0, 5)
    for phase in (EVALUATE, SCORE):
        rows = np.asarray(reads(shifts, others, jnp.int32(phase)))
        assert (rows == rows[:1]).all() and rows[0, 0] == 3
