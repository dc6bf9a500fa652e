"""Layers of several kinds: weights are stacked over the layers that have them, and a loop takes a period at a time.

The kinds of layers, and the leaves that only some of them have, stand in `config.KINDS_WITH`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxmarl_llm.models.config import Config


def one_layer(config: Config, tree: dict, layer: int, first: int = 0) -> dict:
    """The leaves of a layer, of a tree {leaf: arrays} stacked over the layers from `first` on that have the leaf."""
    places = {name: [i for i in config.layers_with(name) if i >= first] for name in sorted(tree)}
    at = {name: layers.index(layer) for name, layers in places.items() if layer in layers}
    return {name: jax.tree.map(lambda leaf, i=i: leaf[i], tree[name]) for name, i in at.items()}


def scan_layers(config: Config, steps: dict[str, Callable], carry: Any, layers: tuple) -> Any:
    """The carry after steps[kind](carry, layer) -> (carry, None) of all layers, a loop over whole periods.

    `layers` are trees whose leaves are stacked over the layers that have them; trees of weights are keyed by leaf.
    """
    period = config.period
    if period == 1:
        return jax.lax.scan(steps[config.kinds[0]], carry, layers)[0]
    whole = config.num_hidden_layers // period * period

    def part(tree: dict, first: int, last: int) -> dict:
        """The leaves of some layers, stacked over those of them that have the leaf."""
        numbers = {name: [first <= i < last for i in config.layers_with(name)] for name in tree}
        bounds = {name: (has.index(True), has.index(True) + sum(has)) for name, has in numbers.items() if any(has)}
        return {name: jax.tree.map(lambda x, ends=ends: x[slice(*ends)], tree[name]) for name, ends in bounds.items()}

    def apart(tree: Any) -> Any:
        """[periods x layers of a period, ...] as [periods, layers of a period, ...]."""
        return jax.tree.map(lambda x: x.reshape(whole // period, -1, *x.shape[1:]), tree)

    def several(carry: Any, layers: tuple, first: int, count: int) -> Any:
        base, extra, *facts = layers
        for i in range(count):
            weights = (one_layer(config, tree, first + i, first) for tree in (base, extra))
            layer = *weights, *(fact[i] for fact in facts)
            carry, _ = steps[config.kinds[first + i]](carry, layer)
        return carry

    base, extra, *facts = layers
    loop = apart((part(base, 0, whole), part(extra, 0, whole), *(fact[:whole] for fact in facts)))
    carry, _ = jax.lax.scan(lambda carry, layers: (several(carry, layers, 0, period), None), carry, loop)
    count = config.num_hidden_layers
    rest = part(base, whole, count), part(extra, whole, count), *(fact[whole:] for fact in facts)
    return several(carry, rest, whole, count - whole)
