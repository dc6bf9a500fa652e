"""CORY with the KL in the reward: copies of one prior, exchanges with and without their moments, what is paid.

The long cases compile play and updates of two policies; the short ones exchange weights and count points by hand.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.teams.cory_kl import ARMS, CORY, STUDY, points_at
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.team_tasks import PioneerObserver
from jaxmarl_llm.methods.cory import exchange, exchanging_step
from jaxmarl_llm.models import loading
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.setup import setup

ARM = dataclasses.replace(CORY, warm_start=(), updates=4)
HPARAMS = ARM.traced_hparams


@pytest.fixture(scope="module")
def parts():
    return setup(ARM, "tiny", sharding.mesh(), loading.load)


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_weights_move_with_their_moments_or_moments_begin_anew(parts):
    learners = begin.init_run(parts, jax.random.key(0)).learners
    moments = jax.tree.map(lambda x: x + 1, learners.optimiser["one"])
    learners = learners.replace(optimiser=learners.optimiser | {"one": moments})
    no, yes = jnp.bool_(False), jnp.bool_(True)
    assert same(exchange(parts, learners, no, yes), learners)
    moved = exchange(parts, learners, yes, no)
    for one, other in (("one", "other"), ("other", "one")):
        assert same(moved.weights[one], learners.weights[other])
        assert same(moved.optimiser[one], learners.optimiser[other])
    assert not same(moved.weights, learners.weights)
    assert same(exchange(parts, moved, yes, no), learners)
    released = exchange(parts, learners, yes, yes)  # the release builds new optimisers at every exchange
    assert same(released.weights, moved.weights)
    assert same(released.optimiser, parts.optimiser.init(learners.weights).optimiser)


@pytest.mark.long
def test_policies_begin_as_copies_and_change_names_when_due(parts):
    def update(every):
        hparams = HPARAMS | {"exchange_every": jnp.float32(every)}
        return jax.jit(lambda run, number: exchanging_step(parts, run, hparams, jax.random.key(1), number))

    run = begin.init_run(parts, jax.random.key(0))
    assert not same(run.learners.weights["one"], run.learners.weights["other"])
    never, always = update(0), update(1)
    plain, metrics = never(run, jnp.int32(0))
    swapped, _ = always(run, jnp.int32(0))
    assert same(plain.initial["one"], plain.initial["other"]) and same(plain.initial["one"], run.initial["one"])
    np.testing.assert_allclose(metrics["kl"], 0, atol=1e-5)  # both play as the prior does
    assert same(swapped.learners.weights["one"], plain.learners.weights["other"])
    assert not same(plain.learners.weights["one"], plain.learners.weights["other"])


@pytest.mark.long
def test_returns_are_points_of_both_less_log_ratios(parts):
    run = begin.init_run(parts, jax.random.key(0))

    @jax.jit
    def played(run):
        games = step.collect_experience(parts, run, HPARAMS, jax.random.key(1), jnp.int32(0))
        return games.experience._replace(score=None), games.advantages

    experience, advantages = jax.device_get(played(run))
    episodes, group = experience.episodes, np.asarray(experience.episodes.group)
    points = np.asarray(episodes.reward[..., 0]).sum(1)
    returns = points.sum(1)[:, None] + 0 * points
    for name, rows in experience.rows.items():
        sampled = experience.sampled[name]
        for r in range(len(rows.episode)):
            ratio = np.where(sampled.mask[r], sampled.behaviour_logp[r] - experience.reference_logp[name][r], 0).sum()
            returns[rows.episode[r], rows.seat[r]] -= 0.3 * ratio
    for b in range(len(points)):
        others = (group == group[b]) & (np.arange(len(group)) != b)
        for seat in range(2):
            wanted = np.where(episodes.acted[b, :, seat], returns[b, seat] - returns[others, seat].mean(), 0)
            np.testing.assert_allclose(advantages.advantage[b, :, seat], wanted, atol=1e-4)


def test_who_is_not_shown_is_told_the_same_whatever_was_answered():
    for shown in (True, False):
        game = PioneerObserver(Arithmetic(5, "+"), exchange="never", shown=shown)
        state, _ = game.reset(jax.random.key(0), jnp.int32(0))
        told = {tuple(game.step(state, jnp.array([a, 0]), jax.random.key(0))[1].phrases[1].tolist()) for a in range(5)}
        assert len(told) == (5 if shown else 1)
        assert ("see" in game.rules[0][1]) == shown == ("sees" in game.rules[0][0])


def test_points_on_the_way():
    kl, pioneer = np.linspace(0, 1, 21)[None], np.linspace(0, 2, 21)[None]
    np.testing.assert_allclose(points_at({"kl": kl, "pioneer": pioneer}, kl=0.3), [0.6], atol=1e-6)
    np.testing.assert_allclose(points_at({"kl": 0 * kl, "pioneer": pioneer}, kl=0.3), [1.8], atol=1e-6)


def test_arms_share_programs_where_they_can():
    alike = [ARMS[name].structure for name in ("cory", "no_swap", "own")] + [STUDY.arms["reset_03"].structure]
    assert all(structure == alike[0] for structure in alike)
