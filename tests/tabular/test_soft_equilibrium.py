"""Soft equilibria against their own definition, and what is watched of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.tabular.soft_equilibrium import demonstrations, others, side, soft_equilibrium

RANDOM = np.random.default_rng(1)


def test_a_table_from_the_side_of_each_agent():
    table = RANDOM.normal(size=(4, 2, 3, 5))
    policy = [RANDOM.dirichlet(np.ones(2), 4) for _ in range(3)]
    for agent in range(3):
        shape = table.shape[1:]
        rest = [n for k, n in enumerate(shape) if k != agent]
        seen = np.asarray(side(jnp.asarray(table), agent))
        assert seen.shape == (4, shape[agent], np.prod(rest))
        for s, a, m in np.ndindex(seen.shape):
            place = list(np.unravel_index(m, rest))
            place.insert(agent, a)
            assert seen[s, a, m] == pytest.approx(table[(s, *place)])
    joint = np.asarray(others(jnp.asarray(np.stack(policy)), 1))  # of two actions each
    for s, m in np.ndindex(4, 4):
        assert joint[s, m] == pytest.approx(policy[0][s, m // 2] * policy[2][s, m % 2])


def test_policies_agree_with_their_own_values():
    """Two agents, three states, by loops."""
    reward, following = RANDOM.normal(size=(2, 3, 2, 2)), RANDOM.integers(0, 3, (3, 2, 2))
    t, gamma = 1.0, 0.6
    found = jax.device_get(soft_equilibrium(jnp.asarray(reward), jnp.asarray(following), temperature=t, discount=gamma))
    assert found.gap < 1e-5
    value = t * np.log(np.exp(found.q / t).sum(-1))  # [2, 3]
    for agent, s, a in np.ndindex(2, 3, 2):
        total = 0.0
        for b in range(2):
            place = (s, a, b) if agent == 0 else (s, b, a)
            total += found.policy[1 - agent, s, b] * (reward[(agent, *place)] + gamma * value[agent, following[place]])
        assert found.q[agent, s, a] == pytest.approx(total, abs=1e-4)
        boltzmann = np.exp(found.q[agent, s] / t) / np.exp(found.q[agent, s] / t).sum()
        np.testing.assert_allclose(found.policy[agent, s], boltzmann, rtol=1e-4)


def test_what_is_watched_follows_the_policies_and_the_rules():
    policy = jnp.asarray(RANDOM.dirichlet(np.ones(2), (2, 3)), jnp.float32)
    following = jnp.asarray(RANDOM.integers(0, 3, (3, 2, 2)))
    counts = np.asarray(demonstrations(following, policy, jax.random.key(0), sizes=(8, 64, 8192), length=4))
    assert counts.sum((1, 2, 3)).tolist() == [8, 64, 8192] and (np.diff(counts, axis=0) >= 0).all()
    share = counts[-1] / counts[-1].sum((1, 2), keepdims=True)
    expected = np.asarray(policy[0])[:, :, None] * np.asarray(policy[1])[:, None, :]
    np.testing.assert_allclose(share, expected, atol=0.04)
    step = np.zeros((3, 3))
    for place in np.ndindex(3, 2, 2):
        step[place[0], int(following[place])] += expected[place]
    visits, now = np.zeros(3), np.full(3, 1 / 3)
    for _ in range(4):
        visits, now = visits + now / 4, now @ step
    np.testing.assert_allclose(counts[-1].sum((1, 2)) / 8192, visits, atol=0.03)


@pytest.mark.parametrize("sizes", [(8, 10), (16, 8)])
def test_sizes_that_are_no_whole_episodes(sizes):
    with pytest.raises(ValueError, match="Sizes rise and are whole episodes"):
        demonstrations(jnp.zeros((1, 2, 2), int), jnp.ones((2, 1, 2)) / 2, jax.random.key(0), sizes=sizes, length=4)
