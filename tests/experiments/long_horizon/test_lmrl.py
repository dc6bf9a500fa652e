"""LMRL-Gym's methods: which points count, which games are imitated, and the best players against plain Python."""

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.lmrl import GAMES, best_tenth, points


def test_points_are_the_first_seats_success_and_cost():
    reward = np.random.default_rng(0).normal(size=(3, 4, 2, 3)).astype(np.float32)
    found = points(SimpleNamespace(reward=jnp.asarray(reward)))
    for b, t in np.ndindex(3, 4):
        assert found[b, t, 0] == pytest.approx(reward[b, t, 0, 0] + min(reward[b, t, 0, 1], 0)) and found[b, t, 1] == 0


def test_the_best_tenth_of_games_is_imitated():
    reward = np.random.default_rng(1).normal(size=(40, 3, 1, 1)).astype(np.float32)
    reward = jnp.asarray(np.concatenate([reward, 0 * reward], 3))
    acted = jnp.asarray(np.random.default_rng(2).random((40, 3, 1)) < 0.8)
    found = best_tenth(SimpleNamespace(episodes=SimpleNamespace(reward=reward, acted=acted)), {}, ())
    best = np.argsort(-np.asarray(reward[..., 0]).sum((1, 2)))[:4]
    assert np.flatnonzero(found.trained.any((1, 2))).tolist() == sorted(best.tolist())
    assert (found.advantage == acted).all() and (found.trained <= acted).all()


def test_no_player_asks_better_questions():
    game = GAMES["questions"]["bc"].game
    holds = game.table

    @cache
    def value(left: tuple[int, ...], questions: int) -> float:
        most = 1 / len(left)
        for asked in range(holds.shape[1] if questions else 0):
            parts = [tuple(i for i in left if holds[i, asked] == reply) for reply in (False, True)]
            if all(parts):
                then = sum(len(part) / len(left) * value(part, questions - 1) for part in parts)
                most = max(most, then - game.cost)
        return most

    found = jax.jit(GAMES["questions"]["best"].run_seed)(jax.random.key(0))
    assert float(found["return"]) == pytest.approx(value(tuple(range(len(holds))), game.questions), abs=1e-5)
