"""Counts of observations: a walk written by hand, a loop, and collisions in a small table."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import counts


def test_a_walk_written_by_hand():
    """Two episodes of places 7, 8, 9; the second one ends after three turns."""
    told = jnp.array([[7, 8, 7, 8, 7], [7, 7, 9, 0, 0]])[..., None]
    acted = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)[..., None]
    after, where = counts.arrivals(told, acted)
    assert after[..., 0].tolist() == [[8, 7, 8, 7, 0], [7, 9, 0, 0, 0]]
    assert where[..., 0].tolist() == [[True, True, True, True, False], [True, True, False, False, False]]
    assert counts.within_episode(after, where)[..., 0].tolist() == [[1, 1, 2, 2, 0], [1, 1, 0, 0, 0]]
    table = counts.empty(16).add(after, where)
    assert table.visits_to(jnp.array([7, 8, 9, 10])).tolist() == [3, 2, 1, 0]
    again = table.add(told, acted)
    assert again.visits_to(jnp.array([7, 8, 9, 10])).tolist() == [8, 4, 2, 0] and again.collisions == 0


@pytest.mark.parametrize("size", [8, 4096])
def test_against_a_loop_with_collisions(size):
    rng = np.random.default_rng(0)
    choice = rng.integers(-(2**31), 2**31, 40)
    add = jax.jit(lambda table, names, where: table.add(names, where))
    table, visits, owner, foreign = counts.empty(size), Counter(), {}, 0
    for _ in range(4):
        names, where = rng.choice(choice, (5, 6, 2)), rng.random((5, 6, 2)) < 0.7
        for slot in {int(x) % 2**32 % size for x in names[where]} - set(owner):
            owner[slot] = max(int(x) for x in names[where] if int(x) % 2**32 % size == slot)
        for x in names[where].tolist():
            visits[x % 2**32 % size] += 1
            foreign += owner[x % 2**32 % size] != x
        table = add(table, jnp.asarray(names, jnp.int32), jnp.asarray(where))
    np.testing.assert_array_equal(table.visits, [visits[slot] for slot in range(size)])
    assert {slot: int(table.name[slot]) for slot in owner} == owner
    assert table.collisions == foreign and (foreign > 0) == (size == 8)


def test_within_an_episode_against_a_loop():
    rng = np.random.default_rng(1)
    names, where = rng.integers(0, 3, (4, 7, 2)), rng.random((4, 7, 2)) < 0.8
    wanted = np.zeros(names.shape, int)
    for b, t, a in np.argwhere(where):
        wanted[b, t, a] = sum(where[b, s, a] and names[b, s, a] == names[b, t, a] for s in range(t + 1))
    np.testing.assert_array_equal(jax.jit(counts.within_episode)(jnp.asarray(names), jnp.asarray(where)), wanted)


def test_a_table_has_a_slot():
    with pytest.raises(ValueError, match="at least one slot"):
        counts.empty(0)
