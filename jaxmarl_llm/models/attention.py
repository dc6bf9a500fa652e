"""Attention on caches: in their layouts, over shared prompts, and block by block over long rows.

Shapes: R rows, T tokens of a chunk, S slots, P prompts, H heads, K key-value heads, d numbers a head.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Literal

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices.lanes import any_lane

FEW = 64  # tokens
BLOCK, MANY, CHUNK = 64, 256, 8  # chunks of CHUNK tokens or more read caches of over MANY slots in blocks


def rotate(x: jax.Array, angle: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotary embedding (https://arxiv.org/abs/2104.09864) of x [R, T, heads, head_dim] by (cosine, sine).

    The two halves of a head rotate together, as in Hugging Face. With angles for less than half a head, the rest of the
    head is unchanged.
    """
    cos, sin = angle
    if (turned := 2 * cos.shape[-1]) < x.shape[-1]:
        return jnp.concatenate([rotate(x[..., :turned], angle), x[..., turned:]], -1)
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def within(mask: jax.Array, distance: jax.Array, window: int | None) -> tuple[jax.Array, jax.Array]:
    """The masks bool [R, T, S] of (full layers, sliding layers), from the distance int32 [R, T, S] of query and key."""
    return mask, mask if window is None else mask & (distance < window)


def attention(
    q: jax.Array,
    *seen: tuple[jax.Array, jax.Array, jax.Array],
    scale: float,
    fused: bool = False,
    used: jax.Array | None = None,
    bound: float | None = None,
) -> jax.Array:
    """Softmax attention of scale * q [R, T, H, d] over all parts `seen`; returns [R, T, H * d].

    A part is (k [P, K, d, S], v [P, K, S, d], mask bool [R, T, S]). If P = R, the mask may be [1, T, S] for all rows.
    The products read a cache in these layouts without a copy. Row r sees row r // (R // P) of a part, so that several
    rows read their shared prompt once, in a single product.

    With `bound` a score s becomes bound * tanh(s / bound). With `used`, int32 [], only the first `used` slots of the
    last part are seen. A long cache is then read in blocks up to there, so that a turn costs the tokens so far and not
    the longest possible row. Reading in blocks has no gradient. A single token reads the whole cache, which is faster.
    With `fused`, `jax.nn.dot_product_attention` computes chunks of more than one token.
    """
    rows, length, heads, dim = q.shape
    if fused and length > 1:
        return _fused_attention(q, *seen, scale=scale)
    *parts, (k, v, mask) = seen
    q = q.swapaxes(1, 2).reshape(rows, k.shape[1], -1, dim) * scale
    softmaxes = [_softmax(q, *part, bound) for part in parts]
    if used is None or k.shape[3] % BLOCK or k.shape[3] <= MANY or length < CHUNK:
        softmaxes.append(_softmax(q, k, v, mask, bound))
    else:
        softmaxes.append(_blocks(q, k, v, mask, used, bound))
    mixed, _, total = reduce(_join, softmaxes)
    mixed = (mixed / total[..., None]).astype(q.dtype)
    return mixed.reshape(rows, heads, length, dim).swapaxes(1, 2).reshape(rows, length, heads * dim)


Softmax = tuple[jax.Array, jax.Array, jax.Array]  # odds times v [R, K, M, d], best score, sum of odds [R, K, M]


def _softmax(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, bound: float | None) -> Softmax:
    """The unnormalised softmax of scaled queries q [R, K, M, d], with M queries of a key-value head."""
    rows = len(q)
    score = jax.lax.platform_dependent(_together(q, len(k)), k, cpu=_scores_on_cpu, default=_scores)
    score = score if bound is None else bound * jnp.tanh(score / bound)
    mask = jnp.tile(mask, (1, q.shape[2] // mask.shape[1], 1))[:, None]
    score = jnp.where(_together(mask, len(k)) if len(mask) == rows else mask, score, -1e30)
    best = jax.lax.stop_gradient(score.max(-1))
    odds = jnp.exp(score - best[..., None])
    results = _mix(odds.astype(q.dtype), v), best, odds.sum(-1)
    return tuple(_apart(x, rows) for x in results)  # type: ignore[return-value]


def _join(first: Softmax, second: Softmax) -> Softmax:
    """The softmax over the keys of both parts."""
    best = jnp.maximum(first[1], second[1])
    a, b = jnp.exp(first[1] - best), jnp.exp(second[1] - best)
    return first[0] * a[..., None] + second[0] * b[..., None], best, first[2] * a + second[2] * b


def _blocks(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, used: jax.Array, bound: float | None) -> Softmax:
    """`_softmax` block by block, up to the used slots; without a gradient."""

    def step(carry: tuple[jax.Array, Softmax]) -> tuple[jax.Array, Softmax]:
        i, total = carry
        part = partial(jax.lax.dynamic_slice_in_dim, start_index=i * BLOCK, slice_size=BLOCK)
        return i + 1, _join(total, _softmax(q, part(k, axis=3), part(v, axis=2), part(mask, axis=2), bound))

    mixed = jnp.zeros(q.shape, jnp.promote_types(q.dtype, jnp.float32))  # as `_join` returns it
    none = mixed, jnp.full(q.shape[:-1], -1e30), jnp.zeros(q.shape[:-1])
    return jax.lax.while_loop(lambda carry: any_lane(carry[0] * BLOCK < used), step, (jnp.int32(0), none))[1]


def _fused_attention(q: jax.Array, *seen: tuple[jax.Array, jax.Array, jax.Array], scale: float) -> jax.Array:
    rows, length, heads, dim = q.shape
    spread = lambda x: jnp.repeat(x, rows // len(x), 0)
    even = lambda x, *axes: jnp.pad(x, [(0, size % 2 * (i in axes)) for i, size in enumerate(x.shape)])
    k = even(jnp.concatenate([spread(k).transpose(0, 3, 1, 2) for k, _, _ in seen], 1), 1)
    v = even(jnp.concatenate([spread(v).swapaxes(1, 2) for _, v, _ in seen], 1), 1)
    mask = even(jnp.concatenate([spread(mask) for _, _, mask in seen], 2), 1, 2)[:, None]
    q = even(q, 1)  # cuDNN has no gradient for odd lengths with a mask
    kernel: Literal["xla", "cudnn"] = "cudnn" if jax.default_backend() == "gpu" else "xla"
    mixed = jax.nn.dot_product_attention(q, k, v, mask=mask, scale=scale, implementation=kernel)
    return mixed[:, :length].reshape(rows, length, heads * dim)


def _scores(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.matmul(q, k, preferred_element_type=jnp.float32)


def _scores_on_cpu(q: jax.Array, k: jax.Array) -> jax.Array:
    return q.astype(jnp.float32) @ k.astype(jnp.float32)  # XLA on a CPU has no product of bfloat16 to float32


def _mix(weights: jax.Array, v: jax.Array) -> jax.Array:
    """weights [P, K, M, S] times v [P, K, S, d]."""
    if weights.shape[2] <= FEW:
        return weights @ v
    # on a CPU XLA would fuse the softmax into this product, at half the speed
    return jax.lax.optimization_barrier(jnp.einsum("okms,oksd->okdm", weights, v)).swapaxes(2, 3)


def _together(x: jax.Array, shared: int) -> jax.Array:
    """[R, K, M, ...] as [P, K, R // P * M, ...] with P = `shared`: rows of a prompt side by side."""
    x = x.reshape(shared, -1, *x.shape[1:]).swapaxes(1, 2)
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


def _apart(x: jax.Array, rows: int) -> jax.Array:
    """The inverse of `_together`."""
    x = x.reshape(*x.shape[:2], rows // len(x), -1, *x.shape[3:]).swapaxes(1, 2)
    return x.reshape(rows, *x.shape[2:])


def cache_layout(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys and values [R, T, K, d] in the layouts of a cache: [R, K, d, T] and [R, K, T, d]."""
    return k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
