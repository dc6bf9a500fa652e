from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl.masked import (
    Mean,
    keep,
    mean_of,
    mean_per_row,
    mean_per_turn,
    segment_count,
    segment_mean,
    segment_variance,
    sum_per_row,
    utterance_of,
)


def ragged(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(6, 9)).astype(np.float32), generator.random((6, 9)) < 0.6


def test_means_of_parts_add_up_to_the_mean_of_the_whole():
    x, where = ragged(0)
    parts = [mean_of(jnp.asarray(x[i : i + 2]), jnp.asarray(where[i : i + 2])) for i in (0, 2, 4)]
    total = parts[0] + parts[1] + parts[2]
    assert isinstance(total, Mean)
    np.testing.assert_allclose(total.value, x[where].mean(), atol=1e-6)
    assert total.count == where.sum()


def test_nothing_has_mean_zero():
    assert mean_of(jnp.full((3,), jnp.nan), jnp.zeros(3, bool)).value == 0


def test_a_mean_is_float32_at_least():
    assert mean_of(jnp.ones(3, jnp.bfloat16), jnp.ones(3, bool)).sum.dtype == jnp.float32
    assert mean_of(jnp.array([True, False]), jnp.ones(2, bool)).value == 0.5


def test_masked_entries_leak_into_neither_value_nor_gradient():
    x = jnp.array([1.0, jnp.nan, jnp.inf, -2.0])
    where = jnp.array([True, False, False, True])
    loss = lambda x: mean_of(jnp.exp(keep(x, where) ** 2), where).value
    value, gradient = jax.value_and_grad(loss)(x)
    np.testing.assert_allclose(value, (np.e + np.exp(4.0)) / 2, rtol=1e-6)
    np.testing.assert_allclose(gradient, [np.e, 0, 0, -2 * np.exp(4.0)], rtol=1e-6)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 1\)"):
        mean_of(jnp.ones((3, 4)), jnp.ones((3, 1), bool))


@partial(jax.jit, static_argnums=2)
def of_segments(x, key, num_segments, where):
    arguments = x, key, num_segments, where
    return segment_count(*arguments[1:]), segment_mean(*arguments), segment_variance(*arguments)


@pytest.mark.parametrize("seed", range(3))
def test_segment_statistics_equal_a_loop(seed: int):
    x, where = ragged(seed)
    key = np.random.default_rng(seed + 10).integers(0, 8, x.shape)
    x[~where] = np.nan
    arguments = jnp.asarray(x), jnp.asarray(key), 9, jnp.asarray(where)
    count, mean, variance = of_segments(*arguments)
    for k in range(9):  # nothing lies under key 8
        entries = x[where & (key == k)]
        assert count[k] == len(entries)
        np.testing.assert_allclose(mean[k], entries.mean() if len(entries) else 0, atol=1e-6)
        np.testing.assert_allclose(variance[k], entries.var() if len(entries) else 0, atol=1e-6)


@pytest.mark.parametrize("value", [0.1, -0.7, 1e-3, 123.4])
def test_equal_entries_have_exactly_that_mean_and_no_variance(value: float):
    x, key, where = jnp.full(7, value), jnp.zeros(7, int), jnp.ones(7, bool)
    _, mean, variance = of_segments(x, key, 1, where)
    assert mean[0] == x[0] and variance[0] == 0


def test_gradient_of_a_segment_mean_is_one_over_the_count():
    x, key = jnp.array([3.0, 1.0, jnp.nan, 5.0]), jnp.array([0, 0, 0, 1])
    where = jnp.array([True, True, False, True])
    gradient = jax.jit(jax.grad(lambda x: segment_mean(x, key, 3, where)[0]))(x)
    np.testing.assert_allclose(gradient, [0.5, 0.5, 0, 0])


def utterances(turn: np.ndarray, where: np.ndarray) -> list[list[tuple[int, int]]]:
    """The places of the tokens that count, utterance by utterance."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row, column in zip(*np.nonzero(where), strict=True):
        found.setdefault((row, turn[row, column]), []).append((row, column))
    return list(found.values())


def loop(name: str, x: np.ndarray, where: np.ndarray, turn: np.ndarray) -> float:
    rows = [x[r][where[r]] for r in range(len(x)) if where[r].any()]
    return {
        "tokens": lambda: x[where].mean(),
        "rows": lambda: np.mean([row.mean() for row in rows]),
        "sums": lambda: np.mean([row.sum() for row in rows]),
        "length": lambda: np.mean([row.sum() for row in rows]) / 30,
        "turns": lambda: np.mean([np.mean([x[i] for i in places]) for places in utterances(turn, where)]),
    }[name]()


AGGREGATES = {
    "tokens": lambda x, where, turn: mean_of(x, where),
    "rows": lambda x, where, turn: mean_per_row(x, where),
    "sums": lambda x, where, turn: sum_per_row(x, where),
    "length": lambda x, where, turn: sum_per_row(x, where, length=30),
    "turns": lambda x, where, turn: mean_per_turn(x, where, turn=turn),
}


def talk(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ragged rows, one of them empty, with turns that skip numbers and occur in many rows."""
    x, where = ragged(seed)
    where[seed % 6] = False
    generator = np.random.default_rng(seed + 20)
    turn = np.cumsum((generator.random(x.shape) < 0.4) * generator.integers(1, 4, x.shape), axis=1)
    return x, where, turn


@pytest.mark.parametrize("name", AGGREGATES)
@pytest.mark.parametrize("seed", range(3))
def test_aggregations_equal_a_loop_with_or_without_jit_and_parts_add_up(name: str, seed: int):
    x, where, turn = talk(seed)
    whole = AGGREGATES[name](*map(jnp.asarray, (np.where(where, x, np.nan), where, turn)))
    expected = loop(name, x.astype(float), where, turn)
    np.testing.assert_allclose(whole.value, expected, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(AGGREGATES[name])(x, where, turn).value, expected, rtol=1e-5)
    parts = [AGGREGATES[name](*(jnp.asarray(a[rows]) for a in (x, where, turn))) for rows in np.split(np.arange(6), 3)]
    np.testing.assert_allclose((parts[0] + parts[1] + parts[2]).value, expected, rtol=1e-5)


@pytest.mark.parametrize("name", AGGREGATES)
def test_the_gradient_of_an_aggregation_is_each_entrys_share_and_zero_for_what_is_masked(name: str):
    x, where, turn = talk(7)
    gradient = jax.jit(jax.grad(lambda x: AGGREGATES[name](x, where, turn).value))(jnp.where(where, x, jnp.inf))
    one = lambda i: np.eye(1, x.size, i).reshape(x.shape)
    np.testing.assert_allclose(gradient.ravel(), [loop(name, one(i), where, turn) for i in range(x.size)], rtol=1e-5)


def test_aggregations_of_nothing_are_zero():
    nothing = jnp.zeros((2, 3), bool)
    values = lambda x, where, turn: [aggregate(x, where, turn).value for aggregate in AGGREGATES.values()]
    assert jax.jit(values)(jnp.full((2, 3), jnp.nan), nothing, jnp.zeros((2, 3), int)) == [0] * len(AGGREGATES)


def test_an_utterance_is_one_turn_of_one_row():
    key = utterance_of(jnp.array([[0, 0, 2, 2], [2, 2, 2, 5], [0, 1, 2, 3]]))
    np.testing.assert_array_equal(key, [[0, 0, 1, 1], [4, 4, 4, 5], [8, 9, 10, 11]])
