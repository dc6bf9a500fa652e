"""Tool calls and trees of recorded games against loops, the arms' branches by their rates, and AEPO's loss."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.branching_tools import ARPO, REPLIES, STUDY, balanced_loss, branch, estimate_advantages
from jaxmarl_llm.rl.losses import Batch, Scores
from jaxmarl_llm.rollout.branching import BranchState
from jaxmarl_llm.rollout.trajectory import Branches
from tests.support.recipe_plays import differences

GROUPS, MEMBERS, TURNS = 2, 8, len(REPLIES)


def recorded():
    """Random beginnings from lower members, which are no copies themselves."""
    rng = np.random.default_rng(0)
    origin = np.tile(np.arange(GROUPS * MEMBERS)[:, None], (1, TURNS))
    for b in range(GROUPS * MEMBERS):
        if b % MEMBERS >= 4:
            origin[b, : rng.integers(0, TURNS)] = b - b % MEMBERS + rng.integers(0, 2)
    reward = np.zeros((*origin.shape, 1, 1), np.float32)
    reward[:, -1, 0, 0] = rng.random(len(origin)) < 0.4
    return origin, reward, rng.random((*origin.shape, 1)).astype(np.float32)


def test_calls_trees_and_the_rise_against_loops():
    origin, reward, entropy = recorded()
    branches = Branches(jnp.asarray(origin), jnp.zeros(origin.shape, bool), jnp.asarray(entropy))
    acted, group = jnp.ones((*origin.shape, 1), bool), jnp.repeat(jnp.arange(GROUPS), MEMBERS)
    episodes = SimpleNamespace(reward=jnp.asarray(reward), acted=acted, branches=branches)
    experience = SimpleNamespace(episodes=episodes, groups=GROUPS, acts=(acted, group, GROUPS))
    credit = jax.jit(lambda hparams: estimate_advantages(experience, hparams, ()).metrics)
    found = credit(ARPO.traced_hparams)
    calls = {(int(origin[b, t]), t) for b in range(len(origin)) for t in range(0, TURNS, 2)}
    trees = [np.bincount(first).max() / MEMBERS for first in origin[:, 0].reshape(GROUPS, MEMBERS)]
    assert found["calls"] == len(calls) < GROUPS * MEMBERS * TURNS / 2
    assert found["tree"] == pytest.approx(np.mean(trees)) and max(trees) > 1 / MEMBERS
    by_turn = entropy.mean((0, 2))
    assert found["rise"] == pytest.approx(by_turn[1::2].mean() - by_turn[::2].mean(), abs=1e-6)
    shown = reward.sum((1, 2, 3)).reshape(GROUPS, MEMBERS)[:, :6]
    assert found["solved"] == pytest.approx(shown.mean())
    probed = credit(STUDY.arms["aepo"].traced_hparams)
    assert probed["calls"] == len(calls) + GROUPS * TURNS / 2  # one more episode a group


def test_arms_branch_at_their_own_rates():
    """Of a lone candidate, by the share of many keys: entropy 0 before calls, 0.2 and 1 in turn before answers."""
    entropy = np.zeros((1, 2, TURNS, 1), np.float32)
    entropy[..., 1::4, 0], entropy[..., 3::4, 0] = 0.2, 1.0
    state = BranchState(None, None, jnp.ones((1, 2), bool), jnp.asarray(entropy), None, None)
    wanted = {"alone": (0, 0, 0), "chance": (0, 0.5, 0.5), "arpo": (0, 0.7, 0.3), "late": (0, 0.3, 0.7)}
    keys = jax.random.split(jax.random.key(0), 4000)

    @jax.jit
    def rates(hparams, turn, branched):
        choose, at = arm_branch(hparams), state._replace(turn=turn, branched=branched)
        return (jax.vmap(lambda key: choose(at._replace(key=key)))(keys)[:, 0, 1] == 0).mean()

    def arm_branch(hparams):
        arranged = branch(hparams, jnp.full((1, 1), 1, jnp.int32), None, jnp.int32(0)).branch
        first = jnp.where(arranged.keywords["first"] >= 16, 2, 1)  # two members in place of sixteen
        return partial(arranged.func, **{**arranged.keywords, "first": first})

    none = jnp.zeros((1, 2, TURNS), bool)
    for name, rate in wanted.items():
        found = [rates(STUDY.arms[name].traced_hparams, jnp.int32(t), none) for t in (4, 7, 5)]
        np.testing.assert_allclose(found, rate, atol=0.03, err_msg=name)
    twice = none.at[0, 0, jnp.array([3, 5])].set(True)
    found = [rates(STUDY.arms["aepo"].traced_hparams, jnp.int32(7), x) for x in (none, twice)]
    np.testing.assert_allclose(found, [0.7, 0.7 * 0.2], atol=0.03)


def test_the_loss_of_aepo_is_that_of_copies_of_its_code():
    """In NumPy: values are those of PPO with a dual clip; beyond the upper bound a kept gradient is (1 + 0.2) A."""
    rng, shape = np.random.default_rng(1), (3, 5)
    logp, old, advantage, entropy = (rng.normal(size=shape).astype(np.float32) for _ in range(4))
    mask = rng.random(shape) < 0.8
    empty = dict.fromkeys(("token", "turn", "value_target", "old_value", "episode", "seat", "policy", "role"))
    batch = Batch(**empty, behaviour_logp=jnp.asarray(old), advantage=jnp.asarray(advantage), mask=jnp.asarray(mask))

    @jax.jit
    def loss(logp, hparams):
        total, _ = balanced_loss(Scores(logp, jnp.asarray(entropy)), batch, hparams)
        return total.sum

    for name, factor, kept in (("arpo", 0.0, False), ("aepo", 0.2, True)):
        value, gradient = jax.value_and_grad(loss)(jnp.asarray(logp), STUDY.arms[name].traced_hparams)
        z = (entropy - entropy[mask].mean()) / entropy[mask].std()
        weighed, ratio = advantage * (1 + factor * z), np.exp(logp - old)
        total, slope = 0.0, np.zeros(shape)
        for at in zip(*np.nonzero(mask), strict=True):
            a, r = weighed[at], ratio[at]
            surrogate = min(r * a, np.clip(r, 0.8, 1.2) * a)
            total -= max(surrogate, 3 * a) if a < 0 else surrogate
            if a > 0:
                slope[at] = -a * min(r, 1.2) if kept or r < 1.2 else 0
            elif 0.8 < r < 3:
                slope[at] = -a * r
        assert value == pytest.approx(total, rel=1e-4)
        np.testing.assert_allclose(gradient, slope, atol=1e-4, err_msg=name)
        assert ((ratio > 1.2) & (weighed > 0) & mask).any()


def test_all_arms_but_the_smaller_group_share_a_program():
    for name, arm in STUDY.arms.items():
        size = {"group_size"} if name == "twelve" else set()
        assert differences(ARPO, arm) <= {"hparams", "selection"} | size, name
