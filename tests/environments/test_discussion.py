"""Discussion against plain Python; who is shown whose answer; what perfect and random agents earn."""

import re

import numpy as np
import pytest

from jaxmarl_llm.environments.discussion import Discussion
from jaxmarl_llm.environments.tasks import Arithmetic
from tests.support.team_plays import acted, close, played, row, totals

GAMES = (Discussion(), Discussion(Arithmetic(12, "-"), agents=5, rounds=3))


@pytest.mark.parametrize("game", GAMES, ids=("three", "five"))
def test_a_discussion_against_python(game):
    record, agents = played(game, "random"), game.agents
    for g in range(60):
        rows = [row(game, record, g, seat) for seat in range(agents)]
        assert len({told[0] for told in rows}) == 1  # everybody reads the same rules and question
        a, operation, b = re.search(r"What is \((\d+) (.) (\d+)\) mod", rows[0][0]).groups()
        a, b = int(a), int(b)
        truth = {"+": a + b, "-": a - b, "*": a * b}[operation] % game.tasks.modulus
        said = np.array([word for _, word in acted(game, record, g)]).reshape(game.turns, agents)
        shifts = record["state"].shifts[0, g]
        for round in range(game.rounds):
            answers, verdicts, scores = said[3 * round : 3 * round + 3]
            look, judge, score = shifts[round]
            assert min(look, judge, score) > 0 and max(look, judge, score) < agents and judge != score
            expected = np.zeros((3, agents, 3))
            for k in range(agents):
                before = ""
                if round:
                    shown, last = (k + look) % agents, 3 * round - 3
                    evaluator = (shown - shifts[round - 1][1]) % agents
                    before = f"Someone answers {said[last][shown]}. The verdict: {said[last + 1][evaluator]}."
                told = rows[k][1 + 3 * round :]
                assert told[0] == f"{before} Your answer?"
                assert told[1] == f"Someone answers {answers[(k + judge) % agents]}. Right or wrong?"
                shown = (k + score) % agents
                evaluator = (shown - judge) % agents
                assert len({k, shown, evaluator}) == 3
                scored = f"Someone answers {answers[shown]}. The verdict: {verdicts[evaluator]}."
                assert told[2] == f"{scored} Score 1, 2 or 3?"
                tau = (int(scores[k]) - 1) / 2
                expected[2, shown, 0] += tau
                expected[2, evaluator, 1] += 1 - tau
                expected[0, k, 2] = int(answers[k]) == truth
            assert np.array_equal(record["reward"][3 * round : 3 * round + 3, g], expected)


def test_everyone_acts_in_every_turn_in_the_role_of_the_phase():
    game, record = GAMES[1], played(GAMES[1], "random")
    assert record["view"].acting.all() and record["after"].terminated[-1].all()
    assert (record["view"].role == (np.arange(game.turns) % 3)[:, None, None]).all()


@pytest.mark.parametrize("game", GAMES, ids=("three", "five"))
def test_what_solver_and_evaluator_share(game):
    chance, perfect = (totals(played(game, name)) for name in ("random", "correct"))
    for points in (chance, perfect):
        assert np.allclose(points[..., :2].sum((1, 2)), game.agents * game.rounds)
    assert (perfect == np.array([1, 0, 1]) * game.rounds).all()
    assert close(chance[..., 0].mean(1), game.rounds / 2) and close(chance[..., 1].mean(1), game.rounds / 2)
    assert close(chance[..., 2].mean(1), game.rounds / game.tasks.modulus)


def test_wrong_answers_are_scored_down_by_those_who_know():
    """Seat 0 plays at random, and so scores the others; what it answers is scored by those who know."""
    points = totals(played(GAMES[0], "random", "correct"))
    assert (points[:, 0, 0] == points[:, 0, 2]).all() and close(points[:, 0, 2], 2 / 10)


def test_shifts_are_dealt_evenly():
    shifts = played(GAMES[1], "random")["state"].shifts[0, :400]  # [games, rounds, 3]
    _, count = np.unique(shifts.reshape(-1, 3)[:, 1:], axis=0, return_counts=True)
    assert len(count) == 12 and (abs(count - 100) < 6 * 10).all()  # ordered pairs of 4, 1,200 rounds
    _, count = np.unique(shifts[..., 0], return_counts=True)
    assert len(count) == 4 and (abs(count - 300) < 6 * 300**0.5).all()


def test_settings_that_cannot_be_are_named():
    with pytest.raises(ValueError, match="agents must be at least 3, got 2"):
        Discussion(agents=2)
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        Discussion(rounds=0)
