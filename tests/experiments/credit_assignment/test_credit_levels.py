"""Token, turn, episode: each arm's credit against loops over the rows that were played."""

import dataclasses

import numpy as np
import pytest

from experiments.credit_assignment.credit_levels import ARMS, BASE, STUDY
from jaxmarl_llm.rollout.trajectory import per_token
from tests.support.recipe_plays import credited, differences, games, with_a_real_model

SMALL = {"groups": 2, "group_size": 6, "updates": 2}
LAM = 0.95
arms = {name: dataclasses.replace(arm, **SMALL) for name, arm in ARMS.items()}
DENSITIES = pytest.mark.parametrize("density", ("dense", "sparse"))


@pytest.fixture(scope="module")
def played():
    played = games(arms["dense/turn"], rows=True)
    mask = np.asarray(played.sampled["learner"].mask)
    assert (mask.sum(1) == 6).all()  # three answers of two tokens, every one chosen
    return played


def earned(played, density):
    """What each seat earned in its own turns, [B, A, 3]."""
    reward = np.asarray(played.episodes.reward[..., 0], np.float64)
    own = np.stack([reward[:, seat::2, seat] for seat in range(2)], 1)
    return own if density == "dense" else own.sum(2, keepdims=True) * [0, 0, 1]


def rows(played, density):
    """(row, rewards of its three turns)."""
    record, reward = played.rows["learner"], earned(played, density)
    for r, (episode, seat) in enumerate(zip(np.asarray(record.episode), np.asarray(record.seat), strict=True)):
        yield r, reward[episode, seat]


def gae(reward, value, lam=LAM):
    advantage, later, following = np.zeros(len(value)), 0.0, 0.0
    for t in reversed(range(len(value))):
        later = reward[t] + following - value[t] + lam * later
        advantage[t], following = later, value[t]
    return advantage, advantage + value


@DENSITIES
def test_from_token_to_token(played, density):
    found, value = credited(arms[f"{density}/token"], played), np.asarray(played.token_value["learner"], np.float64)
    for r, reward in rows(played, density):
        advantage, target = gae(np.stack([0 * reward, reward], 1).ravel(), value[r, :6])
        assert np.allclose(found.advantage["learner"][r, :6], advantage, atol=1e-5)
        assert np.allclose(found.value_target["learner"][r, :6], target, atol=1e-5)


@DENSITIES
def test_from_turn_to_turn(played, density):
    found, value = credited(arms[f"{density}/turn"], played), np.asarray(played.turn_value, np.float64)
    reward = earned(played, density)
    for b in range(len(value)):
        for seat in range(2):
            advantage, target = gae(reward[b, seat], value[b, seat::2, seat])
            assert np.allclose(found.advantage[b, seat::2, seat], advantage, atol=1e-5)
            assert np.allclose(found.value_target[b, seat::2, seat], target, atol=1e-5)
    tokens = per_token(found.advantage, played.rows["learner"], played.sampled["learner"])
    assert (tokens[:, 0:6:2] == tokens[:, 1:6:2]).all()  # both tokens of an answer alike


@DENSITIES
def test_turns_that_reward_their_tokens(played, density):
    found, value = credited(arms[f"{density}/bi_level"], played), np.asarray(played.token_value["learner"], np.float64)
    for r, reward in rows(played, density):
        _, target = gae(reward, value[r, 0:6:2])
        expected = target[:, None] - value[r, :6].reshape(3, 2)  # nothing is lost between the tokens of a turn
        assert np.allclose(found.advantage["learner"][r, :6].reshape(3, 2), expected, atol=1e-5)


def test_the_episode_is_the_same_however_it_is_paid(played):
    dense, sparse = (
        np.asarray(credited(arms[f"{density}/episode"], played).advantage) for density in ("dense", "sparse")
    )
    assert np.allclose(dense, sparse, atol=1e-5)
    total, group = earned(played, "dense").sum(2), np.asarray(played.episodes.group)
    for b in range(len(total)):
        others = (group == group[b]) & (np.arange(len(group)) != b)
        expected = total[b] - total[others].mean(0)
        for seat in range(2):
            assert np.allclose(dense[b, seat::2, seat], expected[seat], atol=1e-5)


def test_the_arms_differ_in_credit_and_density_alone():
    for name, arm in ARMS.items():
        assert differences(BASE, arm) <= {"advantage", "critic", "selection"}, name
        assert arm.critic == ("episode" not in name) and arm.all_choices == {"reward": name.split("/")[0]}
        twin = ARMS[name.replace("dense", "sparse")]
        assert arm.structure == twin.structure and twin.all_choices["reward"] == "sparse"


@pytest.mark.slow
def test_three_updates_of_a_real_model(tmp_path):
    assert STUDY.method in with_a_real_model("credit_levels", tmp_path)
