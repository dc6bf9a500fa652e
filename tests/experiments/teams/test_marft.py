"""The arms of the relay: their credit against loops over what was played, and what they differ in."""

import dataclasses

import numpy as np
import pytest

from experiments.teams.marft import ARMS, SEQUENTIAL, STUDY
from tests.support.recipe_plays import credited, differences, games, with_a_real_model

SMALL = {"groups": 3, "group_size": 5, "updates": 2, "epochs": 1}
arms = {name: dataclasses.replace(arm, **SMALL) for name, arm in ARMS.items()}


@pytest.fixture(scope="module")
def played():
    played = games(arms["sequential"])
    won = np.asarray(played.episodes.reward[:, 2, 0, 0])
    assert 0 < won.mean() < 1  # or every credit is 0
    return played


def whitened(advantage):
    """[B, 3], by agent."""
    return (advantage - advantage.mean(0)) / (advantage.std(0) + 1e-6)


def gather_sampled(x):
    """Of [B, T, A] what belongs to the three acts, [B, 3]: seat t speaks in turn t."""
    return np.asarray(x, np.float64)[:, range(3), range(3)]


def in_order(value, won, lam):
    """Advantages [B, 3] and targets, from the receiver back to the sender."""
    advantage = np.zeros_like(value)
    for b in range(len(value)):
        later, following = 0.0, 0.0
        for t in reversed(range(3)):
            reward = won[b] if t == 2 else 0.0
            later = reward + following - value[b, t] + lam * later
            advantage[b, t], following = later, value[b, t]
    return advantage, advantage + value


@pytest.mark.parametrize("arm", ("sequential", "one_step"))
def test_each_is_judged_by_the_critic_of_the_next(played, arm):
    value, won = gather_sampled(played.turn_value), np.asarray(played.episodes.reward[:, 2, 0, 0])
    advantage, target = in_order(value, won, {"sequential": 0.95, "one_step": 0.0}[arm])
    found = credited(arms[arm], played)
    assert np.allclose(gather_sampled(found.advantage), whitened(advantage), atol=1e-4)
    assert np.allclose(gather_sampled(found.value_target), target, atol=1e-5)
    silent = ~np.asarray(played.episodes.acted)
    assert (np.asarray(found.advantage)[silent] == 0).all()


def test_each_alone_is_judged_by_the_outcome(played):
    value, won = gather_sampled(played.turn_value), np.asarray(played.episodes.reward[:, 2, :, 0])
    found = credited(arms["per_seat"], played)
    assert np.allclose(gather_sampled(found.advantage), whitened(won - value), atol=1e-4)
    assert np.allclose(gather_sampled(found.value_target), won, atol=1e-5)


def test_with_lambda_one_both_are_the_same(played):
    through, alone = (credited(arms[arm], played, lam=1.0) for arm in ("sequential", "per_seat"))
    assert np.allclose(through.advantage, alone.advantage, atol=1e-4)
    assert not np.allclose(credited(arms["sequential"], played).advantage, alone.advantage, atol=1e-2)


def test_the_groups_know_the_deal(played):
    won, group = np.asarray(played.episodes.reward[:, 2, 0, 0], np.float64), np.asarray(played.episodes.group)
    grpo, rloo = (gather_sampled(credited(arms[arm], played).advantage) for arm in ("grpo", "rloo"))
    for b, outcome in enumerate(won):
        same = won[group == group[b]]
        others = won[(group == group[b]) & (np.arange(len(won)) != b)]
        assert np.allclose(grpo[b], (outcome - same.mean()) / (same.std() + 1e-6) if same.std() else 0, atol=1e-4)
        assert np.allclose(rloo[b], outcome - others.mean(), atol=1e-5)


def test_the_arms_differ_in_credit_and_critic_alone():
    for name, arm in ARMS.items():
        assert differences(SEQUENTIAL, arm) <= {"advantage", "critic", "hparams"}, name
        assert arm.critic == (name in ("sequential", "one_step", "per_seat"))
        assert arm.all_hparams.items() >= {"learning_rate": SEQUENTIAL.hparams["learning_rate"]}.items()
    assert ARMS["sequential"].structure == ARMS["one_step"].structure


def test_the_mean_is_over_all_updates():
    (derive,) = STUDY.derived.values()
    assert np.allclose(derive({"success": np.array([[0.0, 1.0], [0.2, 0.4]])}), [0.5, 0.3])


@pytest.mark.slow
def test_three_updates_of_a_real_model(tmp_path):
    assert STUDY.method in with_a_real_model("marft", tmp_path)
