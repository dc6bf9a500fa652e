"""Metrics of studies do not count an episode that is left out, neither as 0 nor in full.

In a batch every game is played twice alike. Then the second one pays what is not finite once, and is otherwise another
game: all means over games stay.
"""

from functools import partial

import jax
import numpy as np
import pytest

from experiments.long_horizon.branching import TURNS
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.methods.population import seat_scores
from jaxmarl_llm.rollout.trajectory import Branches, Episodes, Trajectory
from jaxmarl_llm.studies import registry
from jaxmarl_llm.training import recipe
from jaxmarl_llm.training.left_out import leave_out
from tests.experiments.test_contract import MODULES

SIZE = 4  # of a group


def function_of(measure):
    return function_of(measure.func) if isinstance(measure, partial) else measure


def measures():
    """{name: (measure, game, groups)}: each function of a study that measures, with the first arm that uses it."""
    found = {}
    for module in MODULES:
        name, _, study, *_ = registry.load_module(module)
        for arm in study.recipes.values():
            function = function_of(arm.measure)
            if function.__module__ != recipe.__name__:
                found.setdefault(function, (name, (arm.measure, arm.game, arm.groups)))
    own = dict(found.values())
    return own | {"population": (seat_scores, own["dr_mas"][1], 2)}


MEASURES = measures()


def drawn(game, groups: int, seed: int) -> Episodes:
    """Random episodes, in pairs that are alike."""
    draw, seats = np.random.default_rng(seed), (groups * SIZE, game.turns, game.agents)

    def paired(most, *more):
        return draw.integers(0, most, (seats[0] // 2, *seats[1:], *more), np.int32).repeat(2, 0)

    acted, facts = paired(2) == 1, len(Extras(game).measures)
    acted[:, 0] = True
    group, over = np.arange(groups, dtype=np.int32).repeat(SIZE), np.ones(seats[0], bool)
    origin = np.arange(seats[0], dtype=np.int32)[:, None].repeat(seats[1], 1)
    return Episodes(
        6.0 * paired(2, len(game.components)).astype(np.float32), acted,
        np.where(acted, paired(3), 0), acted[..., None],
        acted, paired(2), paired(5), group, 0 * group, over, ~over,
        measured=paired(2, facts).astype(np.float32) if facts else None,
        branches=Branches(origin, origin < 0, np.zeros(seats, np.float32)),
    )  # fmt: skip


@partial(jax.jit, static_argnums=(0, 2))
def measured(measure, episodes, leave):
    return measure(leave_out(Trajectory(episodes, {}, {}, {}))[0].episodes if leave else episodes)


def spoil(episodes: Episodes, others: Episodes, bad: np.ndarray) -> Episodes:
    """The episodes with others, that pay NaN once, in place of the bad ones."""
    others.reward[:, -1, 0, 0] = np.nan
    wide = lambda x: bad.reshape(-1, *(1,) * (x.ndim - 1))
    mixed = jax.tree.map(lambda own, other: np.where(wide(own), other, own), episodes, others)
    return mixed.replace(group=episodes.group, branches=episodes.branches)


@pytest.mark.parametrize("name", MEASURES)
def test_a_game_that_is_left_out_counts_nowhere(name):
    measure, game, groups = MEASURES[name]
    episodes = drawn(game, groups, 0)
    bad = np.arange(groups * SIZE) % 2 == 1
    whole, same = (measured(measure, episodes, leave) for leave in (False, True))
    found = measured(measure, spoil(episodes, drawn(game, groups, 1), bad), True)
    assert found and found.keys() == whole.keys()
    for metric, value in found.items():
        np.testing.assert_array_equal(same[metric], whole[metric], err_msg=metric)
        if metric == TURNS:  # a sum, of turns that taught
            assert 0 < value < whole[metric]
        else:
            np.testing.assert_allclose(value, whole[metric], rtol=1e-5, err_msg=metric)


def test_labelled_games_that_are_left_out_change_no_accuracy_of_the_others():
    measure, game, groups = MEASURES["referee"]
    episodes = drawn(game, groups, 0)
    episodes.measured[:] = 1
    bad = np.arange(groups * SIZE) < SIZE - 1  # of the first group, which is labelled
    found = measured(measure, spoil(episodes, drawn(game, groups, 1), bad), True)
    np.testing.assert_allclose(found["accuracy"], measured(measure, episodes, False)["accuracy"], rtol=1e-6)
    assert found["accuracy"] == 1
