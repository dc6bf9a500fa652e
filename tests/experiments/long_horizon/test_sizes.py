"""What each arm of sizes is paid and credited, against a loop; which games it plays; exact scores of scripts."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.sizes import ARMS, GROUPS, SIZES, STUDY, estimate_advantages, of_size, size_evaluator

B, T, MEMBERS = 12, 5, 3


def by_hand(points, won, value, length, hparams):
    """Advantage [B, T] and, where the critic learns, its target."""
    reward, found, target = points if hparams["reward"] == "dense" else won, np.zeros((B, T)), np.zeros((B, T))
    for b in range(B):
        later, following = 0.0, 0.0
        for t in reversed(range(length[b])):
            later = reward[b, t] + following - value[b, t] + 0.95 * later
            found[b, t], target[b, t], following = later, later + value[b, t], value[b, t]
    acted = np.arange(T)[None] < length[:, None]
    if hparams["credit"] == "ppo":
        return np.where(acted, (found - found[acted].mean()) / found[acted].std(), 0), target
    for b in range(B):
        others = [x for x in range(B) if x // MEMBERS == b // MEMBERS and x != b]
        found[b] = acted[b] * (reward[b].sum() - np.mean([reward[x].sum() for x in others]))
    return found, target


@pytest.mark.parametrize("name", [name for name in ARMS if name.startswith("large")])
def test_credit(name):
    rng, hparams = np.random.default_rng(0), ARMS[name].all_hparams
    length = rng.integers(1, T + 1, B)
    acted = np.arange(T)[None] < length[:, None]
    points, won = (acted * (rng.random((B, T)) < chance) for chance in (0.5, 0.2))
    points, value = points / 3, rng.normal(size=(B, T))
    episodes = SimpleNamespace(
        acted=jnp.asarray(acted)[..., None],
        total_reward=jnp.asarray(points[..., None], jnp.float32),
        measured=jnp.asarray(won[..., None, None], jnp.float32),
    )
    acts = episodes.acted, jnp.repeat(jnp.arange(B // MEMBERS), MEMBERS), B // MEMBERS
    played = SimpleNamespace(episodes=episodes, turn_value=jnp.asarray(value, jnp.float32)[..., None], acts=acts)
    found = estimate_advantages(played, hparams, ())
    advantage, target = by_hand(points, won, value, length, hparams)
    np.testing.assert_allclose(np.where(acted, found.advantage[..., 0], 0), advantage, atol=1e-4)
    np.testing.assert_allclose(np.where(acted, found.value_target[..., 0], 0), target, atol=1e-4)


def test_the_arms_differ_in_numbers_alone_and_play_their_size():
    assert len({repr(dataclasses.replace(arm, hparams={}, selection={})) for arm in STUDY.arms.values()}) == 1
    for name, arm in STUDY.arms.items():
        deal = of_size(arm.hparams, (), jax.random.key(0), jnp.int32(0)).deal.tolist()
        half = GROUPS // 2
        sizes = ["large"] * half + ["small"] * half if name.startswith("both") else [name.split("/")[0]] * GROUPS
        if name != "taught":
            assert deal == [SIZES[size] for size in sizes], name


def test_judged():
    """A policy that is the script has no extra turns, and one that knows all has fewer where there are three rooms."""
    trainer = SimpleNamespace(recipe=dataclasses.replace(STUDY.arms[STUDY.method], seats=(("explorer",),)))
    trainer.policy_sets = {}
    found = size_evaluator(trainer)({}, jax.random.key(0))
    assert all((found[size] == 1).all() and (found[f"{size}/extra"] == 0).all() for size in SIZES)
    trainer.recipe = dataclasses.replace(trainer.recipe, seats=(("correct",),))
    found = size_evaluator(trainer)({}, jax.random.key(0))
    assert (found["small/extra"] == 0).all() and found["large/extra"].mean() < 0 and (found["large"] == 1).all()
    trainer.recipe = dataclasses.replace(trainer.recipe, seats=(("random",),))
    found = size_evaluator(trainer)({}, jax.random.key(0))
    assert found["small"].mean() > found["large"].mean() and found["large/extra"].mean() > 4
