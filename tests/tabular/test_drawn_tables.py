"""Drawn games: their equilibria by enumeration, how often they crash, and sums over cells against loops."""

from functools import partial
from itertools import product

import jax
import numpy as np
import pytest

from jaxmarl_llm.tabular.drawn_tables import HARE, STAG, chance, moments, stag_hunts, tables_with_crashes

KEY = jax.random.key(0)


def test_hunts_have_two_equilibria_and_know_the_risk_dominant_one():
    payoffs, dilemma = jax.jit(partial(stag_hunts, n=400))(KEY)
    first, second = (np.asarray(x) for x in payoffs)
    for mine, theirs, hare_dominates in zip(first, second, np.asarray(dilemma), strict=True):
        equilibria = [
            (a, b)
            for a, b in product((STAG, HARE), repeat=2)
            if mine[a, b] > mine[1 - a, b] and theirs[b, a] > theirs[1 - b, a]
        ]
        assert equilibria == [(STAG, STAG), (HARE, HARE)]
        assert mine[STAG, HARE] == 0 < mine[HARE, HARE] < mine[HARE, STAG] < mine[STAG, STAG] == 4
        lost = [(mine[a, a] - mine[1 - a, a]) * (theirs[a, a] - theirs[1 - a, a]) for a in (STAG, HARE)]
        assert hare_dominates == (lost[HARE] > lost[STAG])  # the product of what leaving it costs
    assert np.mean(dilemma) == pytest.approx(0.5, abs=0.08)


def test_a_crash_is_one_for_both_and_one_cell_in_twenty():
    (first, second), crash = jax.jit(partial(tables_with_crashes, n=300, actions=5))(KEY)
    crash = np.asarray(crash)
    assert ((first == -20) == crash).all() and ((second == -20) == crash.swapaxes(1, 2)).all()
    assert crash.mean() == pytest.approx(0.05, abs=0.01)
    for points in (np.asarray(first)[~crash], np.asarray(second)[~crash.swapaxes(1, 2)]):
        assert points.min() >= 0 and points.max() <= 4 and points.mean() == pytest.approx(2, abs=0.05)
    assert not np.allclose(first, second.swapaxes(1, 2))


def test_moments_and_chances_are_sums_over_cells():
    rng = np.random.default_rng(0)
    n, size = 3, 4
    plays = tuple(rng.dirichlet(np.ones(size), n).astype(np.float32) for _ in range(2))
    payoffs = tuple(rng.normal(size=(n, size, size)).astype(np.float32) for _ in range(2))
    cells = rng.random((n, size, size)) < 0.3
    mean, variance = jax.jit(moments)(plays, payoffs)
    crashes = jax.jit(chance)(plays, cells)
    for g in range(n):
        weight = {(a, b): plays[0][g, a] * plays[1][g, b] for a, b in product(range(size), repeat=2)}
        assert float(crashes[g]) == pytest.approx(sum(w for cell, w in weight.items() if cells[g][cell]), abs=1e-6)
        for seat in range(2):
            points = {(a, b): payoffs[seat][(g, b, a) if seat else (g, a, b)] for a, b in weight}
            expected = sum(w * points[cell] for cell, w in weight.items())
            spread = sum(w * (points[cell] - expected) ** 2 for cell, w in weight.items())
            assert float(mean[seat, g]) == pytest.approx(expected, abs=1e-5)
            assert float(variance[seat, g]) == pytest.approx(spread, abs=1e-5)
