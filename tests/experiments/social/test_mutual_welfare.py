"""Two parties of a reply: their welfare by hand, the best numbers of words, and the pay of each arm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import mutual_welfare as study
from jaxmarl_llm.environments.judged.replies import Asked
from jaxmarl_llm.training.records import Arranged
from tests.support.recipe_plays import credited, differences, games

TOTAL = {
    "user": lambda user, model: user,
    "model": lambda user, model: model,
    "sum": lambda user, model: user + model,
    "minimum": lambda user, model: 2 * min(user, model),
    "nash": lambda user, model: 2 * (user * model) ** 0.5,
}


def welfare(right, words, note):
    """(user, model) of a reply."""
    return right * (1 - (0.5, 0.9)[note] * words / 4), 0.4 * right + 0.7 * words / 4


@pytest.fixture(scope="module")
def played():
    played = games(study.NASH)
    note = jnp.arange(study.GROUPS, dtype=jnp.int32) % 2
    return played._replace(arranged=Arranged(deal=Asked(jnp.zeros_like(note), note)))


def test_welfare_by_hand():
    right, words, note = jnp.array([1.0, 1, 0, 1]), jnp.array([0, 4, 4, 2]), jnp.array([0, 1, 0, 0])
    np.testing.assert_allclose(
        study.parties(right, words, note), [[1, 0.4], [0.1, 1.1], [0, 0.7], [0.75, 0.75]], atol=1e-6
    )


@pytest.mark.parametrize(
    "name, best", [("model", [4, 4]), ("user", [0, 0]), ("sum", [4, 0]), ("minimum", [2, 1]), ("nash", [3, 1])]
)
def test_best_words_of_right_replies(name, best):
    """Without hurry and in a hurry; a wrong reply is never best."""
    for note, words in enumerate(best):
        pays = {(right, n): TOTAL[name](*welfare(right, n, note)) for right in (0, 1) for n in range(5)}
        assert max(pays, key=pays.get) == (1, words)


def test_pay_of_the_arms(played):
    """Advantages are (pay - mean) / deviation of a group, with the pay of a loop."""
    action, right = (np.asarray(x).reshape(study.GROUPS, -1) for x in (played.episodes.action, played.episodes.reward))
    for name, arm in study.STUDY.arms.items():
        pay = np.zeros(right.shape)
        for g, i in np.ndindex(pay.shape):
            pay[g, i] = TOTAL[name](*welfare(right[g, i], action[g, i] // study.NUMBERS, g % 2))
        mean, deviation = pay.mean(1, keepdims=True), np.maximum(pay.std(1, keepdims=True), 1e-9)
        found = credited(arm, played)
        advantage = np.asarray(found.advantage).reshape(pay.shape)
        np.testing.assert_allclose(advantage, (pay - mean) / deviation, atol=2e-3)
    user, model = np.vectorize(welfare)(right, action // study.NUMBERS, np.arange(study.GROUPS)[:, None] % 2)
    wanted = {"welfare": np.sqrt(user * model), "least": np.minimum(user, model), "right": right}
    for metric, values in wanted.items():
        np.testing.assert_allclose(found.metrics[metric], values.mean(), rtol=1e-4)
    assert 0 < right.mean() < 1


def test_arms_differ_in_the_reward_alone():
    for arm in study.STUDY.arms.values():
        assert differences(study.NASH, arm) <= {"selection"}


def test_a_question_and_a_note_for_each_group():
    deal = jax.jit(jax.vmap(lambda key: study.ask({}, (), key, 0)))(jax.random.split(jax.random.key(0), 200)).deal
    assert np.bincount(np.asarray(deal.task).ravel(), minlength=25).min() > 60
    assert np.asarray(deal.note).mean() == pytest.approx(0.5, abs=0.05)
