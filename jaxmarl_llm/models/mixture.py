"""The sum of a token's experts: by all experts, or in decoding on a CPU by the chosen ones alone.

Shapes: N tokens, E experts, k chosen ones of a token, D width, I numbers in the middle of an expert.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import sharding, target
from jaxmarl_llm.models.attention import FEW

Maps = tuple[jax.Array, ...]  # gate and up [E, I, D], down [E, D, I]
SHORT = 4096  # XLA on a CPU joins a slice with its product by a vector of fewer than so many float32 numbers
READ = 8  # a product with so many tokens takes about the time of reading its weights from memory, on a CPU


def mix(
    act: Callable[[jax.Array], jax.Array],
    maps: Maps,
    rows: jax.Array,
    taken: jax.Array,
    chosen: jax.Array,
    decoding: bool = False,
) -> jax.Array:
    """y [N, D] = sum over e of taken[n, e] * down[e] (act(gate[e] x) * (up[e] x)) for tokens x, rows [N, D].

    taken float32 [N, E] is 0 but at the experts chosen int32 [N, k]. The form follows from the shapes alone: `by_all`,
    and for up to FEW tokens with `decoding`, on one CPU device in float32, `by_chosen` or `by_each`. In bfloat16 XLA
    on a CPU keeps float32 copies of the weights for every form, and no form was timed at the sizes of real models.
    """
    alone = decoding and target.platform() == "cpu" and sharding.single()
    if not alone or len(rows) > FEW or rows.dtype != jnp.float32:
        return by_all(act, maps, rows, taken)
    count, *sizes = maps[0].shape
    if max(sizes) < SHORT and chosen.shape[1] * min(len(rows), READ) <= count:
        return by_chosen(act, maps, rows, taken, chosen)
    return by_each(act, maps, rows, taken)


def by_all(act: Callable[[jax.Array], jax.Array], maps: Maps, rows: jax.Array, taken: jax.Array) -> jax.Array:
    """`mix` with every expert for every token, with weight 0 for tokens of other experts.

    This is without a limit of tokens per expert, and each device computes its own experts.
    """
    gate, up, down = maps
    inner = act(jnp.einsum("nd,eid->eni", rows, gate)) * jnp.einsum("nd,eid->eni", rows, up)
    inner = inner * taken.T[..., None].astype(rows.dtype)
    return jnp.einsum("eni,edi->nd", inner, down)


def by_each(act: Callable[[jax.Array], jax.Array], maps: Maps, rows: jax.Array, taken: jax.Array) -> jax.Array:
    """`by_all` for few tokens: a product for each expert reads its weights as they lie.

    For `by_all` XLA on a CPU copies `down` into another layout for every token. The result of each expert is kept until
    the sum, [E, D, N], which is too much for many tokens.
    """
    gate, up, down = maps
    first, second = (jax.lax.optimization_barrier(jnp.einsum("eid,nd->ein", w, rows)) for w in (gate, up))
    inner = act(first) * second * taken.T[:, None].astype(rows.dtype)
    return jnp.einsum("edi,ein->edn", down, inner).sum(0).T


def by_chosen(
    act: Callable[[jax.Array], jax.Array], maps: Maps, rows: jax.Array, taken: jax.Array, chosen: jax.Array
) -> jax.Array:
    """`mix` with products by a vector for each token and chosen expert, which read its weights without a copy.

    Pairs of a token and an expert come in order of experts, so that tokens of one expert find its weights in the
    cache. A token's result does not depend on the other tokens. Lanes of a surrounding vmap come one after another,
    since a batched index would copy the weights that they share.
    """

    @jax.custom_batching.sequential_vmap
    def mixture(gate: jax.Array, up: jax.Array, down: jax.Array, rows: jax.Array, taken: jax.Array, chosen: jax.Array):
        def of_pair(pair: tuple[jax.Array, jax.Array]) -> jax.Array:
            token, expert = pair
            of_expert = (jax.lax.dynamic_index_in_dim(w, expert, 0, keepdims=False).T for w in (gate, up, down))
            first, second, last = of_expert
            x = jax.lax.dynamic_slice_in_dim(rows, token, 1)
            return ((act(x @ first) * (x @ second) * taken[token, expert]) @ last)[0]

        experts = chosen.reshape(-1)
        order = jnp.argsort(experts, stable=True)
        parts = jax.lax.map(of_pair, (order // chosen.shape[1], experts[order]))
        return parts[jnp.argsort(order)].reshape(*chosen.shape, -1).sum(1)

    return mixture(*maps, rows, taken, chosen)
