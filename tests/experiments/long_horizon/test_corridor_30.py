"""The habit that policies imitate, the share of it that is left, and EPO's phases over 200 updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.corridor_30 import MIDDLE, STUDY, TURNS, UPDATES, YELLOW, measure, phases, unknown
from jaxmarl_llm.environments.solo.lock_chain import LockState
from tests.support.recipe_plays import differences, games


def test_the_habit_is_wrong_at_yellow_locks_alone():
    rng = np.random.default_rng(0)
    colours, opened = rng.integers(0, 4, (60, 16)), rng.integers(0, 17, 60)
    habit = MIDDLE.game.scripts["habit"]
    zero = jnp.zeros(60, jnp.int32)
    state = LockState(jnp.asarray(colours), zero + 16, jnp.asarray(opened), zero, zero)
    said = jax.jit(jax.vmap(lambda state: habit(state, jnp.int32(0), None)))(state)
    want = [4 if row[min(at, 15)] == YELLOW else row[min(at, 15)] for row, at in zip(colours, opened, strict=True)]
    assert said.tolist() == want and {*want} == {0, 1, 2, 4}


def test_measures_against_a_loop():
    episodes = games(MIDDLE).episodes
    acted, action = np.asarray(episodes.acted)[..., 0], np.asarray(episodes.action)[..., 0]
    opens = np.asarray(episodes.measured)[:, :, 0, 0] > 0
    wrong = [action[b, t] for b, t in zip(*np.nonzero(acted & ~opens), strict=True)]
    found = jax.jit(measure)(episodes)
    assert float(found["habit"]) == pytest.approx(np.mean([key >= 4 for key in wrong]), abs=1e-6)
    assert float(found["solved"]) == pytest.approx(np.asarray(episodes.reward).sum() / len(acted))


def test_phases_span_the_updates():
    halves = phases(np.array([0, UPDATES // 2 - 1, UPDATES // 2, UPDATES]))
    np.testing.assert_allclose(halves, [1, 0.828, 0.8, 0.04], atol=0.002)


def test_arms_differ_in_numbers_and_every_turn_has_a_mean():
    assert unknown(None, None).shape == (TURNS,) == (MIDDLE.game.turns,)
    for name, arm in STUDY.arms.items():
        assert differences(MIDDLE, arm) <= {"hparams"}, name
        changed = {key for key, x in arm.all_hparams.items() if x != MIDDLE.all_hparams[key]}
        assert changed == {"bonus": set(), "hinge": {"corridor"}, "schedule": {"corridor"}}.get(name, {"entropy"}), name
