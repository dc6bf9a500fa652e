"""The flow of four roles: against plain Python, who is told what, and exact success of erring scripts."""

import dataclasses
import re
from functools import cache

import numpy as np
import pytest

from jaxmarl_llm.environments.teams.flow import EXECUTOR, GENERATOR, PLANNER, VERIFIER, Flow
from tests.support.team_plays import acted, close, given, played, row

GAME = Flow()
ALIKE = Flow(noise=(0.2,) * 4)
SMALL = Flow(keys=4, marks=3, hops=2, fewest=2, steps=4, noise=(0.2, 0.2, 0.2, 0.2))


def correct_step(table: dict[str, str], begin: str, hops: int, seen: list[str], last: str) -> str:
    chain = [begin]
    for _ in range(hops):
        chain.append(table[chain[-1]])
    unread = [key for key in chain[:hops] if key not in seen]
    return unread[0] if unread else "mark" if last == chain[hops] else chain[hops - 1]


@pytest.mark.parametrize("game", (GAME, pytest.param(SMALL, marks=pytest.mark.long)), ids=("plain", "small"))
@pytest.mark.parametrize("players", (("random",), ("correct",), ("correct", "erring")), ids=lambda names: names[-1])
def test_against_python(game, players):
    record = played(game, *players)
    for g in range(30):
        rows, said = [row(game, record, g, seat) for seat in range(4)], acted(game, record, g)
        start, letters = record["state"], "ABCDEFGH"
        chain = [letters[k] for k in start.chain[0, g]]
        table = dict(zip(chain, [*chain[1:], chain[0]], strict=True))
        marks = {letters[k]: str(mark) for k, mark in enumerate(start.marks[0, g])}
        begin, hops = re.search(
            r"Begin at (\w)\. Follow (\d) entr\w+, then read the mark\.$", rows[PLANNER][0]
        ).groups()
        assert begin == chain[0] and not any("Begin" in rows[seat][0] for seat in (1, 2, 3))
        key = chain[int(hops)]
        seat, steps, last, mark, seen, result, named, done = PLANNER, 0, begin, None, [], "", "", ""
        for t, (actor, word) in enumerate(said):
            assert actor == seat
            step = f" Look up {named}." if named != "mark" else " Read the mark."
            of_mark = f" The mark is {mark}." if mark else " No mark was read."
            told = [f"{result} Next step?", step, f"{result} Go on or stop?", f"{of_mark} Which mark?"][actor]
            assert [texts[1 + t] for texts in rows] == [told if seat == actor else "" for seat in range(4)]
            expected = np.zeros((4, 3))
            if actor == PLANNER:
                named, seat = word, EXECUTOR
                if players[0] == "correct":
                    assert word == correct_step(table, begin, int(hops), seen, last)
            elif actor == EXECUTOR:
                steps, done, slip = steps + 1, word, word != named
                expected[PLANNER, 1] = 1
                if word == "mark":
                    mark = marks[last]
                    result = f" The mark is {mark}."
                else:
                    last, seen = table[word], [*seen, word]
                    result = f" {word} has the entry {last}."
                seat = VERIFIER if steps < game.steps else GENERATOR
            elif actor == VERIFIER:
                slip = (word == "stop") != (done == "mark")
                seat = PLANNER if word == "go on" else GENERATOR
            else:
                slip = mark is not None and word != mark
                expected[:, 0] = word == marks[key]
                assert t == len(said) - 1
            if actor != PLANNER:
                expected[actor, 2] = slip
            np.testing.assert_array_equal(given(record)[t, g], expected)
        assert said[-1][0] == GENERATOR and record["after"].terminated[len(said) - 1, g]
        assert not given(record)[len(said) :, g].any()


def exact(game: Flow) -> tuple[float, float]:
    """Success and mean steps of `erring` by enumeration. Keys are numbered along the chain, which begins at 0."""
    planner, executor, verifier, generator = game.noise
    keys, marks = game.keys, game.marks

    def answer(read: int | None, hops: int) -> float:
        """The last mark read is that of key `read`; marks of two keys are equal once in `marks`."""
        same = 1.0 if read == hops else 1 / marks
        return 1 / marks if read is None else same * (1 - generator) + (1 - same) * generator / (marks - 1)

    @cache
    def value(hops: int, seen: frozenset, last: int, read: int | None, left: int) -> np.ndarray:
        if not left:
            return np.array([answer(read, hops), 0.0])
        ahead = next(k for k in range(keys + 1) if k not in seen)
        wanted = ahead if ahead < hops else keys if last == hops else hops - 1
        total = np.zeros(2)
        for done in range(keys + 1):
            names = np.full(keys + 1, planner / keys)
            names[wanted] = 1 - planner
            chance = names[done] * (1 - executor) + (1 - names[done]) * executor / keys
            reads = done == keys
            state = (seen, last, last) if reads else (seen | {done}, (done + 1) % keys, read)
            stops = 0.0 if left == 1 else 1 - verifier if reads else verifier
            ended, then = np.array([answer(state[2], hops), 0.0]), value(hops, *state, left - 1)
            total += chance * (np.array([0, 1]) + stops * ended + (1 - stops) * then)
        return total

    success, steps = np.mean(
        [value(h, frozenset(), 0, None, game.steps) for h in range(game.fewest, game.hops + 1)], axis=0
    )
    return float(success), float(steps)


@pytest.mark.parametrize(
    "game, player, noise",
    [
        (GAME, "correct", (0.0,) * 4),
        (GAME, "erring", GAME.noise),
        pytest.param(ALIKE, "erring", ALIKE.noise, marks=pytest.mark.long),
    ],
    ids=("none", "plain", "alike"),
)
def test_success_and_steps_of_the_scripts_are_those_of_an_enumeration(game, player, noise):
    record = played(game, player)
    success, steps = exact(dataclasses.replace(game, noise=noise))
    assert close(record["reward"].sum((0, 3))[:, 0], success)
    assert close(given(record)[..., 1].sum(0)[:, PLANNER], steps)
    if player == "correct":
        assert (success, steps) == pytest.approx((1, 3))


def test_exact_levels_of_the_study():
    """A planner without errors solves more, and more a step, than the untrained one or a guess after one step (1/8)."""
    game = Flow(keys=4, marks=8, hops=2, fewest=2, steps=5)
    levels = [exact(dataclasses.replace(game, noise=(chance, 0.1, 0.03, 0.03))) for chance in (0.0, 0.5)]
    assert levels == [pytest.approx((0.853, 3.15), abs=5e-3), pytest.approx((0.360, 3.49), abs=5e-3)]


def test_each_seat_errs_with_its_own_chance():
    record = played(GAME, "erring")
    slips, acting = given(record)[..., 2], record["view"].acting & ~record["over"][..., None]
    acting[..., GENERATOR] &= record["state"].mark >= 0  # without a mark it has nothing to go by
    rates = slips.sum((0, 1)) / acting.sum((0, 1))
    np.testing.assert_allclose(rates, [0, *GAME.noise[1:]], atol=0.02)


def test_settings_that_cannot_be_played():
    for settings in (
        {"keys": 2},
        {"hops": 0},
        {"hops": 5},
        {"fewest": 4},
        {"steps": 3},
        {"marks": 1},
        {"noise": (0.1,) * 3},
    ):
        with pytest.raises(ValueError, match=r"must be"):
            Flow(**settings)
    with pytest.raises(ValueError, match="noise"):
        Flow(noise=(0.1, 0.1, 0.1, 1.1))
