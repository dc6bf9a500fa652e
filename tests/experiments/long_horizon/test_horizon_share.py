"""ADS's recognition of progress and its pay, and the credit of the arms, against loops, enumeration and a matching."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from experiments.long_horizon.horizon_share import (
    BASE,
    GAME,
    LOCKS,
    LONG,
    STUDY,
    arrange,
    begin,
    longest_run,
    recognise,
)
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from tests.support.recipe_plays import credited, differences, games


@pytest.fixture(scope="module")
def played():
    return games(BASE)


@pytest.fixture(scope="module")
def expert():
    return np.asarray(begin(None, jax.random.key(0))["expert"])


@pytest.fixture(scope="module")
def ten():
    """Random games with ten locks."""
    rollout = jax.jit(Rollout(GAME, {}, Lineup((("random",),), 32), 1))
    return rollout({}, jax.random.key(0), jnp.full(1, LOCKS)).episodes


def test_longest_run_by_enumeration():
    rows = np.random.default_rng(0).integers(0, 6, (200, 7))

    def longest(row):
        chosen = (some for n in range(7, 0, -1) for some in itertools.combinations(row, n))
        return len(next(some for some in chosen if all(a < b for a, b in itertools.pairwise(some))))

    assert jax.jit(longest_run)(rows).tolist() == [longest(row) for row in rows]


def test_pay_is_the_exact_optimal_transport(ten, expert):
    """Ten observations are matched to ten; unequal ones cost 1. The matching saves what opens in nine turns."""
    told = np.asarray(ten.told[:, :LOCKS, 0])
    assert len({*expert.tolist()}) == LOCKS
    saved = []
    for row in told:
        cost = (row[:, None] != expert).astype(float)
        saved.append(LOCKS - cost[linear_sum_assignment(cost)].sum())
    opened = np.asarray(ten.reward)[:, : LOCKS - 1, 0, 0].sum(1) * LOCKS
    np.testing.assert_allclose(np.array(saved) - 1, opened, atol=1e-4)  # all games begin with the expert's first
    assert len({*saved}) > 1


def test_progress_by_the_rule(ten, expert):
    """A player that is right until turn `wrong`: steps of one, five at most, none for free."""
    step = jax.jit(recognise)
    assert step(2, ten.told[:, :LOCKS, 0], expert) == 2  # as released it would rise
    for begun, wrong in itertools.product((2, 4, 9), (1, 2, 3, 6, 10)):
        told, want = np.where(np.arange(LOCKS) < wrong, expert, 7), begun
        for _ in range(5):
            want = min(want + (min(wrong, want) >= 0.9 * want), LOCKS)
        assert step(begun, np.stack([told] * 3), expert) == want, (begun, wrong)


def test_turns_by_progress():
    def turns(progress, schedule):
        given = {"schedule": schedule, "turns": jnp.float32(7)}
        return int(arrange(given, {"progress": jnp.int32(progress)}, None, None).turns)

    assert [turns(p, "progress") for p in (2, 3, 4, 6, 10)] == [5, 5, 6, 9, LONG]
    assert turns(9, "fixed") == 7


def test_credit_against_loops(played):
    """Games against games of their group, and returns-to-go at the first discount of ADS."""
    reward, acted = (np.asarray(x, np.float64)[..., 0] for x in (played.episodes.reward, played.episodes.acted))
    reward, groups = reward[..., 0], np.asarray(played.episodes.group)
    to_go = np.zeros_like(reward)
    for t in reversed(range(LONG)):
        to_go[:, t] = reward[:, t] + (0.2**0.5 * to_go[:, t + 1] if t + 1 < LONG else 0)
    whole, turn = np.zeros_like(reward), np.zeros_like(reward)
    for group in {*groups.tolist()}:
        mine = groups == group
        share = reward[mine].sum(1)
        whole[mine] = ((share - share.mean()) / (share.std() + 1e-6))[:, None] * acted[mine]
        for b, t in itertools.product(np.flatnonzero(mine), range(LONG)):
            others = [to_go[c, t] for c in np.flatnonzero(mine) if c != b and acted[c, t]]
            turn[b, t] = acted[b, t] * (to_go[b, t] - np.mean(others))
    for arm, want in (("long", whole), ("automatic", turn)):
        np.testing.assert_allclose(credited(STUDY.arms[arm], played).advantage[..., 0], want, atol=2e-3, err_msg=arm)


def test_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(BASE, arm) <= {"hparams", "selection"}, name
