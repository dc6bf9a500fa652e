"""Stairs, against plain Python and its closed form."""

import numpy as np
import pytest

from jaxmarl_llm.environments.solo.stairs import LETTERS, Stairs
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals


@pytest.mark.parametrize("player", ["random", "correct"])
def test_against_python(player):
    game = Stairs(turns=5)
    record = played(game, player)
    for g in range(60):
        said, points = [word for _, word in acted(game, record, g)], 0
        assert [text.split(":")[0] for text in row(game, record, g, 0)[1:]] == [f"Stair {t + 1}" for t in range(5)]
        for word, right in zip(reversed(said), reversed((*LETTERS, *LETTERS[:2])), strict=True):
            if word != right:
                break
            points += 1
        assert totals(record)[g, 0, 0] == pytest.approx(points / 5)
    if player == "correct":
        assert (totals(record) == 1).all()


def test_the_tree_and_the_value_of_chance():
    """A uniform player's last k answers are all right with chance 3^-k."""
    tree = solve.tree(Stairs(turns=4))
    chance = sum(3.0**-k for k in range(1, 5)) / 4
    np.testing.assert_allclose(solve.expected_value(tree, solve.uniform(tree)), [chance])
    assert deals_are_what_reset_draws(Stairs())


def test_no_stairs():
    with pytest.raises(ValueError, match="must be at least 1"):
        Stairs(turns=0)
