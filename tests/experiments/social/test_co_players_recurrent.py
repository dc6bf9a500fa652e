"""Who meets whom, what is paid and what teaches whom, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import co_players_recurrent as study
from experiments.social.co_players import PAYOFF

SITUATIONS = {(0, 0): 1, (0, 1): 2, (1, 0): 3, (1, 1): 4}  # own action first


@pytest.fixture(scope="module")
def played():
    """A batch of games of new learners, its weights and the players' answers."""
    chances = np.random.default_rng(0).integers(0, 2, (2, study.GAMES, 5)).astype(np.float32)
    told = jnp.zeros((2, 2 * study.GAMES, 5))
    shapes = jnp.zeros((2, 1, study.WIDTH)), jnp.zeros((2, 1), jnp.int32), jnp.zeros((2, 1, 5))
    weights = jax.jit(study.Learners().init)(jax.random.key(1), *shapes)
    games = jax.jit(study.play)(weights, jnp.asarray(chances), told, jax.random.key(2))
    return weights, chances, told, [np.asarray(x) for x in games]


def test_learners_meet_each_other_and_players_of_fixed_answers(played):
    _, chances, _, (situation, action, reward) = played
    payoff, n = np.array(PAYOFF), study.GAMES
    assert (situation[0] == 0).all() and len(situation) == study.ROUNDS + 1
    for i in range(2):
        for g in range(0, 2 * n, 7):
            theirs = 0  # the player's situation
            for t in range(study.ROUNDS):
                own = action[t, i, g]
                other = action[t, 1 - i, g] if g < n else int(chances[i, g - n, theirs] == 0)
                assert reward[t, i, g] == payoff[own, other, 0]
                assert situation[t + 1, i, g] == SITUATIONS[own, other]
                theirs = SITUATIONS[other, own]
    assert 0.4 < action.mean() < 0.6  # new learners toss coins


def test_only_the_games_of_an_arm_teach(played):
    weights, _, told, games = played
    slope = jax.jit(jax.grad(study.loss))
    ours = slope(weights, games, told, ~study.OTHERS)
    paid = [games[0], games[1], np.where(np.asarray(study.OTHERS), 9.0, games[2])]
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(slope(weights, paid, told, ~study.OTHERS)), strict=True):
        np.testing.assert_array_equal(x, y)
    theirs = slope(weights, paid, told, study.OTHERS)
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True))
