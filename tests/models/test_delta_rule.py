"""The gated delta rule and its convolution, against loops and against transformers' own functions."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models.delta_rule import CHUNK, FEW, convolve, gated_delta_rule
from jaxmarl_llm.planning.layer_numbers import rule_numbers
from tests.support.families import close

rule, convolution = jax.jit(gated_delta_rule), jax.jit(convolve)


def inputs(length: int, keys: int = 2, values: int = 4, rows: int = 3, seed: int = 0) -> tuple[jax.Array, ...]:
    """q, k, v, g, beta and a state, with decays that reach from almost none to almost all."""
    random = np.random.default_rng(seed)
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    q, k, v = normal(rows, length, keys, 6), normal(rows, length, keys, 6), normal(rows, length, values, 5)
    g = -np.exp(2 * normal(rows, length, values))
    beta = 1 / (1 + np.exp(-normal(rows, length, values)))
    return tuple(map(jnp.asarray, (q, k, v, g, beta, normal(rows, values, 6, 5))))


def loop(q, k, v, g, beta, state):
    q, k, v, g, beta, state = (np.array(x, np.float64) for x in (q, k, v, g, beta, state))
    shared, out = v.shape[2] // k.shape[2], np.zeros(v.shape)
    for r, t, h in np.ndindex(v.shape[:3]):
        query, key = q[r, t, h // shared], k[r, t, h // shared]
        query = query / np.sqrt((query**2).sum() + 1e-6) / np.sqrt(len(query))
        key = key / np.sqrt((key**2).sum() + 1e-6)
        state[r, h] *= np.exp(g[r, t, h])
        state[r, h] += np.outer(key, beta[r, t, h] * (v[r, t, h] - key @ state[r, h]))
        out[r, t, h] = query @ state[r, h]
    return out, state


@pytest.mark.parametrize(
    ("length", "keys", "values"), [(1, 2, 4), (FEW, 1, 1), (FEW + 1, 2, 4), (CHUNK, 4, 4), (2 * CHUNK + 3, 1, 3)]
)
def test_the_rule_equals_a_loop_over_tokens(length, keys, values):
    given = inputs(length, keys, values, rows=2, seed=length)
    close(rule(*given), loop(*given), 5e-5)


@pytest.mark.parametrize("length", [3, 80])
def test_parity_of_values_and_gradients_with_transformers_functions(length):
    torch = pytest.importorskip("torch")
    from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

    given, random = inputs(length, seed=length), np.random.default_rng(1)
    mix, mix_state = (jnp.asarray(random.normal(size=x.shape), jnp.float32) for x in (given[2], given[5]))

    def loss(*given):
        out, state = gated_delta_rule(*given)
        return (out * mix).sum() + (state * mix_state).sum(), (out, state)

    (_, ours), gradient = jax.jit(jax.value_and_grad(loss, range(6), has_aux=True))(*given)
    for function in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        q, k, v, g, beta, state = (torch.tensor(np.array(x), requires_grad=True) for x in given)
        settings = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
        found = function(q, k, v, g=g, beta=beta, **settings)
        (sum((x * torch.tensor(np.array(m))).sum() for x, m in zip(found, (mix, mix_state), strict=True))).backward()
        close(ours, [x.detach().numpy() for x in found], 2e-5)
        close(list(gradient), [x.grad.numpy() for x in (q, k, v, g, beta, state)], 1e-4)


@pytest.mark.parametrize("length", [5, 20])
def test_tokens_without_decay_and_step_change_no_bit_of_the_state(length):
    q, k, v, g, beta, state = inputs(length)
    _, after = rule(q, k, v, jnp.zeros_like(g), jnp.zeros_like(beta), state)
    np.testing.assert_array_equal(after, state)


@pytest.mark.parametrize("cut", [1, 7, CHUNK + 2])
def test_two_parts_of_a_row_equal_the_row(cut):
    *tokens, state = inputs(CHUNK + 20)
    expected = rule(*tokens, state)
    first, between = rule(*(x[:, :cut] for x in tokens), state)
    second, after = rule(*(x[:, cut:] for x in tokens), between)
    close((jnp.concatenate([first, second], 1), after), expected, 5e-5)


def test_the_strongest_decay_and_repeated_keys_stay_finite():
    q, k, v, g, beta, state = inputs(CHUNK + 9)
    given = q, jnp.broadcast_to(k[:, :1], k.shape), v, g * 1e4, jnp.ones_like(beta), state
    value, gradient = jax.jit(jax.value_and_grad(lambda *x: (gated_delta_rule(*x)[0] ** 2).sum(), range(6)))(*given)
    assert all(np.isfinite(x).all() for x in (value, *gradient))


def test_the_convolution_equals_a_loop_and_goes_on_from_its_last_inputs():
    random, taps = np.random.default_rng(2), 4
    x, weight = random.normal(size=(3, 9, 5)).astype(np.float32), random.normal(size=(5, taps)).astype(np.float32)
    n = np.array([0, 2, 6])
    before = np.zeros((3, taps - 1, 5), np.float32)
    first, recent = convolution(jnp.asarray(x[:, :6]), jnp.asarray(weight), jnp.asarray(before), jnp.asarray(n))
    for r in range(3):
        text = np.concatenate([before[r], x[r, : n[r]], x[r, 6:]])
        expected = np.stack([(text[t : t + taps] * weight.T).sum(0) for t in range(len(text) - taps + 1)])
        second, last = convolution(jnp.asarray(x[r : r + 1, 6:]), jnp.asarray(weight), recent[r : r + 1])
        close(np.concatenate([first[r, : n[r]], second[0]]), expected)
        np.testing.assert_array_equal(last[0], text[-taps + 1 :])


def test_the_plan_counts_what_a_gradient_keeps():
    """The arrays of all tokens and of one chunk; with the products of all chunks they would be twice as many."""
    rows, length, heads, size = 2, 512, 4, 64
    leaf = lambda *shape: jax.ShapeDtypeStruct((rows, *shape), jnp.float32)
    row, gate = leaf(length, heads, size), leaf(length, heads)

    def number(*given):
        out, _ = gated_delta_rule(*given)
        return (out**2).sum()

    gradient = jax.jit(jax.grad(number, (0, 1, 2, 3, 4))).lower(row, row, row, gate, gate, leaf(heads, size, size))
    numbers = gradient.compile().memory_analysis().temp_size_in_bytes / 4 / rows
    config = SimpleNamespace(linear_num_value_heads=heads, linear_key_head_dim=size, linear_value_head_dim=size)
    assert 0.85 < numbers / rule_numbers(config, length, gradient=True) < 1.45
