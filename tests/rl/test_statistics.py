"""The kernel of the estimators: keys, whitening, metrics, and rewards near the end of float32."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import advantages, statistics
from jaxmarl_llm.rl.masked import segment_variance
from tests.support.advantage_variants import GROUPS, A, advantage, batch, full

METRICS = jax.jit(advantages.advantage_metrics, static_argnums=3)


def test_statistics_of_each_agent_equal_a_loop():
    x = full(27)
    got, acted, group = advantage("agent wise", x).copy(), x["acted"], x["group"]
    got[group == 2] = 0.0
    found = METRICS(jnp.asarray(got), jnp.asarray(acted), jnp.asarray(group), GROUPS)
    for a in range(A):
        own = got[:, :, a][acted[:, :, a]]
        sizes, zeros = [], []
        for g in range(GROUPS):
            values = np.abs(got[group == g][:, :, a][acted[group == g][:, :, a]])
            if len(values):
                sizes.append(values.sum() ** 2 / (values**2).sum() if values.any() else 0.0)
                zeros.append(not values.any())
        wanted = {
            "advantage_mean": own.mean(),
            "advantage_variance": own.var(),
            "effective_group_size": np.mean(sizes),
            "zero_groups": np.mean(zeros),
        }
        assert set(found) == set(wanted) and 0 < wanted["zero_groups"] < 1
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name][a], value, rtol=1e-4, atol=1e-5, err_msg=name)
    nobody = METRICS(jnp.asarray(got), jnp.asarray(acted) & False, jnp.asarray(group), GROUPS)
    assert all((value == 0).all() for value in nobody.values())


def test_equal_advantages_count_fully_and_one_that_outweighs_counts_once():
    acted, group = jnp.ones((4, 1, 2), bool), jnp.zeros(4, int)
    even = jnp.array([[1.0, 1e-6], [-1.0, 0.0], [1.0, 1e-6], [-1.0, 9.0]])[:, None, :]
    np.testing.assert_allclose(METRICS(even, acted, group, 1)["effective_group_size"], [4, 1], rtol=1e-5)


def test_whitening_is_over_the_acts_of_the_batch():
    reward, acted, _ = batch(14)
    got = np.asarray(advantages.whiten(jnp.asarray(reward), jnp.asarray(acted)))
    x = reward[acted]
    np.testing.assert_allclose(got[acted], (x - x.mean()) / x.std(), rtol=1e-4, atol=1e-5)
    assert not got[~acted].any()


def test_keys_number_all_combinations():
    indices = {"group": (jnp.arange(3)[:, None, None], 3), "agent": (jnp.arange(2)[None, None, :], 2)}
    key, num_keys = advantages.key_of((3, 4, 2), **indices)
    assert num_keys == 6
    np.testing.assert_array_equal(key[:, 3], [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(ValueError, match=r"index group has shape \(5, 1, 1\)"):
        advantages.key_of((3, 4, 2), group=(jnp.zeros((5, 1, 1), int), 5))


# Rewards near the end of float32


def plain(sample, where, key, num_keys, weights):
    """``estimate`` with mean and std as it stands in a textbook: nothing is scaled before it is squared."""
    mean = statistics.weighted_mean(sample, key, num_keys, where, weights)[key]
    variance = statistics.weighted_mean((sample - mean) ** 2, key, num_keys, where, weights)[key]
    spread = variance > 0
    scaled = (sample - mean) / jnp.where(spread, jnp.sqrt(jnp.where(spread, variance, 1)) + 1e-6, 1)
    return jnp.where(where, scaled, 0)


def scaled(sample, where, key, num_keys, weights):
    return statistics.estimate(sample, where, key, num_keys, baseline="mean", scale="std", weights=weights)


def samples(seed: int, shape: tuple[int, ...] = (3, 40)) -> tuple[jax.Array, ...]:
    generator = np.random.default_rng(seed)
    sample = generator.normal(size=shape).astype(np.float32)
    sample[:, ::7] = np.nan
    weights = generator.choice(np.array([1, 0.5, 1 / 3], np.float32), shape)
    return jnp.asarray(sample), jnp.asarray(~np.isnan(sample)), jnp.asarray(generator.integers(0, 5, shape)), weights


@functools.cache
def program(kernel: Callable, weighted: bool, lanes: bool) -> Callable:
    one = lambda sample, where, key, weights: kernel(sample, where, key, 5, weights if weighted else None)
    return jax.jit(jax.vmap(one) if lanes else one)


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_ordinary_rewards_keep_every_bit(weighted: bool, lanes: bool):
    """Below deviations of 2^32 the unit is 1: the same bits as without units, alone and side by side."""
    for seed, magnitude in enumerate((1e-30, 1e-20, 1e-6, 1.0, 3.0, 1e4, 1e9)):
        sample, *given = samples(30 + seed)
        ours, textbook = (program(f, weighted, lanes)(magnitude * sample, *given) for f in (scaled, plain))
        np.testing.assert_array_equal(np.asarray(ours).view(np.int32), np.asarray(textbook).view(np.int32))
        assert (magnitude < 1e-15) or np.abs(ours).max() > 0.5


@pytest.mark.parametrize("magnitude", [1e10, 1e19, 1e30])
@pytest.mark.parametrize("weighted", [False, True])
def test_estimates_of_enormous_rewards_equal_numpy_in_double_precision(weighted: bool, magnitude: float):
    sample, where, key, weights = samples(31)
    sample = jnp.where(key == 3, sample, magnitude * sample)  # ordinary rewards beside them stay right
    got = np.asarray(program(scaled, weighted, False)(sample, where, key, weights))
    x, kept = np.asarray(sample, np.float64), np.asarray(where)
    for k in range(5):
        own = kept & (np.asarray(key) == k)
        share = weights[own] if weighted else np.ones(own.sum())
        mean = np.average(x[own], weights=share)
        std = np.sqrt(np.average((x[own] - mean) ** 2, weights=share))
        np.testing.assert_allclose(got[own], (x[own] - mean) / (std + 1e-6), rtol=1e-4, atol=1e-6)
    assert not got[~kept].any()


SCALED = ("grpo", "reinforce++", "agent wise", "turn wise", "step groups", "decoupled", "mars", "sequential")


@pytest.mark.parametrize("name", SCALED)
def test_a_normalised_preset_is_the_same_for_rewards_of_any_size(name: str):
    """Up to eps, which enormous rewards do not feel, advantages do not depend on the unit of the reward."""
    x = full(32)
    x["components"][..., 1] = x["reward"]  # without its own magnitude
    fields = ("reward", "components", "value")
    of_size = lambda size: x | {field: (size * x[field]).astype(np.float32) for field in fields}
    want = advantage(name, of_size(1e4))
    assert np.abs(want).max() > 1
    for size in (1e19, 1e30):
        np.testing.assert_allclose(advantage(name, of_size(size)), want, rtol=1e-3, atol=1e-4)


def test_metrics_and_variances_of_enormous_advantages():
    x = full(33)
    given = jnp.asarray(x["acted"]), jnp.asarray(x["group"]), GROUPS
    small, large = (METRICS(jnp.asarray(size * x["reward"]), *given) for size in (1.0, np.float32(1e30)))
    for name in ("effective_group_size", "zero_groups"):
        np.testing.assert_allclose(large[name], small[name], rtol=1e-4)
    np.testing.assert_allclose(large["advantage_mean"], 1e30 * np.asarray(small["advantage_mean"], float), rtol=1e-4)
    assert not np.isfinite(large["advantage_variance"]).any()  # the number itself is beyond float32, and says so
    key, where = jnp.array([0, 0, 0, 1, 1]), jnp.ones(5, bool)
    variance = segment_variance(jnp.array([1e19, -1e19, 0, 1e30, 1e30]), key, 3, where)
    np.testing.assert_allclose(variance, [2e38 / 3, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("distance", [0.0, 0.02, 3.0, 200.0])
def test_mismatch_is_that_of_a_loop(distance):
    rng = np.random.default_rng(0)
    sampled = -rng.exponential(size=(5, 7)).astype(np.float32)
    scored = sampled + distance * rng.normal(size=(5, 7)).astype(np.float32)
    where = rng.random((5, 7)) < 0.6
    differences = [float(a) - float(b) for a, b, w in zip(scored.flat, sampled.flat, where.flat, strict=True) if w]
    largest = max(differences)
    weights = [math.exp(x - largest) for x in differences]
    found = statistics.mismatch(jnp.where(where, scored, jnp.nan), jnp.asarray(sampled), jnp.asarray(where))
    np.testing.assert_allclose(found["mismatch"], sum(map(abs, differences)) / len(differences), rtol=1e-4)
    effective = sum(weights) ** 2 / (len(weights) * sum(x * x for x in weights))
    np.testing.assert_allclose(found["effective_sample_size"], effective, rtol=1e-4)


def test_without_tokens_mismatch_is_zero():
    nothing = jnp.zeros((2, 3))
    found = statistics.mismatch(nothing, nothing, nothing > 0)
    assert {name: float(x) for name, x in found.items()} == {"mismatch": 0.0, "effective_sample_size": 0.0}


def test_mutual_information_is_entropies_added_and_subtracted():
    entropy = lambda p: -sum(x * np.log(x) for x in np.ravel(p) if x > 0)
    joint = np.random.default_rng(0).dirichlet(np.ones(6)).reshape(3, 2)
    joint[1, 0] = 0.0
    joint /= joint.sum()
    want = entropy(joint.sum(0)) + entropy(joint.sum(1)) - entropy(joint)
    np.testing.assert_allclose(statistics.mutual_information(jnp.asarray(5 * joint)), want, atol=1e-6)
    np.testing.assert_allclose(statistics.mutual_information(jnp.outer(jnp.arange(3.0), jnp.ones(2))), 0, atol=1e-6)


def test_auc_compares_all_pairs_of_scores():
    generator = np.random.default_rng(1)
    score, label = generator.integers(0, 4, 50), generator.integers(0, 2, 50)
    joint = np.histogram2d(score, label, [range(5), range(3)])[0]
    pairs = [float(x > y) + (x == y) / 2 for x in score[label == 1] for y in score[label == 0]]
    np.testing.assert_allclose(statistics.auc(jnp.asarray(joint / 50)), np.mean(pairs), atol=1e-6)
    for alone in (jnp.array([[3.0, 0], [1, 0]]), jnp.array([[0.0, 0], [0, 2]])):  # one label never occurs
        assert float(statistics.auc(alone)) == 0.5


def test_inliers_are_within_three_deviations():
    generator = np.random.default_rng(5)
    x = generator.standard_t(1.5, 400).astype(np.float32)
    where = generator.random(400) < 0.8
    kept = x[where].astype(float)
    expected = where & (np.abs(x - kept.mean()) <= 2.0 * kept.std())
    x[~where] = np.nan
    inliers = jax.jit(lambda x, where, sigmas: statistics.inliers(x, where, sigmas=sigmas))
    np.testing.assert_array_equal(inliers(x, where, 2.0), expected)
    assert 0 < (where & ~expected).sum() < 40
    ten = np.eye(1, 10, dtype=np.float32)[0] * 1e6  # alone against nine it lies exactly three deviations away
    assert inliers(ten, np.ones(10, bool), 3.001).all()


def test_tokens_of_high_covariance_are_chosen_at_random_in_the_number_that_is_asked_for():
    """The release's loop: of the tokens between the bounds, a share of all trained tokens, each as often as another."""
    rng = np.random.default_rng(6)
    logp, advantage = rng.normal(size=(2, 8, 10)).astype(np.float32)
    where = rng.random((8, 10)) < 0.9
    covariance = (advantage - advantage[where].mean()) * (logp - logp[where].mean())
    between = where & (covariance > 0.2) & (covariance < 1.5)
    logp[~where] = np.nan

    @jax.jit
    def rate(share):
        choose = lambda key: statistics.high_covariance(
            jax.random.uniform(key, where.shape), logp, advantage, where, share=share, low=0.2, high=1.5
        )
        chosen = jax.vmap(choose)(jax.random.split(jax.random.key(0), 2000))
        return chosen.mean(0), chosen.sum((1, 2))

    for share, number in ((0.0, 0), (1e-4, 1), (0.1, int(0.1 * where.sum())), (1.0, between.sum())):
        share_chosen, count = rate(share)
        assert (np.asarray(count) == number).all()
        np.testing.assert_allclose(share_chosen, between * number / between.sum(), atol=0.05)
    assert 8 < between.sum() < where.sum()


def test_duration_weights_have_mean_one_and_the_ratios_of_the_durations():
    where = jnp.array([True, True, True, False])
    found = statistics.duration_weights(jnp.array([1.0, 2.0, 9.0, jnp.nan]), where)
    np.testing.assert_allclose(found, [0.25, 0.5, 2.25, 0], rtol=1e-6)
    np.testing.assert_array_equal(statistics.duration_weights(jnp.zeros(4), where), 0)


def test_first_informative_groups_against_a_loop():
    """Two seats, of which some never act; the sums of episodes that acted decide."""
    rng = np.random.default_rng(3)
    group, seen = np.arange(12).repeat(3), set()
    for kept in (1, 3, 12):
        reward = rng.integers(0, 2, (36, 2, 2)) * rng.integers(0, 2, (12, 1, 1)).repeat(3, 0) * 1.0
        acted = rng.random((36, 2, 2)) < 0.6
        acted[:3] = False
        reward *= acted
        expected, left = np.zeros_like(acted), kept
        for g in range(12):
            sums = {reward[b, :, a].sum() for b in np.flatnonzero(group == g) for a in range(2) if acted[b, :, a].any()}
            if len(sums) > 1 and left > 0:
                expected[group == g], left = acted[group == g], left - 1
        found = jax.jit(functools.partial(statistics.first_informative, num_groups=12, kept=kept))(reward, acted, group)
        np.testing.assert_array_equal(found, expected)
        seen.add(left)
    assert 0 in seen and max(seen) > 0
