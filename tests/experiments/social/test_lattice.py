"""Rounds on the torus against a loop with the same draws: what is played, and what is learnt some rounds later."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import lattice as study
from jaxmarl_llm.tabular.torus import mean_payoff, observe

ROUND = jax.jit(study.a_round)


@pytest.mark.parametrize(("steps", "tables"), [(5, 1), (1, 1), (3, 4)])
def test_rounds_against_a_loop(steps, tables):
    rng, side, arm = np.random.default_rng(0), 4, {"steps": steps, "dilemma": 0.3}
    table_of = rng.integers(0, tables, (side, side))
    act = jnp.asarray(rng.integers(0, 2, (side, side)), jnp.int32)
    zeros = jnp.zeros((5, side, side))
    table = rng.normal(size=(tables * 32, 2)).astype(np.float32)
    torus = study.Torus(act, jnp.asarray(table), zeros.astype(jnp.int32), zeros.astype(jnp.int32), zeros)
    played = []  # (cells, acts, rewards) of all rounds
    for number in range(8):
        key, rate = jax.random.key(number), 0.3 if number >= 5 else 0.0
        cell = table_of * 32 + np.asarray(observe(torus.act))
        chance = 1 / (1 + np.exp((table[cell, 0] - table[cell, 1]) / 0.5))
        torus, measured = ROUND(torus, key, jnp.asarray(table_of), 0.5, rate, arm)
        wanted = (np.asarray(jax.random.uniform(key, (side, side))) < chance).astype(int)
        np.testing.assert_array_equal(torus.act, wanted)
        payoff = jnp.array([[1, -0.3], [1.3, 0]])
        played.append((cell, wanted, np.asarray(mean_payoff(jnp.asarray(wanted), payoff))))
        np.testing.assert_allclose(measured["gap"], np.abs(table[cell, 1] - table[cell, 0]).mean(), rtol=1e-4)
        if rate:
            cells, acts, _ = played[-steps]
            total = sum(0.99**k * played[k - steps][2] for k in range(steps))
            after = table_of * 32 + np.asarray(observe(torus.act))
            target, old = total + 0.99**steps * table[after].max(-1), table.copy()
            for c, a in {*zip(cells.ravel().tolist(), acts.ravel().tolist(), strict=True)}:
                here = (cells == c) & (acts == a)
                table[c, a] += rate * (target[here].mean() - old[c, a])
        np.testing.assert_allclose(torus.table, table, atol=1e-4)
    assert len(np.unique(table_of)) == tables


def test_the_temperature_falls_to_the_cold_and_play_at_the_end_teaches_nothing(monkeypatch):
    """A short history of four tables, round by round with what the study says of temperature and rate."""
    small = {"SIDE": 4, "SITES": 16, "TRAINED": 16, "PLAYED": 24, "POINTS": 24}
    for name, value in small.items():
        monkeypatch.setattr(study, name, value)
    arm, whole = {"steps": 3, "dilemma": 0.3, "tau": 0.9}, jax.random.key(7)
    found = jax.jit(lambda key: study.history(key, arm, 4))(whole)
    start, order, key = jax.random.split(whole, 3)
    table_of = (np.asarray(jax.random.permutation(order, 16)) // 4).reshape(4, 4)
    act, zeros = jax.random.bernoulli(start, 0.5, (4, 4)).astype(jnp.int32), jnp.zeros((5, 4, 4))
    torus = study.Torus(act, jnp.zeros((4 * 32, 2)), zeros.astype(jnp.int32), zeros.astype(jnp.int32), zeros)
    for t in range(24):
        hot, rate = 0.1 + 0.8 * max(0, 1 - t / 16), 0.1 if 5 <= t < 16 else 0.0
        before = torus.table
        torus, measured = ROUND(torus, jax.random.fold_in(key, t), jnp.asarray(table_of), hot, rate, arm)
        assert bool((torus.table == before).all()) == (rate == 0)
        for name, x in measured.items():
            np.testing.assert_allclose(found[name][t], x, atol=1e-5)
    assert len({*np.asarray(found["cooperation"]).tolist()}) > 3
