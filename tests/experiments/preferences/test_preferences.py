"""The steps of the arms from one state: exact ones, and sampled ones in the mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.preferences.preferences import (
    ANSWERS,
    ARMS,
    BEFORE,
    BETA,
    LABELS,
    RATE,
    SHARES,
    UNIFORM,
    iterate,
    world,
)
from jaxmarl_llm.rl.choices import stack_runs

LOGITS = jnp.array([0.5, -0.5, 0.2, 0.0, -1.0])
POLICY = np.asarray(jax.nn.softmax(LOGITS), np.float64)


@pytest.fixture(scope="module")
def regime():
    return tuple(x[0] for x in world(jax.random.key(3)))


@pytest.fixture(scope="module")
def steps(regime):
    """{arm: change of the logits over the rate, [draws, K]}, and the last runs."""
    empty = jnp.zeros((ANSWERS, ANSWERS))
    run = {"logits": LOGITS, "wins": empty, "reward": jnp.zeros(ANSWERS), "pairs": jnp.stack([empty] * len(SHARES))}
    run |= {"past": jnp.stack([jnp.asarray(UNIFORM)] * BEFORE), "uniform": jnp.ones_like(empty).at[0, 1].set(5)}
    run |= {"offline": jnp.arange(ANSWERS, dtype=jnp.float32)}
    arms = stack_runs({"algorithm": ARMS}, [{"algorithm": arm} for arm in ARMS])
    keys = jax.random.split(jax.random.key(0), 4000)
    play = jax.vmap(lambda key: jax.vmap(lambda arm: iterate(run, key, arm, regime))(arms))
    after, (_, gain) = jax.jit(play)(keys)
    moved = (after["logits"] - LOGITS[None, None]) / RATE
    return {arm: np.asarray(moved[:, i]) for i, arm in enumerate(ARMS)}, after, np.asarray(gain)


def test_exact_steps(steps, regime):
    prefers = np.asarray(regime[0], np.float64)
    reward = np.arange(ANSWERS)
    np.testing.assert_allclose(steps[0]["bt"][0], POLICY * (reward - POLICY @ reward), atol=1e-5)
    rate = prefers @ POLICY
    want = np.zeros(ANSWERS)
    for i in range(ANSWERS):
        for j in range(ANSWERS):
            pull = POLICY[i] * POLICY[j] * (1 / (1 + np.exp(rate[j] - rate[i])) - 0.5)
            want[i], want[j] = want[i] + pull, want[j] - pull
    np.testing.assert_allclose(steps[0]["dno"][0], want, atol=1e-5)
    assert steps[2][0, 0] == pytest.approx(POLICY @ prefers @ UNIFORM, abs=1e-5)
    assert BETA > 0 and not np.allclose(steps[0]["dpo"][0], 0)


def test_a_step_of_win_rates_is_the_gradient_of_the_win_rate_in_the_mean(steps, regime):
    """E[step] = p (P p - p P p), as E over the others of a win is P p and the mean of all is 1/2."""
    rate = np.asarray(regime[0], np.float64) @ POLICY
    sampled = steps[0]["spo"]
    error = sampled.std(0) / len(sampled) ** 0.5
    assert (np.abs(sampled.mean(0) - POLICY * (rate - 0.5)) < 4 * error + 1e-4).all()


def test_every_arm_gets_as_many_labels(steps):
    assert (np.asarray(steps[1]["wins"]).sum((-2, -1)) == LABELS).all()
    assert LABELS == 8 * 7 / 2  # pairs of a group


def test_pairs_have_a_clear_winner(steps):
    """Pairs exist in some draws and not in all; a winner beats six of seven others or more."""
    pairs = np.asarray(steps[1]["pairs"])[:, 0, 0]
    assert 0 < (pairs.sum((1, 2)) > 0).mean() < 1
    moved = np.abs(steps[0]["dno_prct"]).sum(1) > 0
    assert (moved <= (pairs.sum((1, 2)) > 0)).all() and moved.any()
