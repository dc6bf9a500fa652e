"""Rooms, against a search in plain Python and the exact solver; deals; settings."""

import re
from collections import deque

import numpy as np
import pytest

from jaxmarl_llm.environments.rooms import ROOMS, THINGS, Rooms
from jaxmarl_llm.evaluation import solve
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals


def fewest_turns(place, wanted, start, rooms):
    """By breadth-first search over room and things taken."""
    queue, known = deque([(start, 0, 0)]), set()
    while queue:
        at, taken, turns = queue.popleft()
        if taken == len(wanted):
            return turns
        after = [(max(at - 1, 0), taken), (min(at + 1, rooms - 1), taken)]
        after += [(at, taken + 1)] * (place[wanted[taken]] == at)
        for state in after:
            if state not in known:
                known.add(state)
                queue.append((*state, turns + 1))
    raise AssertionError


@pytest.mark.parametrize("game", [Rooms(), Rooms(4, 2, 2, budget=6, dense=True)])
def test_correct_takes_as_few_turns_as_a_search_finds(game):
    record, ends = played(game, "correct", games=300), 0
    for g in range(300):
        place = record["state"].place[0, g].tolist()
        least = fewest_turns(place, record["state"].order[0, g].tolist(), game.rooms // 2, game.rooms)
        said = acted(game, record, g)
        assert len(said) == min(least, game.budget)
        won = float(least <= game.budget)
        assert totals(record)[g, 0, 1] == won
        taken = sum(word.startswith("take") for _, word in said)
        assert totals(record)[g, 0, 0] == pytest.approx(taken / game.quest if game.dense else won)
        ends += won
    assert ends > 200


def test_explorer_goes_by_what_it_was_told():
    game = Rooms(rooms=4, objects=3, quest=2, budget=14)
    record = played(game, "explorer", games=200)
    assert (totals(record)[:, 0, 1] == 1).all()
    for g in range(40):
        rules, *told = row(game, record, g, 0)
        wanted, at, known = re.findall(r"ake the (\w+)\.", rules), 2, {}
        seen = set()
        for text, (_, word) in zip(told, acted(game, record, g), strict=True):
            seen.add(at)
            assert f"You are in the {ROOMS[at]}." in text
            known |= {thing: at for thing in re.findall(r"There is a (\w+)", text)}
            near = min((abs(i - at), i) for i in range(4) if i not in seen)[1] if len(seen) < 4 else at
            goal = known.get(wanted[0], near)
            assert word == (f"take {wanted[0]}" if goal == at else "west" if goal < at else "east")
            at += {"west": -1, "east": 1}.get(word, 0)
            wanted = wanted[word.startswith("take") :]


def test_no_player_is_better_than_explorer_in_three_rooms():
    """In three rooms with budget for one wrong way; and who knows where all is does better."""
    game = Rooms(rooms=3, objects=1, quest=1, budget=3)
    tree = solve.tree(game, weights=(1, 0))
    best = solve.best_response_value(tree, solve.uniform(tree))[0]
    assert best == pytest.approx(2 / 3)  # here or on the side that is tried; the other side takes four turns
    for name, value in (("explorer", 2 / 3), ("correct", 1.0)):
        found = totals(played(game, name, games=1800))[:, 0, 0].mean()
        assert abs(found - value) < 5 * np.sqrt(2 / 9 / 1800)
    assert deals_are_what_reset_draws(Rooms(rooms=2, objects=2, quest=2))


@pytest.mark.parametrize(
    "settings",
    [{"rooms": 1}, {"rooms": 9}, {"objects": 0}, {"objects": 7}, {"quest": 4}, {"quest": 2, "budget": 1}],
)
def test_settings(settings):
    with pytest.raises(ValueError, match=r"must be at least|must be \d at most"):
        Rooms(**settings)
    assert len(THINGS) == 6
