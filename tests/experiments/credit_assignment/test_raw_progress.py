"""A farm on which work can be undone: each arm's reward and credit against a loop, a cycle by hand, and metrics."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.credit_assignment.raw_progress import ADDED, GAMMA, OUTCOME, STUDY, compute_reward, measure
from tests.support.recipe_plays import credited, differences, games

WORKS, STOP, UNDO = 4, 5, 6


@pytest.fixture(scope="module")
def played():
    return games(dataclasses.replace(OUTCOME, groups=2, group_size=64))


def read(played):
    """[(action, works before, works after)] of each game, by the rules."""
    days = []
    for says, acted in zip(
        *(np.asarray(x)[..., 0] for x in (played.episodes.action, played.episodes.acted)), strict=True
    ):
        day, works = [], 0
        for said in says[acted]:
            after = works + (said == works + 1 and said != STOP) - (said == UNDO and works > 0)
            day.append((said, works, after))
            works = after
        days.append(day)
    return days


def pay(arm, day):
    """The reward of each turn of a game."""
    paid = []
    for t, (said, before, after) in enumerate(day):
        outcome = before / WORKS if said == STOP else 0
        ended = t == len(day) - 1
        added = {
            "outcome": 0,
            "raw_progress": max(after - before, 0) / max(WORKS - before, 1) - max(before - after, 0) / max(before, 1),
            "gains": max(after - before, 0) / WORKS,
            "potential": GAMMA * (0 if ended else after / WORKS) - before / WORKS,
        }
        paid.append(outcome + added[arm])
    return paid


@pytest.mark.parametrize("arm", STUDY.recipes)
def test_rewards_and_credit_against_a_loop(played, arm):
    acted, group = np.asarray(played.episodes.acted)[..., 0], np.asarray(played.episodes.group)
    wanted, to_go = np.zeros(acted.shape), np.zeros(acted.shape)
    for b, day in enumerate(read(played)):
        for t in reversed(range(len(day))):
            wanted[b, t] = pay(arm, day)[t]
            to_go[b, t] = wanted[b, t] + GAMMA * (to_go[b, t + 1] if t + 1 < len(day) else 0)
    recipe = STUDY.recipes[arm]
    found = jax.jit(lambda episodes: compute_reward(episodes, recipe.all_hparams))(played.episodes)
    np.testing.assert_allclose(np.asarray(found)[..., 0], wanted, atol=1e-6)
    advantage = np.asarray(credited(recipe, played).advantage)[..., 0]
    for b, t in np.argwhere(acted)[::7]:
        peers = (group == group[b]) & acted[:, t]
        peers[b] = False
        if peers.any():
            assert advantage[b, t] == pytest.approx(to_go[b, t] - to_go[peers, t].mean(), abs=1e-5)


def test_a_cycle_pays_as_raw_progress_and_costs_as_a_potential():
    """The last work is undone and done again, then the farmer stops."""
    day = [*((w + 1, w, w + 1) for w in range(WORKS)), (UNDO, 4, 3), (4, 3, 4), (STOP, 4, 4)]
    assert pay("raw_progress", day) == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1, -1 / 4, 1, 1])
    assert sum(pay("gains", day)[4:6]) == pytest.approx(1 / 4)
    assert sum(pay("potential", day)[4:6]) < 0


def test_potentials_leave_the_score_of_every_game(played):
    """The discounted sum of the arm `potential` is the discounted outcome."""
    sums = lambda arm: [sum(GAMMA**t * x for t, x in enumerate(pay(arm, day))) for day in read(played)]
    np.testing.assert_allclose(sums("potential"), sums("outcome"), atol=1e-9)
    assert np.abs(np.subtract(sums("raw_progress"), sums("outcome"))).max() > 0.5


def test_metrics(played):
    days = read(played)
    found = {name: float(x) for name, x in jax.jit(measure)(played.episodes).items()}
    undone = [np.mean([after < before for _, before, after in day]) for day in days]
    score = [GAMMA ** (len(day) - 1) * day[-1][1] / WORKS * (day[-1][0] == STOP) for day in days]
    assert found["undone"] == pytest.approx(np.mean(undone), abs=1e-6) and found["undone"] > 0.01
    assert found["score"] == pytest.approx(np.mean(score), abs=1e-6) and found["score"] > 0.01
    assert found["completed"] == np.mean([day[-1][:2] == (STOP, WORKS) for day in days])


def test_arms_differ_in_the_added_reward_alone():
    assert all(differences(arm, OUTCOME) <= {"selection"} for arm in STUDY.recipes.values())
    assert [arm.all_hparams["added"] for arm in STUDY.recipes.values()] == [*ADDED]
    assert [*STUDY.recipes] == ["outcome", *ADDED[1:]]
