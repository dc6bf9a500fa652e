"""Graded answers against plain Python that reads what was asked and said."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.judged.graded import Graded
from jaxmarl_llm.environments.tasks import Arithmetic
from tests.environments.teams.test_team_tasks import solved
from tests.support.team_plays import acted, close, deals_are_what_reset_draws, given, played, row, totals

GAME = Graded(Arithmetic(7, "+*"))


def criteria(asked: str, said: str) -> list[bool]:
    truth = solved(asked)
    what = said.removesuffix(".").split("it is ")[-1].removeprefix("It is ")
    evades = what == "any of them"
    return [what == truth, evades or what == truth, not evades, said.startswith("Surely"), said.startswith("Thank")]


def test_criteria_against_python():
    check_game(GAME)
    record = played(GAME, "random")
    for g in range(300):
        (_, said), *_ = acted(GAME, record, g)
        assert given(record)[0, g, 0].tolist() == [float(x) for x in criteria(row(GAME, record, g, 0)[0], said)]
    assert deals_are_what_reset_draws(GAME)


def test_what_scripts_earn():
    random, right, evasive = (totals(played(GAME, name))[:, 0] for name in ("random", "correct", "evasive"))
    assert (right == [1, 1, 1, 0, 0]).all() and (evasive == [0, 1, 0, 1, 0]).all()
    for share, mean in zip(random.T, (1 / 8, 2 / 8, 7 / 8, 1 / 3, 1 / 3), strict=True):
        assert close(share, mean)


def test_nothing_is_paid_after_the_end():
    state, _ = GAME.reset(jax.random.key(0), jnp.int32(0))
    after, view, _ = GAME.step(state, jnp.array([0]), jax.random.key(0))
    assert view.terminated and not np.any(GAME.step(after, jnp.array([0]), jax.random.key(0))[2])
