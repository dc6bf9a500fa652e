"""The decoder as pure functions: a canonical tree of weights, a full forward for updates, a cached append for rollouts.

Shapes: R rows, T tokens of a chunk, S tokens of a row, O openings, D width, H heads, K key-value heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.adapters import Adapters, merge

FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


Remat = Literal["none", "dots", "full"]
REMAT: dict[str, Callable] = {  # what the backward pass of a layer computes again
    "none": lambda layer: layer,
    "dots": partial(
        jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),  # all but products
    "full": jax.checkpoint,
}


@dataclass(frozen=True)
class Dtypes:
    """Where the numbers live: stored weights, products, keys and values. Logits are always float32."""

    parameters: str = "float32"
    compute: str = "float32"
    cache: str = "float32"


@dataclass(frozen=True)
class Config:
    """A decoder of the Llama family, in the words of Hugging Face's config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    dtypes: Dtypes = field(default_factory=Dtypes)

    def __post_init__(self):
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of num_key_value_heads "
                f"({self.num_key_value_heads}) and head_dim ({self.head_dim}) even."
            )


class Cache(struct.PyTreeNode):
    """Keys and values of every row, one array a layer: stacked layers would be copied whole at every token."""

    keys: tuple[jax.Array, ...]  # L x [R, slots, K, head_dim], rotated
    values: tuple[jax.Array, ...]  # L x [R, slots, K, head_dim]
    length: jax.Array  # int32 [R]; slots at or past it hold garbage and are never read


class Openings(struct.PyTreeNode):
    """Texts that several rows start with; rows r * G ... r * G + G - 1 continue opening r, G = R // O."""

    tokens: jax.Array  # int32 [O, So], right-padded
    length: jax.Array  # int32 [O]


def shapes(config: Config) -> dict:
    """The canonical tree with the shape of every leaf: Hugging Face's names, [out, in], layers stacked in front."""
    layers, width, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    tree = {
        "embed_tokens": (config.vocab_size, width),
        "layers": {
            "input_layernorm": (layers, width),
            "q_proj": (layers, queries, width),
            "k_proj": (layers, keys, width),
            "v_proj": (layers, keys, width),
            "o_proj": (layers, width, queries),
            "post_attention_layernorm": (layers, width),
            "gate_proj": (layers, inner, width),
            "up_proj": (layers, inner, width),
            "down_proj": (layers, width, inner),
        },
        "norm": (width,),
    }
    return tree if config.tie_word_embeddings else {**tree, "lm_head": (config.vocab_size, width)}


def init(config: Config, key: jax.Array) -> dict:
    """Random weights: norms one, matrices normal with standard deviation 1/sqrt(in), embeddings 0.02 as in GPT-2."""
    leaves, treedef = jax.tree.flatten_with_path(shapes(config), is_leaf=lambda x: isinstance(x, tuple))
    dtype = config.dtypes.parameters

    def leaf(index, path, shape):
        name = path[-1].key
        if "norm" in name:
            return jnp.ones(shape, dtype)
        std = 0.02 if name in ("embed_tokens", "lm_head") else shape[-1] ** -0.5
        return std * jax.random.normal(jax.random.fold_in(key, index), shape, dtype)

    return jax.tree.unflatten(treedef, [leaf(i, path, shape) for i, (path, shape) in enumerate(leaves)])


def logits(params: dict, hidden: jax.Array) -> jax.Array:
    """Next-token logits float32 [..., V] of final hidden states [..., D]."""
    head = params.get("lm_head", params["embed_tokens"])
    return jnp.einsum("...d,vd->...v", hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return y.astype(x.dtype) * jnp.expand_dims(weight, tuple(range(x.ndim - 1))).astype(x.dtype)


def rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary embedding of x [R, T, heads, head_dim] at positions int32 [R, T]; halves rotate together (as in HF)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, :, None, None].astype(jnp.float32) * frequency[None, None, None, :]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention of q [R, T, H, d] over k, v [R, S, K, d] where mask bool [R, T, S]; returns [R, T, H * d]."""
    rows, length, heads, dim = q.shape
    q = q.reshape(rows, length, k.shape[2], heads // k.shape[2], dim)
    scores = jnp.einsum("rtkgd,rskd->rkgts", q, k, preferred_element_type=jnp.float32) * dim**-0.5
    scores = jnp.where(mask[:, None, None], scores, -1e30)
    weights = jax.nn.softmax(scores, -1).astype(v.dtype)
    return jnp.einsum("rkgts,rskd->rtkgd", weights, v).reshape(rows, length, heads * dim)


def _parts(adapters: Adapters | None) -> tuple[dict, jax.Array]:
    """The adapters' layers and the policy int32 [K] of each rank, both empty without adapters."""
    if adapters is None:
        return {}, jnp.zeros((0,), jnp.int32)
    return adapters.layers, jnp.asarray(adapters.owner, jnp.int32)


def fuse(layer: dict, adapters: dict, owner: jax.Array) -> dict:
    """One layer's weights with the maps that share an input joined: {name: {"w", "a", "b", "owner"}} and the norms.

    The b of joined maps is block-diagonal, so that an adapter on q, k and v is one pair of products, not three.
    """
    fused = {name: layer[name] for name in ("input_layernorm", "post_attention_layernorm")}
    for group, names in FUSED.items():
        fused[group] = {"w": jnp.concatenate([layer[name] for name in names]) if len(names) > 1 else layer[names[0]]}
        adapted = [name for name in names if name in adapters]
        if adapted:
            rank, blocks = len(owner), []
            for name in names:
                if name in adapters:
                    before = adapted.index(name)
                    columns = (rank * before, rank * (len(adapted) - 1 - before))
                    blocks.append(jnp.pad(adapters[name]["b"], ((0, 0), columns)))
                else:
                    blocks.append(jnp.zeros((layer[name].shape[0], rank * len(adapted))))
            fused[group]["a"] = jnp.concatenate([adapters[name]["a"] for name in adapted])
            fused[group]["b"] = jnp.concatenate(blocks)
            fused[group]["owner"] = jnp.tile(owner, len(adapted))
    return fused


def linear(x: jax.Array, weight: dict, policy: jax.Array | None) -> jax.Array:
    """y [R, T, out] = W x + B A x for x [R, T, in], the ranks of other policies than the row's own masked out."""
    y = jnp.einsum("rti,oi->rto", x, weight["w"].astype(x.dtype))
    if "a" in weight:
        low = jnp.einsum("rti,ki->rtk", x, weight["a"].astype(x.dtype))
        if policy is not None:
            low = jnp.where((policy[:, None] == weight["owner"][None, :])[:, None, :], low, 0)
        y = y + jnp.einsum("rtk,ok->rto", low, weight["b"].astype(x.dtype))
    return y


def block(config: Config, layer: dict, x: jax.Array, positions: jax.Array, policy: jax.Array | None, attend):
    """One decoder layer on x [R, T, D]; `attend(q, k, v) -> ([R, T, H * head_dim], kept)` owns the keys and values."""
    rows, length, _ = x.shape
    heads, kv, dim, eps = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.rms_norm_eps
    qkv = linear(rms_norm(x, layer["input_layernorm"], eps), layer["qkv"], policy)
    q, k, v = (part.reshape(rows, length, -1, dim) for part in jnp.split(qkv, [heads * dim, (heads + kv) * dim], -1))
    attended, kept = attend(rotate(q, positions, config.rope_theta), rotate(k, positions, config.rope_theta), v)
    x = x + linear(attended, layer["o"], policy)
    gate, up = jnp.split(linear(rms_norm(x, layer["post_attention_layernorm"], eps), layer["gate_up"], policy), 2, -1)
    return x + linear(jax.nn.silu(gate) * up, layer["down"], policy), kept


def forward(
    config: Config,
    params: dict,
    tokens: jax.Array,
    openings: Openings | None = None,
    adapters: Adapters | None = None,
    policy: jax.Array | None = None,
    remat: Remat = "none",
) -> tuple[jax.Array, jax.Array | None]:
    """Final hidden states [R, S, D] of right-padded rows int32 [R, S]; causality is the whole mask.

    With `openings`, row r continues opening r // (R // O), which is computed once, forward and backward; their hidden
    states [O, So, D] come second (None without them).
    With `adapters`, policy int32 [R] picks each row's (-1: the base alone); None gives every rank to every row.
    """
    compute = config.dtypes.compute
    causal = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    embed = params["embed_tokens"].astype(compute)
    rows = embed[tokens]
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
    prefix, opening_policy = None, policy
    mask = jnp.broadcast_to(causal[None], (tokens.shape[0], *causal.shape))
    if openings is not None:
        group = tokens.shape[0] // openings.tokens.shape[0]
        spread = partial(jnp.repeat, repeats=group, axis=0, total_repeat_length=tokens.shape[0])
        size = openings.tokens.shape[1]
        prefix = embed[openings.tokens]
        opening_positions = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32)[None], openings.tokens.shape)
        opening_mask = jnp.broadcast_to(jnp.tril(jnp.ones((size, size), bool))[None], (len(prefix), size, size))
        opening_policy = None if policy is None else policy[::group]
        length = spread(openings.length)
        positions = positions + length[:, None]
        seen = (jnp.arange(size)[None] < length[:, None])[:, None]
        seen = jnp.broadcast_to(seen, (*tokens.shape, size))
        mask = jnp.concatenate([seen, mask], -1)
    adapted, owner = _parts(adapters)

    def step(carry, layer):
        rows, prefix = carry
        base, extra = layer
        weights = fuse(base, extra, owner)
        before = None
        if prefix is not None:
            own = lambda q, k, v: (attention(q, k, v, opening_mask), (k, v))  # noqa: E731
            prefix, before = block(config, weights, prefix, opening_positions, opening_policy, own)

        def attend(q, k, v):
            if before is not None:
                k, v = (jnp.concatenate([spread(old), new], 1) for old, new in zip(before, (k, v), strict=True))
            return attention(q, k, v, mask), None

        rows, _ = block(config, weights, rows, positions, policy, attend)
        return (rows, prefix), None

    step = REMAT[remat](step)
    (rows, prefix), _ = jax.lax.scan(step, (rows, prefix), (params["layers"], adapted))
    norm = partial(rms_norm, weight=params["norm"], eps=config.rms_norm_eps)
    return norm(rows), None if prefix is None else norm(prefix)


def prepare(config: Config, params: dict, adapters: Adapters | None = None, merged: bool = False) -> dict:
    """The weights as decoding likes them: a list of fused layers. Call once inside the rollout's jit.

    `merged` adds the adapters into the base, for a batch in which every row has the same ones.
    """
    if merged and adapters is not None:
        params, adapters = merge(params, adapters), None
    adapted, owner = _parts(adapters)
    layers = []
    for i in range(config.num_hidden_layers):
        layer, extra = jax.tree.map(lambda leaf, i=i: leaf[i], (params["layers"], adapted))
        layers.append(fuse(layer, extra, owner))
    return {**{name: leaf for name, leaf in params.items() if name != "layers"}, "layers": layers}


def empty_cache(config: Config, rows: int, slots: int) -> Cache:
    """A cache for `rows` rows; `slots` must hold the longest row and the widest chunk, as writes past the end clamp."""
    shape = (rows, slots, config.num_key_value_heads, config.head_dim)
    zeros = tuple(jnp.zeros(shape, config.dtypes.cache) for _ in range(config.num_hidden_layers))
    return Cache(zeros, zeros, jnp.zeros((rows,), jnp.int32))


def append(
    config: Config, prepared: dict, cache: Cache, tokens: jax.Array, n: jax.Array, policy: jax.Array | None = None
) -> tuple[Cache, jax.Array]:
    """Adds the first n[r] of tokens int32 [R, T] to row r at its own length; returns hidden [R, T, D] after the norm.

    Hidden states at or past n[r] are garbage, and so are the slots that they leave behind: the next chunk overwrites
    them.
    """
    positions = cache.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    mask = jnp.arange(cache.keys[0].shape[1])[None, None] <= positions[:, :, None]
    write = jax.vmap(lambda old, new, at: jax.lax.dynamic_update_slice(old, new.astype(old.dtype), (at, 0, 0)))
    x = prepared["embed_tokens"].astype(config.dtypes.compute)[tokens]
    keys, values = [], []
    for layer, old_keys, old_values in zip(prepared["layers"], cache.keys, cache.values, strict=True):

        def attend(q, k, v, old_keys=old_keys, old_values=old_values):
            k, v = write(old_keys, k, cache.length), write(old_values, v, cache.length)
            return attention(q, k.astype(q.dtype), v.astype(q.dtype), mask), (k, v)

        x, (k, v) = block(config, layer, x, positions, policy, attend)
        keys.append(k)
        values.append(v)
    hidden = rms_norm(x, prepared["norm"], config.rms_norm_eps)
    return Cache(tuple(keys), tuple(values), cache.length + n), hidden
