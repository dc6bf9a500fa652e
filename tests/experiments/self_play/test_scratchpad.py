"""The arms of the duel of sums: their advantages against a loop, and what is measured of thoughts and answers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.self_play.scratchpad import FALL, MODULUS, STUDY, measure
from tests.support.recipe_plays import credited, differences, games

arms = {name: dataclasses.replace(arm, groups=8, group_size=2) for name, arm in STUDY.arms.items()}


@pytest.fixture(scope="module")
def played():
    return [games(arms["role"], seed) for seed in range(3)]


@pytest.mark.parametrize("arm", ["role", "none"])
def test_advantages_against_a_loop(played, arm):
    mean = None
    for one, found in zip(played, credited(arms[arm], *played), strict=True):
        outcome = np.asarray(one.episodes.reward[..., 0], np.float64).sum(1)
        assert (np.abs(outcome) == 1).all() and (outcome.sum(1) == 0).all()  # one mean of both roles would be 0
        baseline = outcome.mean(0) if mean is None else mean
        mean = outcome.mean(0) if mean is None else 0.95 * mean + 0.05 * outcome.mean(0)
        expected = outcome - baseline * (arm == "role")
        acted = np.asarray(one.episodes.acted)
        np.testing.assert_allclose(found.advantage, np.where(acted, expected[:, None], 0), atol=1e-5)


def test_measures_against_a_loop(played):
    episodes = played[0].episodes
    acted, action, right = (np.asarray(x) for x in (episodes.acted, episodes.action, episodes.measured[..., 0]))
    thoughts, missing, points = [], [], []
    for b, seat in np.ndindex(acted.shape[0], 2):
        said = action[b, acted[b, :, seat], seat]
        answered = said[-1] < MODULUS
        assert (said[:-1] >= MODULUS).all() and (answered or len(said) == 7)
        thoughts.append(len(said) - answered)
        missing.append(not answered)
        points.append(right[b, :, seat].sum() - 0.5)
    found = jax.jit(measure)(episodes)
    expected = {"thought": thoughts, "too long": missing, "points": points}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], np.mean(values), rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(found["host"], jnp.mean(episodes.reward[:, :, 0, 0].sum(1)), rtol=1e-6)


def test_a_fall_is_positive():
    curves = {"thought": np.array([[5.0] * 5 + [3.0] * 13 + [1.0] * 2, [2.0] * 18 + [4.0] * 2])}
    assert STUDY.derived[FALL](curves).tolist() == [4.0, -2.0]


def test_arms_differ_in_the_baseline_or_in_the_game():
    for name, arm in STUDY.arms.items():
        changed = {"game": name not in ("role", "none"), "selection": name.endswith("none")}
        assert differences(STUDY.arms["role"], arm) == {field for field, differs in changed.items() if differs}, name
