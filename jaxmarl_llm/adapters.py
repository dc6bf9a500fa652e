"""Low-rank adapters: one linear map of a shared base, seen differently by each policy (LoRA, Hu et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Lora:
    """Settings of an adapter: y = W x + (alpha / rank) B A x, on the linear maps named in `targets`."""

    rank: int = 32
    alpha: float = 64.0
    targets: tuple[str, ...] = LINEAR

    def __post_init__(self):
        unknown = [name for name in self.targets if name not in LINEAR]
        if self.rank < 1 or unknown:
            raise ValueError(
                f"LoRA needs rank >= 1 and targets among {LINEAR}, got rank {self.rank}, unknown {unknown}."
            )


class Adapters(struct.PyTreeNode):
    """The adapters active in one batch, concatenated along the rank: K = sum of their ranks.

    Gathering a matrix for every row costs three times a step; one product over all ranks, masked by the
    row's policy, costs half of one.
    """

    layers: dict[str, dict[str, jax.Array]]  # {target: {"a": [L, K, in], "b": [L, out, K]}}, alpha / rank folded into b
    owner: tuple[int, ...] = struct.field(pytree_node=False)  # [K] the policy that each rank belongs to


def init(key: jax.Array, params: dict, lora: Lora) -> dict[str, dict[str, jax.Array]]:
    """One adapter, {target: {"a": [L, rank, in], "b": [L, out, rank]}}.

    a is uniform in +-1/sqrt(in) (PEFT's choice), b zero.
    """
    adapter = {}
    for index, name in enumerate(lora.targets):
        layers, out, inner = params["layers"][name].shape
        bound = inner**-0.5
        a = jax.random.uniform(jax.random.fold_in(key, index), (layers, lora.rank, inner), jnp.float32, -bound, bound)
        adapter[name] = {"a": a, "b": jnp.zeros((layers, out, lora.rank), jnp.float32)}
    return adapter


def concatenate(adapters: Sequence[dict[str, dict[str, jax.Array]]], lora: Lora) -> Adapters | None:
    """Joins the adapters of policies 0, 1, ... along the rank; None if there are none."""
    if not adapters:
        return None
    scale = lora.alpha / lora.rank
    layers = {
        name: {
            "a": jnp.concatenate([adapter[name]["a"] for adapter in adapters], axis=1),
            "b": jnp.concatenate([adapter[name]["b"] for adapter in adapters], axis=2) * scale,
        }
        for name in lora.targets
    }
    return Adapters(layers, tuple(np.repeat(np.arange(len(adapters)), lora.rank).tolist()))


def merge(params: dict, adapters: Adapters) -> dict:
    """The base with W + B A in place of W: for batches in which every row has the same adapter."""
    merged = {
        name: params["layers"][name] + jnp.einsum("lok,lki->loi", ab["b"], ab["a"]).astype(params["layers"][name].dtype)
        for name, ab in adapters.layers.items()
    }
    return {**params, "layers": {**params["layers"], **merged}}
