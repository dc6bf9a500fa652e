"""Oracles: the plan is what the script says, the state what the game holds, and nothing else changes.

The long case solves the trees of three games; the short ones read the plan and the state.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.oracle import Oracle, Switch, Switched
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.classic.board_games import TicTacToe
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.environments.solo.rooms import ROOMS, THINGS, Rooms
from jaxmarl_llm.environments.solo.wordle import WORDS, Wordle
from jaxmarl_llm.environments.teams.team_search import RouterSearch
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet, strings
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.team_plays import acted, played, row, texts

ROOMS_TOLD = Switched(Rooms(), ("plan", "subgoal", "state"))


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


def test_a_subgoal_is_the_next_thing_of_the_quest():
    game = Oracle(Rooms(), "subgoal")
    record = same_but_for_what_is_told(Rooms(), game, "explorer")
    for g in range(30):
        things = [THINGS[thing] for thing in record["state"].order[0, g]]
        _, *told = row(game, record, g, 0)
        for taken, text in zip(record["state"].taken[:, g], told, strict=False):
            assert text.endswith(f" A guide would pursue {things[min(taken, 1)]}.")


def rows_of(game, on=None):
    """What random players of four groups of two read and said, in the symbols of the game with oracles."""
    given = () if on is None else (Switch(jnp.array(on)),)
    sets = {"reader": PolicySet(SymbolTokenizer(strings(ROOMS_TOLD)), ("random",))}
    play = Rollout(game, sets, Lineup((("random",),) * 4, 2), 1)
    trajectory = jax.device_get(jax.jit(play)({"reader": {}}, jax.random.key(0), *given))
    return trajectory.rows["reader"], trajectory.episodes


def test_switched_off_the_rows_are_those_of_the_game_alone():
    alone, episodes = rows_of(Rooms())
    told, told_episodes = rows_of(ROOMS_TOLD, [[False] * 3, [True] * 3] * 2)
    for name in ("action", "reward", "acted"):
        np.testing.assert_array_equal(getattr(episodes, name), getattr(told_episodes, name))
    off, groups = np.arange(8) // 2 % 2 == 0, np.arange(4) % 2 == 0
    for name in ("tokens", "turn", "loss_mask"):
        less, more = (getattr(rows, name)[off] for rows in (alone, told))
        np.testing.assert_array_equal(less, more[:, : less.shape[1]])
    np.testing.assert_array_equal(alone.length == told.length, off)
    less, more = (rows.prompts for rows in (alone, told))
    np.testing.assert_array_equal(less.length == more.length, groups)
    np.testing.assert_array_equal(less.tokens[groups], more.tokens[groups, : less.tokens.shape[1]])
    assert (told.length >= alone.length).all() and (more.length >= less.length).all()


def test_only_the_oracles_that_are_on_speak():
    check_game(ROOMS_TOLD)
    alone = {tells: len(Oracle(Rooms(), tells).fields) for tells in ROOMS_TOLD.oracles}
    assert alone == {"plan": 1, "subgoal": 1, "state": 3}
    reset, step = jax.jit(ROOMS_TOLD.reset), jax.jit(ROOMS_TOLD.step)
    assert not reset(jax.random.key(0), 0)[0].on.any()  # without a deal
    for i, tells in enumerate(ROOMS_TOLD.oracles):
        key, game = jax.random.key(i), Oracle(Rooms(), tells)
        state, view = reset(key, 0, Switch(jnp.arange(3) == i))
        inside, told = game.reset(key, 0)
        for action in (0, 3):
            here = view.phrases[0, len(Rooms().observation) :]
            np.testing.assert_array_equal(here[here >= 0], told.phrases[0, len(Rooms().observation) :])
            assert (here >= 0).sum() == alone[tells]
            state, view, _ = step(state, jnp.array([action]), key)
            inside, told, _ = game.step(inside, jnp.array([action]), key)


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
        (lambda: Oracle(Rooms(), "map"), "plan, subgoal, state"),
        (lambda: Oracle(Rooms(), script="perfect"), "no script 'perfect'"),
        (lambda: Oracle(LockChain(), "state"), "no facts"),
        (lambda: Oracle(MatrixGame(talk=True), script="random"), "free words"),
        (lambda: Oracle(TicTacToe(), "state"), "no facts"),
        (lambda: Oracle(TicTacToe(), "subgoal"), "no subgoals"),
        (lambda: Switched(Rooms(), ()), "at least one"),
        (lambda: Switched(Rooms(), ("plan", "plan")), "different oracles"),
        (lambda: Switched(LockChain(), ("plan", "state")), "no facts"),
    ],
)
def test_what_cannot_be_told(make, says):
    with pytest.raises(ValueError, match=says):
        make()
