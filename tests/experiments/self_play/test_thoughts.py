"""The arms of private thoughts: their advantages against a loop, and what is measured of lengths."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.self_play.thoughts import GAME, LEFT, MOVED, NORM, STUDY, thoughts
from tests.support.recipe_plays import credited, differences, games

arms = {name: dataclasses.replace(arm, groups=4, group_size=4) for name, arm in STUDY.arms.items()}


@pytest.fixture(scope="module")
def played():
    return [games(arms["role"], seed) for seed in range(2)]


@pytest.mark.parametrize("arm", ["role", "none", "ahead", "chance"])
def test_advantages_against_a_loop(played, arm):
    found = [np.asarray(one.advantage) for one in credited(arms[arm], *played)]
    mean = None
    for one, advantage in zip(played, found, strict=True):
        returns = np.asarray(one.episodes.reward[..., 0], np.float64).sum(1)
        if arm == "chance":
            returns = np.array([returns[(b + 8) % 16] for b in range(16)])
        if arm == "ahead":
            returns = returns + np.array([4.0, -4.0])
        baseline = returns.mean(0) if mean is None else mean
        mean = returns.mean(0) if mean is None else 0.95 * mean + 0.05 * returns.mean(0)
        expected = returns - baseline * (arm in ("role", "chance"))
        acted = np.asarray(one.episodes.acted)
        np.testing.assert_allclose(advantage, np.where(acted, expected[:, None], 0), atol=1e-5)


def test_the_role_baseline_takes_the_payment_away(played):
    paid = arms["ahead"].with_choice(baseline="role")
    for one, other in zip(credited(arms["role"], *played), credited(paid, *played), strict=True):
        np.testing.assert_allclose(one.advantage, other.advantage, atol=1e-5)


def test_lengths_are_of_legal_answers_alone(played):
    episodes = played[0].episodes
    acted = jnp.zeros_like(episodes.acted).at[:3, 0, 0].set(True)
    action = jnp.full_like(episodes.action, 3 * GAME.game.actions).at[:3, 0, 0].set(jnp.array([1, 10, -1]))
    found = thoughts(episodes.replace(acted=acted, action=action))
    assert float(found["thought"]) == 2.5 and float(found["no thought"]) == 0.5


def test_what_is_derived_of_the_curves():
    curves = {"thought": np.array([[4.0] * 5 + [0.0] * 14 + [1.0] * 1, [2.0] * 18 + [5.0] * 2])}
    curves[NORM] = np.array([[2.0] * 10 + [1.0] * 10, [1.0] * 19 + [2.0]])
    np.testing.assert_allclose(STUDY.derived[MOVED](curves), [3.5, 3.0])
    np.testing.assert_allclose(STUDY.derived[LEFT](curves), [0.5, 1.5])


def test_arms_differ_in_numbers_or_in_the_mark():
    for name, arm in STUDY.arms.items():
        changed = {"role": set(), "joined": {"game"}, "ahead": {"hparams", "selection"}}.get(name, {"selection"})
        assert differences(STUDY.arms["role"], arm) == changed, name
