"""Subgoals: three answers a turn, against a loop in plain Python; the game inside plays as it would alone."""

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.around.subgoals import Subgoals
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.social.matrix_games import MatrixGame
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.environments.solo.rooms import ROOMS, THINGS, Rooms
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, given, played, row

INSIDE = Rooms(3, 3, 2, budget=6)
GAME = Subgoals(INSIDE, penalty=0.25)


def by_hand(place, order, words):
    """What is told before each word but the first, and what each pays: (texts, two components, then three measures)."""
    place, at, taken, texts, paid, subgoal, keeps = list(place), 1, 0, [], [], None, False
    seen = {1}
    for t, word in enumerate(words):
        points, won, kept, right = 0, 0, 0, 0
        wanted = order[taken]
        where = place[wanted] if place[wanted] in seen else 3
        situation = 2 * (12 * taken + 4 * at + where) + ((subgoal or THINGS[0]) == THINGS[wanted])
        if t % 3 == 0:
            keeps = word == "keep"
            assert t or not keeps
            kept = -0.25 * keeps
            texts.append("Your subgoal?")
        elif t % 3 == 1:
            assert word == subgoal or not keeps
            subgoal = word
            texts.append("Your answer?")
        else:
            right, told = subgoal == THINGS[order[taken]], ""
            goes = min(max(at + {"west": -1, "east": 1}.get(word, 0), 0), 2)
            if word == f"take {THINGS[order[taken]]}" and place[order[taken]] == at:
                place[order[taken]], taken, told = 3, taken + 1, "Taken. "
            elif goes == at:
                told = "Nothing happens. "
            at, points = goes, taken == 2
            seen.add(at)
            won = points
            there = "".join(f" There is a {thing}." for i, thing in enumerate(THINGS[:3]) if place[i] == at)
            texts.append(f"{told}You are in the {ROOMS[at]}.{there} Keep or switch?")
        paid.append([points, kept, won, right, situation])
    return texts, np.array(paid, float)


@pytest.mark.parametrize("player", ["random", "follower", "explorer"])
def test_against_a_loop(player):
    check_game(GAME)
    record = played(GAME, player, games=200)
    for g in range(200):
        rules, *told = row(GAME, record, g, 0)
        words = [word for _, word in acted(GAME, record, g)]
        start = record["state"].game
        texts, paid = by_hand(start.place[0, g], start.order[0, g], words)
        assert told[1:] == texts[: len(told) - 1] and told[0].endswith(" Keep or switch?")
        assert rules.endswith("which stays the same if you keep it. To keep it costs 0.25 points.")
        np.testing.assert_array_equal(given(record)[: len(words), g, 0], paid)
        assert len(words) % 3 == 0 and (len(words) == 18 or paid[-1, 2])


def test_a_script_of_the_game_acts_as_it_does_there_and_always_has_the_right_subgoal():
    outside, inside = played(GAME, "explorer", games=100), played(INSIDE, "explorer", games=100)
    running = ~inside["over"]
    np.testing.assert_array_equal(running, ~outside["over"][2::3])
    np.testing.assert_array_equal(outside["action"][2::3][running], inside["action"][running])
    np.testing.assert_array_equal(given(outside)[2::3, ..., [0, 2]], given(inside))
    np.testing.assert_array_equal(outside["measured"][2::3, :, 0, 1] == 1, running)
    switches = (outside["action"][::3, :, 0] == 1) & running
    taken = (inside["after"].phrases[..., 0, 0] == 1) & running
    np.testing.assert_array_equal(switches[1:], taken[:-1] & running[1:])  # where a thing was taken, a turn before


def test_follower_pursues_what_it_names():
    record = played(Subgoals(Rooms(3, 3, 2, budget=12)), "follower", games=200)
    switched, acts = record["action"][3::3, :, 0], record["state"].game
    arrived, running = record["state"].game.told[3::3] != 0, ~record["over"][3::3]
    assert 0.7 < switched[running & arrived].mean() < 0.8 and 0.2 < switched[running & ~arrived].mean() < 0.3
    for g in range(100):
        seen = {1}
        for t in range(2, len(record["over"]), 3):
            if record["over"][t, g]:
                break
            thing, at = int(record["state"].subgoal[t, g]), int(acts.at[t, g])
            seen.add(at)
            place = int(acts.place[t, g, thing])
            to = (
                at
                if place == 3
                else place
                if place in seen
                else min(set(range(3)) - seen, key=lambda r: (abs(r - at), r))
            )
            want = 2 + thing if to == at else int(to > at)
            assert record["action"][t, g, 0] == want


def test_solved_the_game_is_worth_what_it_is_without_subgoals():
    small = Rooms(rooms=2, objects=1, quest=1, budget=1)
    for game in (small, Subgoals(small)):
        tree = solve.tree(game)
        assert solve.best_response_value(tree, solve.uniform(tree))[0] == pytest.approx(0.5)


def test_settings():
    with pytest.raises(ValueError, match="one seat"):
        Subgoals(MatrixGame())
    with pytest.raises(ValueError, match="what can be a subgoal"):
        Subgoals(LockChain())
    with pytest.raises(ValueError, match="penalty"):
        Subgoals(Rooms(), penalty=-1)
    with pytest.raises(ValueError, match="seats=3"):
        Subgoals(Rooms(), seats=3)
    assert Subgoals(Rooms()).rules[-1][0].endswith("You are not paid for it.")


def test_two_seats_share_the_game_of_one():
    """The words of a guide and an actor, said by one seat, lead to the same legal words, rewards and measures."""
    shared = Subgoals(INSIDE, penalty=0.25, seats=2)
    check_game(shared)
    record = played(shared, "follower", games=200)
    owner = np.arange(shared.turns) % 3 == 2
    said = np.where(owner[:, None], record["action"][..., 1], record["action"][..., 0])

    def follow(state, words):
        def turn(state, word):
            after, view, paid = GAME.step(state, word[None], jax.random.key(0))
            return after, (view.legal, paid, view.measured)

        return jax.lax.scan(turn, state, words)[1]

    start = jax.tree.map(lambda leaf: leaf[0], record["state"])
    alone = jax.tree.map(lambda x: np.swapaxes(x, 0, 1)[..., 0, :], jax.jit(jax.vmap(follow))(start, said.T))
    together, running = (record["after"].legal, record["reward"], record["measured"]), ~record["over"]
    for seat in range(2):
        for one, two in zip(alone, together, strict=True):
            np.testing.assert_array_equal(two[running, seat], one[running])
        np.testing.assert_array_equal(record["view"].acting[..., seat], (owner == seat)[:, None] & running)
    assert shared.roles == ("guide", "seeker") and shared.alternating and shared.seat_turns == 2 * INSIDE.turns


def test_two_seats_see_the_same_and_the_second_hears_the_subgoal():
    shared = Subgoals(INSIDE, penalty=0.25, seats=2)
    record = played(shared, "follower", games=200)
    for g in range(200):
        (guided, *asked), (acting, *answers) = (row(shared, record, g, seat) for seat in range(2))
        words = [word for _, word in acted(shared, record, g)]
        assert guided.endswith(
            "same if you keep it. To keep it costs 0.25 points. Another player hears it and answers."
        )
        assert acting.endswith("another player names a subgoal. To keep one costs 0.25 points.")
        assert "Take the" in guided and "Take the" in acting
        for t in range(len(words)):
            seen = asked[t - t % 3].removesuffix(" Keep or switch?")
            assert asked[t] == (f"{seen} Keep or switch?", "Your subgoal?", "")[t % 3]
            assert answers[t] == (f"{seen} The subgoal is {words[t - 1]}. Your answer?" if t % 3 == 2 else "")
