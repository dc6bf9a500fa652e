"""The gated delta rule, a linear attention whose state has a fixed size, and the causal convolution before it.

For every head the state S [d, e] maps keys to values. A token decays it and corrects its value at the token's key:

    S_t = exp(g_t) S_(t-1) + k_t (beta_t (v_t - k_t^T exp(g_t) S_(t-1)))^T,  o_t = S_t^T q_t

A token with g = 0 and beta = 0 changes nothing. Everything is computed in float32.
Shapes: R rows, T tokens, H value heads, K key heads, d numbers of a key, e of a value, C channels, W taps.

Yang et al., Gated Delta Networks (2024), https://arxiv.org/abs/2412.06464. Chunks: Yang et al., Parallelizing Linear
Transformers with the Delta Rule (2024), https://arxiv.org/abs/2406.06484.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

FEW = 8  # up to so many tokens are computed one after the other
CHUNK = 64  # more tokens are computed in chunks of at most so many
EXACT = jax.lax.Precision.HIGHEST  # products of float32 on accelerators


def gated_delta_rule(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(outputs [R, T, H, e], the state after the last token [R, H, d, e]), both float32.

    q and k are [R, T, K, d], v is [R, T, H, e], g and beta are [R, T, H], the state before is [R, H, d, e]. Key head i
    serves the H / K consecutive value heads from i H / K on. Queries and keys are normalised here, and queries are
    divided by sqrt(d).
    """
    shared = v.shape[2] // k.shape[2]
    q, k, v, g, beta, state = (x.astype(jnp.float32) for x in (q, k, v, g, beta, state))
    q, k = (jnp.repeat(_to_unit(x), shared, 2) for x in (q, k))
    q = q * q.shape[-1] ** -0.5
    return (_by_token if q.shape[1] <= FEW else _by_chunk)(q, k, v, g, beta, state)


def convolve(
    x: jax.Array, weight: jax.Array, recent: jax.Array, n: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """(y [R, T, C] float32, the last W - 1 inputs [R, W - 1, C]) of a causal convolution with a filter per channel.

        y_t = sum over w of weight[:, w] x_(t - (W - 1) + w)

    The inputs before x [R, T, C] are `recent` [R, W - 1, C]; weight is [C, W]. With n int32 [R] only the first n[r]
    tokens of row r count as inputs for what follows.
    """
    taps, length = weight.shape[1], x.shape[1]
    wide = jnp.concatenate([recent.astype(x.dtype), x], 1)
    shifted = (wide[:, w : w + length].astype(jnp.float32) * weight[None, None, :, w] for w in range(taps))
    last = length if n is None else n[:, None]
    at = jnp.broadcast_to(last + jnp.arange(taps - 1)[None], (len(x), taps - 1))
    return sum(shifted), jnp.take_along_axis(wide, at[:, :, None], 1).astype(recent.dtype)  # type: ignore[return-value]


def _to_unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def _by_token(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def step(state: jax.Array, token: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, g, beta = token  # [R, H, ...]
        state = state * jnp.exp(g)[..., None, None]
        change = (v - (state * k[..., None]).sum(-2)) * beta[..., None]
        state = state + k[..., None] * change[..., None, :]
        return state, (state * q[..., None]).sum(-2)

    if q.shape[1] == 1:
        state, out = step(state, (q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0]))
        return out[:, None], state
    state, out = jax.lax.scan(step, state, tuple(x.swapaxes(0, 1) for x in (q, k, v, g, beta)))
    return out.swapaxes(0, 1), state


def _by_chunk(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The same, with the tokens of a chunk in products of matrices.

    The corrections of a chunk solve a triangular system. Chunks follow each other. The backward pass computes a chunk
    again from its tokens and the state before it: of all products of its tokens, none is kept.
    """
    rows, length, heads, _ = q.shape
    size = min(CHUNK, length)
    place = jnp.arange(size)
    earlier = (place[:, None] >= place[None])[None, None]
    product = lambda *x: jnp.matmul(*x, precision=EXACT)

    def chunks(x: jax.Array) -> jax.Array:
        """[R, T, H, ...] as [N, R, H, C, ...]; tokens that are added change nothing."""
        x = jnp.pad(x, ((0, 0), (0, -length % size), *((0, 0),) * (x.ndim - 2)))
        x = x.reshape(rows, -1, size, heads, *x.shape[3:])
        return jnp.moveaxis(x, (1, 3), (0, 2))

    @jax.checkpoint
    def step(state: jax.Array, chunk: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, g, beta = chunk  # [R, H, C, ...]
        decay = g.cumsum(-1)  # since the beginning of the chunk
        between = jnp.exp(jnp.where(earlier, decay[..., :, None] - decay[..., None, :], -jnp.inf))
        since, until, whole = (jnp.exp(x)[..., None] for x in (decay, decay[..., -1:] - decay, decay[..., -1:]))
        weighted, transposed = k * beta[..., None], k.swapaxes(-1, -2)
        known = v * beta[..., None] - product(weighted * since, state)
        system = product(weighted, transposed) * between
        values = jax.lax.linalg.triangular_solve(system, known, left_side=True, lower=True, unit_diagonal=True)
        out = product(q * since, state) + product(product(q, transposed) * between, values)
        return state * whole + product((k * until).swapaxes(-1, -2), values), out

    state, out = jax.lax.scan(step, state, tuple(map(chunks, (q, k, v, g, beta))))
    out = jnp.moveaxis(out, (0, 2), (1, 3)).reshape(rows, -1, heads, v.shape[-1])
    return out[:, :length], state
