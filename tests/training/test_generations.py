"""Generations against a loop: who survives, who copies whom, and what noise is added."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.training.generations import next_generation

WEIGHTS = {"w": jnp.arange(14.0).reshape(7, 2), "b": 10 * jnp.arange(7.0)}
SCORE = jnp.array([3.0, 9.0, 1.0, 7.0, 5.0, 2.0, 8.0])


def test_the_best_survive_where_they_are_and_the_others_copy_them_in_turn():
    new, parent = jax.jit(lambda key: next_generation(WEIGHTS, SCORE, key, survivors=3))(jax.random.key(0))
    best = [1, 6, 3]
    wanted, rest = {i: i for i in best}, [4, 0, 5, 2]  # by falling score
    wanted |= {place: best[i % 3] for i, place in enumerate(rest)}
    assert parent.tolist() == [wanted[i] for i in range(7)]
    for name, leaf in WEIGHTS.items():
        np.testing.assert_array_equal(new[name], np.asarray(leaf)[parent])


def test_noise_is_for_children_alone_and_of_its_size():
    weights = {"w": jnp.zeros((8, 4000))}
    new, _ = next_generation(weights, jnp.arange(8.0), jax.random.key(1), survivors=4, noise=jnp.float32(0.5))
    assert not np.asarray(new["w"][4:]).any()
    np.testing.assert_allclose(new["w"][:4].std(1), 0.5, rtol=0.05)
    assert abs(np.corrcoef(new["w"][:4])[0, 1]) < 0.1


def test_a_random_selection_does_not_look_at_the_score():
    def survived(key):
        _, parent = next_generation(WEIGHTS, SCORE, key, survivors=3, selection="random")
        return jnp.zeros(7).at[parent].set(1)

    kept = jax.vmap(survived)(jax.random.split(jax.random.key(2), 3000))
    np.testing.assert_allclose(kept.mean(0), 3 / 7, atol=0.05)
    assert (kept.sum(1) == 3).all()


def test_nobody_can_survive():
    with pytest.raises(ValueError, match="1 to 7 can survive, not 0"):
        next_generation(WEIGHTS, SCORE, jax.random.key(0), survivors=0)
