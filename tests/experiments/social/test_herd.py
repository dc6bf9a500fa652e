"""What is read from the games of the study, against the same by hand."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import herd as study


def episodes():
    """Two games: levels, doors and what was paid, at random."""
    draw, n = np.random.default_rng(0), study.GAME.followers
    level, opened = draw.integers(0, 3, (2, n)), draw.integers(0, 2, (2, n))
    action = np.zeros((2, 2 * n, n + 1), int)
    for g, k in np.ndindex(2, n):
        action[g, 2 * k, 0], action[g, 2 * k + 1, 1 + k] = level[g, k], opened[g, k]
    reward = draw.normal(size=(2, 2 * n, n + 1, 3))
    return (
        level,
        opened,
        SimpleNamespace(action=jnp.asarray(action), reward=jnp.asarray(reward), acted=jnp.ones(action.shape, bool)),
    )


def test_what_was_bought_and_opened():
    level, opened, played = episodes()
    bought, doors = study.choices(played)
    np.testing.assert_array_equal(bought, level)
    np.testing.assert_array_equal(doors, opened)


def test_what_is_measured():
    _, opened, played = episodes()
    found, reward = study.measure(played), np.asarray(played.reward)
    right = np.mean([sum(reward[g, :, seat, 0].sum() for seat in range(1, study.GAME.agents)) for g in range(2)])
    cost = -np.mean([reward[g, :, 0, 2].sum() for g in range(2)])
    assert float(found["right"]) == pytest.approx(right, rel=1e-4) and float(found["cost"]) == pytest.approx(cost, 1e-4)
    assert float(found["welfare"]) == pytest.approx(right - cost, rel=1e-4)
    assert float(found["value"]) == pytest.approx(np.mean([reward[g, :, 0].sum() for g in range(2)]), rel=1e-4)
    assert float(found["red"]) == pytest.approx((opened == 0).sum() / 2)


def test_the_best_of_any_one_precision_is_below_the_best():
    """Also by hand: useless hints leave each follower a coin's chance, which costs nothing."""
    aim = study.ALTRUISTIC._asdict()
    best = study.exact(None, aim)
    fixed = [study.exact(None, aim, level=k) for k in range(3)]
    assert float(fixed[0]["welfare"]) == pytest.approx(2) and float(fixed[0]["red"]) == pytest.approx(2)
    assert float(fixed[2]["cost"]) == pytest.approx(0.6)
    assert max(float(x["welfare"]) for x in fixed) < float(best["welfare"]) == pytest.approx(float(best["value"]))
