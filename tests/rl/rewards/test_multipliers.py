"""Weights that change: hand-computed steps, inclusion and exclusion, the released recursion's laws."""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.rewards import multipliers
from jaxmarl_llm.rl.rewards.multipliers import ParetoBuffer


def volume(points: np.ndarray, reference: np.ndarray) -> float:
    """Inclusion and exclusion over the boxes between the reference and each point."""
    total = 0.0
    for n in range(1, len(points) + 1):
        for some in combinations(points, n):
            total -= (-1) ** n * np.prod(np.maximum(np.min(some, 0) - reference, 0))
    return total


def test_multipliers_climb_below_the_target_and_fall_above():
    found = jnp.array([0.0, 0.5])
    by_hand = [0.0, 0.5]
    for value in ([0.1, 0.9], [0.2, 0.6], [0.7, 0.1]):
        found = multipliers.dual_ascent(found, jnp.array(value), jnp.array([0.4, 0.5]), 0.5)
        by_hand = [by_hand[0] + 0.5 * (0.4 - value[0]), by_hand[1] + 0.5 * (0.5 - value[1])]
        np.testing.assert_allclose(found, by_hand, rtol=1e-6)
    np.testing.assert_allclose(multipliers.equality_weights(found), np.tanh(by_hand), rtol=1e-6)
    np.testing.assert_allclose(multipliers.at_least_weights(found), 1 / (1 + np.exp(-np.array(by_hand))), rtol=1e-6)


def test_the_dual_finds_the_multipliers_of_a_solved_problem():
    """max entropy with E[x] = target over x in 0, 1: the policy is sigmoid(weight), so weight = logit(target)."""
    target, raw = jnp.array([0.6, 0.3]), jnp.zeros(2)
    for _ in range(2000):
        raw = multipliers.dual_ascent(raw, jax.nn.sigmoid(multipliers.equality_weights(raw)), target, 0.2)
    np.testing.assert_allclose(multipliers.equality_weights(raw), np.log(target / (1 - target)), atol=1e-3)


@pytest.mark.parametrize("components", [1, 2, 3])
def test_hypervolume_is_that_of_inclusion_and_exclusion(components):
    rng = np.random.default_rng(components)
    reference = np.full(components, 0.2)
    compute = jax.jit(multipliers.hypervolume)
    for _ in range(5):
        points = rng.random((6, components)).round(1)  # with ties, and some below the reference
        where = rng.random(6) < 0.7
        found = compute(jnp.array(points, jnp.float32), jnp.array(where), jnp.array(reference, jnp.float32))
        assert float(found) == pytest.approx(volume(points[where], reference), abs=1e-5)
    assert compute(jnp.array(points, jnp.float32), jnp.zeros(6, bool), jnp.array(reference, jnp.float32)) == 0


def test_a_buffer_keeps_what_adds_volume():
    reference, buffer, seen, best = jnp.zeros(2), multipliers.pareto_buffer(4, 2), [], 0.0
    gain_of, covered = jax.jit(multipliers.hypervolume_gain), jax.jit(multipliers.hypervolume)
    for point in ([0.2, 0.8], [0.1, 0.1], [0.8, 0.2], [0.5, 0.5], [0.6, 0.6], [0.3, 0.7], [0.9, 0.9]):
        gain, buffer = gain_of(buffer, jnp.array(point), reference)
        seen.append(point)
        total = volume(np.array(seen), np.zeros(2))
        assert float(gain) == pytest.approx(total - best, abs=1e-6)
        best = total
        assert float(covered(buffer.points, buffer.filled, reference)) == pytest.approx(total, abs=1e-6)
        np.testing.assert_allclose(multipliers.meta_reward(gain), 0.5 + 1.5 * np.tanh(gain), rtol=1e-6)
    full = ParetoBuffer(jnp.array([[0.1, 0.9], [0.15, 0.8]]), jnp.ones(2, bool))
    _, after = gain_of(full, jnp.array([0.9, 0.1]), reference)  # 0.1 x 0.9 is less than 0.15 x 0.8
    np.testing.assert_allclose(np.sort(after.points[:, 0]), [0.15, 0.9])
    with pytest.raises(ValueError, match="at least one point"):
        multipliers.pareto_buffer(0, 2)


def test_a_factor_of_the_batch_is_lost_where_a_deviation_divides():
    reward = jax.random.normal(jax.random.key(0), (8, 1, 1))
    given = jnp.ones((8, 1, 1), bool), jnp.repeat(jnp.arange(2), 4), 2
    grpo, rloo = (jax.jit(lambda x, of=of: of(x, *given)) for of in (advantages.grpo, advantages.rloo))
    np.testing.assert_allclose(grpo(1.7 * reward), grpo(reward), atol=1e-5)
    np.testing.assert_allclose(rloo(1.7 * reward), 1.7 * rloo(reward), rtol=1e-5)


def test_weights_by_influence():
    rng = np.random.default_rng(0)
    weights, gradients = np.array([0.5, 0.3, 0.2]), rng.normal(size=(3, 7))
    raw = [
        w * np.exp(0.1 * sum(float(g @ other) for other in gradients)) for w, g in zip(weights, gradients, strict=True)
    ]
    found = multipliers.influence_weights(jnp.array(weights), jnp.array(gradients), 0.1)
    np.testing.assert_allclose(found, np.array(raw) / sum(raw), rtol=1e-5)
