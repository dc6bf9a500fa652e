"""Numbers of a token in a model's layers, by arithmetic from its configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.delta_rule import CHUNK as SOLVED


def different(config: Config) -> dict[int, int]:
    """{first layer of a sort: layers of that sort}: layers of a sort have leaves and arrays of the same shapes."""
    sorts: dict[Any, list[int]] = {}
    for layer, kind in enumerate(config.kinds):
        sorts.setdefault((kind, config.source(layer) == layer), []).append(layer)
    return {layers[0]: len(layers) for layers in sorts.values()}


def cache_numbers(config: Config, split: int) -> float:
    """Numbers of a token's keys and values in the caches of all layers, with heads split over so many devices."""
    total = 0.0
    for layer in config.with_keys:
        dim, heads = config.heads_of(config.kinds[layer])
        total += 2 * dim * (heads / split if heads % split == 0 else heads)
    return total


def inner_numbers(config: Config, layer: int) -> float:
    """Numbers of a token in the middle of a layer's MLP and experts; every expert computes every token."""
    experts, beside = config.num_experts, config.moe_intermediate_size
    wide = config.use_double_wide_mlp and config.source(layer) != layer
    mlp = config.intermediate_size * (1 + wide)
    return mlp + experts * beside if beside or not experts else experts * config.intermediate_size


def input_numbers(config: Config) -> int:
    """Numbers of a token in the inputs of all layers, beside its hidden states."""
    return config.num_hidden_layers * config.hidden_size_per_layer_input


def rule_numbers(config: Config, length: int, gradient: bool = False) -> float:
    """Numbers of a row of so many tokens in the delta rule: arrays of all tokens, and those of one chunk.

    Their counts were fitted to programs compiled for a CPU, which have 0.85 to 1.45 times these numbers. Keys and
    values had 32 to 128 numbers, and rows 128 to 512 tokens. Rows are filled up to whole chunks.
    """
    length = -(-length // SOLVED) * SOLVED if length > SOLVED else length
    whole, chunk = (3.5, 10.0) if gradient else (1.6, 3.3)
    size = config.linear_num_value_heads * (config.linear_key_head_dim + config.linear_value_head_dim)
    return size * (whole * length + chunk * min(SOLVED, length))


def rule_operations(config: Config) -> float:
    """FLOPs of a token in the products of the delta rule, in chunks: with its chunk's tokens, and with the state."""
    keys, values = config.linear_key_head_dim, config.linear_value_head_dim
    return 2 * config.linear_num_value_heads * (SOLVED * (3 * keys + 2 * values) + 3 * keys * values)


def cut_leaves(config: Config, leaves: Iterable[str]) -> list[str]:
    """The leaves of which an update copies parts: they are stacked over layers of several of its loops.

    A loop takes whole periods of a run of `Config.loops`, and the layers after them are a part of their own.
    """
    segments = []
    for first, end, period in config.loops:
        whole = first + (end - first) // period * period
        segments += [range(first, whole), range(whole, end)]
    return [leaf for leaf in leaves if not any(set(config.layers_with(leaf)) <= {*part} for part in segments)]
