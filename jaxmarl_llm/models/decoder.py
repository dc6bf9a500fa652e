"""The decoder as pure functions: a canonical tree of weights, a full forward for updates, a cached append for rollouts.

Shapes: R rows, T tokens of a chunk, S tokens of a row, O openings, D width, H heads, K key-value heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.ad_checkpoint import checkpoint_name

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models.attention import BLOCK, FEW, MANY, arranged, rotate, within
from jaxmarl_llm.models.config import ACTIVATIONS, REMAT, Config, Remat
from jaxmarl_llm.models.lora import LINEAR, Adapters, merge

FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o_proj": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}


PIECES = 4  # of the positions: the MLP's numbers are many, and so a fourth of them at a time


class Cache(struct.PyTreeNode):
    """Keys and values of every row, one array a layer: stacked layers would be copied whole at every token.

    With `prompt`, a cache of O rows, row r goes on where row r // (R // O) of that one ends.
    """

    keys: tuple[jax.Array, ...]  # L x [R, K, head_dim, slots], rotated
    values: tuple[jax.Array, ...]  # L x [R, K, slots, head_dim]
    length: jax.Array  # int32 [R], without the opening; slots at or past it hold garbage and are never read
    prompt: Cache | None = None


class Prompts(struct.PyTreeNode):
    """Texts that several rows start with; rows r * G ... r * G + G - 1 continue opening r, G = R // O."""

    tokens: jax.Array  # int32 [O, So], right-padded
    length: jax.Array  # int32 [O]


def shapes(config: Config) -> dict:
    """The canonical tree with the shape of every leaf: Hugging Face's names, [out, in], layers stacked in front.

    A bias is called as its map with `_bias` behind.
    """
    layers, width, inner, dim = (
        config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.head_dim
    )  # fmt: skip
    queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    maps = {
        "q_proj": (layers, queries, width),
        "k_proj": (layers, keys, width),
        "v_proj": (layers, keys, width),
        "o_proj": (layers, width, queries),
        "gate_proj": (layers, inner, width),
        "up_proj": (layers, inner, width),
        "down_proj": (layers, width, inner),
    }
    norms = {"input_layernorm": width, "post_attention_layernorm": width}
    if config.gemma:
        norms |= {"pre_feedforward_layernorm": width, "post_feedforward_layernorm": width}
    if config.qk_norm:
        norms |= {"q_norm": dim, "k_norm": dim}
    biases = {f"{name}_bias": maps[name][:2] for name in config.biased}
    tree = {
        "embed_tokens": (config.vocab_size, width),
        "layers": {**{name: (layers, size) for name, size in norms.items()}, **maps, **biases},
        "norm": (width,),
    }
    return tree if config.tie_word_embeddings else {**tree, "lm_head": (config.vocab_size, width)}


def init(config: Config, key: jax.Array) -> dict:
    """Random weights: norms one, biases zero, matrices normal of deviation 1/sqrt(in), embeddings 0.02 as in GPT-2."""
    leaves, treedef = jax.tree.flatten_with_path(shapes(config), is_leaf=lambda x: isinstance(x, tuple))
    dtype = config.dtypes.parameters

    def leaf(index, path, shape):
        name = path[-1].key
        if "norm" in name:
            return jnp.full(shape, 0.0 if config.gemma else 1.0, dtype)
        if name.endswith("_bias"):
            return jnp.zeros(shape, dtype)
        std = 0.02 if name in ("embed_tokens", "lm_head") else shape[-1] ** -0.5
        return std * jax.random.normal(jax.random.fold_in(key, index), shape, dtype)

    return jax.tree.unflatten(treedef, [leaf(i, path, shape) for i, (path, shape) in enumerate(leaves)])


def embed(config: Config, params: dict, tokens: jax.Array) -> jax.Array:
    """Input embeddings [R, T, D] of tokens int32 [R, T]."""
    x = params["embed_tokens"][tokens].astype(config.dtypes.compute)
    return x * jnp.asarray(config.hidden_size**0.5, x.dtype) if config.gemma else x


def product(x: jax.Array, weight: jax.Array, dtype: Any = None) -> jax.Array:
    """W x [..., out] for x [..., in] and weight [out, in], in another dtype if asked.

    For few tokens XLA is kept from turning the product around: on a CPU it would lay the weight out anew for every one
    of them, which costs a third to a half more from 4 to 64 tokens, and nothing either way with 1. Of more tokens there
    is a gradient in reverse mode only.
    """
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) > FEW:
        y = _product(rows, weight, dtype)
    else:
        y = jax.lax.optimization_barrier(jnp.matmul(weight, rows.T, preferred_element_type=dtype)).T
    return y.reshape(*x.shape[:-1], len(weight))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: jax.Array, weight: jax.Array, dtype: Any) -> jax.Array:
    """x [N, in] times weight [out, in], transposed."""
    return jnp.matmul(x, weight.T, preferred_element_type=dtype)


def _product_back(dtype: Any, kept: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of the weight is a product whose left side XLA lays out anew on a CPU: dy, or x and then the result,
    whichever is less."""
    x, weight = kept
    dy = dy.astype(x.dtype)
    fewer = x.size + weight.size < dy.size
    gradient = jax.lax.optimization_barrier(x.T @ dy).T if fewer else dy.T @ x
    return dy @ weight, gradient.astype(weight.dtype)


_product.defvjp(lambda x, weight, dtype: (_product(x, weight, dtype), (x, weight)), _product_back)


def logits(config: Config, params: dict, hidden: jax.Array) -> jax.Array:
    """Next-token logits float32 [..., V] of final hidden states [..., D]."""
    head = params.get("lm_head", params["embed_tokens"])
    scores = product(hidden, head.astype(hidden.dtype), jnp.float32)
    bound = config.final_logit_softcapping
    return scores if bound is None else bound * jnp.tanh(scores / bound)


def rms_norm(config: Config, x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [..., n] divided by its root mean square, times weight [n]; Gemma stores the weight less one."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + config.rms_norm_eps)
    weight = jnp.expand_dims(weight, tuple(range(x.ndim - 1)))
    if config.gemma:
        return (y * (1 + weight.astype(jnp.float32))).astype(x.dtype)
    return y.astype(x.dtype) * weight.astype(x.dtype)


def angles(config: Config, positions: jax.Array) -> tuple[tuple[jax.Array, jax.Array], ...]:
    """(cosine, sine) float32 [R, T, 1, head_dim / 2] at positions int32 [R, T]: of full layers, and of sliding ones."""
    result = []
    for rope in (config.rope, config.rope_sliding or config.rope):
        frequencies, scale = rope.frequencies(config.head_dim)
        angle = positions[:, :, None, None].astype(jnp.float32) * jnp.asarray(frequencies)[None, None, None, :]
        result.append((jnp.cos(angle) * scale, jnp.sin(angle) * scale))
    return tuple(result)


def fuse(layer: dict, adapters: dict, owner: dict[str, jax.Array]) -> dict:
    """One layer's norms, and its weights with the maps of one input joined: {name: {"w", "bias", "a", "b", "owner"}}.

    The b of joined maps is block-diagonal, so that an adapter on q, k and v is one pair of products, not three. Maps
    whose outputs are split over devices stay apart: joined, they would have to be split anew.
    """
    fused = {name: leaf for name, leaf in layer.items() if "norm" in name}
    join = lambda parts: jnp.concatenate(parts) if len(parts) > 1 else parts[0]  # noqa: E731
    groups = {name: (name,) for name in LINEAR} if sharding.divided() else FUSED
    for group, names in groups.items():
        fused[group] = {"w": join([layer[name] for name in names])}
        if f"{names[0]}_bias" in layer:
            fused[group]["bias"] = join([layer[f"{name}_bias"] for name in names])
        adapted = [name for name in names if name in adapters]
        if adapted:
            ranks = [len(owner[name]) for name in adapted]
            blocks = []
            for name in names:
                if name in adapters:
                    at = adapted.index(name)
                    blocks.append(jnp.pad(adapters[name]["b"], ((0, 0), (sum(ranks[:at]), sum(ranks[at + 1 :])))))
                else:
                    blocks.append(jnp.zeros((layer[name].shape[0], sum(ranks))))
            fused[group]["a"] = join([adapters[name]["a"] for name in adapted])
            fused[group]["b"] = join(blocks)
            fused[group]["owner"] = join([owner[name] for name in adapted])
    return fused


def linear(x: jax.Array, weight: dict, policy: jax.Array | None) -> jax.Array:
    """y [R, T, out] = W x + bias + B A x for x [R, T, in], the ranks of policies other than the row's masked out."""
    y = product(x, weight["w"].astype(x.dtype))
    if "bias" in weight:
        y = y + weight["bias"].astype(x.dtype)[None, None]
    if "a" in weight:
        low = product(x, weight["a"].astype(x.dtype))
        if policy is not None:
            low = jnp.where((policy[:, None] == weight["owner"][None, :])[:, None, :], low, 0)
        y = y + product(low, weight["b"].astype(x.dtype))
    return checkpoint_name(y, "linear")


def block(
    config: Config,
    layer: dict,
    x: jax.Array,
    angle: tuple,
    policy: jax.Array | None,
    attend: Callable,
    decoding: bool = False,
    pieces: bool = False,
):
    """One decoder layer on x [R, T, D]; `attend(q, k, v) -> ([R, T, H * head_dim], kept)` owns the keys and values.

    With `pieces` the MLP takes a part of the positions at a time, forward and backward.
    """
    rows, length, _ = x.shape
    heads, kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    norm = lambda name, x: rms_norm(config, x, layer[name])  # noqa: E731

    def mapped(name: str, x: jax.Array) -> jax.Array:
        own = partial(linear, weight=layer[name], policy=policy)
        return (sharding.in_place(own, name) if decoding else own)(x)

    def several(group: str, x: jax.Array, *ends: int) -> list[jax.Array]:
        return jnp.split(mapped(group, x), ends, -1) if group in layer else [mapped(name, x) for name in FUSED[group]]

    qkv = several("qkv", norm("input_layernorm", x), heads * dim, (heads + kv) * dim)
    q, k, v = (part.reshape(rows, length, -1, dim) for part in qkv)
    if config.qk_norm:
        q, k = norm("q_norm", q), norm("k_norm", k)
    attended, kept = attend(rotate(q, angle), rotate(k, angle), v)
    attended = mapped("o_proj", attended)
    if config.gemma:
        x = x + norm("post_attention_layernorm", attended)
        inner = norm("pre_feedforward_layernorm", x)
    else:
        x = x + attended
        inner = norm("post_attention_layernorm", x)

    def mlp(x: jax.Array) -> jax.Array:
        gate, up = several("gate_up", x, config.intermediate_size)
        return mapped("down_proj", ACTIVATIONS[config.hidden_act](gate) * up)

    if pieces:
        parts = jnp.pad(inner, ((0, 0), (0, -length % PIECES), (0, 0)))
        parts = parts.reshape(rows, PIECES, -1, inner.shape[2]).swapaxes(0, 1)
        inner = jax.lax.map(jax.checkpoint(mlp), parts).swapaxes(0, 1).reshape(rows, -1, inner.shape[2])[:, :length]
    else:
        inner = mlp(inner)
    return x + (norm("post_feedforward_layernorm", inner) if config.gemma else inner), kept


def forward(
    config: Config,
    params: dict,
    tokens: jax.Array,
    prompts: Prompts | None = None,
    adapters: Adapters | None = None,
    policy: jax.Array | None = None,
    remat: Remat = "none",
) -> tuple[jax.Array, jax.Array | None]:
    """Final hidden states [R, S, D] of right-padded rows int32 [R, S]; causality is the whole mask.

    With `prompts`, row r continues opening r // (R // O), which is computed once, forward and backward; their hidden
    states [O, So, D] come second (None without them). Raises ValueError unless the rows divide over the openings.
    With `adapters`, policy int32 [R] picks each row's (-1: the base alone); None gives every rank to every row.
    """
    window = config.sliding_window if any(config.sliding) else None
    size = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    causal = size[None, :] <= size[:, None]
    masks = within(causal[None], (size[:, None] - size[None, :])[None], window)
    rows = embed(config, params, tokens)
    positions = jnp.broadcast_to(size[None], tokens.shape)
    prefix, opening_policy = None, policy
    if prompts is not None:
        check_shared(tokens.shape[0], prompts.tokens.shape[0])
        group = tokens.shape[0] // prompts.tokens.shape[0]
        spread = partial(jnp.repeat, repeats=group, axis=0, total_repeat_length=tokens.shape[0])
        place = jnp.arange(prompts.tokens.shape[1], dtype=jnp.int32)
        prefix = embed(config, params, prompts.tokens)
        opening_angles = angles(config, jnp.broadcast_to(place[None], prompts.tokens.shape))
        opening_distance = (place[:, None] - place[None, :])[None]
        opening_masks = within(opening_distance >= 0, opening_distance, window)
        opening_policy = None if policy is None else policy[::group]
        length = spread(prompts.length)
        positions = positions + length[:, None]
        seen = jnp.broadcast_to((place[None] < length[:, None])[:, None], (*tokens.shape, len(place)))
        seen_masks = within(seen, positions[:, :, None] - place[None, None], window)
    row_angles = angles(config, positions)
    layers = {} if adapters is None else adapters.layers
    owner = {} if adapters is None else {name: jnp.asarray(own, jnp.int32) for name, own in adapters.owner}

    pieces = remat == "full"

    def step(carry, layer):
        rows, prefix = carry
        base, extra, sliding = sharding.gathered(layer[:2]) + layer[2:]
        pick = lambda kinds: jax.tree.map(partial(jnp.where, sliding), kinds[1], kinds[0]) if window else kinds[0]  # noqa: E731
        weights = fuse(base, extra, owner)
        before: tuple = ()
        if prefix is not None:

            def own(q, k, v):
                k, v = arranged(k, v)
                return config.attention(q, (k, v, pick(opening_masks))), (k, v, pick(seen_masks))

            prefix, kept = block(config, weights, prefix, pick(opening_angles), opening_policy, own, pieces=pieces)
            before = (kept,)

        def attend(q, k, v):
            return config.attention(q, *before, (*arranged(k, v), pick(masks))), None

        rows, _ = block(config, weights, rows, pick(row_angles), policy, attend, pieces=pieces)
        return (rows, prefix), None

    step = REMAT[remat](step)
    (rows, prefix), _ = jax.lax.scan(step, (rows, prefix), (params["layers"], layers, jnp.asarray(config.sliding)))
    norm = partial(rms_norm, config, weight=params["norm"])
    return norm(rows), None if prefix is None else norm(prefix)


def check_shared(rows: int, prompts: int) -> None:
    """Raises ValueError unless each opening has as many rows as every other."""
    if rows % prompts:
        raise ValueError(f"{rows} rows do not divide over {prompts} openings: each must have as many.")


def prepare(config: Config, params: dict, adapters: Adapters | None = None, merged: bool = False) -> dict:
    """The weights as decoding likes them: a list of fused layers. Call once inside the rollout's jit.

    `merged` adds the adapters into the base, for a batch in which every row has the same ones.
    """
    if merged and adapters is not None:
        params, adapters = merge(params, adapters), None
    extra = {} if adapters is None else adapters.layers
    owner = {} if adapters is None else {name: jnp.asarray(own, jnp.int32) for name, own in adapters.owner}
    layers = []
    for i in range(config.num_hidden_layers):
        layer, adapted = jax.tree.map(lambda leaf, i=i: leaf[i], (params["layers"], extra))
        layers.append(fuse(layer, adapted, owner))
    return {**{name: leaf for name, leaf in params.items() if name != "layers"}, "layers": layers}


def empty_cache(config: Config, rows: int, slots: int, prompt: Cache | None = None) -> Cache:
    """A cache for `rows` rows; `slots`, rounded up to whole blocks if they are many, must hold the longest row and the
    widest chunk, as writes past the end clamp. Raises ValueError unless rows divide over those of `prompt`."""
    slots = slots if slots <= MANY else -(-slots // BLOCK) * BLOCK
    if prompt is not None:
        if prompt.prompt is not None:
            raise ValueError("The cache of an opening cannot go on from another opening: one level is read.")
        check_shared(rows, len(prompt.length))
    heads, dim, layers = config.num_key_value_heads, config.head_dim, range(config.num_hidden_layers)
    keys = tuple(jnp.zeros((rows, heads, dim, slots), config.dtypes.cache) for _ in layers)
    values = tuple(jnp.zeros((rows, heads, slots, dim), config.dtypes.cache) for _ in layers)
    return Cache(keys, values, jnp.zeros((rows,), jnp.int32), prompt)


def append(
    config: Config,
    prepared: dict,
    cache: Cache,
    tokens: jax.Array,
    n: jax.Array,
    policy: jax.Array | None = None,
    whole: bool = False,
) -> tuple[Cache, jax.Array]:
    """Adds the first n[r] of tokens int32 [R, T] to row r at its own length; returns hidden [R, T, D] after the norm.

    Hidden states at or past n[r] are garbage, and so are the slots that they leave behind: the next chunk overwrites
    them. A long cache is read as far as the longest row goes, which takes a word between the devices that have the
    rows, or `whole`.
    """
    slots = lambda cache: jnp.arange(cache.keys[0].shape[3], dtype=jnp.int32)[None, None]  # noqa: E731
    positions = cache.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    distance = positions[:, :, None] - slots(cache)
    masks, before = within(distance >= 0, distance, config.sliding_window), cache.prompt
    if before is not None:
        started = jnp.repeat(before.length, len(tokens) // len(before.length))[:, None]
        positions = positions + started
        seen = jnp.broadcast_to(slots(before) < started[:, :, None], (*tokens.shape, before.keys[0].shape[3]))
        seen_masks = within(seen, positions[:, :, None] - slots(before), config.sliding_window)
    angle, used = angles(config, positions), None if whole else cache.length.max() + tokens.shape[1]

    def write(old: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        new = new.astype(old.dtype)
        put = partial(jax.lax.dynamic_update_slice_in_dim, axis=axis)
        # a start for each head too: if there is one in all, XLA copies the cache for whatever reads it
        return jax.vmap(jax.vmap(put))(old, new, jnp.broadcast_to(cache.length[:, None], old.shape[:2]))

    x = sharding.in_place(partial(embed, config, prepared), "embed_tokens", lookup=True)(tokens)
    keys, values = [], []
    for i, (layer, kind) in enumerate(zip(prepared["layers"], config.sliding, strict=True)):

        def attend(q, k, v, i=i, kind=kind):
            k, v = arranged(k, v)
            k, v = write(cache.keys[i], k, 1), write(cache.values[i], v, 0)
            seen = [] if before is None else [(before.keys[i], before.values[i], seen_masks[kind])]
            wide = [(k.astype(q.dtype), v.astype(q.dtype), mask) for k, v, mask in (*seen, (k, v, masks[kind]))]
            return config.attention(q, *wide, used=used), (k, v)

        x, (k, v) = block(config, layer, x, angle[kind], policy, attend, decoding=True)
        keys.append(k)
        values.append(v)
    hidden = rms_norm(config, x, prepared["norm"])
    return Cache(tuple(keys), tuple(values), cache.length + n, before), hidden
