"""The fork, against plain Python and its closed form."""

import numpy as np
import pytest

from jaxmarl_llm.environments.solo.fork import Fork
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals


@pytest.mark.parametrize("player", ["random", "likely"])
def test_against_python(player):
    game = Fork()
    record, points = played(game, player), []
    for g in range(60):
        said, told = [word for _, word in acted(game, record, g)], row(game, record, g, 0)[1:]
        (place,) = [turn for turn, text in enumerate(told) if "at the fork" in text]
        points.append((said[place], totals(record)[g, 0, 0]))
    assert {score for _, score in points} == {0.0, 1.0}
    right = np.mean([score == (word == "A") for word, score in points])
    assert 0.6 < right < 0.9  # A leads to the goal in three deals of four


def test_only_the_answer_at_the_fork_matters():
    tree = solve.tree(Fork(turns=3))
    policy = np.where(tree.legal, [[0.9, 0.1]], 0)
    np.testing.assert_allclose(solve.expected_value(tree, policy), [0.9 * 0.75 + 0.1 * 0.25])
    value = solve.action_values(tree, policy)
    at_fork = ["at the fork" in solve.text_of(tree, i).splitlines()[-1] for i in range(len(value))]
    exact = value - (policy * value).sum(1, keepdims=True)
    np.testing.assert_allclose(exact, np.where(np.array(at_fork)[:, None], [[0.05, -0.45]], 0), atol=1e-12)
    assert deals_are_what_reset_draws(Fork())


def test_too_few_turns():
    with pytest.raises(ValueError, match="must be at least 2"):
        Fork(turns=1)
