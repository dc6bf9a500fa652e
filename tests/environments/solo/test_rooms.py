"""Rooms, against a search in plain Python and the exact solver; deals; settings."""

import re
from collections import deque

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.solo.rooms import ROOMS, THINGS, Rooms
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, deals_are_what_reset_draws, drawn, flat, given, played, row, totals

SIZED = Rooms(3, 3, 3, budget=14, dense=True, smaller=(Rooms(2, 2, 2, budget=6, dense=True),))


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


def test_who_is_reminded_is_told_what_is_wanted_and_nothing_else_changes():
    plain, told = Rooms(budget=8), Rooms(budget=8, reminds=True)
    record, outside = played(plain, "explorer", games=50), played(told, "explorer", games=50)
    np.testing.assert_array_equal(record["action"], outside["action"])
    for g in range(50):
        (_, *before), (_, *after) = row(plain, record, g, 0), row(told, outside, g, 0)
        taken, order = outside["state"].taken[:, g], outside["state"].order[0, g]
        wanted = [f" Take the {THINGS[order[n]]}." for n in taken[: len(after)]]
        assert after == [text + more for text, more in zip(before, wanted, strict=True)]


def test_no_player_is_better_than_explorer_in_three_rooms():
    """In three rooms with budget for one wrong way; and who knows where all is does better."""
    game = Rooms(rooms=3, objects=1, quest=1, budget=3)
    tree = solve.tree(game)
    best = solve.best_response_value(tree, solve.uniform(tree))[0]
    assert best == pytest.approx(2 / 3)  # here or on the side that is tried; the other side takes four turns
    for name, value in (("explorer", 2 / 3), ("correct", 1.0)):
        found = totals(played(game, name, games=1800))[:, 0, 0].mean()
        assert abs(found - value) < 5 * np.sqrt(2 / 9 / 1800)
    assert deals_are_what_reset_draws(Rooms(rooms=2, objects=2, quest=2))


@pytest.mark.parametrize("budget", [4, 5])
def test_no_player_who_must_look_is_faster_than_explorer_in_three_rooms(budget):
    """Within any number of turns: the rooms that were not seen are alike, and after one of them all is known."""
    game = Rooms(rooms=3, objects=2, quest=2, budget=budget)
    tree = solve.tree(game)
    best = solve.best_response_value(tree, solve.uniform(tree))[0]
    found = []
    for order in ((0, 1), (1, 0)):
        for place in np.ndindex(3, 3):  # of things in rooms; those that are not seen lie west or east
            at, known, turns = 1, {1}, 0
            for thing in order:
                while at != place[thing]:
                    at += np.sign((place[thing] if place[thing] in known or len(known) > 1 else 0) - at)
                    known, turns = known | {int(at)}, turns + 1
                turns += 1
            found.append(turns <= budget)
    assert best == pytest.approx(np.mean(found))


def test_a_game_of_several_sizes_is_each_of_them():
    """By its text: where it begins, what lies where, how much is wanted, what is paid, and when it ends."""
    for player in ("random", "explorer"):
        record, met = played(SIZED, player, games=400), {0: 0, 1: 0}
        for g in range(400):
            size = int(record["state"].size[0, g])
            game, met[size] = SIZED.sizes[size], met[size] + 1
            rules, *told = row(SIZED, record, g, 0)
            alone = row(game, played(game, player, games=1), 0, 0)[0]
            assert rules.partition(" Take the")[0] == alone.partition(" Take the")[0]
            wanted = re.findall(r"ake the (\w+)\.", rules)
            assert len(wanted) == game.quest and {*wanted} <= {*THINGS[: game.objects]}
            at, took, said = game.rooms // 2, 0, [word for _, word in acted(SIZED, record, g)]
            for t, word in enumerate(said):
                assert f"You are in the {ROOMS[at]}." in told[t]
                takes = word == f"take {wanted[took]}" and f"There is a {wanted[took]}." in told[t]
                took += takes
                won = took == game.quest
                assert given(record)[t, g, 0].tolist() == pytest.approx([takes / game.quest, float(won)])
                assert (t + 1 == len(said)) == (won or t + 1 == game.budget)
                at = min(max(at + {"west": -1, "east": 1}.get(word, 0), 0), game.rooms - 1)
            assert player == "random" or won
        assert min(met.values()) > 150


def test_deals_of_several_sizes():
    states, chance = SIZED.initial_states()
    assert [len(chance), chance.sum()] == [6 * 27 + 2 * 4, 1] and len(np.unique(flat(states), axis=0)) == 170
    assert chance[states.size == 0].sum() == pytest.approx(0.5)
    found = drawn(SIZED, 4000)
    deals = {tuple(deal): p for deal, p in zip(flat(states).tolist(), chance, strict=True)}
    each, count = np.unique(found, axis=0, return_counts=True)
    for deal, n in zip(each.tolist(), count, strict=True):
        p = deals[tuple(deal)]
        assert abs(n - 4000 * p) < 6 * (4000 * p) ** 0.5
    for size in (0, 1, 7):
        state, _ = SIZED.reset(jax.random.key(0), np.int32(0), np.int32(size))
        assert int(state.size) == min(size, 1)


@pytest.mark.parametrize(
    "settings",
    [{"rooms": 1}, {"rooms": 9}, {"objects": 0}, {"objects": 7}, {"quest": 4}, {"quest": 2, "budget": 1}],
)
def test_settings(settings):
    with pytest.raises(ValueError, match=r"must be at least|must be \d at most"):
        Rooms(**settings)
    assert len(THINGS) == 6


@pytest.mark.parametrize(
    "smaller", [Rooms(4, 3, 3, 14), Rooms(2, 2, 2, 15), Rooms(2, 2, 2, 6, dense=True), Rooms(2, 2, 2, 6, reminds=True)]
)
def test_what_is_no_smaller_game(smaller):
    with pytest.raises(ValueError, match="is no smaller game of"):
        Rooms(3, 3, 3, budget=14, smaller=(smaller,))
