"""One decoder layer as pure functions: norms, linear maps with adapters, rotary angles, attention and the MLP.

`decoder` applies layers to whole rows in updates, and to chunks with a cache in rollouts.
Shapes: R rows, T tokens of a chunk, D width, H heads, K key-value heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import mixture
from jaxmarl_llm.models.attention import FEW, rotate
from jaxmarl_llm.models.config import ACTIVATIONS, FULL, LINEAR, SLIDING, Config, plain
from jaxmarl_llm.models.lora import MAPS, PolicyOf

FUSED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o_proj": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
    "in_proj": ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    "out_proj": ("out_proj",),
    "per_layer_input_gate": ("per_layer_input_gate",),
    "per_layer_projection": ("per_layer_projection",),
}

BESIDE_NORMS = "post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"
"""Norms after the MLP, before the experts beside it, and after them."""
SEVERAL = 4  # with so many adapters or more, a row may compute with its own adapter alone
COPIED = 64  # a row gets a copy of its adapter if tokens x (adapters - 1) are at least COPIED x rows
PIECES = 4  # with full rematerialisation the MLP, which has the largest activations, runs on 4 pieces of a row


def product(x: jax.Array, weight: jax.Array, dtype: Any = None) -> jax.Array:
    """W x [..., out] for x [..., in] and weight [out, in]; `dtype` is the dtype of the result.

    Up to FEW tokens an optimization barrier keeps XLA from transposing the product. Without the barrier XLA on a CPU
    copies the weight into another layout for every token, which is 33% to 50% slower for 4 to 64 tokens. Above FEW
    tokens the product supports reverse-mode differentiation only.
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
    """(gradient of x, gradient of weight) of `_product`; the weight's takes the cheaper of two orders.

    XLA on a CPU copies the left factor into another layout: either dy, or x and then the result.
    """
    x, weight = kept
    dy = dy.astype(x.dtype)
    fewer = x.size + weight.size < dy.size
    gradient = jax.lax.optimization_barrier(x.T @ dy).T if fewer else dy.T @ x
    return dy @ weight, gradient.astype(weight.dtype)


_product.defvjp(lambda x, weight, dtype: (_product(x, weight, dtype), (x, weight)), _product_back)


def rms_norm(config: Config, x: jax.Array, weight: jax.Array | None, minus_one: bool | None = None) -> jax.Array:
    """RMSNorm (https://arxiv.org/abs/1910.07467): x [..., n] over its root mean square, times weight [n] if given.

    With `minus_one`, by default as the family has it, weight - 1 is stored.
    """
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + config.rms_norm_eps)
    if weight is None:
        return y.astype(x.dtype)
    weight = jnp.expand_dims(weight, tuple(range(x.ndim - 1)))
    if config.family.wide_norms:
        return (y * weight.astype(jnp.float32)).astype(x.dtype)
    if config.family.minus_one if minus_one is None else minus_one:
        return (y * (1 + weight.astype(jnp.float32))).astype(x.dtype)
    return y.astype(x.dtype) * weight.astype(x.dtype)


def angles(config: Config, positions: jax.Array) -> tuple[tuple[jax.Array, jax.Array], ...]:
    """(cosine, sine) float32 [R, T, 1, rotated / 2] at positions int32 [R, T], for (full, sliding) layers."""
    result = []
    for rope, kind in ((config.rope, FULL), (config.rope_sliding or config.rope, SLIDING)):
        frequencies, scale = rope.frequencies(config.heads_of(kind)[0])
        angle = positions[:, :, None, None].astype(jnp.float32) * jnp.asarray(frequencies)[None, None, None, :]
        result.append((jnp.cos(angle) * scale, jnp.sin(angle) * scale))
    return tuple(result)


def layer_inputs(config: Config, params: dict, tokens: jax.Array, x: jax.Array) -> jax.Array | None:
    """Inputs of every layer beside its hidden states, [R, T, L, size], or None if the model has none.

    They are (a + b) / sqrt(2) of a second embedding a of tokens int32 [R, T], and a normed projection b of their
    first, x [R, T, D].
    """
    size = config.hidden_size_per_layer_input
    if not size:
        return None
    lookup = sharding.in_place(lambda tokens: params["embed_tokens_per_layer"][tokens], "embed_tokens", lookup=True)
    second = lookup(tokens).astype(x.dtype) * jnp.asarray(size**0.5, x.dtype)
    first = product(x, params["per_layer_model_projection"].astype(x.dtype))
    first = first * jnp.asarray(config.hidden_size**-0.5, x.dtype)
    first, second = (part.reshape(*tokens.shape, -1, size) for part in (first, second))
    first = rms_norm(config, first, params["per_layer_projection_norm"])
    return (first + second) * jnp.asarray(2**-0.5, x.dtype)


def once(tree: Any) -> Any:
    """A tree with every number x as the sum x + 0, which XLA computes only once.

    XLA on a CPU treats sines and cosines as cheap. Unless layers are a loop, it computes them again for every head of
    every layer, which takes 2% to 3% of a decoded token's time.
    """
    return jax.tree.map(lambda x: jnp.multiply.outer(jnp.asarray([1, 0], x.dtype), x).sum(0), tree)


def fuse(layer: dict, adapters: dict, owner: dict[str, np.ndarray]) -> dict:
    """A layer with joined maps: norms by their plain name, and {map: {"w", "bias", "a", "b", "owner"}}.

    Maps of the same input are joined. Their b is block-diagonal, so an adapter on q, k and v costs one pair of products
    instead of three. On a mesh that splits weights the maps stay separate: a joined output would be split again.
    With SEVERAL policies of equal rank, "each" holds (a [P, ranks of all maps, in], (b [P, rank, out] of every map)).
    """
    owner = {plain(name): owner[name] for name in adapters}
    layer, adapters = ({plain(name): leaf for name, leaf in tree.items()} for tree in (layer, adapters))
    fused = {name: leaf for name, leaf in layer.items() if name not in MAPS and not name.endswith("_bias")}
    join = lambda parts: jnp.concatenate(parts) if len(parts) > 1 else parts[0]
    groups = {name: (name,) for name in MAPS} if sharding.divided() else FUSED
    for group, maps in groups.items():
        names = tuple(name for name in maps if name in layer)
        if not names:
            continue
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
            fused[group]["owner"] = np.concatenate([owner[name] for name in adapted])
            policies = alike([owner[name] for name in adapted])
            if policies >= SEVERAL and sharding.single():
                low, high = zip(*(apart(adapters.get(name), layer[name], policies) for name in names), strict=True)
                fused[group]["each"] = jnp.concatenate(low, 1), high
    return fused


def alike(owners: list[np.ndarray]) -> int:
    """The number P of policies if on every map policies 0 to P - 1 have equal ranks, in order; else 0."""
    policies = 1 + int(owners[0][-1])
    return policies if all(evenly(owner, policies) and (np.diff(owner) >= 0).all() for owner in owners) else 0


def apart(adapter: dict | None, weight: jax.Array, policies: int) -> tuple[jax.Array, jax.Array]:
    """A map's adapters by policy: (a [P, rank, in], b [P, rank, out]), with rank 0 if it has none."""
    out, inner = weight.shape
    if adapter is None:
        return jnp.zeros((policies, 0, inner)), jnp.zeros((policies, 0, out))
    return adapter["a"].reshape(policies, -1, inner), adapter["b"].reshape(out, policies, -1).transpose(1, 2, 0)


def in_order(layer: dict, policy: PolicyOf | None) -> bool:
    """True if the rows divide evenly over a fused layer's policies, and this is known before the program runs.

    All rows then compute with their own adapter alone, in order of the policies.
    """
    by_policy = [maps["each"] for maps in layer.values() if isinstance(maps, dict) and "each" in maps]
    return policy is not None and any(evenly(policy, len(a)) for a, _ in by_policy)


def linear(x: jax.Array, weight: dict, policy: PolicyOf | None) -> jax.Array:
    """y [R, T, out] = W x + bias + B A x for x [R, T, in]; a mask removes the ranks of other policies."""
    y = product(x, weight["w"].astype(x.dtype))
    if "bias" in weight:
        y = y + weight["bias"].astype(x.dtype)[None, None]
    if policy is not None and worth(x, weight, policy):
        y = y + own_adapter(x, weight["each"], policy)
    elif "a" in weight:
        low = product(x, weight["a"].astype(x.dtype))
        if policy is not None:
            mask = jnp.repeat(policy[:, None] == weight["owner"][None, :], len(x) // len(policy), 0)
            low = jnp.where(mask[:, None, :], low, 0)
        y = y + product(low, weight["b"].astype(x.dtype))
    return checkpoint_name(y, "linear")


def worth(x: jax.Array, weight: dict, policy: PolicyOf) -> bool:
    """True if rows compute with their own adapter alone: they divide evenly, or a copy serves enough tokens."""
    policies = len(weight["each"][0]) if "each" in weight else 0
    many = x.shape[0] * x.shape[1] * (policies - 1) >= COPIED * len(policy)
    return policies > 0 and (evenly(policy, policies) or many)


def evenly(policy: PolicyOf, policies: int) -> bool:
    """True if all policies have equally many rows, and this is known before the program runs."""
    return (
        isinstance(policy, np.ndarray)
        and len(policy) % policies == 0
        and np.array_equal(np.sort(policy), np.repeat(np.arange(policies), len(policy) // policies))
    )


def own_adapter(x: jax.Array, by_policy: tuple[jax.Array, tuple[jax.Array, ...]], policy: PolicyOf) -> jax.Array:
    """B A x [R, T, out] of x [R, T, in] with the row's adapter; a policy without an adapter gives 0.

    Entry q of policy int32 [Q] is for R / Q consecutive rows. Rows that divide evenly over the policies are sorted by
    policy; otherwise rows get a copy of their adapter.
    """
    (a, *b), (rows, length, _) = (w.astype(x.dtype) for w in (by_policy[0], *by_policy[1])), x.shape
    policies, ends = len(a), np.cumsum([w.shape[1] for w in b])[:-1]

    def times(parts: jax.Array, a: jax.Array, b: list[jax.Array]) -> jax.Array:
        low = jnp.split(jnp.einsum("qti,qri->qtr", parts, a), ends, -1)
        return jnp.concatenate([jnp.einsum("qtr,qro->qto", *of_map) for of_map in zip(low, b, strict=True)], -1)

    parts = x.reshape(len(policy), -1, x.shape[-1])
    if evenly(policy, policies):
        order = np.argsort(policy, kind="stable")
        y = times(parts[order].reshape(policies, -1, x.shape[-1]), a, b)
        return y.reshape(len(policy), -1, y.shape[-1])[np.argsort(order)].reshape(rows, length, -1)
    index = jnp.clip(policy, 0, policies - 1)

    @jax.checkpoint
    def by_copies(parts: jax.Array, a: jax.Array, b: list[jax.Array]) -> jax.Array:
        return times(parts, a[index], [of_map[index] for of_map in b])

    return jnp.where((policy == index)[:, None, None], by_copies(parts, a, b), 0).reshape(rows, length, -1)


def experts(config: Config, layer: dict, x: jax.Array, decoding: bool = False) -> jax.Array:
    """The mixture of experts of x [R, T, D]: the sum of a token's experts, weighted by the router's probabilities.

    Experts beside an MLP have norms before and after them, and their router a norm and scales
    (https://arxiv.org/abs/2401.04088). `decoding` allows the forms of `mixture.mix` for few tokens.
    """
    rows = routed = x.reshape(-1, x.shape[-1])
    if config.moe_intermediate_size:
        scale = layer["router_scale"] * config.hidden_size**-0.5
        routed = rms_norm(config, rows, None) * scale[None].astype(x.dtype)
        rows = rms_norm(config, rows, layer[BESIDE_NORMS[1]])
    odds = jax.nn.softmax(product(routed, layer["router"].astype(x.dtype)).astype(jnp.float32), -1)
    best, chosen = jax.lax.top_k(odds, config.num_experts_per_tok)
    if config.norm_topk_prob:
        best = best / best.sum(-1, keepdims=True)
    taken = (jax.nn.one_hot(chosen, config.num_experts) * best[..., None]).sum(1)  # [N, experts]
    if config.moe_intermediate_size:
        taken = taken * layer["expert_scale"][None].astype(jnp.float32)
    maps = tuple(layer[f"experts_{name}"].astype(x.dtype) for name in ("gate", "up", "down"))
    y = mixture.mix(ACTIVATIONS[config.hidden_act], maps, rows, taken, chosen, decoding)
    if config.moe_intermediate_size:
        y = rms_norm(config, y, layer[BESIDE_NORMS[2]])
    return y.reshape(x.shape)


def block(
    config: Config,
    kind: str,
    layer: dict,
    x: jax.Array,
    angle: tuple | None,
    policy: PolicyOf | None,
    mix: Callable,
    decoding: bool = False,
    pieces: bool = False,
    map_rows: Callable[[Callable], Callable] = lambda of_rows: of_rows,
    own_input: jax.Array | None = None,
    shared: bool = False,
):
    """A decoder layer of a kind on x [R, T, D]: returns (x, kept).

    `mix` mixes the tokens of a row and stores what later tokens need. For attention it is mix(q, k, v) -> ([R, T, H *
    head_dim], kept). With `shared` keys and values are those of another layer, and k and v are None. For
    linear_attention it is mix(qkv, b, a) as in `delta_net.mix`. Without `angle` nothing is rotated. With `pieces` the
    MLP computes a part of the positions at a time, forward and backward. `own_input` holds this layer's inputs
    [R, T, size] of `layer_inputs`. Everything but `mix` treats rows independently and is called as
    map_rows(f)(arrays of rows). When packed, a row is one token, and map_rows computes only the tokens in use. Long
    because layers of all kinds share everything but `project` and `unite`.
    """
    heads, (dim, kv) = config.num_attention_heads, config.heads_of(kind)
    before_attention, after_attention, before_mlp, after_mlp = config.family.norms
    norm = lambda name, x: rms_norm(config, x, layer[name]) if name else x
    scaled = lambda x: x if config.residual_multiplier == 1 else x * jnp.asarray(config.residual_multiplier, x.dtype)

    def apply_map(name: str, x: jax.Array, policy: PolicyOf | None) -> jax.Array:
        function = partial(linear, weight=layer[name], policy=policy)
        return (sharding.in_place(function, name) if decoding else function)(x)

    def apply_group(group: str, x: jax.Array, policy: PolicyOf | None, *ends: int) -> list[jax.Array]:
        if group in layer:
            return jnp.split(apply_map(group, x, policy), ends, -1)
        return [apply_map(name, x, policy) for name in FUSED[group] if name in layer]

    def project(x: jax.Array, angle: tuple | None, policy: PolicyOf | None) -> tuple:
        """(a gate of what `mix` returns or None, the arguments of `mix`)."""
        if kind == LINEAR:
            mixed, values = config.linear_widths
            ends = mixed, mixed + values, mixed + values + config.linear_num_value_heads
            qkv, z, b, a = apply_group("in_proj", norm(before_attention, x), policy, *ends)
            return z, qkv, b, a
        wide = heads * dim * (1 + config.family.gated)
        maps = 1 if shared else 2 if kind == FULL and config.attention_k_eq_v else 3
        q, *others = apply_group("qkv", norm(before_attention, x), policy, *(wide, wide + kv * dim)[: maps - 1])
        gate = None
        if config.family.gated:
            q, gate = (part.reshape(*x.shape[:2], -1) for part in jnp.split(q.reshape(*x.shape[:2], heads, -1), 2, -1))
        if config.family.qk_norm == "all":
            q, others[0] = norm("q_norm", q), norm("k_norm", others[0])
        q, *others = (part.reshape(*x.shape[:2], -1, dim) for part in (q, *others))
        k, v = (others[0], others[-1]) if others else (None, None)
        if config.family.qk_norm == "head":
            q, k = norm("q_norm", q), k if k is None else norm("k_norm", k)
        if config.family.value_norm and v is not None:
            v = rms_norm(config, v, None)
        turn = lambda x: x if angle is None or x is None else rotate(x, angle)
        return gate, turn(q), turn(k), v

    def unite(mixed: jax.Array, gate: jax.Array | None, policy: PolicyOf | None) -> jax.Array:
        if kind == LINEAR and gate is not None:
            of_heads = mixed.reshape(*mixed.shape[:2], -1, config.linear_value_head_dim)
            of_heads = rms_norm(config, of_heads, layer["linear_norm"], minus_one=False)
            gated = of_heads.reshape(mixed.shape) * jax.nn.silu(gate.astype(jnp.float32))
            return apply_map("out_proj", gated.astype(mixed.dtype), policy)
        return apply_map("o_proj", mixed if gate is None else mixed * jax.nn.sigmoid(gate), policy)

    def mlp(inputs: tuple[jax.Array, ...], policy: PolicyOf | None) -> jax.Array:
        """The MLP or the experts of (x,), or the sum of both of (x, the layer's states before the norm of x)."""
        mixed: Callable = partial(experts, config, layer, decoding=decoding)
        if decoding:
            mixed = sharding.in_place(mixed, "experts_down", lookup=True)
        x, *unnormed = inputs
        if config.num_experts and not unnormed:
            return mixed(x)
        wide = shared and config.use_double_wide_mlp
        gate, up = apply_group("gate_up", x, policy, config.intermediate_size * (1 + wide))
        y = apply_map("down_proj", ACTIVATIONS[config.hidden_act](gate) * up, policy)
        return norm(BESIDE_NORMS[0], y) + mixed(*unnormed) if unnormed else y

    def rest(
        x: jax.Array,
        mixed: jax.Array,
        gate: jax.Array | None,
        policy: PolicyOf | None,
        own_input: jax.Array | None,
    ) -> jax.Array:
        rows, length, width = x.shape
        x = x + scaled(norm(after_attention, unite(mixed, gate, policy)))
        inputs = (norm(before_mlp, x), x)[: 1 + bool(config.moe_intermediate_size)]
        if pieces:
            padded = [jnp.pad(part, ((0, 0), (0, -length % PIECES), (0, 0))) for part in inputs]
            parts = tuple(part.reshape(rows, PIECES, -1, width).swapaxes(0, 1) for part in padded)
            inner = jax.lax.map(jax.checkpoint(partial(mlp, policy=policy)), parts)
            inner = inner.swapaxes(0, 1).reshape(rows, -1, width)[:, :length]
        else:
            inner = mlp(inputs, policy)
        x = x + scaled(norm(after_mlp, inner))
        if own_input is not None:
            inner = ACTIVATIONS[config.hidden_act](apply_map("per_layer_input_gate", x, policy)) * own_input
            x = x + norm("post_per_layer_input_norm", apply_map("per_layer_projection", inner, policy))
        if config.family.scaled_layers:
            x = x * jax.lax.stop_gradient(layer["layer_scalar"])[None, None].astype(x.dtype)
        return x

    gate, *arguments = map_rows(project)(x, angle, policy)
    mixed, kept = mix(*arguments)
    return map_rows(rest)(x, mixed, gate, policy, own_input), kept
