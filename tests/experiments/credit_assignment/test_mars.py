"""Which turn: the arms against loops over what was played, and when 90% is reached."""

import dataclasses

import numpy as np
import pytest

from experiments.credit_assignment.mars import STUDY
from tests.support.recipe_plays import credited, differences, games, with_a_real_model

SMALL = {"groups": 2, "group_size": 6, "updates": 2}
arms = {name: dataclasses.replace(arm, **SMALL) for name, arm in STUDY.arms.items()}


@pytest.fixture(scope="module")
def played():
    return games(arms["centred"])


@pytest.mark.parametrize("arm", [name for name in arms if name != "unmasked"])
def test_a_turn_is_compared_with_what_the_arm_says(played, arm):
    episodes = played.episodes
    acted, role = np.asarray(episodes.acted), np.asarray(episodes.role)
    reward = np.where(acted, np.asarray(episodes.reward, np.float64).sum(-1), 0)
    turn = np.broadcast_to(np.arange(acted.shape[1])[None, :, None], acted.shape)
    keys = {"pooled": 0 * turn, "role": role, "role_turn": role * 100 + turn}

    def less_mean(x, key):
        x = x.copy()
        for which in np.unique(key[acted]):
            same = acted & (key == which)
            x[same] -= x[same].mean()
        return x

    if arm == "centred":
        reward = less_mean(reward, role)
    if arm.startswith("episode"):
        value = np.broadcast_to(reward.sum(1, keepdims=True), acted.shape)
    else:
        value = np.cumsum(reward[:, ::-1], 1)[:, ::-1]
    value = less_mean(value, keys["role" if arm == "centred" else arm.split("/")[1]])
    expected = np.where(acted, value / (value[acted].std() + 1e-6), 0)
    found = np.asarray(credited(arms[arm], played).advantage)
    assert np.allclose(found, expected, atol=1e-3) and np.abs(found).max() > 1


def test_the_arms_differ_in_credit_alone():
    for name, arm in STUDY.arms.items():
        assert differences(arm, STUDY.arms["centred"]) == {
            "centred": set(),
            "unmasked": {"game", "masked", "advantage"},  # the credit of `centred`, written down anew
        }.get(name, {"advantage"}), name
    assert STUDY.arms["unmasked"].advantage.keywords == STUDY.arms["centred"].advantage.keywords == {}


@pytest.mark.slow
def test_three_updates_of_a_real_model(tmp_path):
    assert STUDY.method in with_a_real_model("mars", tmp_path)
