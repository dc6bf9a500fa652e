"""A model of users: what a preference adds to the latent, and two users who want opposite things.

The long case trains a latent; the short ones check the formulas of its network.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.methods import networks
from jaxmarl_llm.methods.reward_models import reward_model, vpl

CONFIG = reward_model.config(4, 2)


@pytest.fixture(scope="module")
def network():
    return vpl.init(CONFIG, jax.random.key(0), latent=2)


def texts(seed, *shape):
    return jax.random.randint(jax.random.key(seed), (*shape, 2), 0, 4)


def test_the_score_is_linear_in_the_latent(network):
    text, latent = texts(1, 3, 5), jax.random.normal(jax.random.key(2), (3, 2))
    parts = networks.read_last(CONFIG, network.weights, text)["score"]
    found = vpl.score(CONFIG, network.weights, text, latent)
    for u in range(3):
        for i in range(5):
            wanted = parts[u, i, 0] + latent[u, 0] * parts[u, i, 1] + latent[u, 1] * parts[u, i, 2]
            np.testing.assert_allclose(found[u, i], wanted, rtol=1e-5, atol=1e-6)


def test_evidence_adds_up_and_an_opposite_preference_takes_it_back(network):
    pairs = texts(3, 2, 4, 2)  # of two users, four preferences
    whole = vpl.encode(CONFIG, network.weights, pairs)
    halves = [vpl.encode(CONFIG, network.weights, pairs[:, i : i + 2]) for i in (0, 2)]
    turned = vpl.encode(CONFIG, network.weights, pairs[:, :, ::-1])
    for all_, one, other, back in zip(whole, *halves, turned, strict=True):
        np.testing.assert_allclose(all_, one + other, atol=1e-5)
        np.testing.assert_allclose(all_, -back, atol=1e-5)


def test_a_latent_is_told_as_the_quarter_that_it_lies_in():
    kinds = vpl.kind(jnp.array([-9.0, -0.7, -0.6, 0.0, 0.6, 0.7, 9.0]), 4)
    np.testing.assert_array_equal(kinds, [0, 0, 1, 2, 2, 3, 3])  # quartiles: 0 and 0.674 on either side


@pytest.mark.long
def test_two_users_who_want_opposite_things():
    """Half prefer a larger last word, half a smaller one. A latent learns both; one reward for all guesses."""

    def draw(key, users=16, n=6):
        keys = jax.random.split(key)
        sign = jax.random.rademacher(keys[0], (users, 1, 1))
        pairs = jax.random.randint(keys[1], (users, n, 2, 2), 0, 4)
        worth = sign * pairs[..., -1]
        order = jnp.argsort(-worth, -1, stable=True)
        worth = jnp.take_along_axis(worth, order, -1).astype(jnp.float32)
        return jnp.take_along_axis(pairs, order[..., None], 2), worth[..., 0] - worth[..., 1]

    for personal in (True, False):
        how = {"known": 3, "personal": personal}
        new = vpl.init(CONFIG, jax.random.key(0), latent=1)
        teach = lambda new, how=how: vpl.train_network(
            CONFIG, new, jax.random.key(1), lambda key: draw(key)[0], steps=150, rate=1e-2, **how
        )
        taught = jax.jit(teach)(new)
        found = vpl.accuracy(CONFIG, taught.weights, *draw(jax.random.key(2), 128), **how)
        assert found > 0.85 if personal else 0.4 < found < 0.6
