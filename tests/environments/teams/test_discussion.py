"""Discussion against plain Python; who is shown whose answer; what perfect and random agents earn."""

import re

import numpy as np
import pytest

from jaxmarl_llm.environments.tasks import Arithmetic
from jaxmarl_llm.environments.teams.discussion import Discussion
from tests.support.team_plays import acted, close, given, played, row, totals
from tests.support.told import played as dialogues

GAMES = (Discussion(), Discussion(Arithmetic(12, "-"), agents=5, rounds=3))
OPTIONS = (
    Discussion(Arithmetic(7, "+"), evaluator=False),
    Discussion(Arithmetic(7, "+"), 4, self_score=True),
    Discussion(Arithmetic(7, "+"), 4, evaluator=False, self_score=True),
)


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
            expected = np.zeros((3, agents, 5))
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
                expected[0, k, 3] = int(answers[k]) == truth
                if scores[k] == "none":
                    expected[2, k, 2] = -1
                    continue
                tau = (int(scores[k]) - 1) / 2
                expected[2, shown, 0] += tau
                expected[2, evaluator, 1] += 1 - tau
                expected[2, k, 4] = 1 - abs(tau - (int(answers[shown]) == truth))
            assert np.array_equal(given(record)[3 * round : 3 * round + 3, g], expected)


def test_everyone_acts_in_every_turn_in_the_role_of_the_phase():
    game, record = GAMES[1], played(GAMES[1], "random")
    assert record["view"].acting.all() and record["after"].terminated[-1].all()
    assert (record["view"].role == (np.arange(game.turns) % 3)[:, None, None]).all()


@pytest.mark.parametrize("game", GAMES, ids=("three", "five"))
def test_what_solver_and_evaluator_share(game):
    chance, perfect = (totals(played(game, name)) for name in ("random", "correct"))
    for points in (chance, perfect):  # every score is shared out, and no score costs the scorer alone
        assert np.allclose(points[..., :3].sum((1, 2)), game.agents * game.rounds + 2 * points[..., 2].sum(1))
    assert (perfect == np.array([1, 0, 0, 1, 1]) * game.rounds).all()
    parsed = 3 / 4 * game.rounds
    for component, mean in enumerate((parsed / 2, parsed / 2, parsed - game.rounds)):
        assert close(chance[..., component].mean(1), mean)
    assert close(chance[..., 3].mean(1), game.rounds / game.tasks.modulus)


def test_wrong_answers_are_scored_down_by_those_who_know():
    """Seat 0 plays at random, and so scores the others; what it answers is scored by those who know."""
    points = totals(played(GAMES[0], "random", "correct"))
    assert (points[:, 0, 0] == points[:, 0, 3]).all() and close(points[:, 0, 3], 2 / 10)


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


@pytest.mark.parametrize("game", OPTIONS, ids=("no evaluator", "self-score", "neither"))
def test_who_scores_and_what_is_scored(game):
    record, agents = played(game, "random"), game.agents
    phases = 3 if game.evaluator else 2
    said = [np.array([word for _, word in acted(game, record, g)]).reshape(game.turns, agents) for g in range(40)]
    for g, words in enumerate(said):
        told = [row(game, record, g, seat)[1:] for seat in range(agents)]
        assert not any("Right or wrong" in text for texts in told for text in texts) or game.evaluator
        for round in range(game.rounds):
            answers, scores = words[phases * round], words[phases * (round + 1) - 1]
            points = np.zeros((agents, 2))
            shift = 0 if game.self_score else record["state"].shifts[0, g, round, 2]
            for k in range(agents):
                shown = (k + shift) % agents
                told_now = told[k][phases * (round + 1) - 1]
                assert told_now.startswith(f"Someone answers {answers[shown]}.")
                if scores[k] == "none":
                    continue
                tau = (int(scores[k]) - 1) / 2
                points[shown, 0] += tau
                if game.evaluator:
                    points[(shown - record["state"].shifts[0, g, round, 1]) % agents, 1] += 1 - tau
            assert np.array_equal(record["reward"][phases * (round + 1) - 1, g, :, :2], points)


@pytest.mark.parametrize("game", (*GAMES, *OPTIONS[:1]))
def test_rewards_move_to_the_acts_that_earned_them(game):
    reward = np.swapaxes(played(game, "random")["reward"][:, :50], 0, 1)  # [B, T, A, C]
    earned = np.asarray(game.credit_acts(reward))
    phases = 3 if game.evaluator else 2
    for t in range(game.turns):
        last = t - t % phases + phases - 1
        solve = reward[:, last, :, 0] if t % phases == 0 else np.zeros_like(reward[:, 0, :, 0])
        evaluate = reward[:, last, :, 1] if t % phases == phases - 2 else np.zeros_like(solve)
        np.testing.assert_array_equal(earned[:, t, :, 0], solve)
        np.testing.assert_array_equal(earned[:, t, :, 1], evaluate)
    np.testing.assert_array_equal(earned[..., 2:], reward[..., 2:])


def test_a_critique_needs_who_writes_it():
    with pytest.raises(ValueError, match="give it one"):
        Discussion(evaluator=False, critique=True)


def test_a_critique_is_heard_by_the_scorer_of_its_answer_alone():
    """The author reads nothing of it, and a scorer is told neither who wrote it nor what the truth is."""
    game = Discussion(Arithmetic(7, "+"), 5, 1, critique=True)
    _, record, deals = dialogues(game, 30)
    hears, told, question = record["view"].hears, record["view"].phrases, len(game.tasks.fields)
    assert not hears[:2].any()  # before the answers and while they are judged
    for g in range(30):
        _, judge, score = deals.shifts[g, 0]
        for k in range(5):
            shown = (k + score) % 5
            assert np.flatnonzero(hears[2, g, :, k]).tolist() == [(shown - judge) % 5]
            assert told[2, g, k, question] == record["action"][0, g, shown]
            asked = game.tasks.task(deals.task[g])[0]
            assert (told[:3, g, k, :question] == asked[None]).all()  # in every turn, as it stands in no prompt
    says, *scorer = game.observation[question + 1 : -1]
    assert [field.seat for field in scorer] == list(range(5)) and "Of this somebody says" in says[0]
