"""The Q-network's replay and loss against loops, and learning against values that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxmarl_llm.tabular.q_network import Memory, Sample, double_q_loss, empty, init, learn, remember, sample, values


def test_values_are_those_of_a_layer_of_ramps():
    weights, seen = init(jax.random.key(0), 3, 8, 2), np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    w = {name: np.asarray(x, np.float64) for name, x in weights.items()}
    wanted = [np.maximum(x @ w["hidden"] + w["hidden_bias"], 0) @ w["out"] + w["out_bias"] for x in seen]
    np.testing.assert_allclose(values(weights, jnp.asarray(seen)), wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(w["hidden"]).max() <= 3**-0.5 and 0.8 * 8**-0.5 < np.abs(w["out"]).max() <= 8**-0.5


@pytest.mark.parametrize("last", [2, 11])
def test_samples_against_the_whole_history(last):
    """A ring of 6 steps, after 3 and 12 steps; every sample is found again in what happened."""
    rng, length, gamma, steps = np.random.default_rng(1), 6, 0.9, 3
    state, action = rng.permutation(40)[: 3 * 13].reshape(13, 3), rng.integers(0, 2, (12, 3))
    reward = rng.normal(size=(12, 3)).astype(np.float32)
    memory = empty(length, 3)
    for t in range(last + 1):
        memory = remember(memory, t, *map(jnp.asarray, (state[t], action[t], reward[t], state[t + 1])))
    draw = jax.jit(sample, static_argnums=(4, 5))
    given = draw(memory, last, jax.random.key(0), jnp.array([0, 2]), 200, steps, gamma)
    met = set()
    for s, a, returns, after, discount in zip(*map(np.asarray, given), strict=True):
        ((t, agent),) = np.argwhere(state == s)
        assert max(0, last - length + 1) <= t <= last and agent in (0, 2) and a == action[t, agent]
        n = steps if t + steps - 1 <= last else 1
        assert after == state[t + n, agent]
        np.testing.assert_allclose(discount, gamma**n, rtol=1e-6)
        np.testing.assert_allclose(returns, sum(gamma**k * reward[t + k, agent] for k in range(n)), rtol=1e-4)
        met.add((t, agent))
    assert len(met) == 2 * min(last + 1, length)


def test_the_loss_and_its_gradient_against_a_loop():
    rng = np.random.default_rng(2)
    q, older = rng.normal(size=(2, 5, 2))
    given = Sample(
        *(rng.integers(0, m, 20) for m in (5, 2)), 2 * rng.normal(size=20), rng.integers(0, 5, 20), np.full(20, 0.7)
    )
    loss, slope = jax.value_and_grad(double_q_loss)(*map(jnp.asarray, (q, older)), Sample(*map(jnp.asarray, given)))
    total, wanted = 0.0, np.zeros((5, 2))
    for s, a, returns, after, discount in zip(*given, strict=True):
        error = q[s, a] - (returns + discount * older[after, int(q[after].argmax())])
        total += 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
        wanted[s, a] += np.clip(error, -1, 1) / 20
    np.testing.assert_allclose(loss, total / 20, rtol=1e-5)
    np.testing.assert_allclose(slope, wanted, atol=1e-5)


def test_it_finds_the_values_of_a_small_world():
    """From 0, action 0 stays for 1 and action 1 goes to 1 for nothing; 1 is left for 5, whatever is done."""
    memory = Memory(*(jnp.asarray(x)[None] for x in ([0, 0, 1, 1], [0, 1, 0, 1], [1.0, 0.0, 5.0, 5.0], [0, 1, 0, 0])))
    seen, optimiser, everyone = jnp.eye(2), optax.adam(0.01), jnp.arange(4)
    weights = init(jax.random.key(0), 2, 16, 2)

    def step(state, key):
        weights, moments = state
        given = sample(memory, 0, key, everyone, 32, 1, 0.5)
        return learn(weights, moments, values(weights, seen), given, seen, optimiser), None

    run = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys)[0])
    weights, _ = run((weights, optimiser.init(weights)), jax.random.split(jax.random.key(1), 2000))
    first = 2.5 / 0.75  # v(0) = 0.5 v(1), v(1) = 5 + 0.5 v(0)
    np.testing.assert_allclose(values(weights, seen), [[1 + first / 2, first], [5 + first / 2] * 2], rtol=0.02)
