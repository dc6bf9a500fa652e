"""Low-rank adapters of linear maps: every policy has an adapter, and all share a base model.

LoRA, Hu et al. (2021), https://arxiv.org/abs/2106.09685
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.models.config import GLOBAL, OF_MLP, WIDE, plain

MAPS: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MAPS += ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")  # only layers with linear_attention
MAPS += ("per_layer_input_gate", "per_layer_projection")
TARGETS = MAPS
MAPS += (*(GLOBAL + name for name in TARGETS[:4]), *(WIDE + name for name in OF_MLP))  # the leaves of all targets


@dataclass(frozen=True)
class Lora:
    """Settings of an adapter: y = W x + (alpha / rank) B A x on the linear maps in `targets`.

    A target is a name in TARGETS or a pattern, e.g. ("q_*", "v_*").
    Raises ValueError for rank < 1, alpha <= 0 or a target that matches no map.
    """

    rank: int = 32
    alpha: float = 64.0
    targets: tuple[str, ...] = ("*",)

    def __post_init__(self):
        unknown = [target for target in self.targets if not fnmatch.filter(TARGETS, target)]
        whole = isinstance(self.rank, int) and self.rank >= 1
        if not whole or not 0 < self.alpha < math.inf or unknown or not self.targets:
            raise ValueError(
                f"LoRA needs rank >= 1, alpha > 0 and targets among {', '.join(TARGETS)} (or patterns with *), got "
                f"rank {self.rank}, alpha {self.alpha}, targets {', '.join(map(repr, self.targets)) or 'none'}."
            )

    @property
    def maps(self) -> tuple[str, ...]:
        """The leaves of the linear maps with an adapter."""
        return tuple(name for name in MAPS if any(fnmatch.fnmatchcase(plain(name), target) for target in self.targets))


PolicyOf = jax.Array | np.ndarray  # int32 [rows], the policy of each row; NumPy if known before the program runs
Adapter = dict[str, dict[str, jax.Array]]  # {linear map: {"a": [L, rank, in], "b": [L, out, rank]}}


class Adapters(struct.PyTreeNode):
    """The adapters of a batch, concatenated along the rank; K is the sum of the ranks on a map.

    A single product over all ranks, masked by the row's policy, adds half of a step's time. Gathering a matrix for
    every row would triple it.
    """

    layers: dict[str, dict[str, jax.Array]]  # {map: {"a": [L, K, in], "b": [L, out, K]}}, alpha / rank folded into b
    owner: tuple[tuple[str, tuple[int, ...]], ...] = struct.field(pytree_node=False)  # (map, policy of each rank [K])

    @property
    def owners(self) -> dict[str, np.ndarray]:
        """{map: policy of each rank, int32 [K]}."""
        return {name: np.asarray(policies, np.int32) for name, policies in self.owner}


def init(key: jax.Array, params: dict, lora: Lora) -> Adapter:
    """A new adapter: a is uniform in +-1/sqrt(in), as in PEFT, and b is 0.

    Raises ValueError if the model has none of the linear maps: experts have no adapters.
    """
    adapter = {}
    for index, name in enumerate(lora.maps):
        if name not in params["layers"]:
            continue
        layers, out, inner = params["layers"][name].shape
        bound = inner**-0.5
        a = jax.random.uniform(jax.random.fold_in(key, index), (layers, lora.rank, inner), jnp.float32, -bound, bound)
        adapter[name] = {"a": a, "b": jnp.zeros((layers, out, lora.rank), jnp.float32)}
    if not adapter:
        maps = dict.fromkeys(map(plain, lora.maps))
        raise ValueError(f"This model has none of {', '.join(maps)}: its MLPs are experts, without adapters.")
    return adapter


def concatenate(adapters: Sequence[Adapter], loras: Sequence[Lora]) -> Adapters | None:
    """Joins the adapters of policies 0, 1, ..., with their settings, along the rank; None without adapters."""
    if not adapters:
        return None
    layers, owner = {}, []
    for name in MAPS:
        having = [i for i, adapter in enumerate(adapters) if name in adapter]
        if having:
            scaled = [adapters[i][name]["b"] * (loras[i].alpha / loras[i].rank) for i in having]
            a = jnp.concatenate([adapters[i][name]["a"] for i in having], axis=1)
            layers[name] = {"a": a, "b": jnp.concatenate(scaled, axis=2)}
            owner.append((name, tuple(i for i in having for _ in range(loras[i].rank))))
    return Adapters(layers, tuple(owner))


def merge(params: dict, adapters: Adapters) -> dict:
    """The base with W + B A in place of W, for batches whose rows all have the same adapter."""
    merged = {
        name: params["layers"][name] + jnp.einsum("lok,lki->loi", ab["b"], ab["a"]).astype(params["layers"][name].dtype)
        for name, ab in adapters.layers.items()
    }
    return {**params, "layers": {**params["layers"], **merged}}
