"""Payments of writer and actor against a loop, the notes of each arm, and the loss of each role."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools.memory import (
    FREE,
    OUTCOME,
    STUDY,
    SUCCESS,
    TASKS,
    arrange,
    clip_by_role,
    estimate_advantages,
    measure,
)
from jaxmarl_llm.rl.losses import Batch, Scores
from tests.support.recipe_plays import differences

MEMBERS, SECOND, WRITER = 4, 2, 1


def recorded():
    """Three turns of three seats: first shift, writer, second shift."""
    n = 2 * TASKS * MEMBERS
    solved = np.random.default_rng(0).random(n) < 0.5
    acted = np.broadcast_to(np.eye(3, dtype=bool), (n, 3, 3))
    reward = np.zeros((n, 3, 3, 2), np.float32)
    reward[:, 2, SECOND, 0], reward[:, 2, WRITER, 1] = solved, 2 * solved - 1
    return solved, reward, jnp.asarray(acted), jnp.repeat(jnp.arange(2 * TASKS), MEMBERS)


def test_who_is_paid_for_which_shift():
    solved, reward, acted, group = recorded()
    episodes = SimpleNamespace(reward=jnp.asarray(reward), acted=acted)
    experience = SimpleNamespace(episodes=episodes, acts=(acted, group, 2 * TASKS))
    credit = jax.jit(lambda hparams: estimate_advantages(experience, hparams, ())[::6])
    halves = solved.reshape(TASKS, 2, MEMBERS).astype(float)
    z = lambda x, axis: (x - x.mean(axis, keepdims=True)) / (x.std(axis, keepdims=True) + 1e-6)
    for name, arm in STUDY.arms.items():
        found, trained = credit(arm.traced_hparams)
        actor = z(halves, (1, 2) if name in ("none", "mixed") else 2)
        np.testing.assert_allclose(found[:, 2, SECOND], actor.ravel(), atol=2e-5, err_msg=name)
        pay = halves[:, 0] - halves[:, 1].mean(1, keepdims=True) if name == "difference" else 2 * halves[:, 0] - 1
        wanted = np.zeros_like(halves)
        wanted[:, 0] = (pay - pay.mean()) * (name != "none")
        np.testing.assert_allclose(found[:, 1, WRITER], wanted.ravel(), atol=1e-5, err_msg=name)
        assert not np.asarray(trained[:, 0]).any() and np.asarray(trained[:, 2, SECOND]).all()
        noted = np.asarray(trained[:, 1, WRITER]).reshape(TASKS, 2, MEMBERS)
        assert (noted == np.array([name != "none", False])[None, :, None]).all()


def test_halves_have_the_same_locks_and_one_has_notes():
    for name, arm in STUDY.arms.items():
        deal = arrange(arm.traced_hparams, (), jax.random.key(0), jnp.int32(0)).deal
        assert (np.asarray(deal.noted) == (np.arange(2 * TASKS) % 2 == 0) * (name != "none")).all()
        np.testing.assert_array_equal(deal.key[::2], deal.key[1::2])
        assert len(np.unique(np.asarray(deal.key), axis=0)) == TASKS


def test_success_of_both_halves():
    solved, reward, acted, group = recorded()
    facts = jnp.zeros((len(solved), 3, 3, 2))
    episodes = SimpleNamespace(reward=jnp.asarray(reward), acted=acted, group=group, measured=facts)
    found = jax.jit(lambda: measure(episodes))()
    halves = solved.reshape(TASKS, 2, MEMBERS).mean((0, 2))
    assert (found[SUCCESS], found[FREE]) == pytest.approx(tuple(halves))


def test_the_loss_clips_the_actor_by_ppo_and_the_writer_by_cispo():
    rng, shape = np.random.default_rng(1), (4, 5)
    logp, old, advantage, entropy = (rng.normal(size=shape).astype(np.float32) for _ in range(4))
    mask, role = rng.random(shape) < 0.8, np.array([0, 1, 1, 0])[:, None].repeat(5, 1)
    empty = dict.fromkeys(("token", "turn", "value_target", "old_value", "episode", "seat", "policy"))
    given = {"behaviour_logp": old, "advantage": advantage, "mask": mask, "role": role}
    batch = Batch(**empty, **jax.tree.map(jnp.asarray, given))
    hparams = {"clip_low": 0.2, "clip_high": 0.2, "entropy": 0.0}
    loss = jax.jit(lambda logp: clip_by_role(Scores(logp, jnp.asarray(entropy)), batch, hparams)[0].sum)
    slope, ratio = np.zeros(shape), np.exp(logp - old)
    for at in zip(*np.nonzero(mask), strict=True):
        a, r = advantage[at], ratio[at]
        inside = r < 1.2 if a > 0 else r > 0.8
        slope[at] = -a * np.clip(r, 0.8, 1.2) if role[at] else -a * r * inside
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(logp)), slope, atol=1e-4)


def test_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(OUTCOME, arm) <= {"hparams", "selection"}, name
