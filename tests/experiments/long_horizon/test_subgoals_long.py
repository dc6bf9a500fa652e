"""The table's size, what is measured, and that the arms differ from those of short games in the setting alone."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.long_horizon.subgoals import HAE
from experiments.long_horizon.subgoals_long import LONG, STUDY, measure, one_sidedness
from tests.experiments.long_horizon.test_subgoals import batch, experience_of


def test_turns_and_one_sidedness():
    acted, action, options, reward, value = batch()
    episodes = experience_of(acted, action, options, reward, value).episodes
    assert float(measure(episodes)["turns"]) == pytest.approx(acted[:, 2::3].sum(1).mean())
    curves = {"switches": np.repeat([[0.5], [0.9], [0.0]], 20, 1), "won": np.zeros((3, 20))}
    np.testing.assert_allclose(one_sidedness(curves), [0, 0.8, 1])


def test_setting_is_that_of_short_games_but_for_the_game():
    shape = LONG.init_state(SimpleNamespace(), jax.random.key(0)).count.shape
    assert shape == (3 * 12, 2 * LONG.game.game.situations)
    short = replace(LONG, **{name: getattr(HAE, name) for name in ("game", "init_state", "measure", "updates")})
    assert replace(short, warm_start_updates=HAE.warm_start_updates) == HAE
    assert STUDY.arms["hae/no_penalty"].game == replace(LONG.game, penalty=0.0)
