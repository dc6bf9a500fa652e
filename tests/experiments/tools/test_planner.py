"""Advantages, losses and metrics of the planner study against NumPy, who plays, and where arms begin."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools.planner import ALL, ROLLOUTS, STUDY, balanced_loss, choose_player, estimate_advantages, measure
from jaxmarl_llm.rl.losses import Batch, Scores
from jaxmarl_llm.training.begin import init_tiny
from tests.support.recipe_plays import differences, games, untrained

PLANNERS = ("rollouts", "rows", "sft", "untrained", "planner_cost")


@pytest.fixture(scope="module")
def experience():
    """Games of random seats, which all learn; every third game is a success."""
    played = games(dataclasses.replace(ALL, groups=2))
    reward = np.zeros(played.episodes.reward.shape, np.float32)
    last = np.asarray(played.episodes.acted.any(2).sum(1)) - 1
    reward[np.arange(0, len(reward), 3), last[::3]] = 1
    return played._replace(episodes=played.episodes.replace(reward=jnp.asarray(reward)))


def test_advantages_of_each_arm(experience):
    """Statistics over games, or over acts; the price of a step counts for all seats of a team."""
    episodes = experience.episodes
    acted, group = np.asarray(episodes.acted), np.asarray(episodes.group)
    solved = np.asarray(episodes.reward[:, :, 0, 0].sum(1))
    steps = np.asarray(episodes.measured[:, :, 0, 0].sum(1))
    estimate = jax.jit(lambda arm, learns: estimate_advantages(experience._replace(learns=learns), arm, ()).advantage)
    assert len({*steps.tolist()}) > 2
    for name, arm in STUDY.arms.items():
        seats = np.array([True, *(name not in PLANNERS,) * 3])
        acts = acted & seats
        got = np.asarray(estimate(arm.traced_hparams, jnp.broadcast_to(seats, acts[:, 0].shape)))
        points = solved - arm.all_hparams["price"] * steps
        wanted = np.zeros(len(points))
        for g in set(group.tolist()):
            at = group == g
            weight = acts[at].sum((1, 2)) if name == "rows" else acts[at].any(1).sum(1)
            mean = np.average(points[at], weights=weight)
            wanted[at] = (points[at] - mean) / np.sqrt(np.average((points[at] - mean) ** 2, weights=weight))
        wanted = solved if name == "sft" else wanted
        np.testing.assert_allclose(got[acts], np.broadcast_to(wanted[:, None, None], acts.shape)[acts], atol=1e-4)
        assert name == "sft" or not got[~acts].any()


def test_votes_of_rows_differ_only_where_games_differ_in_length(experience):
    """A shift of the mean: all rows of a group have equal advantages of rollouts and rows if lengths are equal."""
    episodes = experience.episodes
    same = episodes.replace(
        acted=jnp.broadcast_to(jnp.arange(episodes.acted.shape[1])[:, None] < 6, episodes.acted.shape)
    )
    estimate = jax.jit(lambda arm, given: estimate_advantages(experience._replace(episodes=given), arm, ()).advantage)
    for given, equal in ((same, True), (episodes, False)):
        credit = [estimate(STUDY.arms[name].traced_hparams, given) for name in ("rollouts", "rows")]
        assert np.allclose(*credit, atol=1e-5) == equal


def test_metrics_against_loops(experience):
    episodes = experience.episodes
    found = jax.jit(measure)(episodes)
    rows = np.asarray(episodes.measured)
    steps = [game[:, 0, 0].sum() for game in rows]
    assert found["success"] == pytest.approx(np.mean(np.arange(len(rows)) % 3 == 0))
    assert found["steps"] == pytest.approx(np.mean(steps))
    assert found["success per search"] == pytest.approx(np.mean(np.arange(len(rows)) % 3 == 0) / np.mean(steps))
    assert found["slips"] == pytest.approx(np.mean([game[:, 1:, 1].any() for game in rows]))


def test_the_loss_of_each_arm():
    """In NumPy: PPO, whose ratios are 1 here, with 0.001 KL; or the cross-entropy of tokens of successes alone."""
    rng, shape = np.random.default_rng(1), (3, 5)
    logp, reference, advantage = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    mask = rng.random(shape) < 0.8
    empty = dict.fromkeys(("token", "turn", "value_target", "old_value", "episode", "seat", "policy", "role"))
    batch = Batch(
        **empty, behaviour_logp=jnp.asarray(logp), advantage=jnp.asarray(advantage), mask=jnp.asarray(mask),
        reference_logp=jnp.asarray(reference),
    )  # fmt: skip

    @jax.jit
    def loss(logp, hparams):
        total, _ = balanced_loss(Scores(logp, jnp.zeros(shape)), batch, hparams)
        return total.value

    for name in ("rollouts", "sft"):
        value, gradient = jax.value_and_grad(loss)(jnp.asarray(logp), STUDY.arms[name].traced_hparams)
        good = mask & (advantage > 0)
        if name == "sft":
            assert value == pytest.approx(-logp[good].mean(), rel=1e-5)
            np.testing.assert_allclose(gradient, np.where(good, -1, 0) / good.sum(), atol=1e-6)
        else:
            slope = -advantage + 0.001 * (logp - reference)
            np.testing.assert_allclose(gradient, np.where(mask, slope, 0) / mask.sum(), atol=1e-6)


def test_the_untrained_planner_plays_for_imitation_alone():
    run = SimpleNamespace(
        learners=SimpleNamespace(weights={"learner": {"policy": jnp.ones(2)}}), initial={"learner": 0.0}
    )
    for name, arm in STUDY.arms.items():
        chosen = choose_player(run, arm.traced_hparams)["learner"]["policy"]
        np.testing.assert_array_equal(chosen, np.full(2, float(name != "sft")))


def test_arms_of_the_planner_share_a_program_and_so_do_arms_of_all():
    for name, arm in STUDY.arms.items():
        base = ROLLOUTS if name in PLANNERS else ALL
        assert differences(base, arm) <= {"hparams", "selection"}, name
    assert differences(ROLLOUTS, ALL) == {"seats", "warm_start"}


@pytest.mark.long
def test_all_arms_begin_with_the_same_weights():
    short = dataclasses.replace(ALL, warm_start_updates=2)
    start = dataclasses.replace(ROLLOUTS.warm_start, warm_start_updates=2)
    first, second = (
        jax.jit(partial(init_tiny, untrained(recipe, 0)[0]))(jax.random.key(5))
        for recipe in (short, dataclasses.replace(ROLLOUTS, warm_start=start))
    )
    jax.tree.map(np.testing.assert_array_equal, first, second)
