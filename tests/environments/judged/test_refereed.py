"""Refereed against plain Python: what each kind of game pays, who reads what, and that a referee cannot cheat."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.judged.refereed import LABELLED, OPEN, RANKED, Refereed
from jaxmarl_llm.environments.tasks import Arithmetic
from tests.support.team_plays import acted, given, played, row

GAME = Refereed()


def pairwise_tau(scores, order):
    """One pair at a time."""
    n, total = len(scores), 0
    for i in range(n):
        for j in range(i):
            total += np.sign(scores[i] - scores[j]) * np.sign(order[i] - order[j])
    return 2 * total / (n * (n - 1))


@pytest.mark.parametrize("kinds", [(LABELLED, RANKED, OPEN), (LABELLED, OPEN), (RANKED,)])
def test_it_keeps_to_the_contract(kinds):
    check_game(Refereed(kinds=kinds))


def test_points_against_python():
    record, halves = played(GAME, "random", games=90), {True: set(), False: set()}
    for g in range(90):
        kind, rows = g % 3, [row(GAME, record, g, seat) for seat in range(5)]
        asked = "".join(rows[4 if kind == RANKED else 0])
        a, b = map(int, re.search(r"What is \((\d) \+ (\d)\) mod 5", asked).groups())
        truth, said, reward = (a + b) % 5, acted(GAME, record, g), given(record)[:, g]
        halves[kind == LABELLED].add((a, b))
        answers = [int(word) for seat, word in said if seat < 4]
        scores = [int(word) for seat, word in said if seat == 4]
        assert len(answers) == (0 if kind == RANKED else 4) and len(scores) == (0 if kind == LABELLED else 4)
        if kind == RANKED:
            answers = [int(x) for x in re.findall(r"Answer \d is (\d)\.", rows[4][1])]
        want = np.zeros((5, 5))
        if kind != RANKED:
            want[:4, 3] = [x == truth for x in answers]
        if kind == LABELLED:
            want[:4, 0] = want[:4, 3]
            assert not any(rows[4][1:])
        else:
            near = [-min((x - truth) % 5, (truth - x) % 5) for x in answers]
            want[4, 4] = pairwise_tau(scores, near)
            assert re.findall(r"Answer \d is (\d)\.", "".join(rows[4])) == [str(x) for x in answers]
        if kind == RANKED:
            want[4, 2] = want[4, 4]
        if kind == OPEN:
            want[:4, 1] = [(s - 1) / 2 for s in scores]
        np.testing.assert_allclose(reward.sum(0), want, atol=1e-6)
    assert not halves[True] & halves[False] and len(halves[True]) <= 13 and len(halves[False]) <= 12


def test_both_halves_of_sums_modulo_three_have_every_answer():
    """A skewed half would make one answer, said blindly, right in most of its games."""
    game = Refereed(Arithmetic(3, "+"))
    deal = jax.jit(jax.vmap(game.reset, (0, 0, None)))
    for kind, counts in ((LABELLED, [1, 2, 2]), (OPEN, [1, 1, 2])):
        state, _ = deal(jax.random.split(jax.random.key(0), 200), jnp.arange(200), jnp.int32(kind))
        tasks = np.unique(state.task)
        assert sorted(np.bincount((tasks // 3 + tasks % 3) % 3)) == counts


def test_an_answer_is_scored_in_its_own_turn_and_the_knowing_referee_ranks_well():
    points = given(played(GAME, "correct", games=90))
    for kind in (RANKED, OPEN):
        tau = points[-1, kind::3, 4, 4]
        assert (tau[kind == RANKED :] >= 0).all()
    assert (points[0, LABELLED::3, :4, 0] == 1).all()
    assert (points[1:, OPEN::3, :4, 1].sum((0, 2)) == 4).all()
    for k in range(4):
        assert (points[1 + k, OPEN::3, k, 1] == 1).all()


def test_what_does_not_parse_scores_nothing_and_ranks_last():
    step = jax.jit(GAME.step)
    for kind in (RANKED, OPEN):
        state, view = GAME.reset(jax.random.key(0), jnp.int32(0), jnp.int32(kind))
        total = np.zeros((5, 5))
        while not view.terminated:
            state, view, reward = step(state, jnp.full(5, -1), jax.random.key(0))
            total += np.concatenate([reward, view.measured], 1)
        assert total[4, 4] == -1 and total[4, 2] == (-1 if kind == RANKED else 0)
        assert not total[:4].any()


def test_a_referee_is_told_what_ties_are_worth():
    """Scores are three and answers four: some pair is tied, and a tie costs points."""
    ranked = row(GAME, played(GAME, "random", games=3), RANKED, 4)[0]
    assert "equal scores or equal distances counts 0" in ranked


def test_a_referee_sees_answers_and_not_who_is_right():
    """An answer changes what the referee reads and nothing that the players do; players who change places, their places
    alone. That no seat is told what is right is in `test_judges`."""
    state, _ = GAME.reset(jax.random.key(0), jnp.int32(0), jnp.int32(OPEN))
    look = lambda answers: GAME.step(state, jnp.array([*answers, 0]), jax.random.key(0))[1].phrases
    question = len(GAME.tasks.fields)
    one, other = np.asarray(look((0, 1, 2, 3))), np.asarray(look((0, 1, 2, 4)))
    assert (one[:4] == other[:4]).all() and (one[:4] == -1).all()
    assert np.flatnonzero(one[4] != other[4]).tolist() == [question + 3]
    permuted = np.asarray(look((1, 0, 2, 3)))  # the author is known by the place alone
    given = slice(question, question + 4)
    assert sorted(permuted[4][given]) == sorted(one[4][given]) and (permuted[4][:question] == one[4][:question]).all()


@pytest.mark.parametrize(
    ("settings", "says"), [({"players": 1}, "at least 2"), ({"kinds": ()}, "kinds"), ({"kinds": (4,)}, "kinds")]
)
def test_bad_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        Refereed(**settings)
