"""SPARK: acts of one task are compared with each other, and an arm leaves out whole tasks."""

import dataclasses

import numpy as np
import pytest

from experiments.rewards.recycled_judge import ATTEMPTS, STUDY
from jaxmarl_llm.environments.judged.recycled import COMPARER, JUDGE, REVISER, SOLVER
from tests.support.recipe_plays import credited, games

arms = {name: dataclasses.replace(arm, groups=20) for name, arm in STUDY.arms.items()}
LEARNT = {
    "rlvr": {SOLVER},
    "pointwise": {SOLVER, JUDGE},
    "judge": {SOLVER, JUDGE, COMPARER},
    "spark": {SOLVER, JUDGE, COMPARER, REVISER},
}


@pytest.fixture(scope="module")
def played():
    return games(arms["spark"])


@pytest.mark.parametrize("name", STUDY.arms)
def test_an_arm_learns_its_tasks_each_among_its_own(played, name):
    episodes, found = played.episodes, credited(arms[name], played)
    acted, role = np.asarray(episodes.acted), np.asarray(episodes.role)
    reward = np.asarray(episodes.reward, np.float64).sum(-1)
    assert {*role[acted]} == {SOLVER, JUDGE, COMPARER, REVISER}
    want = np.zeros(acted.shape)
    for b, t, seat in zip(*np.nonzero(acted), strict=True):
        own = reward[b][acted[b] & (role[b] == role[b, t, seat])]
        assert len(own) == ATTEMPTS
        want[b, t, seat] = (reward[b, t, seat] - own.mean()) / (own.std() + 1e-6)
    np.testing.assert_allclose(np.asarray(found.advantage), want, atol=2e-3)
    trained = np.asarray(found.trained)
    np.testing.assert_array_equal(trained[acted], [r in LEARNT[name] for r in role[acted]])


def test_a_test_measures_second_attempts_at_the_first(played):
    recipe = arms["spark"]
    episodes = played.episodes
    reward = np.asarray(episodes.reward).sum(1)
    found = recipe.evaluate.keywords["measure"](episodes)
    assert found["second"] == pytest.approx(reward[:, 2 * ATTEMPTS :, 2].mean())
    assert found["gain"] == pytest.approx(reward[:, 2 * ATTEMPTS :, 2].mean() - reward[:, 0, 0].mean(), abs=1e-6)
    assert found["judge accuracy"] == pytest.approx(reward[:, ATTEMPTS : 2 * ATTEMPTS, 1].mean())
