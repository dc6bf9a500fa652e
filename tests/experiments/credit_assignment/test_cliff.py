"""What is learned with entropy is the softmax of the reward, and a change moves it no further than theory allows."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.credit_assignment import cliff as study

KEY = jax.random.key(0)


def test_gradients_are_those_of_automatic_differentiation():
    logits, reward = jax.random.normal(KEY, (3, 5)), study.bank(KEY, False)[:3, :5]

    def objective(logits):
        log_probability = jax.nn.log_softmax(logits)
        return (jnp.exp(log_probability) * (reward - 0.1 * log_probability)).sum()

    plain, natural = (study.ascent(logits, reward, 0.1, plain) for plain in (True, False))
    gradient = jax.grad(objective)(logits)
    np.testing.assert_allclose(plain, gradient, atol=1e-6)
    for probability, along, g in zip(jax.nn.softmax(logits), natural, gradient, strict=True):
        fisher = np.diag(probability) - np.outer(probability, probability)
        np.testing.assert_allclose(fisher @ along, g, atol=1e-6)


def test_with_entropy_the_learned_policy_is_a_softmax_and_lipschitz():
    tau, epsilon, reward = 0.1, 0.01, study.bank(KEY, False)
    change = epsilon * jax.random.normal(jax.random.key(1), reward.shape)
    one, other = (study.run_ascent(jnp.zeros_like(reward), reward + sign * change, tau) for sign in (1, -1))
    np.testing.assert_allclose(one, jax.nn.softmax((reward + change) / tau), atol=1e-5)
    jump = 0.5 * np.abs(one - other).sum(-1)
    assert (jump <= np.ptp(change, axis=-1) / (2 * tau) + 1e-6).all()  # tanh(range of 2 change / 4 tau) at most
    hard = [study.run_ascent(jnp.zeros_like(reward), reward + sign * change, 0.0) for sign in (1, -1)]
    assert (0.5 * np.abs(hard[0] - hard[1]).sum(-1) > 0.9).mean() > 0.8  # no entropy: over the cliff
