"""Recycled against plain Python: which items come of which answers, what is paid, and what nobody is told."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.judged.recycled import Recycled
from jaxmarl_llm.environments.tasks import Arithmetic
from tests.support.team_plays import acted, played, row

GAME = Recycled(Arithmetic(3, "+"), 3)


def test_it_keeps_to_the_contract():
    check_game(GAME)
    check_game(Recycled())


def test_items_and_points_against_python():
    record, kinds = played(GAME, "random", games=400), {"yes": 0, "no": 0, "pair": 0}
    for g in range(400):
        rows, reward = [row(GAME, record, g, seat) for seat in range(9)], record["reward"][:, g]
        a, b = map(int, re.search(r"What is \((\d) \+ (\d)\) mod 3", rows[0][0]).groups())
        truth, said = (a + b) % 3, dict(acted(GAME, record, g)[:3])
        later = dict(acted(GAME, record, g)[3:])
        answers = [int(said[seat]) for seat in range(3)]
        right = [x == truth for x in answers]
        np.testing.assert_array_equal(reward[0, :, 0], [*right, *[False] * 6])
        judges, revisers = {rows[seat][2] for seat in (3, 4, 5)}, {rows[seat][2] for seat in (6, 7, 8)}
        assert len(judges) == len(revisers) == 1
        shown = [int(x) for x in re.findall(r"Answer [AB] is (\d)\.", judges.pop())]
        assert {*shown} <= {*answers}
        if len(shown) == 2:
            kinds["pair"] += 1
            assert any(right) and not all(right) and sorted(x == truth for x in shown) == [False, True]
            verdict = "AB"[[x == truth for x in shown].index(True)]
        else:
            verdict = "yes" if shown[0] == truth else "no"
            kinds[verdict] += any(right) and not all(right)
        np.testing.assert_array_equal(reward[1, 3:6, 1], [later[seat] == verdict for seat in (3, 4, 5)])
        if all(right):
            assert revisers == {""} and not reward[1, 6:].any()
        else:
            read = int(re.search(r"Answer A is (\d)\. Your answer now\?", revisers.pop()).group(1))
            assert read in answers and read != truth
            np.testing.assert_array_equal(reward[1, 6:, 2], [int(later[seat]) == truth for seat in (6, 7, 8)])
        assert reward.sum() == sum(right) + reward[1, 3:6, 1].sum() + reward[1, 6:, 2].sum()
    mixed = sum(kinds.values())
    assert abs(kinds["pair"] / mixed - 0.7) < 0.12 and abs(kinds["yes"] - kinds["no"]) < 6 * mixed**0.5 / 2


def test_a_test_shows_the_first_attempt_whatever_it_is():
    step = jax.jit(GAME.step)
    for seed in range(20):
        state, _ = GAME.reset(jax.random.key(seed), jnp.int32(0), True)
        answers = jax.random.randint(jax.random.key(seed), (9,), 0, 3)
        after, view, _ = step(state, answers, jax.random.key(seed))
        assert not after.pair and view.acting[3:].all()
        assert (view.phrases[3:, 0] == answers[0]).all() and (view.phrases[3:, 1] == -1).all()


def test_judges_read_neither_label_nor_author():
    """The same answers in other seats and the same dice: nothing but the answers themselves is told."""
    state, _ = GAME.reset(jax.random.key(1), jnp.int32(0), True)
    answers = jnp.array([2, 0, 1] + [0] * 6)
    told = []
    for task in range(9):  # other sums, other right answers
        _, view, _ = GAME.step(replace(state, task=jnp.int32(task)), answers, jax.random.key(3))
        told.append(np.asarray(view.phrases[3:]))
    assert all((x == told[0]).all() for x in told)


@pytest.mark.parametrize(("settings", "says"), [({"attempts": 1}, "at least 2"), ({"pointwise": 2.0}, "share")])
def test_bad_settings(settings, says):
    with pytest.raises(ValueError, match=says):
        Recycled(**settings)
