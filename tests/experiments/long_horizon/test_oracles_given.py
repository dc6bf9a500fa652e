"""Which oracle speaks in which games, in training and when a policy is judged, and the measures of both halves."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.oracles_given import JUDGED, ORACLES, STUDY, TAUGHT, measure
from jaxmarl_llm.environments.around.oracle import Switch
from jaxmarl_llm.training.step import only_play
from tests.support.recipe_plays import differences

KEY = jax.random.key(0)


def switched(recipe, number=0):
    return np.asarray(recipe.arrange(recipe.all_hparams, (), KEY, jnp.int32(number)).deal.on)


@pytest.mark.parametrize("game", ORACLES)
def test_a_policy_learns_with_each_oracle_as_often_and_in_half_of_its_games_with_none(game):
    taught, oracles = STUDY.arms[f"{game}/none"].warm_start, len(ORACLES[game])
    on = np.stack([switched(taught, number) for number in range(oracles)])
    assert on.shape == (oracles, TAUGHT, oracles) and taught.groups == TAUGHT
    assert not on[:, 1::2].any() and (on[:, ::2].sum(2) == 1).all()
    assert on.sum((0, 1)).tolist() == [TAUGHT // 2] * oracles


@pytest.mark.parametrize("name", STUDY.arms)
def test_an_arm_tells_one_thing_in_half_of_its_games(name):
    game, _, told = name.partition("/")
    on = switched(STUDY.arms[name])
    assert on.shape == (JUDGED, len(ORACLES[game])) and not on[1::2].any()
    assert (on[::2] == [oracle == told for oracle in ORACLES[game]]).all()


def test_the_arms_of_a_game_judge_one_policy():
    for name, arm in STUDY.arms.items():
        first = STUDY.arms[f"{name.partition('/')[0]}/none"]
        assert differences(first, arm) <= {"selection"} and arm.warm_start is first.warm_start
        assert arm.step is only_play and arm.warm_start.step is None
        assert arm.game is arm.warm_start.game and arm.seats == arm.warm_start.seats


def test_with_a_pruned_history_it_reads_the_state_and_the_present_turn():
    for game in ORACLES:
        arm, told = STUDY.extra[f"text/{game}/history"], STUDY.arms[f"{game}/state"]
        on, whole = switched(arm), told.game
        assert (on == switched(told)).all()
    reset, step, told_step = jax.jit(arm.game.reset), jax.jit(arm.game.step), jax.jit(whole.step)
    deal = Switch(jnp.asarray(on[0]))
    (state, view), (inner, told) = reset(KEY, 0, deal), jax.jit(whole.reset)(KEY, 0, deal)
    facts = len(whole.game.facts)
    for turn in range(2):
        others = np.arange(arm.game.agents) != turn
        assert (np.asarray(view.phrases)[others] == -1).all()
        np.testing.assert_array_equal(view.phrases[turn], told.phrases[0])
        assert (np.asarray(view.phrases)[turn, -facts:] >= 0).all()  # the state stands last
        state, view, _ = step(state, jnp.zeros(arm.game.agents, jnp.int32), KEY)
        inner, told, _ = told_step(inner, jnp.zeros(1, jnp.int32), KEY)


def test_both_halves_against_a_loop():
    rng = np.random.default_rng(0)
    reward, group = rng.integers(0, 2, (12, 3, 1, 2)).astype(np.float32), np.arange(12) // 2
    acted = np.ones((12, 3, 1), bool)
    acted[4] = False  # left out
    episodes = SimpleNamespace(reward=jnp.array(reward), group=jnp.array(group), acted=jnp.array(acted))
    found = jax.jit(lambda: measure(episodes))()
    won = {True: [], False: []}
    for b in range(12):
        if acted[b].any():
            won[group[b] % 2 == 0].append(reward[b, ..., 0].sum())
    told, untold = (np.mean(won[even]) for even in (True, False))
    assert found["solved told"] == pytest.approx(told) and found["solved untold"] == pytest.approx(untold)
    assert found["gain"] == pytest.approx(told - untold) and len(won[True]) == 5
