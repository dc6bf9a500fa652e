"""URPO: answers compared within their game, rankings within their group; who referees in each arm."""

import dataclasses

import numpy as np
import pytest

from experiments.rewards.referee import PLAYERS, STUDY
from jaxmarl_llm.environments.judged.refereed import OPEN, RANKED
from tests.support.recipe_plays import credited, differences, games

arms = {name: dataclasses.replace(arm, groups=2 * len(arm.game.game.kinds)) for name, arm in STUDY.arms.items()}


@pytest.mark.parametrize("name", ["unified", "no_open", "no_preference", "truth"])
def test_with_whom_an_act_is_compared(name):
    recipe = arms[name]
    played = games(recipe)
    episodes, kinds = played.episodes, recipe.game.game.kinds
    reward, acted = np.asarray(episodes.reward, np.float64), np.asarray(episodes.acted)
    earned, group = reward.sum((1, 3)), np.asarray(episodes.group)
    want = np.zeros(acted.shape)
    for b, t, seat in zip(*np.nonzero(acted), strict=True):
        if seat == PLAYERS:
            if name == "truth":
                continue
            others = [
                earned[i, seat] for i in np.flatnonzero(group == group[b]) for _ in range(acted[i, :, seat].sum())
            ]
        else:
            others = earned[b, :PLAYERS]
        want[b, t, seat] = (earned[b, seat] - np.mean(others)) / (np.std(others) + 1e-6)
    found = np.asarray(credited(recipe, played).advantage)
    np.testing.assert_allclose(found, want, atol=2e-3)
    kind = np.array([kinds[g % len(kinds)] for g in group])
    if OPEN in kinds:  # a referee learns nothing from what it gives to others
        assert not found[kind == OPEN][:, :, PLAYERS].any()
    if RANKED in kinds and name != "truth":
        assert found[kind == RANKED][:, :, PLAYERS].any()


def test_the_arms():
    unified = STUDY.arms["unified"]
    for name, referee in (("frozen", "initial/learner"), ("truth", "correct")):
        assert differences(unified, STUDY.arms[name]) == {"seats"}
        assert STUDY.arms[name].seats == (("learner",) * PLAYERS + (referee,),)
    assert [STUDY.arms[name].groups for name in ("unified", "no_open")] == [6, 4]  # of each kind as many games
