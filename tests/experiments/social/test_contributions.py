"""The arms' equilibria against a recursion, and what is read from the games."""

import dataclasses
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import contributions as study
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.subgame_perfect import backward_induction, outcomes
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.studies.computed import Computed


def played(terms, history=()):
    """(gifts, payoffs) of the equilibrium behind a history."""
    if len(history) == 3:
        total = sum(history)
        lost = terms["penalty"] * (total < terms["threshold"])
        each = [
            -terms["cost"] * c * c / 2 + terms["synergy"] * c * sum(history[:i]) + terms["share"] * total / 3 - lost
            for i, c in enumerate(history)
        ]
        return history, each
    return max((played(terms, (*history, c)) for c in range(4)), key=lambda it: it[1][len(history)])


@cache
def tree():
    return solve.tree(study.GAME)


@cache
def ends():
    """The gifts of every history, and of one that is not over its first continuation."""
    _, moves, _ = tree().histories(np.arange(len(tree().seat)))
    return [tuple(int(c) for c in np.maximum(row, 0)) for row in moves]


@pytest.mark.parametrize("name", [name for name, arm in study.STUDY.arms.items() if not isinstance(arm, Computed)])
def test_every_arm_has_one_equilibrium_and_it_is_the_recursion(name):
    arm = study.STUDY.arms[name]
    exact = backward_induction(study.GAME.payoffs(study.terms(arm.all_hparams)))
    gifts, payoffs = played(arm.hparams)
    assert tuple(exact.path.tolist()) == gifts
    np.testing.assert_allclose(exact.value, payoffs, atol=1e-5)
    own = np.where(tree().seat[:, None] < 0, [played(arm.hparams, moves)[1] for moves in ends()], 0)
    (only,) = outcomes(dataclasses.replace(tree(), payoff=own))
    assert ends()[only] == gifts


def test_finer_gifts_find_what_calculus_says():
    """Neither synergy nor penalty: all give where the marginal cost, what is given, is a third of the share."""
    found = study.exact(None, {**study.NUMBERS, "view": "full", "synergy": 0.0, "penalty": 0.0})
    assert [round(float(found[name]), 6) for name in study.POSITIONS] == [0.4, 0.4, 0.4]
    assert float(found["welfare"]) == pytest.approx(3 * 1.2 * 0.4 - 3 * 0.08, abs=1e-5)


def test_what_a_seat_gave_is_what_it_did_in_its_turn():
    action = jnp.array([[[2, 0, 0], [0, 1, 0], [0, 0, 3]], [[0, 0, 0], [0, 3, 0], [0, 0, 1]]])
    reward = jnp.ones((2, 3, 3, 4))
    fields = dict.fromkeys(("legal", "valid", "role", "told", "group", "game", "terminated", "truncated"))
    found = study.measure(Episodes(action=action, reward=reward, acted=jnp.ones((2, 3, 3), bool), **fields))
    assert [float(found[name]) for name in study.POSITIONS] == [1.0, 2.0, 2.0]
    assert float(found["quality"]) == 5 and float(found["welfare"]) == 36
