"""Oracles: the plan is what the script says, the state what the game holds, and nothing else changes.

The long case solves the trees of three games; the short ones read the plan and the state.
"""

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.around.oracle import Oracle
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.classic.board_games import TicTacToe
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.environments.solo.rooms import ROOMS, THINGS, Rooms
from jaxmarl_llm.environments.solo.wordle import WORDS, Wordle
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, played, row, texts


def same_but_for_what_is_told(game, told, player="random"):
    """Both play alike; the record of the game with an oracle."""
    check_game(told)
    inside, outside = played(game, player, games=60), played(told, player, games=60)
    for name in ("action", "reward", "over"):
        np.testing.assert_array_equal(inside[name], outside[name])
    fields = len(game.observation)
    np.testing.assert_array_equal(inside["view"].phrases, outside["view"].phrases[..., :fields])
    return outside


@pytest.mark.parametrize("game", [Rooms(), RouterSearch()], ids=["one seat", "three roles"])
def test_a_plan_is_what_the_script_would_answer(game):
    told, met = Oracle(game), 0
    record = same_but_for_what_is_told(game, told, "correct")
    for g in range(30):
        by_seat = {seat: iter(row(told, record, g, seat)[1:]) for seat in range(game.agents)}
        said = {seat: [word for who, word in acted(told, record, g) if who == seat] for seat in range(game.agents)}
        for seat, words in said.items():
            advice = [text for text in by_seat[seat] if "A guide" in text]
            assert [text.rpartition("A guide would answer ")[2] for text in advice] == [f"{word}." for word in words]
            met += len(words)
    assert met > 60


def test_the_state_of_rooms_and_of_wordle():
    game = Oracle(Rooms(), "state")
    record = same_but_for_what_is_told(Rooms(), game)
    for g in range(30):
        _, *told = row(game, record, g, 0)
        for t, text in enumerate(told):
            for i, thing in enumerate(THINGS[:3]):
                place = record["state"].place[t, g, i]
                where = f"You have the {thing}." if place == 3 else f"The {thing} is in the {ROOMS[place]}."
                assert where in text
    words = Oracle(Wordle(), "state")
    record = same_but_for_what_is_told(Wordle(), words)
    _, *told = row(words, record, 0, 0)
    for t, text in enumerate(told):
        fits = {word for i, word in enumerate(WORDS) if record["state"].fits[t, 0, i]}
        assert {word for word in WORDS if f"It may be {word}." in text} == fits
    assert len(told) > 1


@pytest.mark.long
def test_whoever_is_told_the_plan_can_play_as_well_as_the_script():
    small = Rooms(rooms=3, objects=1, quest=1, budget=3)
    for game, value in ((small, 2 / 3), (Oracle(small), 1.0), (Oracle(small, "state"), 1.0)):
        tree = solve.tree(game)
        assert solve.best_response_value(tree, solve.uniform(tree)) == pytest.approx([value])
    states, _ = Oracle(small).initial_states()
    assert texts(Oracle(small))(states).shape[1:] == (1, 2 + 3 + 1)
    assert jax.tree.leaves(states)[0].shape[0] == 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Oracle(Rooms(), "map"), "plan or state"),
        (lambda: Oracle(Rooms(), script="perfect"), "no script 'perfect'"),
        (lambda: Oracle(LockChain(), "state"), "no facts"),
        (lambda: Oracle(MatrixGame(talk=True), script="random"), "free words"),
        (lambda: Oracle(TicTacToe(), "state"), "no facts"),
    ],
)
def test_what_cannot_be_told(make, says):
    with pytest.raises(ValueError, match=says):
        make()
