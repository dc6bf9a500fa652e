"""The bonus against a loop, which kept games are imitated, and the second step of each arm.

The long case compiles one update of a small recipe; its arms are arguments.
"""

import dataclasses
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.self_imitation import NONE, STUDY, dr_grpo
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.recipe import always
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.trainer import Trainer
from tests.support.recipe_plays import differences

ARMS = STUDY.arms


def test_the_bonus_is_in_the_advantage_and_in_the_kept_return():
    rng, groups, members, turns = np.random.default_rng(0), 3, 4, 5
    solved, fits = rng.random((2, groups * members, turns, 1, 1)) < 0.5
    measured = np.concatenate([rng.random(fits.shape), fits], -1).astype(np.float32)
    episodes = SimpleNamespace(reward=jnp.asarray(solved, jnp.float32), measured=jnp.asarray(measured))
    acted, group = jnp.ones((groups * members, turns, 1), bool), jnp.repeat(jnp.arange(groups), members)
    experience = SimpleNamespace(episodes=episodes, acts=(acted, group, groups))
    credit = jax.jit(lambda hparams: dr_grpo(experience, hparams, ())[:2])
    for name, price in (("none", 0.0), ("constant", 0.1), ("spear", 0.1 * 0.3)):
        advantage, target = credit(ARMS[name].traced_hparams | {"fading": jnp.float32(0.3)})
        total = (solved + price * fits).sum((1, 2, 3))
        mean = total.reshape(groups, members).mean(1).repeat(members)
        np.testing.assert_allclose(target, np.broadcast_to(total[:, None, None], target.shape), atol=1e-5)
        np.testing.assert_allclose(advantage, np.broadcast_to((total - mean)[:, None, None], target.shape), atol=1e-5)


def test_schedules_and_a_shared_program():
    """Half cosines: the bonus is 1, 1/2 and 0 after 0, 50 and 100 updates; the weight is what is left of 1."""
    fading = ARMS["spear"].all_hparams["fading"]
    assert [fading[i] for i in (0, 50, 100, 149)] == pytest.approx([1, 0.5, 0, 0], abs=1e-6)
    for name, arm in ARMS.items():
        assert differences(NONE, arm) <= {"hparams", "selection"}, name


@pytest.mark.long
def test_the_second_step_learns_from_what_the_arm_says():
    """Nothing is kept before the first update, so that only `repeated` makes a second step in it, on the fresh games as
    the release's loop does with batches of dynamic size. Later a kept game counts if it was good and, compared anew,
    is good."""
    game = LockChain(1, 2, in_order=True, decoys=1)
    size = {"groups": 4, "group_size": 4, "size": TinySize(layers=1), "measure": lambda episodes: {}}
    recipe = dataclasses.replace(NONE, game=game, arrange=partial(always, deal=1), **size)
    parts, key = Trainer(recipe, [recipe.all_hparams], [0]).parts, jax.random.key(1)
    update = jax.jit(partial(step_of, parts))
    fixed = {"fading": jnp.float32(0.25), "share": jnp.float32(0)}
    hparams = {name: arm.traced_hparams | fixed for name, arm in ARMS.items()}
    run = jax.jit(partial(begin.init_run, parts))(key)
    after = {name: update(run, hparams[name], key, jnp.int32(0)) for name in ARMS}
    weights = {name: jax.tree.leaves(one.learners.weights) for name, (one, _, _) in after.items()}
    for name, like in (("none", "fresh"), ("as_it_was", "spear")):  # one step alone, of equal rewards
        jax.tree.map(np.testing.assert_array_equal, weights[name], weights[like])
    once, twice = after["repeated"][2]
    for x, y, z in zip(weights["repeated"], *map(jax.tree.leaves, (twice, once)), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
        assert np.abs(np.asarray(y) - z).max() > 1e-6
    for name in ("constant", "as_it_was"):
        second, metrics, _ = update(after[name][0], hparams[name], key, jnp.int32(1))
        ring, means = after[name][0].state
        (kept,) = ring.batches.values()
        was, total, mask = (np.asarray(x[0]) for x in (kept.batch.advantage, kept.batch.value_target, kept.batch.mask))
        good = mask & (was > 0) & ((total > np.nanmedian(means)) | (name == "as_it_was"))
        assert metrics["replayed"] == pytest.approx(good.any(1).mean())
        fewer = good.any(1).mean() < (mask & (was > 0)).any(1).mean()
        assert good.any() and fewer == (name == "constant")
        np.testing.assert_allclose(second.state[1][0], total[:, 0].reshape(4, 4).mean(1), atol=1e-6)


def step_of(parts, run, hparams, key, number):
    """(run, metrics) of the recipe's step, and the weights after one and after two steps on its fresh games."""
    after, metrics = parts.recipe.step(parts, run, hparams, key, number)
    key = key_for(key, UPDATE, number)
    games = step.collect_experience(parts, run, hparams, key, number)
    batches = step.make_batches(parts, games.experience, games.advantages)
    once, _ = step.apply_update(parts, run.learners, hparams, batches, key, {})
    weight = 1 - hparams["fading"]
    weighed = {
        name: part.replace(batch=part.batch.replace(advantage=weight * part.batch.advantage))
        for name, part in batches.items()
    }
    less = {**hparams, "entropy": weight * hparams["entropy"]}
    twice, _ = step.apply_update(parts, once, less, weighed, key, {})
    return after, metrics, (once.weights, twice.weights)
