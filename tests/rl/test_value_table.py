"""The value table against dicts of lists, and its error at two known ends."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import value_table

B, T, A, S = 5, 4, 2, 3


def batch(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, S, (B, T, A)), rng.normal(size=(B, T, A)).astype(np.float32), rng.random((B, T, A)) < 0.7


def test_values_are_means_drawn_by_one_game_to_the_mean_of_the_step():
    table, seen = value_table.empty(T, S), []
    for seed in range(3):
        situation, returns, where = batch(seed)
        said = table.values(situation)
        for b, t, a in np.ndindex(B, T, A):
            step = [(weight, x) for weight, at, s, x in seen if at == t]
            own = [(weight, x) for weight, at, s, x in seen if (at, s) == (t, situation[b, t, a])]
            mean = sum(weight * x for weight, x in step) / max(sum(weight for weight, _ in step), 1)
            want = (sum(weight * x for weight, x in own) + mean) / (sum(weight for weight, _ in own) + 1)
            assert float(said[b, t, a]) == pytest.approx(want, abs=1e-5)
        table = table.add(situation, jnp.asarray(returns), jnp.asarray(where), 0.5)
        seen = [(0.5 * weight, *rest) for weight, *rest in seen]
        seen += [(1.0, i[1], situation[i], float(returns[i])) for i in np.ndindex(B, T, A) if where[i]]


def test_return_to_go_includes_rewards_between_steps():
    reward = jnp.array([[1.0, 2.0, 4.0, 8.0]])[..., None]
    where = jnp.array([[True, False, True, False]])[..., None]
    np.testing.assert_array_equal(value_table.to_go(reward, where)[0, :, 0], [15, 0, 12, 0])


def test_unexplained_variance_is_0_for_the_returns_and_all_for_their_mean():
    _, returns, where = batch(0)
    returns = np.where(where, returns, np.nan)
    variance = where.sum() * np.nanvar(returns)
    for value, want in ((returns, 0), (np.full_like(returns, np.nanmean(returns)), variance), (0 * returns, None)):
        off, all_of_it = value_table.unexplained_variance(jnp.asarray(value), jnp.asarray(returns), jnp.asarray(where))
        assert float(off) == pytest.approx(np.nansum(returns**2) if want is None else want, rel=1e-4, abs=1e-4)
        assert float(all_of_it) == pytest.approx(variance, rel=1e-4)
