"""Writer, verifier and critic against plain Python; what each may see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.teams.advised import CRITERIA, Advised
from tests.support.team_plays import acted, close, given, played, row, totals

GAME = Advised()


def test_a_judgement_against_python():
    check_game(GAME)
    record = played(GAME, "random")
    decides = {}  # kind: criterion, found out from the points of the verifier
    for g in range(400):
        rows = [row(GAME, record, g, seat) for seat in range(3)]
        (writer, rubric), (_, verdict), (critic, trust) = acted(GAME, record, g)
        assert (writer, critic) == (0, 2)
        kind, wins = rows[1][0].split("kind ")[1], rows[1][2].removeprefix("First or second?")
        by = dict(part.split(" the ") for part in wins.strip().removesuffix(".").replace("By ", "").split(". "))
        assert rows[2][2] == f"Trust or doubt? The writer says {rubric}." and rows[0][1] == "Which criterion?"
        paid = given(record)[:, g]
        preferred = verdict if paid[1, 1, 0] else {"first": "second", "second": "first"}[verdict]
        possible = {name for name in CRITERIA if by[name] == preferred}
        decides[kind] = decides.get(kind, possible) & possible
        shift = (by[rubric] == preferred) - (verdict == preferred)
        final = by[rubric] if trust == "trust" else verdict
        assert not paid[0].any()
        expected = [
            [0, shift, by[rubric] == preferred, 0],
            [verdict == preferred, 0, 0, 0],
            [0, shift * (trust == "trust"), 0, final == preferred],
        ]
        np.testing.assert_array_equal(paid[1], np.array(expected, float))
    assert len(decides) == GAME.kinds and all(len(names) == 1 for names in decides.values())


def test_what_scripts_earn():
    right, half = totals(played(GAME, "correct")), totals(played(GAME, "half"))
    assert (right[:, 1, 0] == 1).all() and (right[:, 0, 2] == 1).all() and (right[:, 2, 3] == 1).all()
    known = round(GAME.knows * GAME.kinds) / GAME.kinds
    assert close(half[:, 1, 0], known + (1 - known) / 2) and close(half[:, 0, 2], known + (1 - known) / 4)


def test_writer_and_critic_do_not_see_the_answers_nor_the_verifier_the_rubric():
    state, _ = GAME.reset(jax.random.key(0), jnp.int32(0))
    state, _, _ = GAME.step(state, jnp.array([1, 0, 0]), jax.random.key(0))
    told = lambda state: np.concatenate([GAME.prompt(state), GAME.view(state).phrases], 1)
    other = told(state.replace(ahead=1 - state.ahead))
    assert (told(state) != other).any(1).tolist() == [False, True, False]
    other = told(state.replace(rubric=state.rubric + 1))
    assert (told(state) != other).any(1).tolist() == [False, False, True]


def test_settings_that_cannot_be_are_named():
    for make, says in (
        (lambda: Advised(0), "kinds"),
        (lambda: Advised(misleads=2.0), "within"),
        (lambda: Advised(knows=-1.0), "within"),
    ):
        with pytest.raises(ValueError, match=says):
            make()
