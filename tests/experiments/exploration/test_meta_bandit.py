"""Bandits that recur: the Bayes player by enumeration, credit by pull against a loop, and what is measured."""

import dataclasses
from itertools import product

import jax
import numpy as np
import pytest

from experiments.exploration.meta_bandit import ALL, ARMS, GAME, KNOWN, PULLS, STUDY, best_points, measure
from tests.support.recipe_plays import credited, differences, games


def by_policies(pulls):
    """The best of all deterministic players of the known arm, 0, and two unknown ones."""
    mean = lambda f: np.mean(f(np.array(GAME.chances)))  # over the chance of one arm
    histories = [h for n in range(pulls) for h in product((0, 1), repeat=n)]
    best = 0.0
    for arms in product(range(ARMS), repeat=len(histories)):
        plan, total = dict(zip(histories, arms, strict=True)), 0.0
        for results in product((0, 1), repeat=pulls):
            played = [plan[results[:t]] for t in range(pulls)]
            chance = 1.0
            for arm in range(ARMS):
                won = sum(r for r, a in zip(results, played, strict=True) if a == arm)
                lost = played.count(arm) - won
                likely = lambda p, won=won, lost=lost: p**won * (1 - p) ** lost
                chance *= mean(likely) if arm else likely(KNOWN)
            total += chance * sum(results)
        best = max(best, total)
    return best


@pytest.mark.parametrize("pulls", [1, 2, 3])
def test_the_bayes_player_is_the_best_of_all(pulls):
    assert best_points(((0, 0),) * (ARMS - 1), pulls) == pytest.approx(by_policies(pulls), abs=1e-9)


def test_the_bayes_player_explores_and_the_player_of_the_moment_does_not():
    """A first pull at an unknown arm is worth more than the known one for all pulls, and less for its own point."""
    tried = [0.5 * (won + best_points(((won, 1 - won), (0, 0)), PULLS - 1)) for won in (0, 1)]
    assert sum(tried) == pytest.approx(best_points(((0, 0),) * 2, PULLS)) and sum(tried) > PULLS * KNOWN + 1
    assert np.mean(GAME.chances) < KNOWN


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
    arm, paid = np.asarray(played.episodes.action)[..., 0], np.asarray(played.episodes.reward)[..., 0, 0]
    found = jax.jit(measure)(played.episodes)
    assert float(found["explores"]) == pytest.approx(np.mean([row[0] in (1, 2) for row in arm]))
    assert 0 < float(found["explores"]) < 1
    assert float(found["points"]) == pytest.approx(paid.sum(1).mean())


def test_arms_differ_in_the_game_or_the_discount():
    changed = {"all": set(), "fresh": {"game"}, "untold": {"game"}, "greedy": {"hparams"}}
    assert {name: differences(ALL, arm) for name, arm in STUDY.arms.items()} == changed
