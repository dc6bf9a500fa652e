"""Forced modes of each arm, rewards and metrics against loops, and what the arms share."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools.tools import KINDS, MEMBERS, QUERIES, STUDY, TOOL, draw_sums, estimate_advantages, loss, rates
from jaxmarl_llm.rl.losses import Batch, Scores
from tests.support.recipe_plays import differences

GAMES = QUERIES * KINDS * MEMBERS
MODES = {"none": "none", "always": "call", "modes": "balanced"}


def recorded(forced: bool, seed: int = 0) -> SimpleNamespace:
    """Games with random modes and rewards, in which three of four groups are forced, or none."""
    rng = np.random.default_rng(seed)
    group = np.arange(GAMES) // MEMBERS
    mode = rng.integers(0, 3, GAMES)
    if forced:
        mode = np.where(group % KINDS < 3, group % KINDS, mode)
    legal = np.ones((GAMES, 6, 2, 20), bool)
    legal[:, 0, 0] = np.arange(20) < 3
    if forced:
        legal[group % KINDS < 3, 0, 0] = np.eye(20, dtype=bool)[mode[group % KINDS < 3]]
    acted = np.zeros((GAMES, 6, 2), bool)
    acted[:, 0, 0] = acted[:, 1, 0] = True
    acted[mode == 2, :4, 0] = acted[mode == 2, 5, 0] = acted[mode == 2, 4, 1] = True
    reward = np.zeros((GAMES, 6, 2, 2), np.float32)
    reward[:, 1, 0, 0] = rng.random(GAMES) < 0.5
    reward[:, 0, 0, 1] = -np.array([0, 0.05, 0.2])[mode]
    action = np.zeros((GAMES, 6, 2), np.int32)
    action[:, 0, 0] = mode
    measured = np.zeros((GAMES, 6, 2, 1), np.float32)
    measured[:, 3, 0, 0] = (mode == 2) & (rng.random(GAMES) < 0.7)
    arrays = {"reward": reward, "acted": acted, "action": action, "legal": legal, "measured": measured, "group": group}
    return SimpleNamespace(**{name: jnp.asarray(x) for name, x in arrays.items()})


def test_forced_modes_of_each_arm():
    arranged = jax.jit(lambda hparams, key: draw_sums(hparams, (), key, jnp.int32(0)).deal)
    for name, arm in STUDY.arms.items():
        deal = arranged(arm.traced_hparams, jax.random.key(1))
        numbers, modes = (np.asarray(x).reshape(QUERIES, KINDS, 3) for x in deal)
        assert (numbers == numbers[:, :1]).all() and len(np.unique(numbers[:, 0], axis=0)) > QUERIES / 2
        assert (numbers[::2] < 3).all() and (numbers[1::2] >= 3).all()
        wanted = {"none": [[1, 1, 0]] * 4, "call": [[0, 0, 1]] * 4, "balanced": [*np.eye(3), [1, 1, 1]]}
        np.testing.assert_array_equal(modes, np.broadcast_to(wanted.get(MODES.get(name), [[1] * 3] * 4), modes.shape))


@pytest.mark.parametrize("name", ("tool", "priced", "modes", "unforced"))
def test_rewards_against_a_loop(name):
    episodes, arm = recorded(name == "modes"), STUDY.arms[name]
    acts = episodes.acted.at[:, :, 1].set(False), episodes.group, QUERIES * KINDS
    experience = SimpleNamespace(episodes=episodes, learning_acts=acts)
    found = jax.jit(lambda hparams: estimate_advantages(experience, hparams, ()).advantage)(arm.traced_hparams)
    right, mode = np.asarray(episodes.reward[:, 1, 0, 0]), np.asarray(episodes.action[:, 0, 0])
    cost = np.asarray(episodes.reward[:, 0, 0, 1])
    for q in range(QUERIES):
        games = [g for g in range(GAMES) if g // (KINDS * MEMBERS) == q]
        probes = [g for g in games if mode[g] == 0 and (name != "modes" or g // MEMBERS % KINDS == 0)]
        p = np.mean(right[probes]) if probes else 0
        paid = {"tool": right, "priced": right + cost}.get(name, right * np.where(mode == 0, 1, 1 - p**2))[games]
        wanted = (paid - paid.mean()) / (paid.std() + 1e-6) if paid.std() else 0 * paid
        np.testing.assert_allclose(found[np.array(games), 0, 0], wanted, atol=1e-4)
    assert (found[..., 1] == 0).all()  # of the calculator


def test_metrics_are_of_free_games():
    measured = jax.jit(lambda episodes: rates(SimpleNamespace(**episodes)))
    for forced in (False, True):
        episodes = recorded(forced)
        found, group = measured(vars(episodes)), np.asarray(episodes.group)
        free = (group % KINDS == 3) | (not forced)
        right, mode = np.asarray(episodes.reward[:, 1, 0, 0]), np.asarray(episodes.action[:, 0, 0])
        easy = group // KINDS % 2 == 0
        assert found["success"] == pytest.approx(right[free].mean())
        assert found["cost"] == pytest.approx(np.array([0, 0.05, 0.2])[mode[free]].mean(), rel=1e-5)
        assert found["calls easy"] == pytest.approx((mode[free & easy] == 2).mean())
        assert found["instant hard"] == pytest.approx(right[(mode == 0) & ~easy].mean())
        assert found["posed right"] == pytest.approx(float(episodes.measured[mode == 2].sum() / (mode == 2).sum()))
    alone = {**vars(episodes), "legal": jnp.asarray(np.zeros((GAMES, 6, 2, 1), bool) | np.eye(20, dtype=bool)[2])}
    assert measured(alone)["success"] == pytest.approx(float(episodes.reward[:, 1, 0, 0].mean()))


def test_tokens_above_the_upper_bound_are_counted():
    """Of four tokens that are trained, two have grown by more than the bound, and one of these has an advantage."""
    empty = dict.fromkeys(("token", "turn", "value_target", "old_value", "episode", "seat", "policy", "role"))
    logp, advantage = jnp.log(jnp.array([[1.25, 1.25, 1.1, 1.0, 2.0]])), jnp.array([[1.0, -1.0, 1.0, 1.0, 1.0]])
    mask = jnp.arange(5)[None] < 4
    batch = Batch(**empty, behaviour_logp=jnp.zeros((1, 5)), advantage=advantage, mask=mask)
    share = lambda arm: loss(Scores(logp, jnp.zeros((1, 5))), batch, STUDY.arms[arm].traced_hparams)[1]["clipped above"]
    assert share("tool").value == pytest.approx(1 / 4) and share("clip_high").value == 0


def test_all_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(TOOL, arm) <= {"hparams", "selection"}, name
