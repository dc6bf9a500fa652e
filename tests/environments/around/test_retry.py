"""Further attempts: the same deal from its beginning after a failure, none after a success."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.around.retry import Retry
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.classic.hanabi import Hanabi
from jaxmarl_llm.environments.solo.fork import Fork
from jaxmarl_llm.environments.solo.wordle import WORDS, Wordle
from jaxmarl_llm.evaluation.exact import solve
from tests.support.team_plays import acted, deals_are_what_reset_draws, played, row, totals

INSIDE = Wordle(turns=2)
GAME = Retry(INSIDE, attempts=3)


def test_against_the_game_inside():
    """Each attempt is a game of its own on the same secret."""
    check_game(GAME)
    record, ends = played(GAME, "random"), set()
    for g in range(100):
        rules, *told = row(GAME, record, g, 0)
        assert rules.endswith("If you fail, you begin again, 3 attempts in all, and the points of all count.")
        said, secret = [word for _, word in acted(GAME, record, g)], WORDS[record["state"].start.secret[0, g]]
        assert secret not in said[:-1]
        assert said[-1] == secret or len(said) == 6
        for t, text in enumerate(told):
            assert text.startswith("That failed. You begin again.\nWhich word?") == (t in (2, 4))
            assert ("Letter" in text) == (t % 2 == 1)
        solved = float(said[-1] == secret)
        np.testing.assert_allclose(totals(record)[g, 0], [solved, -0.1 * (len(said) - solved)], rtol=1e-5)
        ends.add(len(said))
    assert ends == {1, 2, 3, 4, 5, 6}


def test_one_attempt_is_the_game_inside_and_more_are_worth_more():
    fork = Fork(turns=2)
    values = []
    for attempts in (1, 2):
        tree = solve.tree(Retry(fork, attempts))
        values.append(solve.best_response_value(tree, solve.uniform(tree))[0])
    assert values == pytest.approx([0.75, 1.0])  # the other road, if the likely one failed
    assert deals_are_what_reset_draws(Retry(fork))
    once, alone = played(Retry(INSIDE, 1), "random", games=50), played(INSIDE, "random", games=50)
    np.testing.assert_array_equal(once["reward"], alone["reward"])
    assert Retry(INSIDE, 1).rules == INSIDE.rules


def test_success_by_another_component():
    game = Retry(INSIDE, success="cost")  # pays a wrong guess less than nothing: never a success
    state, _ = game.reset(jax.random.key(0), jnp.int32(0))
    right = state.game.secret[None]
    state, view, _ = jax.jit(game.step)(state, right, jax.random.key(1))
    assert not view.terminated and int(state.attempt) == 1
    state, view, _ = jax.jit(game.step)(state, right, jax.random.key(1))
    assert view.terminated


def test_settings():
    with pytest.raises(ValueError, match="at least 1"):
        Retry(INSIDE, 0)
    with pytest.raises(ValueError, match="no 'won'"):
        Retry(INSIDE, success="won")
    with pytest.raises(ValueError, match="no view"):
        Retry(Hanabi())
