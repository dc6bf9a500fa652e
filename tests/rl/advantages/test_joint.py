"""Crossed and counterfactual credit against loops; their expectations and variances by enumeration of all samples."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import advantages

crossed, counterfactual = jax.jit(advantages.cross_joint), jax.jit(advantages.counterfactual)
rloo = jax.jit(partial(advantages.rloo, per_agent=True), static_argnums=3)
POLICIES = {  # seats: members of a group, and each seat's policy over two or three actions
    2: (3, ((0.7, 0.3), (0.2, 0.8))),
    3: (2, ((0.6, 0.4), (0.3, 0.7), (0.5, 0.5))),
}


def payoffs(seats, seed=0):
    """[2, ..., 2, A]"""
    return np.random.default_rng(seed).normal(size=(2,) * seats + (seats,)) + 3


def tabled(payoff, actions):
    """[n, G, ..., G, A] of actions int [n, G, A]."""
    size, seats = actions.shape[1:]
    member = np.indices((size,) * seats)
    return np.stack([payoff[tuple(own[member[s], s] for s in range(seats))] for own in actions])


def every_sample(seats):
    """All samples of a group [n, G, A], their probabilities [n], and the gradients of the logits' log-probability
    [n, G, A, 2]."""
    size, policies = POLICIES[seats]
    policy = np.array(policies)
    actions = np.array([*itertools.product(range(2), repeat=size * seats)]).reshape(-1, size, seats)
    chance = policy[np.arange(seats), actions].prod((1, 2))
    return policy, actions, chance, np.eye(2)[actions] - policy


def loop(reward):
    """`crossed` by its definition."""
    groups, size, seats = len(reward), reward.shape[1], reward.shape[-1]
    result = np.zeros((groups, size, seats))
    for g, s in itertools.product(range(groups), range(seats)):
        value = [
            np.mean([reward[(g, *i, s)] for i in itertools.product(range(size), repeat=seats) if i[s] == own])
            for own in range(size)
        ]
        for own in range(size):
            result[g, own, s] = value[own] - np.mean([value[other] for other in range(size) if other != own])
    return result


@pytest.mark.parametrize(("size", "seats"), [(3, 2), (2, 3), (4, 1)])
def test_crossed_equals_a_loop(size, seats):
    reward = np.random.default_rng(size).normal(size=(2, *(size,) * seats, seats)).astype(np.float32)
    got = crossed(reward)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, loop(reward), atol=1e-6)
    if seats == 2:  # without jit, once
        np.testing.assert_allclose(advantages.cross_joint(jnp.array(reward)), got, atol=1e-6)


def test_one_seat_has_nothing_to_cross_and_equal_rewards_give_exactly_nothing():
    reward = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    own = crossed(reward[..., None])
    plain = rloo(reward.reshape(6, 1, 1), np.ones((6, 1, 1), bool), np.arange(6) // 3, 2)
    np.testing.assert_allclose(own.ravel(), plain.ravel(), atol=1e-6)
    assert not np.any(crossed(np.full((2, 3, 3, 2), 0.1, np.float32)))


@pytest.mark.parametrize("seats", POLICIES)
def test_crossed_has_the_expectation_of_aligned_credit_and_no_larger_variance(seats):
    _, actions, chance, score = every_sample(seats)
    size, reward = actions.shape[1], tabled(payoffs(seats), actions).astype(np.float32)
    played = np.stack([reward[(slice(None), *(i,) * seats)] for i in range(size)], 1)  # the diagonal
    group, flat = np.arange(len(actions) * size) // size, played.reshape(-1, 1, seats)
    aligned = rloo(flat, np.ones(flat.shape, bool), group, len(actions))
    joint = crossed(reward)

    def gradient(advantage):
        """Mean and covariance [A 2], [A 2, A 2] of a group's gradient."""
        own = (np.asarray(advantage, np.float64).reshape(actions.shape)[..., None] * score).mean(1)
        own = own.reshape(len(actions), -1)
        mean = chance @ own
        return mean, (own - mean).T @ (chance[:, None] * (own - mean))

    (mean, before), (same, after) = gradient(aligned), gradient(joint)
    np.testing.assert_allclose(same, mean, atol=1e-6)
    assert np.linalg.eigvalsh(before - after).min() > -1e-6  # in no direction
    assert np.trace(after) < 0.9 * np.trace(before)
    spread = [(chance[:, None, None] * np.asarray(x).reshape(actions.shape) ** 2).sum(0) for x in (aligned, joint)]
    assert (spread[1] <= spread[0] + 1e-6).all()


def test_counterfactual_equals_a_loop_and_has_zero_mean_under_the_policy():
    payoff, policy = payoffs(3, 1), np.array(POLICIES[3][1])
    for joint in itertools.product(range(2), repeat=3):
        reward = np.array([[payoff[(*joint[:s], b, *joint[s + 1 :], s)] for b in range(2)] for s in range(3)])
        wanted = [
            payoff[(*joint, s)] - sum(policy[s, b] * payoff[(*joint[:s], b, *joint[s + 1 :], s)] for b in range(2))
            for s in range(3)
        ]
        got = counterfactual(reward, policy, np.array(joint))
        np.testing.assert_allclose(got, wanted, atol=1e-6)
        each = np.stack([counterfactual(reward, policy, np.full(3, b)) for b in range(2)], -1)
        np.testing.assert_allclose((each * policy).sum(-1), 0, atol=1e-6)
    plain = advantages.counterfactual(jnp.array(reward), jnp.array(policy), jnp.array(joint))
    np.testing.assert_allclose(plain, got, atol=1e-7)  # without jit


def test_counterfactual_has_the_expectation_of_the_exact_gradient():
    policy, payoff = np.array(POLICIES[3][1]), payoffs(3, 2)
    found, exact = np.zeros((3, 2)), np.zeros((3, 2))
    for joint in itertools.product(range(2), repeat=3):
        chance = policy[np.arange(3), joint].prod()
        score = np.eye(2)[list(joint)] - policy
        reward = np.array([[payoff[(*joint[:s], b, *joint[s + 1 :], s)] for b in range(2)] for s in range(3)])
        advantage = counterfactual(reward, policy, np.array(joint))
        found += chance * np.asarray(advantage, np.float64)[:, None] * score
        exact += chance * payoff[joint][:, None] * score
    np.testing.assert_allclose(found, exact, atol=1e-6)


def test_rewards_of_illegal_actions_are_ignored_and_an_absent_action_has_no_advantage():
    reward, probability = jnp.array([[1.0, 3.0, jnp.nan]]), jnp.array([[0.25, 0.75, 0.0]])
    np.testing.assert_allclose(advantages.counterfactual(reward, probability, jnp.array([1])), [0.5])
    assert advantages.counterfactual(reward, probability, jnp.array([-1])) == 0
    assert not advantages.counterfactual(jnp.full((4, 3), 0.1), jnp.full((4, 3), 1 / 3), jnp.arange(4) % 3).any()


def test_crossed_refuses_other_shapes():
    for shape in ((2, 3, 3), (2, 3, 4, 2), (2,)):
        with pytest.raises(ValueError, match="one G a seat"):
            advantages.cross_joint(jnp.zeros(shape))
    with pytest.raises(ValueError, match="at least 2"):
        advantages.cross_joint(jnp.zeros((2, 1, 1, 2)))
    with pytest.raises(ValueError, match="one of them taken"):
        advantages.counterfactual(jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.zeros(3, int))
