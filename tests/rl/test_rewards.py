import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl.rewards import team_sum, weigh


def test_components_are_weighted_and_summed():
    reward = np.random.default_rng(0).normal(size=(2, 3, 4, 3)).astype(np.float32)
    expected = 2 * reward[..., 0] - reward[..., 2]
    np.testing.assert_allclose(weigh(jnp.asarray(reward), jnp.array([2.0, 0.0, -1.0])), expected, rtol=1e-5, atol=1e-6)


def test_one_weight_too_few_is_refused():
    with pytest.raises(ValueError, match="3 reward components"):
        weigh(jnp.ones((1, 1, 1, 3)), jnp.ones(2))


def test_a_team_shares_the_sum_of_its_turn():
    reward = jnp.array([[[3.0, 0.0], [1.0, 5.0]]])
    np.testing.assert_array_equal(team_sum(reward), [[[3.0, 3.0], [6.0, 6.0]]])
