"""Bandits that recur: the Bayes player by enumeration, credit by pull against a loop, and what is measured."""

import dataclasses
from itertools import product

import jax
import numpy as np
import pytest

from experiments.exploration.meta_bandit import ALL, EARLY, GAME, PULLS, STUDY, best_points, measure
from tests.support.recipe_plays import credited, differences, games


def by_policies(pulls):
    """The best of all deterministic players of two arms."""
    mean = lambda f: np.mean(f(np.array(GAME.chances)))  # over the chance of one arm
    histories = [h for n in range(pulls) for h in product((0, 1), repeat=n)]
    best = 0.0
    for arms in product((0, 1), repeat=len(histories)):
        plan, total = dict(zip(histories, arms, strict=True)), 0.0
        for results in product((0, 1), repeat=pulls):
            played = [plan[results[:t]] for t in range(pulls)]
            chance = 1.0
            for arm in (0, 1):
                won = sum(r for r, a in zip(results, played, strict=True) if a == arm)
                lost = played.count(arm) - won
                chance *= mean(lambda p, won=won, lost=lost: p**won * (1 - p) ** lost)
            total += chance * sum(results)
        best = max(best, total)
    return best


@pytest.mark.parametrize("pulls", [1, 2, 3])
def test_the_bayes_player_is_the_best_of_all(pulls):
    assert best_points(((0, 0),) * 2, pulls) == pytest.approx(by_policies(pulls), abs=1e-9)


@pytest.fixture(scope="module")
def played():
    return games(dataclasses.replace(ALL, groups=8))


@pytest.mark.parametrize(("arm", "gamma"), [("all", 1), ("greedy", 0)])
def test_credit_by_pull_against_a_loop(played, arm, gamma):
    paid = np.asarray(played.episodes.reward)[..., 0, 0].reshape(8, 4, PULLS)
    to_go = np.stack([paid[..., t:].sum(2) if gamma else paid[..., t] for t in range(PULLS)], 2)
    mean, std = to_go.mean(1, keepdims=True), to_go.std(1, keepdims=True)
    want = np.where(std > 0, (to_go - mean) / np.where(std > 0, std, 1), 0).reshape(32, PULLS)
    np.testing.assert_allclose(credited(STUDY.arms[arm], played).advantage[..., 0], want, atol=1e-4)


def test_measures_against_a_loop(played):
    episodes = played.episodes
    arm, paid = np.asarray(episodes.action)[..., 0], np.asarray(episodes.reward)[..., 0, 0]
    new = [
        arm[b, t] not in arm[b, :t]
        for b, t in np.ndindex(arm.shape)
        if t and not paid[b, :t].any() and len({*arm[b, :t]}) < 3
    ]
    found = jax.jit(measure)(episodes)
    assert float(found["explores"]) == pytest.approx(np.mean(new)) and 0 < np.mean(new) < 1
    assert float(found["points"]) == pytest.approx(paid.sum(1).mean())
    assert float(found["early coverage"]) == pytest.approx(np.mean([len({*row[:EARLY]}) for row in arm]))


def test_arms_differ_in_the_game_or_the_discount():
    changed = {"all": set(), "fresh": {"game"}, "untold": {"game"}, "greedy": {"hparams"}}
    assert {name: differences(ALL, arm) for name, arm in STUDY.arms.items()} == changed
