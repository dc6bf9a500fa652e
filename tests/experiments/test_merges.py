"""The study of merges: what `gain` is."""

import pytest

from experiments.self_play import merges as study


def test_gain_is_the_mean_over_games_of_what_specialists_gain():
    base, best = {"kuhn": 0.1, "tic_tac_toe": 0.0}, {"kuhn": 0.5, "tic_tac_toe": 0.8}
    arm = {"kuhn": 0.3, "tic_tac_toe": 0.9}
    wanted = ((0.3 - 0.1) / (0.5 - 0.1) + (0.9 - 0.0) / (0.8 - 0.0)) / 2
    assert study.gain(arm, base, best) == pytest.approx(wanted)
    assert study.gain(base, base, best) == 0 and study.gain(best, base, best) == 1
    assert study.gain({**base, "kuhn": 0.5}, base, best) == pytest.approx(1 / 2)  # as good as the base elsewhere
