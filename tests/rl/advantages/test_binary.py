"""Advantages for binary rewards: against scipy and a loop over groups; consequences of papers and releases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxmarl_llm.rl import advantages

GROUPS, SIZE, ANSWERS = 6, 8, 4


def batch(seed: int, chance=None):
    """Shuffled groups of one-turn answers; 0 is right. Reward, acted, group and answer."""
    rng = np.random.default_rng(seed)
    chance = rng.uniform(0.05, 0.95, GROUPS) if chance is None else chance
    group = rng.permutation(np.repeat(np.arange(GROUPS), SIZE))
    right = rng.random(GROUPS * SIZE) < np.asarray(chance)[group]
    answer = np.where(right, 0, rng.integers(1, ANSWERS, GROUPS * SIZE))
    shape = (GROUPS * SIZE, 1, 1)
    return right.reshape(shape).astype(np.float32), np.ones(shape, bool), group, answer


def run(of, x, **options):
    reward, acted, group, answer = map(jnp.asarray, x)
    more = {"answer": answer} if of is advantages.consistency else {}
    found = jax.jit(lambda *given: of(*given, GROUPS, **more, **options))(reward, acted, group)
    return np.asarray(found)[:, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_bnpo_by_scipy(seed):
    reward, _, group, _ = x = batch(seed)
    shares = np.array([reward[group == g].mean() for g in range(GROUPS)], np.float64)
    m, v = shares.mean(), shares.var(ddof=1)
    a, b = ((m * (1 - m) / v - 1) * y for y in (m, 1 - m))
    law = stats.beta(max(1, 1 + a / 3), max(1, 1 + b / 3))
    with np.errstate(divide="ignore"):
        weight = np.minimum(1 / law.pdf(shares), 1e6)
    expected = (reward[:, 0, 0] - shares[group]) * weight[group]
    np.testing.assert_allclose(run(advantages.beta_normalised, x), expected, rtol=2e-4, atol=1e-5)


def test_bnpo_is_reinforce_and_grpo_in_its_two_limits():
    """Shares of 0 and 1 alone have the largest variance there is: both parameters are 1, the density too."""
    x = batch(0, chance=[0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    x[0][np.flatnonzero(x[2] == 0)[0]] = 1.0  # one right answer
    shares = np.array([x[0][x[2] == g].mean() for g in range(GROUPS)])
    assert shares.var(ddof=1) > shares.mean() * (1 - shares.mean())
    np.testing.assert_allclose(run(advantages.beta_normalised, x), x[0][:, 0, 0] - shares[x[2]], rtol=1e-5)
    right = np.array([7, 1, 5, 3, 4, 4])  # of 8: a mean of 1/2 and a variance of 1/16, so that both parameters are 3/2
    reward = (np.arange(SIZE) < right[:, None]).astype(np.float32).reshape(-1, 1, 1)
    x = reward, np.ones(reward.shape, bool), np.repeat(np.arange(GROUPS), SIZE), np.zeros(len(reward), int)
    np.testing.assert_allclose(run(advantages.beta_normalised, x), np.pi / 8 * run(advantages.grpo, x), rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"discount": False, "right_only": True}, {"right_only": True, "slope": 20.0}])
def test_copo_by_a_loop(seed, options):
    reward, _, group, answer = x = batch(seed)
    r = reward[:, 0, 0].astype(np.float64)
    chosen = {"discount": True, "right_only": False, "slope": 5.0, "threshold": 1.0} | options
    entropy, level = np.zeros(GROUPS), np.zeros(GROUPS)
    for g in range(GROUPS):
        counts = np.bincount(answer[group == g]) / SIZE
        entropy[g] = stats.entropy(counts, base=2)
        level[g] = r[group == g].mean() * (1 - chosen["discount"] * entropy[g] * (1 - 1 / SIZE) / np.log2(SIZE))
    expected = np.zeros(len(r))
    for i in range(len(r)):
        own, g = r[group == group[i]], group[i]
        within = (r[i] - own.mean()) / (own.std(ddof=1) + 1e-6) if own.std() > 0 else 0.0
        between = (level[g] - level.mean()) / (level.std(ddof=1) + 1e-6)
        w = 1 / (1 + np.exp(-chosen["slope"] * (entropy[g] - chosen["threshold"])))
        w *= 1 if r[i] or not chosen["right_only"] else 0
        expected[i] = w * within + (1 - w) * between
    np.testing.assert_allclose(run(advantages.consistency, x, **options), expected, rtol=1e-3, atol=1e-4)


def test_the_released_copo_rewards_wrong_answers_to_easy_questions_and_ours_less():
    """In a group above the average only the global term remains for a wrong answer, and it is positive."""
    x = batch(1, chance=[0.75, 0.75, 0.5, 0.2, 0.1, 0.1])
    wrong = x[0][:, 0, 0] == 0
    released = run(advantages.consistency, x, discount=False, right_only=True)
    assert (released[wrong & (x[2] < 2)] > 0).all() and (wrong & (x[2] < 2)).any()
    for usual in (advantages.grpo, advantages.lite, advantages.rloo, advantages.beta_normalised):
        assert (run(usual, x)[wrong] <= 0).all()


def test_groups_without_spread_have_a_gradient_under_copo_alone():
    x = batch(2, chance=[0.0, 1.0, 0.5, 0.5, 0.5, 0.5])
    uniform = x[2] < 2
    assert not run(advantages.grpo, x)[uniform].any() and not run(advantages.beta_normalised, x)[uniform].any()
    assert run(advantages.consistency, x)[uniform].all()


def test_seats_that_did_not_act_change_nothing():
    reward, acted, group, answer = batch(3)
    for of in (advantages.beta_normalised, advantages.consistency):
        whole = run(of, (reward, acted, group, answer))
        padded = [np.concatenate([field, field[:5]]) for field in (reward, acted, group, answer)]
        padded[0][-5:], padded[1][-5:] = np.nan, False
        found = run(of, padded)
        np.testing.assert_allclose(found[:-5], whole, rtol=1e-6)
        assert not found[-5:].any()
