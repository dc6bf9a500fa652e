"""Q-learning against a loop and against the values that it has to find."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.tabular.q_learning import boltzmann, q_learning


def test_many_transitions_at_once_against_a_loop():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(5, 3)).astype(np.float32)
    state, action, after = rng.integers(0, 5, 20), rng.integers(0, 3, 20), rng.integers(0, 5, 20)
    reward = rng.normal(size=20).astype(np.float32)
    learn = jax.jit(partial(q_learning, rate=0.3, discount=0.8))
    found = learn(*map(jnp.asarray, (table, state, action, reward, after)))
    wanted = table.copy()
    for s in range(5):
        for a in range(3):
            met = [reward[i] + 0.8 * max(table[after[i]]) for i in range(20) if (state[i], action[i]) == (s, a)]
            if met:
                wanted[s, a] = 0.7 * table[s, a] + 0.3 * sum(met) / len(met)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert (np.asarray(found) == table).any()  # some cell was not met


def test_it_finds_the_values_of_a_small_world():
    """From 0, action 0 stays for 1 and action 1 goes to 1 for nothing; 1 is left for 5, whatever is done."""
    state, action = jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 0, 1])
    reward, after = jnp.array([1.0, 0.0, 5.0, 5.0]), jnp.array([0, 1, 0, 0])
    learn = partial(q_learning, rate=0.5, discount=0.5)
    step = lambda table, _: (learn(table, state, action, reward, after), None)
    table, _ = jax.lax.scan(step, jnp.zeros((2, 2)), None, length=200)
    first = 2.5 / 0.75  # v(0) = 0.5 v(1), v(1) = 5 + 0.5 v(0)
    np.testing.assert_allclose(table, [[1 + first / 2, first], [5 + first / 2] * 2], rtol=1e-5)


def test_a_boltzmann_player():
    q = jnp.array([1.0, 3.0])
    ratio = np.diff(np.asarray(boltzmann(q, 0.5)))
    np.testing.assert_allclose(ratio, 4.0, rtol=1e-6)
    np.testing.assert_allclose(np.exp(boltzmann(q, 0.5)).sum(), 1, rtol=1e-6)
