"""Sets of episodes: their advantages against a loop and in expectation, their window, the vines, what is judged."""

import dataclasses
from itertools import combinations
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.sets import (
    BRANCH,
    MAZE,
    OTHERS,
    PASSAGE,
    PPO,
    STUDY,
    VINES,
    WINDOW,
    arrange,
    outcomes,
    score_sets,
)
from jaxmarl_llm.evaluation.statistics import coverage, pass_at_k
from jaxmarl_llm.rl import returns
from jaxmarl_llm.rollout.branching import BranchState
from jaxmarl_llm.rollout.trajectory import Branches
from tests.support.recipe_plays import credited, differences, games

TOTAL = np.array([1, 1, 1, 1, 0, 0, 1, 0], float)
GOAL = np.array([1, 1, 1, 2, 0, 0, 4, 0])
score = jax.jit(jax.vmap(score_sets, (0, None, None)))


def value(members):
    return TOTAL[[*members]].mean() * len({*GOAL[[*members]]} - {0}) / len(members)


def test_advantages_of_sets_in_expectation():
    """Over many draws: an episode is in a set with chance 1/2, whose mean score is known by enumeration."""
    keys = jax.random.split(jax.random.key(0), 20_000)
    found = np.asarray(score(keys, jnp.asarray(TOTAL)[None], jnp.asarray(GOAL)[None]))[:, 0]
    subsets = list(combinations(range(8), 4))
    scores = {subset: value(subset) for subset in subsets}
    within = np.array([np.mean([x for subset, x in scores.items() if i in subset]) for i in range(8)])
    # an episode in k of the four sets gets (1 - k/4) times the difference to the sets without it
    assert np.corrcoef(found.mean(0), within)[0, 1] > 0.999
    mean = found.mean(0)
    assert min(mean[3], mean[6]) > mean[0] > mean[4]  # rare goals, a common one, none
    assert value((0, 3, 6, 7)) == pytest.approx(9 / 16) and value((0, 1, 2, 3)) > value((0, 1, 2, 4))


def test_advantages_of_sets_against_a_loop():
    rng, key = np.random.default_rng(1), jax.random.key(3)
    total, goal = rng.integers(0, 2, (5, 8)).astype(float), rng.integers(0, 5, (5, 8))
    drawn = np.asarray(jax.random.uniform(key, (5, 4, 8)))
    found = jax.jit(score_sets)(key, jnp.asarray(total), jnp.asarray(goal))
    for s in range(5):
        sets = [np.argsort(drawn[s, m])[:4] for m in range(4)]
        scores = [total[s, m].mean() * len({*goal[s, m]} - {0}) / 4 for m in sets]
        for i in range(8):
            mine = [x - np.mean(scores) for m, x in zip(sets, scores, strict=True) if i in m]
            np.testing.assert_allclose(found[s, i], np.mean(mine) if mine else 0, atol=1e-6)


@pytest.fixture(scope="module")
def played():
    """Two groups of random games with random goals at their ends. In the first group the last eight members are
    recorded as copies of its first member."""
    one = games(dataclasses.replace(PPO, groups=2))
    batch, turns = one.episodes.acted.shape[:2]
    goal, last = np.random.default_rng(0).integers(0, 5, batch), np.asarray(one.episodes.acted).sum(1)[:, 0] - 1
    measured = np.zeros((batch, turns, 1, 1), np.float32)
    measured[np.arange(batch), last, 0, 0] = goal
    reward = jnp.stack([measured[..., 0] > 0, np.zeros((batch, turns, 1), bool)], -1).astype(jnp.float32)
    origin = np.tile(np.arange(batch)[:, None], (1, turns))
    origin[VINES : 2 * VINES, :BRANCH] = 0
    branches = Branches(jnp.asarray(origin), jnp.zeros((batch, turns), bool), jnp.zeros((batch, turns, 1)))
    episodes = one.episodes.replace(branches=branches, reward=reward, measured=jnp.asarray(measured))
    return one._replace(episodes=episodes)


def test_a_set_is_credited_in_its_window(played):
    acted, reward = played.episodes.acted, played.episodes.reward[..., 0]
    gae = np.asarray(returns.gae(reward, played.turn_value, acted, gamma=1.0, lam=0.95).advantage)[..., 0]
    total, goal = np.asarray(reward).sum((1, 2)), np.asarray(played.episodes.measured).sum((1, 2, 3))
    member = np.asarray(score_sets(played.key, jnp.asarray(total.reshape(-1, 8)), jnp.asarray(goal.reshape(-1, 8))))
    want, trained = gae.copy(), np.asarray(acted)[..., 0].copy()
    for b in range(len(want)):
        start = BRANCH if b % 16 >= VINES else 0
        window = slice(start, start + WINDOW)
        want[b, window] = np.where(trained[b, window], member.ravel()[b], 0)
        if VINES <= b < 16:
            trained[b, :BRANCH] = False
    found, plain = (credited(STUDY.arms[name], played) for name in ("sets", "ppo"))
    np.testing.assert_allclose(found.advantage[..., 0], want, atol=1e-5)
    np.testing.assert_array_equal(found.trained[..., 0], trained)
    np.testing.assert_allclose(plain.advantage[..., 0], gae, atol=1e-5)
    assert np.abs(member).max() > 0


def test_vines_start_in_their_turn_where_the_trunk_plays_on():
    members, sets = 2 * VINES, STUDY.arms["sets"]
    going = jnp.ones((2, members), bool).at[1, 0].set(False)
    for name, turn, group, want in (
        ("sets", BRANCH, 0, [*range(VINES), *[0] * VINES]),
        ("sets", BRANCH, 1, [*range(members)]),
        ("sets", BRANCH + 1, 0, [*range(members)]),
        ("sets", 0, 0, [*range(members)]),
        ("ppo", 0, 0, [*range(members)]),
        ("ppo", BRANCH, 0, [*range(members)]),
    ):
        branch = arrange(STUDY.arms[name].traced_hparams, (), None, 0).branch
        state = BranchState(None, jnp.int32(turn), going, None, None, None)
        assert branch(state)[group].tolist() == want, (name, turn, group)
    assert sets.group_size == members


def test_starts_and_what_is_judged():
    place = lambda first, count: [MAZE.cells[(first + i) % MAZE.starts] for i in range(count)]
    assert place(*PASSAGE) == [(4, 3), (4, 4), (4, 5)]
    assert len({*place(*PASSAGE), *place(*OTHERS)}) == MAZE.starts == 65
    assert MAZE.distance[[MAZE.cells.index(cell) for cell in place(*PASSAGE)]].tolist() == [7, 8, 7]
    assert MAZE.distance[: MAZE.starts].max() <= MAZE.turns and BRANCH < 7  # no game is over before the branch
    measured = np.zeros((32, 10, 1, 1))
    for b, goal in enumerate([1, 1, 4, 0, 0, 2, 1, 0, 3, 3]):  # the second group reaches nothing
        measured[b, 6, 0, 0] = goal
    episodes = SimpleNamespace(measured=jnp.asarray(measured))
    found = outcomes(episodes, every=2, where="")  # the last eight of a group are vines
    assert found == pytest.approx({"solved": 5 / 16, "coverage": 3 / 2, "pass@8": 1 / 2})
    found = outcomes(episodes)
    goal = measured[..., 0].sum((1, 2)).astype(int).reshape(-1, VINES)
    pass_1, pass_8 = (pass_at_k((goal > 0).sum(1), VINES, k).mean() for k in (1, VINES))
    reached = coverage(np.where(goal > 0, goal, -1)).mean()
    assert found == pytest.approx(
        {"solved from rooms": pass_1, "pass@8 from rooms": pass_8, "coverage from rooms": reached}
    )


def test_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(PPO, arm) <= {"hparams", "selection"}, name
