"""The bonuses against a loop over two batches, the mazes, and which of them a group gets."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.novelty import GROUPS, LENGTH, MAZE, NONE, PATHS, START, STUDY, begin, estimate_advantages
from experiments.exploration.novelty import place as placed
from tests.support.recipe_plays import differences

MEMBERS, TURNS, WEIGHT, GAMMA = 3, 5, 0.1, 0.9


@pytest.fixture(scope="module")
def batches():
    """Two batches of two groups: observations of five places, episodes of two to five turns, the last of which pays."""
    rng, made = np.random.default_rng(0), []
    for _ in range(2):
        length = rng.integers(2, TURNS + 1, 2 * MEMBERS)
        acted = np.arange(TURNS) < length[:, None]
        reward = (np.arange(TURNS) == length[:, None] - 1) * rng.integers(0, 2, (2 * MEMBERS, 1))
        made.append((np.where(acted, rng.integers(100, 105, acted.shape), 0), acted, reward.astype(float)))
    return made


def bonuses(batches, kind):
    """The bonus [B, T] of each batch, written out: for the observation that an act leads to."""
    everywhere, results = {}, []
    for told, acted, _ in batches:
        arrivals = [(b, t) for b, t in np.argwhere(acted) if t + 1 < TURNS and acted[b, t + 1]]
        for b, t in arrivals:
            everywhere[told[b, t + 1]] = everywhere.get(told[b, t + 1], 0) + 1
        bonus = np.zeros(acted.shape)
        for b, t in arrivals:
            name = told[b, t + 1]
            first = name not in told[b, 1 : t + 1]
            share = everywhere[name] ** -0.5
            bonus[b, t] = {"none": 0, "global": share, "episodic": first, "product": first * share}[kind]
        results.append(bonus)
    return results


def normalised(paid, acted):
    """Returns-to-go less the mean of the turn in the group, over its deviation."""
    to_go, result = np.zeros(paid.shape), np.zeros(paid.shape)
    for t in reversed(range(TURNS)):
        to_go[:, t] = acted[:, t] * (paid[:, t] + GAMMA * (to_go[:, t + 1] if t + 1 < TURNS else 0))
    for group in (slice(0, MEMBERS), slice(MEMBERS, None)):
        for t in range(TURNS):
            where = acted[group, t]
            if where.any():
                x = to_go[group, t][where]
                result[group, t][where] = (x - x.mean()) / (x.std() + 1e-6)
    return result


def test_bonuses_of_two_batches_against_a_loop(batches):
    @jax.jit
    def credit(told, acted, reward, hparams, state):
        group = jnp.repeat(jnp.arange(2), MEMBERS)
        episodes = SimpleNamespace(told=told[..., None], acted=acted[..., None], reward=reward[..., None, None])
        experience = SimpleNamespace(episodes=episodes, acts=(episodes.acted, group, 2))
        return estimate_advantages(experience, hparams, state)

    for kind in NONE.choices["bonus"]:
        state = begin(None, jax.random.key(0))
        for (told, acted, reward), bonus in zip(batches, bonuses(batches, kind), strict=True):
            arm = NONE.with_choice(bonus=kind)
            given = (jnp.asarray(told, jnp.int32), jnp.asarray(acted), jnp.asarray(reward, jnp.float32))
            result = credit(*given, arm.traced_hparams, state)
            state = result.state
            want = normalised(reward + WEIGHT * bonus, acted)
            np.testing.assert_allclose(result.advantage[..., 0], want, atol=2e-3, err_msg=kind)
            distinct = [{*told[b, 1:][acted[b, 1:]]} for b in range(len(told))]
            assert result.metrics["places"] == pytest.approx(np.mean([len(x) for x in distinct]))
            assert result.metrics["collisions"] == 0


def test_mazes():
    """Four corridors of eight cells meet in the start, and one ends in the goal; every path has eight steps."""
    star = MAZE.plans[0]
    assert star.cells[START[0]] == (LENGTH, LENGTH) and len(star.cells) == 4 * LENGTH + 1
    assert (star.after[START[0]] != START[0]).all()
    assert sorted(star.distance.tolist()) == sorted([*range(LENGTH + 1), *3 * [*range(LENGTH + 1, 2 * LENGTH + 1)]])
    assert len(MAZE.plans) == PATHS + 1 == len({*MAZE.maps})
    for plan, start in zip(MAZE.plans[1:], START[1:], strict=True):
        assert plan.distance[start] == LENGTH and len(plan.cells) == LENGTH + 1


def test_a_random_player_hardly_reaches_a_goal():
    """In the 9,600 games of a run a random player reaches a goal 0.06 times, in the corridors as on a path."""
    for plan, start in zip(MAZE.plans, START, strict=True):
        chance, reached = np.eye(len(plan.cells))[start], 0.0
        for _ in range(MAZE.turns):
            after = np.zeros(len(plan.cells))
            for way in range(4):
                np.add.at(after, plan.after[:, way], chance / 4)
            reached += after[plan.starts :].sum()
            chance = np.where(np.arange(len(after)) < plan.starts, after, 0)
        assert 0.05 < reached * NONE.updates * NONE.groups * NONE.group_size < 0.06


def test_the_maze_of_each_group():
    deal = jax.jit(lambda hparams, state, key: placed(hparams, state, key, 0).deal)
    keys = [jax.random.key(i) for i in range(40)]
    for maps, possible in (("corridors", {0}), ("fresh", {*range(1, PATHS + 1)})):
        drawn = [deal(NONE.with_choice(maps=maps).traced_hparams, begin(None, keys[0]), key) for key in keys]
        first, count, number = (np.stack([x[i] for x in drawn]) for i in range(3))
        assert {*number.ravel().tolist()} <= possible and first.shape == (40, GROUPS) and (count == 1).all()
        assert (first == np.array(START)[number]).all()
        assert len({*number.ravel().tolist()}) > 50 or maps == "corridors"
    alone = NONE.with_choice(maps="one").traced_hparams
    paths = {int(begin(None, key)["path"]) for key in keys}
    assert paths <= {*range(1, PATHS + 1)} and len(paths) > 10
    assert {*deal(alone, begin(None, keys[3]), keys[5])[2].tolist()} == {int(begin(None, keys[3])["path"])}


def test_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(NONE, arm) <= {"selection"}, name
