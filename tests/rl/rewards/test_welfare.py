"""Interdependence and welfare against loops, and cases where both agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl.rewards.welfare import interdependent, welfare


def test_interdependence_against_a_loop():
    rng = np.random.default_rng(0)
    utility, dependence = rng.normal(size=(4, 5, 3)), rng.normal(size=(3, 3))
    found = jax.jit(interdependent)(jnp.asarray(utility), jnp.asarray(dependence))
    for at in np.ndindex(4, 5):
        for i in range(3):
            other = sum(dependence[i, j] * utility[at][j] for j in range(3) if j != i)
            assert float(found[at][i]) == pytest.approx(utility[at][i] + other, abs=1e-5)


def test_no_dependence_is_selfish_and_full_dependence_is_the_sum():
    utility = jnp.array([[1.0, -2.0, 4.0]])
    assert interdependent(utility, jnp.zeros((3, 3))).tolist() == utility.tolist()
    assert interdependent(utility, jnp.ones((3, 3))).tolist() == [[3.0] * 3]
    with pytest.raises(ValueError, match=r"\[3, 3\], not \[2, 2\]"):
        interdependent(utility, jnp.ones((2, 2)))


@pytest.mark.parametrize("kind", ["sum", "minimum", "nash"])
def test_welfare_counts_heads_where_all_get_the_same(kind):
    np.testing.assert_allclose(welfare(jnp.full((2, 4), 1.7), kind), 4 * 1.7, rtol=1e-5)


def test_welfare_by_hand():
    utility = jnp.array([[1.0, 4.0, 16.0], [2.0, -1.0, 3.0]])
    assert welfare(utility, "sum").tolist() == [21.0, 4.0]
    assert welfare(utility, "minimum").tolist() == [3.0, -3.0]
    np.testing.assert_allclose(welfare(utility, "nash"), [12.0, 0.0], rtol=1e-5)
    moved = jnp.array([[7.0, 7.0, 7.0]])  # equal shares of the same sum
    assert float(welfare(moved, "nash")[0]) > 12 and float(welfare(moved, "minimum")[0]) == 21


def test_an_unknown_welfare_is_refused():
    with pytest.raises(ValueError, match="one of sum, minimum, nash, not 'mean'"):
        welfare(jnp.ones((2, 3)), "mean")
