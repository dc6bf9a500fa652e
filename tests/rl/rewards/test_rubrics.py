"""Grades and the order that they give, against loops."""

import itertools

import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.rewards import rubrics


def test_every_rubric_is_there_once():
    found = rubrics.every_rubric(3)
    assert {tuple(x) for x in found.tolist()} == {*itertools.product((0.0, 1.0), repeat=3)} - {(0.0, 0.0, 0.0)}
    np.testing.assert_array_equal(found[[0, 1, 4]], [[1, 0, 0], [0, 1, 0], [1, 0, 1]])


def test_a_grade_is_the_share_of_its_criteria():
    met = jnp.array([[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    np.testing.assert_allclose(rubrics.grade(met, jnp.array([1.0, 1.0, 0.0, 0.0])), [0.5, 0.0])
    np.testing.assert_allclose(rubrics.grade(met, jnp.array([1.0, 0.0, 1.0, 1.0])), [1.0, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(rubrics.grade(met, jnp.zeros(4)), [0.0, 0.0])


def test_concordance_against_a_loop():
    generator = np.random.default_rng(0)
    grades, truth = generator.integers(0, 4, (5, 9)) / 3, generator.integers(0, 2, 9)
    found = rubrics.concordance(jnp.asarray(grades, jnp.float32), jnp.asarray(truth, jnp.float32))
    for own, total in zip(grades, found, strict=True):
        pairs = itertools.combinations(range(9), 2)
        assert total == sum(np.sign(own[i] - own[j]) * np.sign(int(truth[i]) - int(truth[j])) for i, j in pairs)
    assert rubrics.concordance(jnp.ones(4), jnp.array([0.0, 1, 0, 1])) == 0
