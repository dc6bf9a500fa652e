"""The farm, against plain Python; what is optimal under which reward, by the exact solver."""

import numpy as np
import pytest

from jaxmarl_llm.environments.solo.farm import FIELD, Farm
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, given, played, row, totals


@pytest.mark.parametrize(
    ("player", "game"),
    [
        *((player, Farm()) for player in ("random", "correct", "looking")),
        ("random", Farm(turns=7, works=2)),
        ("random", Farm(turns=9, works=2, undo=True)),
    ],
)
def test_against_python(player, game):
    record, undone = played(game, player), 0
    for g in range(80):
        _, *told = row(game, record, g, 0)
        said, works = [word for _, word in acted(game, record, g)], 0
        for t, word in enumerate(said):
            assert told[t] == f"Turn {t + 1}. The field is {FIELD[works]}."
            undoes = word == "undo" and works > 0
            change = int(works < game.works and word == game.phrases_to_say[1 + works]) - undoes
            paid = [works / game.works * (word == "stop"), 0.3 * (word == "look"), change / game.works]
            assert given(record)[t, g, 0].tolist() == pytest.approx(paid)
            works, undone = works + change, undone + undoes
            assert (t + 1 == len(said)) == (word == "stop" or t + 1 == game.turns)
    assert (undone > 10) == game.undo
    wanted = {"correct": [1, 0, 1], "looking": [0, 1.8, 0]}
    if player in wanted:
        np.testing.assert_allclose(totals(record)[:, 0], np.tile(wanted[player], (len(totals(record)), 1)), rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "value", "first"), [((1, 1), 1.8, {"look"}), ((1, 0), 1.0, set(Farm().phrases_to_say) - {"stop"})]
)
def test_adding_up_pays_for_looking_all_day_and_the_outcome_alone_for_the_works(weights, value, first):
    """Two turns may be wasted before the works, also with a work that changes nothing."""
    tree = solve.tree(Farm(), weights=weights)
    perfect = solve.minimax(tree)
    assert solve.expected_value(tree, perfect) == pytest.approx([value])
    assert {Farm().phrases_to_say[a] for a in np.flatnonzero(perfect[tree.information[0]])} == first


def test_settings():
    with pytest.raises(ValueError, match="turns must be at least 4"):
        Farm(turns=3)
    with pytest.raises(ValueError, match="look must be finite"):
        Farm(look=-0.1)
    with pytest.raises(ValueError, match="knows 5 works"):
        Farm(works=6, turns=9)
