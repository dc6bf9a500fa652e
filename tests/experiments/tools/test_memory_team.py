"""NDCG with ties against all orders, the share of each agent, and the rewards of each arm against a loop."""

from itertools import permutations
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kendalltau

from experiments.tools.memory_team import LOCAL, SHARE, STUDY, estimate_advantages, ndcg
from jaxmarl_llm.rl import advantages
from tests.support.recipe_plays import differences

GROUPS, MEMBERS = 3, 8


def by_orders(score, gain) -> float:
    """The mean NDCG of all orders in which scores do not rise."""
    discount = 1 / np.log2(np.arange(len(score)) + 2)
    best = (np.sort(gain)[::-1] * discount).sum()
    orders = [x for x in permutations(range(len(score))) if (np.diff(np.take(score, x)) <= 0).all()]
    return float(np.mean([(np.take(gain, x) * discount).sum() for x in orders]) / best) if best else 1.0


def test_ndcg_is_the_mean_over_orders_of_ties():
    rng = np.random.default_rng(0)
    score, gain = rng.integers(0, 3, (12, 5)), rng.integers(0, 2, (12, 5))
    gain[0], score[1] = 0, 1
    found = jax.jit(ndcg)(jnp.asarray(score, jnp.float32), jnp.asarray(gain, jnp.float32))
    np.testing.assert_allclose(found, [by_orders(*x) for x in zip(score, gain, strict=True)], atol=1e-5)


def recorded():
    rng = np.random.default_rng(1)
    n, reward = GROUPS * MEMBERS, np.zeros((GROUPS * MEMBERS, 3, 2, 3), np.float32)
    reward[:, 0, 0, 0] = rng.choice([0.25, 0.5, 0.75], n)
    reward[:, 1, 1, 1], reward[:, 2, :, 2] = rng.integers(0, 2, n), rng.integers(0, 2, n)[:, None]
    acted = np.zeros((n, 3, 2), bool)
    acted[:, 0, 0] = acted[:, 1:, 1] = True
    return reward, jnp.asarray(acted), jnp.repeat(jnp.arange(GROUPS), MEMBERS)


def test_rewards_of_each_arm_against_a_loop():
    reward, acted, group = recorded()
    episodes = SimpleNamespace(reward=jnp.asarray(reward), acted=acted)
    experience = SimpleNamespace(episodes=episodes, groups=GROUPS, acts=(acted, group, GROUPS))
    credit = jax.jit(lambda hparams: estimate_advantages(experience, hparams, ())[:4:3])
    paid = reward.sum(1).reshape(GROUPS, MEMBERS, 2, 3)
    local, right = np.stack([paid[:, :, 0, 0], paid[:, :, 1, 1]], -1), paid[:, :, 0, 2]
    distinct = lambda x: 1 - np.mean([a == b for i, a in enumerate(x) for b in np.delete(x, i)])

    def tau(x, y):  # tau-b of scipy, with ties counted as 0
        value = kendalltau(x, y).statistic
        return 0.0 if np.isnan(value) else value * (distinct(x) * distinct(y)) ** 0.5

    def weights(name, x, y):
        if name in ("local", "equal", "global"):
            return np.full(2, {"local": 0.0, "equal": 0.5, "global": 1.0}[name])
        value = np.array([tau(x[:, i], y) if name == "tau" else float(ndcg(x[:, i], y)) for i in range(2)])
        return np.exp(value) / np.exp(value).sum()

    for name, arm in STUDY.arms.items():
        w = np.stack([weights(name, jnp.asarray(local[g]), jnp.asarray(right[g])) for g in range(GROUPS)])
        total = local * (name != "global") + w[:, None] * right[..., None]
        z = (total - total.mean(1, keepdims=True)) / (total.std(1, keepdims=True) + 1e-6)
        wanted = np.where(acted, z.reshape(-1, 1, 2), 0)
        found, metrics = credit(arm.traced_hparams)
        np.testing.assert_allclose(found, wanted, atol=2e-5, err_msg=name)
        assert metrics[SHARE] == pytest.approx(w[:, 0].mean(), abs=1e-5)
        assert metrics["deviation"] == pytest.approx(w[:, 0].std(), abs=1e-5)
        assert (metrics["deviation"] > 0.01) == (name in ("ranked", "tau"))


def test_the_reward_by_parts_is_grpo_by_agent():
    reward, acted, group = recorded()
    episodes = SimpleNamespace(reward=jnp.asarray(reward), acted=acted)
    experience = SimpleNamespace(episodes=episodes, groups=GROUPS, acts=(acted, group, GROUPS))
    found = estimate_advantages(experience, STUDY.arms["global"].traced_hparams, ()).advantage
    alike = advantages.grpo(jnp.asarray(reward[..., 2]), acted, group, GROUPS, per_agent=True)
    np.testing.assert_allclose(found, alike, atol=1e-5)


def test_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(LOCAL, arm) <= {"selection"}, name
