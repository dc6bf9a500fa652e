"""Sums with a calculator: rules against plain Python, legal modes, exact chances of a novice, and the text."""

import re
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.teams.tool_calls import CALL, INSTANT, MODES, NOVICE, THINK, Calls, Sum
from tests.support.team_plays import acted, close, given, played, row, totals

GAME = Calls()


@pytest.mark.parametrize("players", (("random",), ("novice", "correct"), ("correct", "random")), ids=lambda x: x[0])
def test_against_python(players):
    record = played(GAME, *players)
    for g in range(60):
        (rules, *told), heard, said = row(GAME, record, g, 0), row(GAME, record, g, 1)[1:], acted(GAME, record, g)
        numbers = [int(x) for x in re.search(r"wait for: (\d+) \+ (\d+) \+ (\d+)\.$", rules).groups()]
        assert told[0] == " Instant, think or call?"
        (_, mode), *acts = said
        expected = np.zeros((6, 2, 3), np.float32)
        if mode == "call":
            named, (seat, reply), (_, answer) = [word for _, word in acts[:3]], *acts[3:]
            asks = [f" The {place} number?" for place in ("first", "second", "third")]
            assert told[1:] == [*asks, "", f" The calculator says {reply}. Your answer?"]
            assert heard == ["", "", f" Add {named[0]}", f" Add {named[1]}", f" Add {named[2]}. Your answer?", ""]
            right = sum(map(int, named)) % 20
            assert seat == 1 and (players[-1] == "random" or int(reply) == right)
            expected[3, 0, 2] = right == sum(numbers) % 20
        else:
            ((_, answer),) = acts
            value = re.fullmatch(r"( You think it is (\d\d)\.)? Your answer\?", told[1]).group(2)
            assert (mode == "think") == (value is not None) and not any(heard)
        expected[0, 0, 1] = {"instant": 0, "think": -0.05, "call": -0.2}[mode]
        expected[len(said) - 1, 0, 0] = int(answer) == sum(numbers) % 20
        np.testing.assert_array_equal(given(record)[:, g], expected)


def test_chances_of_a_novice():
    """Exactly: it names a number right with a chance of 0.905, and errors of three numbers may cancel."""
    record = played(GAME, "novice", "correct")
    mode, points = record["action"][0, :, 0], totals(record)[:, 0]
    easy = (record["state"].numbers[0] < 3).all(1)
    error = np.where(np.arange(20) == 0, 0.905, 0.005)
    convolve = lambda a, b: np.array([sum(a[i] * b[(k - i) % 20] for i in range(20)) for k in range(20)])
    posed = reduce(convolve, [error] * 3)[0]
    assert close(easy, 0.5) and all(close(mode == m, NOVICE[m]) for m in range(3))
    assert close(points[(mode == INSTANT) & easy, 0], 0.6 + 0.4 / 20)
    assert close(points[(mode == INSTANT) & ~easy, 0], 1 / 20)
    assert close(points[mode == THINK, 0], 0.8 * 0.7 + 0.2 / 20)
    assert close(points[mode == CALL, 2], posed) and close(points[mode == CALL, 0], 0.8 * posed + 0.2 / 20)
    assert 0.7 < posed < 0.8 and (totals(played(GAME, "correct"))[:, 0] == [1, 0, 0]).all()


def test_the_best_modes_depend_on_the_sum():
    """Of a solver that knows easy sums and uses the tool right: calls are best for hard sums alone, if paid for."""
    at_once = {"easy": 1.0, "hard": 1 / GAME.size}
    worth = {
        (easy, hard): np.mean(
            [
                (at_once[kind], GAME.thought - GAME.think_cost, 1 - GAME.call_cost)[mode]
                for kind, mode in (("easy", easy), ("hard", hard))
            ]
        )
        for easy in range(3)
        for hard in range(3)
    }
    best = max(worth, key=worth.get)
    assert best == (INSTANT, CALL) and worth[best] == pytest.approx(0.9)
    assert worth[CALL, CALL] == pytest.approx(0.8) and worth[INSTANT, THINK] == pytest.approx(0.825)


def test_a_deal_gives_the_numbers_and_the_modes():
    reset = jax.jit(GAME.reset)
    modes = jnp.array([False, True, False])
    state, view = reset(jax.random.key(0), jnp.int32(0), Sum(jnp.array([7, 19, 4]), modes))
    np.testing.assert_array_equal(view.legal[0, :4], [False, True, False, False])
    assert state.numbers.tolist() == [7, 19, 4]
    assert int(GAME.scripts["correct"](state, jnp.int32(0), jax.random.key(0))) == THINK
    after, view, _ = jax.jit(GAME.step)(state, jnp.array([THINK, 0]), jax.random.key(1))
    assert view.legal.all() and MODES[int(after.mode)] == "think"
    numbers = jax.jit(jax.vmap(GAME.numbers, (0, None)))
    for easy, low, high in ((True, 0, 3), (False, 3, 20)):
        drawn = np.unique(numbers(jax.random.split(jax.random.key(0), 200), easy))
        np.testing.assert_array_equal(drawn, np.arange(low, high))


def test_settings_that_cannot_be():
    for settings in ({"small": 0}, {"size": 3}, {"thought": 1.5}, {"call_cost": -0.1}, {"think_cost": float("nan")}):
        with pytest.raises(ValueError, match=r"must be|chance"):
            Calls(**settings)
