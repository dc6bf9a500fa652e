"""The gradients of a table: against automatic differentiation; pairs are half of RLOO."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.credit_assignment import normalisers as study

KEY = jax.random.key(0)
SHARE = jnp.linspace(0.02, 0.98, study.QUESTIONS)


def test_gradients_are_those_of_automatic_differentiation():
    probability = study.policy(SHARE, jnp.float32(0.5))
    logits = jnp.log(probability)
    np.testing.assert_allclose(study.policy(SHARE, jnp.float32(0.0))[:, 0], SHARE, rtol=1e-5)
    mean_right = lambda logits: jax.nn.softmax(logits)[:, 0].mean()
    np.testing.assert_allclose(study.exact(probability), jax.grad(mean_right)(logits), atol=1e-7)
    answer = jax.random.categorical(KEY, logits[study.QUESTION])
    advantage = jax.random.normal(KEY, answer.shape)

    def surrogate(logits):
        return (advantage * jax.nn.log_softmax(logits)[study.QUESTION, answer]).mean()

    np.testing.assert_allclose(study.gradient(advantage, answer, probability), jax.grad(surrogate)(logits), atol=1e-6)


def test_the_gradient_without_a_baseline_is_unbiased():
    probability = study.policy(SHARE, jnp.float32(0.0))

    def one(key):
        answer = jax.random.categorical(key, jnp.log(probability)[study.QUESTION])
        return study.gradient((answer == 0).astype(jnp.float32), answer, probability)

    found = jax.jit(jax.vmap(one))(jax.random.split(KEY, 4000))
    error = (found.mean(0) - study.exact(probability)) / (found.std(0) / np.sqrt(4000) + 1e-9)
    assert np.abs(error).max() < 5


def test_pairs_are_half_of_leave_one_out():
    reward = jax.random.normal(KEY, (study.QUESTIONS * study.GROUP,))
    rloo = study.ESTIMATORS["rloo"](reward, jnp.zeros(len(reward), int))
    np.testing.assert_allclose(study.pairs(reward, None), rloo / 2, atol=1e-6)
