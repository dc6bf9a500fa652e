"""Pioneer and observer: whose reward each arm pays to whom, and who has which role."""

import dataclasses

import numpy as np
import pytest

from experiments.teams.cory import ARMS, CORY, STUDY
from tests.support.recipe_plays import credited, differences, games, with_a_real_model

SMALL = {"groups": 4, "group_size": 6, "updates": 2}
arms = {name: dataclasses.replace(arm, **SMALL) for name, arm in ARMS.items()}


@pytest.fixture(scope="module")
def played():
    return {name: games(arms[name]) for name in ("cory", "fixed", "alone")}


def right(played):
    """[B, 2]: whether each seat's answer is right."""
    return np.asarray(played.episodes.reward[..., 0], np.float64).sum(1)


def compared(reward, group):
    """Each entry of [B, 2] less the mean of the other episodes of its group and seat."""
    result = np.zeros_like(reward)
    for b in range(len(reward)):
        others = (group == group[b]) & (np.arange(len(group)) != b)
        result[b] = reward[b] - reward[others].mean(0)
    return result


@pytest.mark.parametrize(("arm", "share"), (("cory", 1), ("own", 0), ("fixed", 1), ("alone", 0)))
def test_who_is_paid_what(played, arm, share):
    game = played["cory" if arm == "own" else arm]
    answers, group = right(game), np.asarray(game.episodes.group)
    assert 0 < answers.mean() < 1
    earned = answers + share * answers[:, ::-1]
    acted = np.asarray(game.episodes.acted)
    assert (acted.sum(1) == 1).all()  # each answers once
    expected = np.where(acted, compared(earned, group)[:, None], 0)
    found = np.asarray(credited(arms[arm], game).advantage)
    assert np.allclose(found, expected, atol=1e-5) and np.abs(found).max() > 0.1


def test_who_is_the_pioneer(played):
    for arm, game in played.items():
        pioneer = np.argmax(np.asarray(game.episodes.acted)[:, 0], 1)
        even = np.asarray(game.episodes.group) % 2 == 0
        assert (pioneer == (np.where(even, 0, 1) if arm == "cory" else 0)).all()


def test_success_is_counted_by_role(played):
    for arm, roles in (("cory", ("pioneer", "observer")), ("fixed", ("pioneer", "observer")), ("alone", ("pioneer",))):
        game = played[arm]
        answers = np.asarray(game.episodes.reward[..., 0]).sum(2)  # [B, T]: the pioneer's turn, then the observer's
        found = arms[arm].measure(game.episodes)
        assert tuple(found) == roles
        for turn, role in enumerate(roles):
            assert np.isclose(found[role], answers[:, turn].mean())


def test_the_arms_differ_in_what_is_said_of_them():
    assert differences(CORY, ARMS["own"]) == {"hparams"} and CORY.structure == ARMS["own"].structure
    assert differences(CORY, ARMS["fixed"]) == {"game"}
    assert differences(ARMS["own"], ARMS["alone"]) == {"game", "seats", "measure"}
    assert ARMS["alone"].learners == ("one",) and ARMS["cory"].learners == ("one", "other")
    assert dataclasses.replace(CORY.game, exchange="never") == ARMS["fixed"].game == ARMS["alone"].game


def test_the_mean_is_over_all_updates():
    curves = {"pioneer": np.array([[0.0, 1.0], [0.5, 0.5]]), "observer": np.array([[0.2, 0.4], [0.0, 1.0]])}
    assert np.allclose(STUDY.derived["mean pioneer"](curves), [0.5, 0.5])
    assert np.allclose(STUDY.derived["mean observer"](curves), [0.3, 0.5])
    assert np.isnan(STUDY.derived["mean observer"]({"pioneer": curves["pioneer"]})).all()


@pytest.mark.slow
def test_three_updates_of_a_real_model(tmp_path):
    assert STUDY.method in with_a_real_model("cory", tmp_path)
