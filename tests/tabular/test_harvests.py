"""A common stock against a loop, and against what calculus says of efforts that stay as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.tabular.harvests import Common, harvest, impose_fines, sustainable_yield, sustained_stock

COMMON = Common(growth=0.4, capacity=80.0, catch=0.2)


def test_years_against_a_loop():
    rng = np.random.default_rng(1)
    stock, mine = jnp.float32(50), 50.0
    for _ in range(5):
        effort = rng.uniform(0, 0.5, 4)
        stock, taken = jax.jit(harvest)(COMMON, stock, jnp.asarray(effort, jnp.float32))
        wanted = [0.2 * e * mine for e in effort]
        mine = mine + 0.4 * mine * (1 - mine / 80) - sum(wanted)
        np.testing.assert_allclose(taken, wanted, rtol=1e-4)
        np.testing.assert_allclose(stock, mine, rtol=1e-4)


def test_efforts_that_stay_lead_where_calculus_says_and_the_most_is_taken_at_half_the_growth():
    efforts = jnp.array([0.05, 0.125, 0.25, 0.3, 0.4, 0.7])[:, None].repeat(4, 1)

    def after(effort):
        return jax.lax.scan(lambda stock, _: harvest(COMMON, stock, effort), 60.0, None, length=400)

    stock, taken = jax.jit(jax.vmap(after))(efforts)
    np.testing.assert_allclose(stock, sustained_stock(COMMON, efforts), atol=1e-3)
    taken = taken[:, -1].sum(1)
    assert taken.argmax() == 2 and taken[2] == pytest.approx(sustainable_yield(COMMON), rel=1e-4) and taken[-1] == 0


def test_a_stock_below_the_least_is_gone_for_good():
    stock, taken = harvest(COMMON, jnp.float32(1.2), jnp.full(4, 0.9))
    assert stock == 0 and taken.sum() > 0
    stock, taken = harvest(COMMON, stock, jnp.full(4, 0.9))
    assert stock == 0 and not taken.any()


def test_fines_against_a_loop():
    rng = np.random.default_rng(2)
    for _ in range(5):
        effort, watches, seen = rng.random(6), rng.random(6) < 0.7, (np.arange(6) + rng.integers(1, 6, 6)) % 6
        imposed, got = impose_fines(*map(jnp.asarray, (effort, 0.4, watches, seen)))
        wanted = np.zeros((2, 6))
        for i in range(6):
            if watches[i] and effort[seen[i]] > 0.4:
                wanted[0, i] += 1
                wanted[1, seen[i]] += 1
        np.testing.assert_array_equal([imposed, got], wanted)
        assert 0 < wanted[0].sum() < 6
