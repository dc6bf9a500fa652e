"""The library against a loop, and the words of the guide in each arm."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.experience import GAME, GROUPS, NONE, QUIET, STUDY, TURNS, estimate_advantages, read
from jaxmarl_llm.rl import advantages
from tests.support.recipe_plays import differences

KEYS = GAME.actions


def test_the_guide_of_each_arm():
    library = np.zeros((GAME.situations, KEYS), np.float32)
    library[7, 2], library[7, 4], library[9, 1] = 3, 1, 5
    rows = np.full(GAME.situations, KEYS)
    rows[7], rows[9] = 2, 1
    np.testing.assert_array_equal(read(jnp.asarray(library)), rows)
    arrange = jax.jit(
        lambda hparams, number: NONE.arrange(hparams, jnp.asarray(library), jax.random.key(0), number).deal
    )
    for name, arm in STUDY.arms.items():
        for number in (0, QUIET - 1, QUIET):
            deal = arrange(arm.traced_hparams, number)
            spoken = {"none": 0, "start": 1, "each": TURNS, "released": TURNS}[name]
            assert deal.turns == (spoken if number >= QUIET else 0) and deal.answers.shape == (GROUPS, GAME.situations)
            np.testing.assert_array_equal(deal.answers[3], np.full_like(rows, 1) if name == "released" else rows)
    assert int(read(jnp.zeros(KEYS))) == KEYS


def test_keys_of_successes_are_counted_by_observation():
    rng, shape = np.random.default_rng(0), (6, TURNS, 1)
    situation, action = rng.integers(1, 9, shape), rng.integers(0, KEYS, shape)
    acted = np.arange(TURNS)[None, :, None] < rng.integers(3, TURNS + 1, (6, 1, 1))
    action, solved = np.where(acted, action, 0), np.array([1, 0, 1, 0, 0, 1])
    reward = (np.arange(TURNS)[None, :, None] == acted.sum(1, keepdims=True) - 1) * solved[:, None, None]
    before = np.zeros((GAME.situations, KEYS), np.float32)
    before[3, 1] = 2
    measured = np.stack([np.zeros(shape), np.where(acted, situation, 0)], -1)
    episodes = SimpleNamespace(
        acted=jnp.asarray(acted),
        measured=jnp.asarray(measured, jnp.float32),
        reward=jnp.asarray(reward, jnp.float32)[..., None],
        action=jnp.asarray(action),
    )
    acts = episodes.acted, jnp.repeat(jnp.arange(2), 3), 2
    experience = SimpleNamespace(episodes=episodes, acts=acts)
    found = jax.jit(lambda: estimate_advantages(experience, {"gamma": 0.95}, jnp.asarray(before)))()
    wanted = before.copy()
    for b, t, _ in np.argwhere(acted):
        wanted[situation[b, t, 0], action[b, t, 0]] += solved[b]
    np.testing.assert_array_equal(found.state, wanted)
    assert found.metrics["known"] == pytest.approx((situation == 3)[acted].mean())
    alike = advantages.step_groups(
        episodes.reward[..., 0], *acts, observation=jnp.asarray(measured[..., 1], jnp.int32), gamma=0.95
    )
    np.testing.assert_allclose(found.advantage, alike, atol=1e-6)


def test_arms_share_a_program():
    for name, arm in STUDY.arms.items():
        assert differences(NONE, arm) <= {"selection"}, name
