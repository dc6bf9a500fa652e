"""The duel of sums against plain Python: thoughts, answers, points and scripts."""

import numpy as np
import pytest

from jaxmarl_llm.environments.judged.sum_duel import SumDuel
from tests.support.team_plays import acted, close, given, played, row, totals


def digits(game, record, g, seat):
    return [int(word) for word in row(game, record, g, seat)[0].split("Your digits:")[1].split()]


@pytest.mark.parametrize(
    "game, players",
    [(SumDuel(), ("random", "rambling")), (SumDuel(terms=3, marks=1, limit=4), ("rambling", "random"))],
)
def test_against_python(game, players):
    record = played(game, *players)
    outcomes = set()
    for g in range(200):
        said = [[word for seat, word in acted(game, record, g) if seat == own] for own in range(2)]
        right = []
        for seat, words in enumerate(said):
            assert all("=" not in word for word in words[:-1]) and len(words) <= game.limit
            assert "=" in words[-1] or len(words) == game.limit
            right.append(words[-1] == f" ={sum(digits(game, record, g, seat)) % game.modulus}")
            assert row(game, record, g, seat)[1:] == [" Begin."] + [""] * (len(row(game, record, g, seat)) - 2)
        host = -1 if right == [False, True] else 1
        np.testing.assert_array_equal(totals(record)[g], [[host, right[0]], [-host, right[1]]])
        turns = max(map(len, said))
        assert not given(record)[: turns - 1, g, :, 0].any()
        outcomes.add(tuple(right))
    assert len(outcomes) == 4


def test_careful_writes_sums_and_is_right_if_the_limit_allows():
    for game, most in ((SumDuel(), 3), (SumDuel(limit=2), 1), (SumDuel(limit=1), 0)):
        record = played(game, "careful")
        assert (totals(record)[:, :, 1] == 1).all()  # it knows the sum without its thought
        for g in range(20):
            own = digits(game, record, g, 0)
            words = [word for seat, word in acted(game, record, g) if seat == 0]
            assert words[:-1] == [f" {sum(own[: t + 1]) % 4}" for t in range(most)]


def test_rambling_stops_at_a_constant_rate():
    game = SumDuel(limit=5, stops=0.25)
    record = played(game, "rambling")
    acts = record["view"].acting & ~record["over"][..., None]
    stops = acts & (record["action"] < game.modulus)
    assert all(close(stops[t][acts[t]], 0.25) for t in range(5))


def test_values_follow_from_the_shares_of_right_answers():
    """The host's is 1 - 2 P(guest right) P(host wrong); over both seats a player wins what it is right more often."""
    game, points = SumDuel(), []
    p, q = (totals(played(game, player))[:, :, 1].mean() for player in ("rambling", "random"))
    for seat, players in enumerate((("rambling", "random"), ("random", "rambling"))):
        record = totals(played(game, *players))
        right = record[:, :, 1].mean(0)
        assert close(record[:, 0, 0], 1 - 2 * right[1] * (1 - right[0]))
        points.append(record[:, seat, 0])
    assert close(np.mean(points, 0), p - q) and p > q


@pytest.mark.parametrize(
    "settings, message",
    [({"marks": 2}, "marks is 1 or"), ({"modulus": 11, "marks": 1}, "at most 10"), ({"limit": 0}, "at least 1")],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        SumDuel(**settings)
