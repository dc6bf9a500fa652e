"""The arms of self-play: their baselines against loops over what was played, and what they are judged by."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.self_play.spiral import (
    RELAPSE,
    STUDY,
    advantage_share,
    exploitability_evaluator,
    script_evaluator,
    squares,
)
from tests.support.recipe_plays import credited, differences, games, untrained, with_a_real_model

SMALL = {"groups": 3, "group_size": 4, "updates": 3, "eval_every": 2}
arms = {name: dataclasses.replace(arm, **SMALL) for name, arm in STUDY.arms.items()}


@pytest.fixture(scope="module")
def played():
    return [games(arms["kuhn/role"], seed) for seed in range(2)]


def loop(batches, *, roles, start):
    """Advantages [B, T, 2] of batches of returns [B, 2] and acts, with a running mean for each of one or two roles."""
    mean, found = [start] * roles, []
    for returns, acted in batches:
        batch = [np.mean(returns[:, k] if roles == 2 else returns) for k in range(roles)]
        baseline = [batch[k] if mean[k] is None else mean[k] for k in range(roles)]
        advantage = np.zeros(acted.shape)
        for b, t, seat in zip(*np.nonzero(acted), strict=True):
            advantage[b, t, seat] = returns[b, seat] - baseline[seat % roles]
        found.append(advantage)
        mean = [batch[k] if mean[k] is None else 0.95 * mean[k] + 0.05 * batch[k] for k in range(roles)]
    return found


@pytest.mark.parametrize(("arm", "roles", "start"), [("role", 2, None), ("zero_start", 2, 0.0), ("pooled", 1, None)])
def test_a_role_is_compared_with_its_running_mean(played, arm, roles, start):
    advantages = [np.asarray(found.advantage) for found in credited(arms[f"kuhn/{arm}"], *played)]
    batches = [
        (np.asarray(one.episodes.reward[..., 0], np.float64).sum(1), np.asarray(one.episodes.acted)) for one in played
    ]
    assert all(abs(returns.mean(0)).min() > 0.05 for returns, _ in batches)  # or a role's baseline is not seen
    for found, expected in zip(advantages, loop(batches, roles=roles, start=start), strict=True):
        assert np.allclose(found, expected, atol=1e-6)
    if arm == "pooled":  # what one seat wins the other loses: no baseline at all
        for found, (returns, acted) in zip(advantages, batches, strict=True):
            assert np.allclose(found, np.where(acted, returns[:, None], 0), atol=1e-6)


def test_what_is_left_of_the_square_is_one_less_the_square_of_the_roles_mean(played):
    """Of games that the first seat wins with +-1 and mean d, each seat acting once: 1 - d^2."""
    episodes, d = played[0].episodes, 0.5
    won = jnp.where(jnp.arange(len(episodes.group)) % 4 < 3, 1.0, -1.0)
    reward = jnp.zeros_like(episodes.reward).at[:, 0, 0, 0].set(won).at[:, 0, 1, 0].set(-won)
    episodes = episodes.replace(reward=reward, acted=jnp.zeros_like(episodes.acted).at[:, 0].set(True))
    advantage = np.asarray(credited(arms["kuhn/role"], played[0]._replace(episodes=episodes)).advantage)
    square = (advantage[:, 0] ** 2).mean(0)
    np.testing.assert_allclose(square, 1 - d**2, rtol=1e-6)
    curves = {f"advantage_mean/seat_{i}": advantage[:, 0, i].mean(keepdims=True)[None] for i in range(2)}
    curves |= {f"advantage_variance/seat_{i}": advantage[:, 0, i].var(keepdims=True)[None] for i in range(2)}
    curves["square_return"] = np.asarray(squares(episodes)["square_return"])[None, None]
    np.testing.assert_allclose(advantage_share(curves), [1 - d**2], rtol=1e-6)


def test_a_relapse_is_the_largest_rise_above_an_earlier_judgement():
    nan = math.nan
    measured = np.array([[0.9, nan, 0.2, nan, 0.6, 0.3], [0.5, nan, 0.4, nan, 0.3, 0.1]])
    np.testing.assert_allclose(STUDY.derived[RELAPSE]({"nash_conv": measured}), [0.4, 0.0])
    assert np.isnan(STUDY.derived[RELAPSE]({"loss": np.zeros((2, 3))})).all()


def test_the_arms_of_a_game_differ_in_credit_alone():
    for name, arm in STUDY.arms.items():
        base = STUDY.arms[name.split("/")[0] + "/role"]
        assert differences(base, arm) <= {"advantage", "init_state"}, name
        assert (differences(base, arm) == set()) == name.endswith("/role")
    kuhn, tic_tac_toe = STUDY.arms["kuhn/role"], STUDY.arms["tic_tac_toe/role"]
    assert not differences(kuhn, tic_tac_toe) & {"advantage", "init_state", "loss", "seats", "group_size"}


def test_without_a_baseline_everything_is_left(played):
    """The mean of both roles of a zero-sum game is 0: the advantage is the return."""
    episodes = played[0].episodes
    advantage = np.asarray(credited(arms["kuhn/pooled"], played[0]).advantage)
    acted = np.asarray(episodes.acted)
    of_seat = [advantage[..., i][acted[..., i]] for i in range(2)]
    curves = {f"advantage_mean/seat_{i}": x.mean()[None, None] for i, x in enumerate(of_seat)}
    curves |= {f"advantage_variance/seat_{i}": x.var()[None, None] for i, x in enumerate(of_seat)}
    curves["square_return"] = np.asarray(squares(episodes)["square_return"])[None, None]
    np.testing.assert_allclose(advantage_share(curves), 1, rtol=1e-4)


def test_the_exploitability_of_two_seeds_differs():
    arm = arms["kuhn/pooled"]
    parts, policies = untrained(arm, 0, 1)
    one, other = (exploitability_evaluator(parts)(policy, None) for policy in policies)
    assert min(one["nash_conv"], other["nash_conv"]) > 0 and one != other


def test_a_policy_is_tried_in_both_seats(monkeypatch):
    """A script that plays at random is replaced by one who lets the other one win, and `greedy` by itself."""
    arm = arms["tic_tac_toe/role"]
    parts, (policy,) = untrained(arm, 0)
    first = lambda state, seat, key: jnp.argmax(arm.game.view(state).legal[0]).astype(jnp.int32)
    monkeypatch.setattr(type(arm.game), "scripts", property(lambda game: {"random": first, "greedy": first}))
    won = script_evaluator(parts)(policy, jax.random.key(0))
    assert won["against random"] == pytest.approx(won["against greedy"], abs=0.25)  # other games, the same players
    assert -1 <= won["against random"] < 0  # who marks the first free cell beats who knows nothing


@pytest.mark.slow
def test_three_updates_of_a_real_model(tmp_path):
    assert STUDY.method in with_a_real_model("spiral", tmp_path)
