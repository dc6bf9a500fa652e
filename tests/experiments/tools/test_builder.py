"""Advantages of each arm against loops, the scripts against enumeration, and the level of the curves."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools.builder import (
    ACCURACY,
    AGENTS,
    GAME,
    GROUP,
    IDLE,
    LEVEL,
    POINTS,
    REACHED,
    STUDY,
    estimate_advantages,
    measure,
)
from jaxmarl_llm.environments.teams.team_graph import all_graphs
from tests.support.recipe_plays import differences
from tests.support.team_plays import played

GAMES, GROUPS = 24, 3


@pytest.fixture(scope="module")
def episodes():
    """Games of the random script; no group is of one kind of query, as advantages do not read it."""
    record = played(GAME, "random", games=GAMES)
    swap = lambda x: jnp.asarray(np.swapaxes(x, 0, 1))
    acted = swap(record["view"].acting & ~record["over"][..., None])
    reward, measured = swap(record["reward"]), swap(record["measured"])
    return SimpleNamespace(acted=acted, reward=reward, measured=measured, total_reward=reward.sum(-1))


def standardised(x):
    return (x - x.mean()) / x.std() if x.std() > 0 else 0 * x


def test_advantages_against_loops(episodes):
    group = np.repeat(np.arange(GROUPS), GAMES // GROUPS)
    experience = SimpleNamespace(episodes=episodes, acts=(episodes.acted, jnp.asarray(group), GROUPS))
    credit = jax.jit(lambda hparams: estimate_advantages(experience, hparams, ()).advantage)
    acted, paid = np.asarray(episodes.acted[..., 0]), np.asarray(episodes.reward)[:, :, 0]
    gain, _, idle = np.moveaxis(np.asarray(episodes.measured)[:, :, 0], -1, 0)
    assert idle.any() and (acted.sum(1) < GAME.turns).any()
    for name, arm in STUDY.arms.items():
        if name in ("large", "random"):
            continue
        got, want = np.asarray(credit(arm.traced_hparams))[..., 0], np.zeros(acted.shape)
        for g in range(GROUPS):
            at = acted & (group == g)[:, None]
            system = standardised(paid[group == g].sum((1, 2)))
            want[group == g] = np.where(acted[group == g], system[:, None], 0)
            terms = gain[at], paid[..., 1][at], -0.05 * idle[at]
            if name == "hrpo":
                want[at] += standardised(sum(terms))
            if name == "apart":
                want[at] += sum(standardised(term) for term in terms)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3, err_msg=name)


def test_metrics(episodes):
    metrics = measure(episodes)
    facts, paid = np.asarray(episodes.measured), np.asarray(episodes.reward)
    for name, wanted in zip((ACCURACY, AGENTS, IDLE), facts.sum((1, 2)).mean(0), strict=True):
        assert float(metrics[name]) == pytest.approx(float(wanted), abs=1e-5)
    assert float(metrics[POINTS]) == pytest.approx(float(paid.sum((1, 2, 3)).mean()), abs=1e-5)
    assert float(metrics[POINTS]) == pytest.approx(float(metrics[ACCURACY] - GAME.price * metrics[AGENTS]), abs=1e-5)


def test_the_large_team_is_the_most_accurate_fixed_graph():
    """Its level is that of the docstring, 0.802, and its agents are fewer than could be built."""
    curves = STUDY.arms["large"].curves([0, 1])
    graphs, exact = all_graphs(GAME)
    best = exact.mean(1).argmax()
    np.testing.assert_allclose(curves[ACCURACY], exact.mean(1)[best], atol=1e-5)
    np.testing.assert_allclose(curves[AGENTS], graphs[best].agents)
    assert (curves[IDLE] == 0).all() and graphs[best].agents < GAME.solvers + GAME.verifiers


def test_the_level_lies_between_random_graphs_and_the_best():
    """80% of the way, and above any fixed graph: it takes a team that fits the query."""
    random = STUDY.arms["random"].curves([0, 1])[POINTS].mean()
    graphs, exact = all_graphs(GAME)
    points = exact - GAME.price * np.array([graph.agents for graph in graphs])[:, None]
    best = points.max(0).mean()
    assert pytest.approx(random + 0.8 * (best - random), abs=0.004) == LEVEL
    assert points.mean(1).max() < LEVEL - 0.05
    curve = np.array([[0.5, 0.7, *[0.76] * 8], [0.5] * 10])
    np.testing.assert_array_equal(STUDY.derived[REACHED]({POINTS: curve}), [3, 10])
    assert np.isnan(STUDY.derived[REACHED]({POINTS: curve[:, :1]})).all()


def test_trained_arms_share_a_program():
    for name in ("hrpo", "apart"):
        assert differences(GROUP, STUDY.arms[name]) <= {"selection"}, name
