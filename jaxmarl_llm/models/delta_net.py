"""The mixing of tokens in a layer with linear_attention, a gated delta net, and what it remembers of a row.

Shapes: R rows, T tokens of a chunk, C numbers of queries, keys and values together, H value heads, d numbers of a key,
e of a value.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.models.config import ACTIVATIONS, Config
from jaxmarl_llm.models.delta_rule import convolve, gated_delta_rule

Memory = tuple[jax.Array, jax.Array]
"""The last inputs of a layer's convolution [R, taps - 1, C], and its states [R, H, d, e]."""


def no_memory(config: Config, rows: int) -> Memory:
    """The memory of a layer before the first token."""
    keys, values = config.linear_key_head_dim, config.linear_value_head_dim
    recent = jnp.zeros((rows, config.linear_conv_kernel_dim - 1, config.linear_widths[0]), config.dtypes.compute)
    return recent, jnp.zeros((rows, config.linear_num_value_heads, keys, values))


def mix(
    config: Config,
    layer: dict,
    inputs: tuple[jax.Array, ...],
    memory: Memory,
    n: jax.Array | None = None,
) -> tuple[jax.Array, Memory]:
    """The mixing of tokens in a gated delta net: (outputs [R, T, H * e], the memory after the first n[r] tokens).

    The inputs (qkv [R, T, C], b [R, T, H], a [R, T, H]) are projections of the tokens. Without n, int32 [R], all tokens
    count.
    """
    qkv, b, a = inputs
    (rows, length), keys = qkv.shape[:2], config.linear_num_key_heads * config.linear_key_head_dim
    recent, state = memory
    mixed, recent = convolve(qkv, layer["conv1d"][:, 0], recent, n)
    q, k, v = jnp.split(ACTIVATIONS[config.hidden_act](mixed), [keys, 2 * keys], -1)
    wide = lambda name: layer[name].astype(jnp.float32)[None, None]
    g = -jnp.exp(wide("A_log")) * jax.nn.softplus(a.astype(jnp.float32) + wide("dt"))
    beta = jax.nn.sigmoid(b.astype(jnp.float32))
    if n is not None:
        counts = (jnp.arange(length)[None] < n[:, None])[:, :, None]
        g, beta = jnp.where(counts, g, 0), jnp.where(counts, beta, 0)
    heads = lambda x, size: x.reshape(rows, length, -1, size)
    q, k = (heads(x, config.linear_key_head_dim) for x in (q, k))
    mixed, state = gated_delta_rule(q, k, heads(v, config.linear_value_head_dim), g, beta, state)
    return mixed.astype(qkv.dtype).reshape(rows, length, -1), (recent, state)
