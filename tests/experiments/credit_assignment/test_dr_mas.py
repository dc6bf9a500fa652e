"""Whose statistics: the arms against loops over what was played, and what they differ in."""

import dataclasses

import numpy as np
import pytest

from experiments.credit_assignment.dr_mas import SEARCH, STUDY, TAIL, tail
from tests.support.recipe_plays import credited, differences, games, with_a_real_model

SMALL = {"groups": 6, "group_size": 5, "updates": 2}
arms = {name: dataclasses.replace(arm, **SMALL) for name, arm in STUDY.arms.items()}


@pytest.fixture(scope="module", params=("search", "verify"))
def played(request):
    return request.param, games(arms[f"{request.param}/episode"])


def standardised(score, weight):
    """Scores less their mean over their deviation, each counted `weight` times; 0 where they do not differ."""
    total = weight.sum()
    mean = (weight * score).sum() / max(total, 1)
    std = np.sqrt((weight * (score - mean) ** 2).sum() / max(total, 1))
    return (score - mean) / (std + 1e-6) if std > 1e-6 else 0 * score


@pytest.mark.parametrize("arm", ("episode", "step", "agent_wise"))
def test_statistics_are_of_whom_the_arm_says(played, arm):
    game, played = played
    episodes = played.episodes
    acts, group = np.asarray(episodes.acted).sum(1), np.asarray(episodes.group)
    score = np.asarray(episodes.reward, np.float64).sum((1, 3))  # [B, A], of whole episodes
    expected = np.zeros_like(score)
    for g in range(SMALL["groups"]):
        mine = group == g
        if arm == "agent_wise":
            for agent in range(acts.shape[1]):
                expected[mine, agent] = standardised(score[mine, agent], acts[mine, agent])
        else:
            expected[mine] = standardised(score[mine], acts[mine] if arm == "step" else acts[mine] > 0)
    found = np.asarray(credited(arms[f"{game}/{arm}"], played).advantage)
    assert np.allclose(found, np.where(np.asarray(episodes.acted), expected[:, None], 0), atol=1e-4)
    assert np.abs(found).max() > 0.5 and len(np.unique(acts)) > 1  # somebody is called more often than others


def test_the_arms_differ_in_statistics_alone():
    for name, arm in STUDY.arms.items():
        game, how = name.split("/")
        assert differences(arm, STUDY.arms[f"{game}/agent_wise"]) <= {"advantage"}, name
        assert arm.advantage is STUDY.arms[f"search/{how}"].advantage
    assert set(differences(SEARCH, STUDY.arms["verify/episode"])) == {"game", "seats", "warm_start"}


def test_the_tail_is_that_of_who_is_called_least():
    rare, other = np.arange(200.0).reshape(2, 100), np.zeros((2, 100))
    assert np.allclose(tail({"gradient_norm/searcher": rare, "gradient_norm/router": other}), [98.01, 198.01])
    assert np.allclose(tail({"gradient_norm/verifier": rare, "gradient_norm/solver": other}), [98.01, 198.01])
    assert {prediction.metric for prediction in STUDY.predictions} == {TAIL, "success"}


@pytest.mark.slow
def test_three_updates_of_a_real_model(tmp_path):
    assert STUDY.method in with_a_real_model("dr_mas", tmp_path)
