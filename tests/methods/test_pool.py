"""A pool of earlier items: a ring in a loop, what is drawn, when it is cleared."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.methods import pool


def test_a_ring_against_a_loop():
    rng, kept, written, slot = np.random.default_rng(0), 7, {}, 0
    state = pool.empty({"a": jnp.int32(0), "b": jnp.zeros(2)}, kept)
    for call in range(1, 13):
        a, good = rng.integers(0, 100, 5).astype(np.int32), rng.random(5) < 0.6
        score = rng.random(5).astype(np.float32)
        items = {"a": jnp.asarray(a), "b": jnp.stack([a, -a], 1).astype(jnp.float32)}
        state = jax.jit(pool.put, static_argnums=4)(state, items, jnp.asarray(score), jnp.asarray(good), 5)
        if call % 5 == 0:
            written = {}
        for value, s in zip(a[good], score[good], strict=True):
            written[slot] = (int(value), float(s))
            slot = (slot + 1) % kept
        filled = np.asarray(state.filled)
        assert set(np.flatnonzero(filled)) == set(written)
        for i, (value, s) in written.items():
            assert (state.items["a"][i], state.score[i]) == (value, np.float32(s))
            np.testing.assert_array_equal(state.items["b"][i], [value, -value])


def test_only_what_is_there_and_was_not_too_easy_is_drawn():
    state = pool.empty(jnp.int32(0), 8)
    items, found = pool.draw_items(state, jax.random.key(0), 5)
    assert not found.any() and items.shape == (5,)
    good = jnp.array([True, False, True, True])
    state = pool.put(state, jnp.array([10, 11, 12, 13]), jnp.array([0.2, 0.0, 1.0, 0.5]), good)
    items, found = pool.draw_items(state, jax.random.key(1), 300)
    assert found.all() and set(np.asarray(items)) == {10, 12, 13}
    items, found = pool.draw_items(state, jax.random.key(1), 300, at_most=0.5)
    assert found.all() and set(np.asarray(items)) == {10, 13}
    assert np.abs((np.asarray(items) == 10).mean() - 0.5) < 0.1
    assert not pool.draw_items(state, jax.random.key(1), 3, at_most=0.1)[1].any()


def test_sizes_that_cannot_work():
    with pytest.raises(ValueError, match="at least one item"):
        pool.empty(jnp.int32(0), 0)
    with pytest.raises(ValueError, match="cannot take 3"):
        pool.put(pool.empty(jnp.int32(0), 2), jnp.zeros(3, jnp.int32), jnp.zeros(3), jnp.ones(3, bool))
