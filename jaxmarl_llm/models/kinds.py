"""Layers of several kinds: weights are stacked over the layers that have them, and a loop takes a period at a time.

The kinds of layers, and the leaves that only some of them have, stand in `config.KINDS_WITH`. `Config.leaf_of` names
the leaf of a layer: heads of full layers, and MLPs of layers that share keys and values, may have leaves of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.models.config import Config


def one_layer(config: Config, tree: dict, layer: int, first: int = 0) -> dict:
    """The leaves of a layer, of a tree {leaf: arrays} stacked over the layers from `first` on that have the leaf."""
    places = {name: [i for i in config.layers_with(name) if i >= first] for name in sorted(tree)}
    at = {name: layers.index(layer) for name, layers in places.items() if layer in layers}
    return {name: jax.tree.map(lambda leaf, i=i: leaf[i], tree[name]) for name, i in at.items()}


def no_keys(config: Config, kind: str, x: jax.Array | None) -> tuple[jax.Array, jax.Array] | None:
    """Keys and values of no tokens yet, in the layouts of a cache, of a layer of a kind on x [R, T, D]."""
    if x is None:
        return None
    (rows, length, _), (dim, heads) = x.shape, config.heads_of(kind)
    return jnp.zeros((rows, heads, dim, length), x.dtype), jnp.zeros((rows, heads, length, dim), x.dtype)


def scan_layers(
    config: Config,
    steps: Mapping[str, Callable],
    carry: Any,
    layers: tuple,
    run: tuple[int, int, int],
    remat: Callable,
) -> Any:
    """The carry after steps[kind](carry, layer) -> (carry, None) of a run of layers, a loop over whole periods.

    `run` is one of `Config.loops`. `layers` are trees whose leaves are stacked over the layers that have them; trees of
    weights are keyed by leaf. `remat` wraps a step together with the choice of the layer's weights. Otherwise the
    backward pass would keep what was chosen, a copy of all layers.
    """
    start, end, period = run
    if period == 1 and end - start == config.num_hidden_layers:
        return jax.lax.scan(remat(steps[config.kinds[0]]), carry, layers)[0]
    whole = start + (end - start) // period * period

    def part(tree: dict, first: int, last: int) -> dict:
        """The leaves of some layers, stacked over those of them that have the leaf."""
        numbers = {name: [first <= i < last for i in config.layers_with(name)] for name in tree}
        bounds = {name: (has.index(True), has.index(True) + sum(has)) for name, has in numbers.items() if any(has)}
        return {name: jax.tree.map(lambda x, ends=ends: x[slice(*ends)], tree[name]) for name, ends in bounds.items()}

    def apart(tree: Any) -> Any:
        """[periods x layers of a period, ...] as [periods, layers of a period, ...]."""
        return jax.tree.map(lambda x: x.reshape((whole - start) // period, -1, *x.shape[1:]), tree)

    def several(carry: Any, layers: tuple, first: int, count: int) -> Any:
        def advance(carry: Any, layers: tuple, i: int) -> Any:
            base, extra, *facts = layers
            weights = (one_layer(config, tree, first + i, first) for tree in (base, extra))
            return steps[config.kinds[first + i]](carry, (*weights, *jax.tree.map(lambda fact: fact[i], facts)))

        for i in range(count):
            carry, _ = remat(partial(advance, i=i))(carry, layers)
        return carry

    base, extra, *facts = layers
    facts_of = lambda first, last: jax.tree.map(lambda fact: fact[first:last], facts)
    loop = apart((part(base, start, whole), part(extra, start, whole), *facts_of(start, whole)))
    carry, _ = jax.lax.scan(lambda carry, layers: (several(carry, layers, start, period), None), carry, loop)
    rest = part(base, whole, end), part(extra, whole, end), *facts_of(whole, end)
    return several(carry, rest, whole, end - whole)
