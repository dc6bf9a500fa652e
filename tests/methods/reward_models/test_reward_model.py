"""A reward model: it learns a ranking from pairs of the last updates, and never from a masked one.

The long case compiles four updates of a ring; the short ones learn from one set of pairs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.methods.reward_models import reward_model

CONFIG = reward_model.config(6, 3)
SPOILT = jnp.full((2, 2, 3), 5)


def pairs_of(key, n=32):
    """Texts of two random words and a last one; more of the last word is better."""
    texts = jax.random.randint(key, (n, 2, 3), 0, 5)
    return jnp.take_along_axis(texts, jnp.argsort(-texts[:, :, -1], 1, stable=True)[..., None], 1)


def test_a_score_is_of_its_own_text_alone():
    model = reward_model.init(CONFIG, jax.random.key(0), pairs=2)
    texts = jax.random.randint(jax.random.key(1), (4, 2, 3), 0, 6)
    f = reward_model.score(CONFIG, model.network.weights, texts)
    one = reward_model.score(CONFIG, model.network.weights, texts[2, 1])
    assert f.shape == (4, 2) and one.shape == ()
    np.testing.assert_allclose(f[2, 1], one, rtol=1e-5, atol=1e-6)


def test_the_first_of_each_group():
    values, where = jnp.array([[3, 4, 5], [6, 7, 8]]), jnp.array([[False, True, True], [False] * 3])
    chosen, found = reward_model.first(values, where)
    assert chosen[0] == 4 and found.tolist() == [True, False]


@pytest.mark.long
def test_the_ring_holds_the_last_updates_and_learns_from_as_many_as_it_is_told():
    """Against the same step on the pairs themselves: of the last two of four updates, masked ones left out."""
    model = reward_model.init(CONFIG, jax.random.key(0), pairs=2, kept=3)
    shown = [pairs_of(jax.random.key(i), 2) for i in range(4)]
    shown[3] = shown[3].at[1].set(SPOILT[0])
    for i, pairs in enumerate(shown):
        model = reward_model.remember(model, pairs, jnp.array([True, i < 3]))
    np.testing.assert_array_equal(model.pairs, jnp.stack([shown[3], shown[1], shown[2]]))
    learnt, metrics = jax.jit(lambda m: reward_model.learn(CONFIG, m, 1e-2, jax.random.key(9), last=2))(model)
    wanted = reward_model.init(CONFIG, jax.random.key(0), pairs=3)
    wanted = reward_model.remember(wanted, jnp.concatenate([shown[2], shown[3][:1]]), jnp.ones(3, bool))
    wanted, same = reward_model.learn(CONFIG, wanted, 1e-2, jax.random.key(9))
    np.testing.assert_allclose(metrics["loss/network"], same["loss/network"], rtol=1e-5)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5)
    jax.tree.map(close, learnt.network.weights, wanted.network.weights)


def test_without_a_valid_pair_nothing_is_learnt():
    model = reward_model.remember(reward_model.init(CONFIG, jax.random.key(0), pairs=2), SPOILT, jnp.zeros(2, bool))
    learnt, _ = reward_model.learn(CONFIG, model, 1e-2, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, learnt.network.weights, model.network.weights)


def test_a_ring_for_no_pair_is_refused():
    with pytest.raises(ValueError, match="one pair"):
        reward_model.init(CONFIG, jax.random.key(0), pairs=0)


def test_pretraining_finds_the_order():
    model = reward_model.init(CONFIG, jax.random.key(0), pairs=1)
    taught = jax.jit(
        lambda network: reward_model.pretrain(CONFIG, network, jax.random.key(1), pairs_of, steps=150, rate=1e-2)
    )(model.network)
    f = reward_model.score(CONFIG, taught.weights, jnp.stack([jnp.array([1, 2, n]) for n in range(5)]))
    assert (np.diff(f) > 0.5).all()
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(taught.learners.optimiser))  # a new one


def test_who_prefers_what_follows_bradley_and_terry():
    worth = jnp.broadcast_to(jnp.array([[1.0, 0.4], [0.0, 0.0], [0.0, 1.0]])[:, None], (3, 4000, 2))
    order = np.asarray(reward_model.draw_preference(jax.random.key(0), worth, sure=2.0))
    assert (order.sum(-1) == 1).all()
    wanted = 1 / (1 + np.exp(-2 * np.array([0.6, 0.0, -1.0])))
    np.testing.assert_allclose((order[..., 0] == 0).mean(1), wanted, atol=0.03)
