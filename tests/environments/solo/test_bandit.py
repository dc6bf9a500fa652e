"""The bandit: how often arms pay, what is told of it, and bandits that change from pull to pull."""

import numpy as np
import pytest

from jaxmarl_llm.environments.solo.bandit import Bandit
from tests.support.team_plays import acted, played, row

GAMES = 3000


def arms(game):
    """(arm, paid), int [games, pulls] each, of random players."""
    record = played(game, "random", games=GAMES)
    return record["action"][..., 0].T, record["reward"][:, :, 0, 0].T, record


def test_arms_pay_with_their_chance_and_the_seat_is_told():
    game = Bandit(pulls=6)
    arm, paid, record = arms(game)
    chance = record["state"].chances[0]  # [games, arms]
    assert np.abs(chance.mean(0) - 0.5).max() < 0.02 and np.abs(chance.var(0) - 1 / 12).max() < 0.005
    mine = np.take_along_axis(chance, arm, 1)
    for low in np.arange(0, 1, 0.25):
        here = (mine >= low) & (mine < low + 0.25)
        assert paid[here].mean() == pytest.approx(low + 0.125, abs=0.02)
    for g in range(50):
        rules, *told = row(game, record, g, 0)
        assert "3 arms, A, B, C, and 6 pulls" in rules and rules.endswith("the same in all pulls.")
        before = ["", *(f"It paid {'1 point' if point else 'nothing'}. " for point in paid[g, :-1])]
        assert told == [f"{text}Which arm?" for text in before]
        assert [word for _, word in acted(game, record, g)] == ["ABC"[a] for a in arm[g]]


def test_only_a_bandit_that_stays_can_be_learnt():
    """The chance of a point after a point of the same arm is E[p^2] / E[p] = 2/3, and 1/2 with fresh chances."""
    for fresh, expected in ((False, 2 / 3), (True, 1 / 2)):
        arm, paid, _ = arms(Bandit(pulls=6, fresh=fresh))
        again = (arm[:, 1:] == arm[:, :-1]) & (paid[:, :-1] > 0)
        assert paid[:, 1:][again].mean() == pytest.approx(expected, abs=0.02)
        assert paid.mean() == pytest.approx(0.5, abs=0.02)
    assert Bandit(fresh=True).rules[0][0].endswith("drawn anew before each pull.")


def test_persistent_stays_with_a_point_and_moves_on_without():
    record = played(Bandit(pulls=6), "persistent", games=GAMES)
    arm, paid = record["action"][..., 0].T, record["reward"][:, :, 0, 0].T
    assert (arm[:, 0] == 0).all()
    np.testing.assert_array_equal(arm[:, 1:], (arm[:, :-1] + (paid[:, :-1] == 0)) % 3)


@pytest.mark.parametrize(
    ("settings", "says"), [({"pulls": 0}, "at least 1"), ({"arms": 1}, "at least 2"), ({"arms": 9}, "at most 8")]
)
def test_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        Bandit(**settings)
