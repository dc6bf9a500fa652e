"""The decoder as pure functions: the tree of weights, a full forward for updates, a cached append for rollouts.

Shapes: R rows, T tokens of a chunk, S tokens of a row, P prompts, D width, H heads, K key-value heads, V vocabulary.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import delta_net
from jaxmarl_llm.models.attention import BLOCK, MANY, cache_layout, within
from jaxmarl_llm.models.config import FULL, GLOBAL, LINEAR, REMAT, SLIDING, WIDE, Config, Remat, plain
from jaxmarl_llm.models.delta_net import Memory, no_memory
from jaxmarl_llm.models.kinds import no_keys, one_layer, scan_layers
from jaxmarl_llm.models.layers import BESIDE_NORMS, angles, block, fuse, in_order, layer_inputs, once, product, rms_norm
from jaxmarl_llm.models.lora import Adapters, PolicyOf, merge
from jaxmarl_llm.models.packing import Packing, packing


class Cache(struct.PyTreeNode):
    """Keys, values and memories of every row, an array per layer: XLA would copy stacked layers at every token.

    `prompt` is a cache of P rows; row r then continues row r // (R // P) of it, and its memories begin as the prompt's
    end.
    """

    keys: tuple[jax.Array, ...]  # a layer in `Config.with_keys`: [R, K, head_dim, slots], rotated
    values: tuple[jax.Array, ...]  # a layer in `Config.with_keys`: [R, K, slots, head_dim]
    length: jax.Array  # int32 [R], without the prompt; later slots hold garbage and are never read
    prompt: Cache | None = None
    memories: tuple[Memory, ...] = ()  # a layer with linear_attention: as `delta_net.no_memory` has it

    @property
    def slots(self) -> int:
        """The tokens that a row has room for."""
        return self.keys[0].shape[3]


class Prompts(struct.PyTreeNode):
    """Prompts that rows share: rows p * G to p * G + G - 1 continue prompt p, with G = R // P.

    With a length for each row, a row continues as many tokens of its prompt.
    """

    tokens: jax.Array  # int32 [P, Sp], right-padded
    length: jax.Array  # int32 [P] or [R]


def shapes(config: Config) -> dict:
    """The tree of weights, with the shape of every leaf: Hugging Face's names, [out, in], layers stacked in front.

    A leaf is stacked over the layers that have it (`Config.layers_with`). A map's bias has the map's name and the
    ending `_bias`.
    """
    width = config.hidden_size
    maps: dict[str, tuple[int, ...]] = {}
    norms = {name: (width,) for name in config.family.norms if name}
    for before, (dim, heads) in (("", config.heads_of(SLIDING)), (GLOBAL, config.heads_of(FULL))):
        queries, keys = config.num_attention_heads * dim, heads * dim
        maps |= {f"{before}q_proj": (queries * (1 + config.family.gated), width)}
        maps |= {f"{before}{name}": (keys, width) for name in ("k_proj", "v_proj")} | {
            f"{before}o_proj": (width, queries)
        }
        if config.family.qk_norm:
            per_head = config.family.qk_norm == "head"
            norms |= {
                f"{before}q_norm": (dim if per_head else queries,),
                f"{before}k_norm": (dim if per_head else keys,),
            }
    if config.num_experts:
        count, size = config.num_experts, config.moe_intermediate_size or config.intermediate_size
        maps |= {"router": (count, width)}
        maps |= {name: (count, size, width) for name in ("experts_gate", "experts_up")}
        maps |= {"experts_down": (count, width, size)}
    if config.moe_intermediate_size:
        norms |= dict.fromkeys((*BESIDE_NORMS, "router_scale"), (width,)) | {"expert_scale": (config.num_experts,)}
    if config.moe_intermediate_size or not config.num_experts:
        for before, inner in (("", config.intermediate_size), (WIDE, 2 * config.intermediate_size)):
            maps |= {f"{before}{name}": (inner, width) for name in ("gate_proj", "up_proj")}
            maps |= {f"{before}down_proj": (width, inner)}
    size = config.hidden_size_per_layer_input
    if size:
        maps |= {"per_layer_input_gate": (size, width), "per_layer_projection": (width, size)}
        norms |= {"post_per_layer_input_norm": (width,)}
    biases = {f"{name}_bias": shape[:1] for name, shape in maps.items() if plain(name) in config.maps_with_bias}
    leaves = {**norms, **maps, **biases} | ({"layer_scalar": (1,)} if config.family.scaled_layers else {})
    if config.recurrent:
        heads, (mixed, values) = config.linear_num_value_heads, config.linear_widths
        leaves |= {"in_proj_qkv": (mixed, width), "in_proj_z": (values, width), "out_proj": (width, values)}
        leaves |= {name: (heads, width) for name in ("in_proj_b", "in_proj_a")}
        leaves |= {"conv1d": (mixed, 1, config.linear_conv_kernel_dim), "linear_norm": (config.linear_value_head_dim,)}
        leaves |= {name: (heads,) for name in ("A_log", "dt")}
    tree = {
        "embed_tokens": (config.vocab_size, width),
        "layers": {name: (count, *shape) for name, shape in leaves.items() if (count := len(config.layers_with(name)))},
        "norm": (width,),
    }
    if size:
        together = config.num_hidden_layers * size
        tree |= {"embed_tokens_per_layer": (config.vocab_size_per_layer_input, together)}
        tree |= {"per_layer_model_projection": (together, width), "per_layer_projection_norm": (size,)}
    return tree if config.tie_word_embeddings else {**tree, "lm_head": (config.vocab_size, width)}


def init(config: Config, key: jax.Array) -> dict:
    """Random weights: norms and factors of layers 1, biases 0, matrices normal with std 1/sqrt(in).

    Embeddings have std 0.02, as in GPT-2.
    The rates of decay A of linear_attention are uniform up to 16, and dt is 1, as in transformers.
    """
    leaves, treedef = jax.tree.flatten_with_path(shapes(config), is_leaf=lambda x: isinstance(x, tuple))
    dtype = config.dtypes.parameters

    def leaf(index, path, shape):
        name = path[-1].key
        if "norm" in name:
            return jnp.full(shape, 0.0 if config.family.minus_one and name != "linear_norm" else 1.0, dtype)
        if name in ("dt", "layer_scalar", "router_scale", "expert_scale"):
            return jnp.ones(shape, dtype)
        if name == "A_log":
            return jnp.log(jax.random.uniform(jax.random.fold_in(key, index), shape, dtype, 0.01, 16))
        if name.endswith("_bias"):
            return jnp.zeros(shape, dtype)
        std = 0.02 if name in ("embed_tokens", "embed_tokens_per_layer", "lm_head") else shape[-1] ** -0.5
        return std * jax.random.normal(jax.random.fold_in(key, index), shape, dtype)

    return jax.tree.unflatten(treedef, [leaf(i, path, shape) for i, (path, shape) in enumerate(leaves)])


def embed(config: Config, params: dict, tokens: jax.Array) -> jax.Array:
    """Input embeddings [R, T, D] of tokens int32 [R, T]."""
    x = params["embed_tokens"][tokens].astype(config.dtypes.compute)
    times = config.hidden_size**0.5 if config.family.scaled_embeddings else config.embedding_multiplier
    return x if times == 1 else x * jnp.asarray(times, x.dtype)


def logits(config: Config, params: dict, hidden: jax.Array) -> jax.Array:
    """Next-token logits float32 [..., V] of final hidden states [..., D]."""
    head = params.get("lm_head", params["embed_tokens"])
    scores = product(hidden, head.astype(hidden.dtype), jnp.float32)
    if config.logits_scaling != 1:
        scores = scores / config.logits_scaling
    bound = config.final_logit_softcapping
    return scores if bound is None else bound * jnp.tanh(scores / bound)


def forward(
    config: Config,
    params: dict,
    tokens: jax.Array,
    prompts: Prompts | None = None,
    adapters: Adapters | None = None,
    policy: PolicyOf | None = None,
    remat: Remat = "none",
) -> tuple[jax.Array, jax.Array | None]:
    """(final hidden states [R, S, D], those of the prompts [P, Sp, D] or None) of right-padded rows int32 [R, S].

    Attention is causal without a mask of the padding. With `prompts`, row r continues prompt r // (R // P); a prompt is
    computed once, forward and backward. `policy` int32 [R] selects the adapter of each row, -1 the base alone. Rows of
    one prompt must have the same adapter: only the first row's is read. Without `policy` all adapters apply.

    Raises ValueError unless the rows divide over the prompts, or if rows may be longer than `Config.longest`. Long
    because rows and their shared prompts pass through each layer together.
    """
    check_length(config, tokens.shape[1] + (0 if prompts is None else prompts.tokens.shape[1]))
    window = config.sliding_window if any(config.sliding) else None
    size = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    causal = size[None, :] <= size[:, None]
    masks = within(causal[None], (size[:, None] - size[None, :])[None], window)
    rows = embed(config, params, tokens)
    inputs: tuple[jax.Array | None, ...] = layer_inputs(config, params, tokens, rows), None
    positions = jnp.broadcast_to(size[None], tokens.shape)
    prefix, prompt_policy, ends = None, policy, None if prompts is None else prompts.length
    if prompts is not None:
        check_shared(tokens.shape[0], prompts.tokens.shape[0])
        group = tokens.shape[0] // prompts.tokens.shape[0]
        spread = partial(jnp.repeat, repeats=group, axis=0, total_repeat_length=tokens.shape[0])
        place = jnp.arange(prompts.tokens.shape[1], dtype=jnp.int32)
        prefix = embed(config, params, prompts.tokens)
        inputs = inputs[0], layer_inputs(config, params, prompts.tokens, prefix)
        prompt_angles = angles(config, jnp.broadcast_to(place[None], prompts.tokens.shape))
        prompt_distance = (place[:, None] - place[None, :])[None]
        prompt_masks = within(prompt_distance >= 0, prompt_distance, window)
        policy = prompt_policy = None if policy is None else policy[::group]
        length = prompts.length if len(prompts.length) == len(tokens) else spread(prompts.length)
        positions = positions + length[:, None]
        seen = jnp.broadcast_to((place[None] < length[:, None])[:, None], (*tokens.shape, len(place)))
        seen_masks = within(seen, positions[:, :, None] - place[None, None], window)
    row_angles = angles(config, positions)
    layers = {} if adapters is None else adapters.layers
    owner = {} if adapters is None else adapters.owners

    pieces, attention = remat == "full", partial(config.attention, fused=config.dtypes.attention == "fused")

    def step(kind, shared, carry, layer):
        rows, prefix, last = carry
        base, extra, sliding, rotated, given = sharding.gather_weights(layer[:2]) + layer[2:]

        def pick(kinds):
            if config.global_head_dim is not None:  # loops then hold layers of known kinds
                return kinds[kind == SLIDING]
            return jax.tree.map(partial(jnp.where, sliding), kinds[1], kinds[0]) if window else kinds[0]

        def turn(kinds):
            (cos, sin), any_turn = pick(kinds), True if rotated is None else rotated
            return (cos, sin) if any_turn is True else (jnp.where(any_turn, cos, 1), jnp.where(any_turn, sin, 0))

        weights = fuse(base, extra, owner)
        if kind == LINEAR:
            return (*recur(weights, rows, prefix), last), None
        before: tuple = ()
        of_kind = partial(block, config, kind, pieces=pieces, shared=bool(shared))
        if prefix is not None:

            def begin(q, k, v):
                k, v = shared[kind][1] if shared else cache_layout(k, v)
                return attention(q, (k, v, pick(prompt_masks))), (k, v, pick(seen_masks))

            turned = turn(prompt_angles)
            prefix, kept = of_kind(weights, prefix, turned, prompt_policy, begin, own_input=given[1])
            before = (kept,)

        def attend(q, k, v):
            k, v = shared[kind][0] if shared else cache_layout(k, v)
            return attention(q, *before, (k, v, pick(masks))), (k, v)

        rows, kept = of_kind(weights, rows, turn(row_angles), policy, attend, own_input=given[0])
        if last:
            last = {**last, kind: (kept, before[0][:2] if before else None)}
        return (rows, prefix, last), None

    def recur(weights, rows, prefix):
        memory = no_memory(config, len(rows))
        if prefix is not None:

            def begin(*inputs):
                n = ends if ends is not None and len(ends) == len(prefix) else None
                mixed, memory = delta_net.mix(config, weights, inputs, no_memory(config, len(prefix)), n)
                if n is not None:
                    return mixed, jax.tree.map(spread, memory)
                by_row = tuple(map(spread, inputs))  # every row continues its own part of the prompt
                return mixed, delta_net.mix(config, weights, by_row, no_memory(config, len(rows)), ends)[1]

            prefix, memory = block(config, LINEAR, weights, prefix, None, prompt_policy, begin, pieces=pieces)

        def go_on(*inputs):
            return delta_net.mix(config, weights, inputs, memory)

        rows, _ = block(config, LINEAR, weights, rows, None, policy, go_on, pieces=pieces)
        return rows, prefix

    rotated = jnp.asarray(config.no_rope_layers, bool) if config.no_rope_layers else None
    by_layer = jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), inputs)
    scanned = params["layers"], layers, jnp.asarray(config.sliding), rotated, by_layer
    kept = dict.fromkeys(config.kinds if config.num_kv_shared_layers else ())
    carry: tuple = rows, prefix, {kind: (no_keys(config, kind, rows), no_keys(config, kind, prefix)) for kind in kept}
    for loop in config.loops:
        shared, carry = (carry[2], (*carry[:2], {})) if loop[0] else ({}, carry)
        steps = {kind: partial(step, kind, shared) for kind in config.kinds}
        carry = scan_layers(config, steps, carry, scanned, loop, REMAT[remat])
    rows, prefix, _ = carry
    norm = partial(rms_norm, config, weight=params["norm"])
    return norm(rows), None if prefix is None else norm(prefix)


def check_length(config: Config, tokens: int) -> None:
    """Raises ValueError if rows of so many tokens exceed `Config.longest`."""
    if config.longest is not None and tokens > config.longest:
        raise ValueError(
            f"Rows of up to {tokens} tokens pass the original context of {config.longest}, from which on longrope has "
            "other angles for all tokens: shorten the rows."
        )


def check_shared(rows: int, prompts: int) -> None:
    """Raises ValueError unless the rows divide evenly over the prompts."""
    if rows % prompts:
        raise ValueError(
            f"{rows} rows do not divide over {prompts} prompts: every prompt needs the same number of rows."
        )


def prepare(config: Config, params: dict, adapters: Adapters | None = None, merged: bool = False) -> dict:
    """The weights in the layout that decodes fastest, a list of fused layers. Call it once inside the rollout's jit.

    `merged` adds the adapters to the base's weights, for a batch whose rows all have the same adapters.
    """
    if merged and adapters is not None:
        params, adapters = merge(params, adapters), None
    extra = {} if adapters is None else adapters.layers
    owner = {} if adapters is None else adapters.owners
    layers = []
    for i in range(config.num_hidden_layers):
        layer, adapted = (one_layer(config, tree, i) for tree in (params["layers"], extra))
        layers.append(fuse(layer, adapted, owner))
    return {**{name: leaf for name, leaf in params.items() if name != "layers"}, "layers": layers}


def empty_cache(config: Config, rows: int, slots: int, prompt: Cache | None = None) -> Cache:
    """A cache of `rows` rows with `slots` tokens each, rounded up to whole blocks for long rows.

    `slots` must hold the longest row plus the widest chunk: JAX clamps writes past the end without an error.
    Raises ValueError unless the rows divide over the rows of `prompt`, or if `slots` exceed `Config.longest`.
    """
    check_length(config, slots + (0 if prompt is None else prompt.slots))
    slots = slots if slots <= MANY else -(-slots // BLOCK) * BLOCK
    if prompt is not None:
        if prompt.prompt is not None:
            raise ValueError(
                "The cache of a prompt cannot continue another prompt: attention reads one level of prompts."
            )
        check_shared(rows, len(prompt.length))
    linear = config.kinds.count(LINEAR)
    heads_of = [config.heads_of(config.kinds[i]) for i in config.with_keys]
    keys = tuple(jnp.zeros((rows, heads, dim, slots), config.dtypes.cache) for dim, heads in heads_of)
    values = tuple(jnp.zeros((rows, heads, slots, dim), config.dtypes.cache) for dim, heads in heads_of)
    memories = tuple(no_memory(config, rows) for _ in range(linear))
    if prompt is not None and linear:
        if len(prompt.length) != len(prompt.keys[0]):
            raise ValueError(
                "Rows cannot continue parts of a prompt: a layer with linear_attention remembers the whole prompt."
            )
        memories = jax.tree.map(lambda x: jnp.repeat(x, rows // len(x), 0), prompt.memories)
    return Cache(keys, values, jnp.zeros((rows,), jnp.int32), prompt, memories)


def append(
    config: Config,
    prepared: dict,
    cache: Cache,
    tokens: jax.Array,
    n: jax.Array,
    policy: PolicyOf | None = None,
    whole: bool = False,
) -> tuple[Cache, jax.Array]:
    """(cache, final hidden states [R, T, D]) after appending the first n[r] of tokens int32 [R, T] to row r.

    Hidden states at or past n[r] are garbage, and so are the cache slots of these tokens, which the next chunk
    overwrites. Attention reads a long cache up to the longest row. On a mesh this maximum costs a collective; with
    `whole` attention reads every slot instead.
    """
    slots = lambda cache: jnp.arange(cache.slots, dtype=jnp.int32)[None, None]
    positions = cache.length[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    distance = positions[:, :, None] - slots(cache)
    masks, before = within(distance >= 0, distance, config.sliding_window), cache.prompt
    if before is not None:
        started = jnp.repeat(before.length, len(tokens) // len(before.length))[:, None]
        positions = positions + started
        seen = jnp.broadcast_to(slots(before) < started[:, :, None], (*tokens.shape, before.slots))
        seen_masks = within(seen, positions[:, :, None] - slots(before), config.sliding_window)
    angle, used = once(angles(config, positions)), None if whole else cache.length.max() + tokens.shape[1]
    alone = before is None or in_order(prepared["layers"][0], policy)
    packed = Packing() if alone else packing(config, n, tokens.shape[1])

    def write(old: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        new = new.astype(old.dtype)
        put = partial(jax.lax.dynamic_update_slice_in_dim, axis=axis)
        # every head has its start: with a single start XLA copies the cache for every reader
        return jax.vmap(jax.vmap(put))(old, new, jnp.broadcast_to(cache.length[:, None], old.shape[:2]))

    x = packed.pack(sharding.in_place(partial(embed, config, prepared), "embed_tokens", lookup=True)(tokens))
    angle, policy = jax.tree.map(packed.pack, angle), packed.rows(policy)
    inputs = packed.map_rows(partial(layer_inputs, config, prepared))(packed.pack(tokens), x)
    layer_of = partial(block, config, decoding=True, map_rows=packed.map_rows)
    keys, values, memories = list(cache.keys), list(cache.values), list(cache.memories)
    for i, (layer, kind) in enumerate(zip(prepared["layers"], config.kinds, strict=True)):
        source = config.source(i)
        at = config.kinds[:i].count(LINEAR) if kind == LINEAR else config.with_keys.index(source)

        def attend(q, k, v, at=at, sliding=config.sliding[i]):
            q, new = packed.unpack(q), None if k is None else cache_layout(packed.unpack(k), packed.unpack(v))
            k, v = keys[at], values[at]
            if new is not None:
                k, v = write(k, new[0], 1), write(v, new[1], 0)
            seen = [] if before is None else [(before.keys[at], before.values[at], seen_masks[sliding])]
            wide = [(k.astype(q.dtype), v.astype(q.dtype), mask) for k, v, mask in (*seen, (k, v, masks[sliding]))]
            return packed.pack(config.attention(q, *wide, used=used)), (k, v)

        def recur(*inputs, at=at, layer=layer):
            mixed, memory = delta_net.mix(config, layer, tuple(map(packed.unpack, inputs)), cache.memories[at], n)
            return packed.pack(mixed), memory

        turn = angle[config.sliding[i]] if not config.no_rope_layers or config.no_rope_layers[i] else None
        mix = recur if kind == LINEAR else attend
        given = None if inputs is None else inputs[:, :, i]
        x, kept = layer_of(kind, layer, x, turn, policy, mix, own_input=given, shared=source != i)
        if kind == LINEAR:
            memories[at] = kept
        else:
            keys[at], values[at] = kept
    hidden = packed.unpack(rms_norm(config, x, prepared["norm"]))
    return Cache(tuple(keys), tuple(values), cache.length + n, before, tuple(memories)), hidden
