"""Inverse soft Q-learning against loops, closed forms and potentials."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.tabular import inverse
from jaxmarl_llm.tabular.soft_equilibrium import others, side
from jaxmarl_llm.tabular.tabular_games import grid

S, A, M, T, GAMMA = 3, 2, 4, 0.7, 0.8
RANDOM = np.random.default_rng(0)
OTHERS = RANDOM.dirichlet(np.ones(M), S).astype(np.float32)
FOLLOWING = RANDOM.integers(0, S, (S, A, M))
COUNTS = RANDOM.integers(0, 9, (S, A, M)).astype(np.float32)
KNOWN = {"temperature": T, "discount": GAMMA}


def soft(values):
    return T * np.log(sum(np.exp(v / T) for v in values))


def test_the_marginal_critic_against_loops():
    q = RANDOM.normal(size=(S, A)).astype(np.float32)
    found = inverse.marginal_critic(jnp.asarray(q), OTHERS, FOLLOWING, **KNOWN)
    for s, a in np.ndindex(S, A):
        after = sum(OTHERS[s, m] * soft(q[FOLLOWING[s, a, m]]) for m in range(M))
        assert float(found.reward[s, a]) == pytest.approx(q[s, a] - GAMMA * after, abs=1e-5)
        np.testing.assert_allclose(found.logp[s, a], np.full(M, (q[s, a] - soft(q[s])) / T), rtol=1e-4)


def test_the_critics_of_joint_actions_against_loops():
    q = RANDOM.normal(size=(S, A, M)).astype(np.float32)
    joint = inverse.joint_critic(jnp.asarray(q), OTHERS, FOLLOWING, **KNOWN)
    mean = inverse.averaged_critic(jnp.asarray(q), OTHERS, FOLLOWING, **KNOWN)
    average = [[sum(OTHERS[s, m] * q[s, a, m] for m in range(M)) for a in range(A)] for s in range(S)]
    for s, a, m in np.ndindex(S, A, M):
        then = FOLLOWING[s, a, m]
        after = sum(OTHERS[then, k] * soft(q[then, :, k]) for k in range(M))
        assert float(joint.reward[s, a, m]) == pytest.approx(q[s, a, m] - GAMMA * after, abs=1e-5)
        assert float(joint.logp[s, a, m]) == pytest.approx((q[s, a, m] - soft(q[s, :, m])) / T, abs=1e-5)
        assert float(mean.reward[s, a, m]) == pytest.approx(q[s, a, m] - GAMMA * soft(average[then]), abs=1e-5)
        assert float(mean.logp[s, a, m]) == pytest.approx((average[s][a] - soft(average[s])) / T, abs=1e-5)


def test_the_criterion_is_that_of_iq_learn():
    """E[phi(r)] - E[V(s) - discount V(s')] of the demonstrations, if phi's square were their mean."""
    q = RANDOM.normal(size=(S, A)).astype(np.float32)
    implied = inverse.marginal_critic(jnp.asarray(q), OTHERS, FOLLOWING, **KNOWN)
    found = inverse.criterion(implied, jnp.asarray(COUNTS), temperature=T, strength=0.3)
    total = 0.0
    for s, a, m in np.ndindex(S, A, M):
        after = GAMMA * sum(OTHERS[s, k] * soft(q[FOLLOWING[s, a, k]]) for k in range(M))
        total += COUNTS[s, a, m] * ((q[s, a] - after) - (soft(q[s]) - after))
    total -= 0.3 * float((implied.reward**2).sum())
    assert float(found) == pytest.approx(total / COUNTS.sum(), rel=1e-4)


def test_a_reward_of_one_state_is_the_logarithm_of_how_often():
    counts = jnp.array([[[5.0, 3.0], [1.0, 1.0], [20.0, 10.0]]])
    others, following = jnp.array([[0.7, 0.3]]), jnp.zeros((1, 3, 2), int)
    given = {"temperature": 0.5, "discount": 0.0, "strength": 1e-5, "steps": 800}
    frequency = np.log(np.array([8, 2, 30]) / 40)
    over_others = lambda r: np.asarray(r if r.ndim == 2 else (r * others[:, None]).sum(-1))[0]
    for critic in (inverse.marginal_critic, inverse.averaged_critic):
        found = over_others(inverse.recover(critic, counts, others, following, **given).reward)
        np.testing.assert_allclose(found - found.mean(), 0.5 * (frequency - frequency.mean()), atol=0.01)
    found = over_others(inverse.recover(inverse.joint_critic, counts, others, following, **given).reward)
    each = np.log(np.asarray(counts[0]) / np.asarray(counts[0]).sum(0)) @ [0.7, 0.3]
    np.testing.assert_allclose(found - found.mean(), 0.5 * (each - each.mean()), atol=0.01)


@pytest.mark.parametrize("critic", [inverse.marginal_critic, inverse.joint_critic, inverse.averaged_critic])
def test_of_one_state_it_is_at_the_maximum(critic):
    """Without a future the reward is the critic's Q, so that the criterion's slope there is known."""
    counts, others = jnp.asarray(COUNTS[:1]), jnp.asarray(OTHERS[:1])
    given = {"temperature": T, "discount": 0.0}
    following, strength = jnp.zeros(counts.shape, int), {"temperature": T, "strength": 0.5}
    found = jax.jit(partial(inverse.recover, critic, **given, strength=0.5))(counts, others, following)
    slope = jax.grad(lambda q: inverse.criterion(critic(q, others, following, **given), counts, **strength))
    assert float(jnp.abs(slope(found.reward)).max()) < 1e-4 < float(jnp.abs(slope(0 * found.reward)).max())


def test_what_was_never_shown_keeps_a_bounded_reward():
    counts, others = jnp.array([[[9.0], [0.0]]]), jnp.ones((1, 1))
    given = {"temperature": 1.0, "discount": 0.0, "steps": 800}
    found = [
        inverse.recover(inverse.marginal_critic, counts, others, jnp.zeros((1, 2, 1), int), strength=x, **given).reward
        for x in (0.5, 5.0)
    ]
    ranges = [float(r[0, 0] - r[0, 1]) for r in found]
    assert 0 < ranges[1] < ranges[0] < 5


def test_a_potential_is_taken_away_and_nothing_else():
    less = partial(inverse.remove_shaping, others=jnp.asarray(OTHERS), following=jnp.asarray(FOLLOWING), discount=GAMMA)
    reward, potential = jnp.asarray(RANDOM.normal(size=(S, A)), jnp.float32), RANDOM.normal(size=S)
    shaped = np.array(reward)
    for s, a in np.ndindex(S, A):
        shaped[s, a] += potential[s] - GAMMA * sum(OTHERS[s, m] * potential[FOLLOWING[s, a, m]] for m in range(M))
    np.testing.assert_allclose(less(jnp.asarray(shaped)), less(reward), atol=1e-5)
    assert 0.01 < float(jnp.linalg.norm(less(reward))) < float(jnp.linalg.norm(reward))
    np.testing.assert_allclose(less(less(reward)), less(reward), atol=1e-5)


def test_what_play_reveals_is_the_residual_of_least_squares_in_a_grid():
    game = grid(jax.random.key(3))
    rival, then = others(jax.nn.softmax(jax.random.normal(jax.random.key(4), (2, 81, 5))), 0), side(game.following, 0)
    reward, (states, actions, _) = np.array(jax.random.normal(jax.random.key(5), (81, 5))), then.shape
    basis = np.zeros((states, actions, states))
    for s, a, m in np.ndindex(then.shape):
        basis[s, a, then[s, a, m]] -= game.discount * rival[s, m]
    basis[np.arange(states), :, np.arange(states)] += 1
    basis = basis.reshape(-1, states)
    potential = np.linalg.lstsq(basis, reward.ravel(), rcond=None)[0]
    found = jax.jit(inverse.remove_shaping)(jnp.asarray(reward), rival, then, game.discount)
    np.testing.assert_allclose(np.ravel(found), reward.ravel() - basis @ potential, atol=1e-4)


def test_a_reward_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="A reward is"):
        inverse.criterion(inverse.Implied(jnp.zeros((S, A, M)), jnp.zeros(S)), COUNTS, temperature=1, strength=1)


def test_gradients_pass_through_the_soft_value():
    q = jnp.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(jax.grad(lambda q: inverse.soft_value(q, 0.5))(q), jax.nn.softmax(q / 0.5), rtol=1e-5)
