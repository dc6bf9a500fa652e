"""Exact advantages, against a recursion in plain Python over what is left of a chain of locks."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.exact_advantages import exact_advantages
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup

GAME = LockChain(locks=3, turns=4, in_order=True)


@cache
def opens(left: int, turns: int) -> float:
    """The chance that a uniform player opens so many locks in so many turns."""
    if left == 0 or turns == 0:
        return float(left == 0)
    return 0.25 * opens(left - 1, turns - 1) + 0.75 * opens(left, turns - 1)


def games():
    length = jnp.arange(60) % 3 + 1
    rollout = Rollout(GAME, {}, Lineup((("random",),) * 60, 2), 1)
    return np.repeat(np.asarray(length) - 1, 2), jax.jit(rollout.__call__)({}, jax.random.key(1), length).episodes


def test_of_a_uniform_player_by_recursion():
    deal, episodes = games()
    tree = solve.tree(GAME, weights=(1.0,))
    found = exact_advantages(tree, solve.uniform(tree), episodes.acted, episodes.action, deal)
    acted, action = np.asarray(episodes.acted[..., 0]), np.asarray(episodes.action[..., 0])
    wanted = np.zeros(acted.shape)
    for row, last in enumerate(deal):
        opened = 0
        for turn in np.flatnonzero(acted[row]):
            right = action[row, turn] == opened % 4
            left, turns = last + 1 - opened, GAME.turns - turn
            wanted[row, turn] = opens(left - right, turns - 1) - opens(left, turns)
            opened += right
    np.testing.assert_allclose(found[..., 0], wanted, atol=1e-12)
    assert np.abs(wanted).max() > 0.5


def test_games_of_another_deal_are_refused():
    tree = solve.tree(KuhnPoker())
    acted = np.zeros((1, 2, 2), bool)
    acted[0, 0, 1] = True  # seat 0 begins
    with pytest.raises(ValueError, match="leaves the tree"):
        exact_advantages(tree, solve.uniform(tree), acted, np.zeros((1, 2, 2), int), np.zeros(1, int))
