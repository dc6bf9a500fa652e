"""Moments of a gradient over all games, against a loop over the games; what is unbiased, and what is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.solo.fork import Fork
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.evaluation.exact.exact_gradient import exact, tables
from jaxmarl_llm.evaluation.exact.moments import all_games, moments
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rl.advantages.registry import ESTIMATORS


def to_go(reward, acted):
    return returns.gae(reward, jnp.zeros_like(reward), acted).advantage


def twice(exact):
    return 2 * exact


def bootstrapped(reward, value, acted):
    return returns.gae(reward, value, acted, lam=0.0).advantage


KINDS = {"twice": twice, "to_go": to_go, "gae": ESTIMATORS["gae_lambda_1"], "bootstrapped": bootstrapped}


@pytest.fixture(scope="module")
def found():
    game = tables(Fork(2))
    logits = np.random.default_rng(3).normal(size=game.tree.legal.shape)
    policy = jax.nn.softmax(jnp.where(game.tree.legal, logits, -jnp.inf))
    known = exact(game, policy)
    return game, np.asarray(policy), known, jax.jit(lambda key: moments(game, policy, KINDS, key))(jax.random.key(0))


def gradients_by_hand(game, policy, credit):
    """(chance [B], gradient [B, I, N]) of all games; `credit` maps a game's rewards and sets to advantages."""
    history, action = all_games(game)
    chances, gradients = [], []
    for nodes, acts in zip(history, action, strict=True):
        steps = [t for t in range(len(acts)) if game.tree.seat[nodes[t]] >= 0]
        at = [game.tree.information[nodes[t]] for t in steps]
        paid = [game.reward[nodes[t + 1], 0] for t in steps]
        gradient, chance = np.zeros(policy.shape), game.chance[nodes[0]]
        for i, t, x in zip(at, steps, credit(paid, at), strict=True):
            chance *= policy[i, acts[t]]
            gradient[i] += x * (np.arange(policy.shape[1]) == acts[t]) - x * policy[i]
        chances.append(chance)
        gradients.append(gradient)
    return np.array(chances), np.array(gradients)


def test_against_a_loop_over_the_games(found):
    game, policy, known, metrics = found
    value = np.asarray(known.value)
    credits = {
        "to_go": lambda paid, at: np.cumsum(paid[::-1])[::-1],
        "bootstrapped": lambda paid, at: np.array(paid) + np.append(value[at[1:]], 0) - value[at],
    }
    for name, credit in credits.items():
        chance, gradient = gradients_by_hand(game, policy, credit)
        assert chance.sum() == pytest.approx(1)
        mean = np.tensordot(chance, gradient, 1)
        np.testing.assert_allclose(mean, known.gradient, atol=1e-6)
        noise = np.sqrt((chance * ((gradient - mean) ** 2).sum((1, 2))).sum()) / np.linalg.norm(mean)
        assert float(metrics[name]["noise"]) == pytest.approx(noise, rel=1e-4)


def test_biases(found):
    *_, metrics = found
    assert float(metrics["twice"]["bias"]) == pytest.approx(1, rel=1e-4)
    for name in ("to_go", "gae", "gae/wrong_value", "bootstrapped"):
        assert float(metrics[name]["bias"]) < 1e-5
    assert float(metrics["bootstrapped/wrong_value"]["bias"]) > 0.05


def test_games_of_several_seats_are_refused():
    game = tables(SixTurns(1))
    with pytest.raises(ValueError, match="one seat"):
        moments(game, jnp.ones(game.tree.legal.shape), KINDS, jax.random.key(0))
