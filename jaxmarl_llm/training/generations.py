"""From one generation of policies to the next: who survives, whose weights the others take over, and how they vary."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

Selection = Literal["top", "random"]


def next_generation(
    weights: Any, score: jax.Array, key: jax.Array, *, survivors: int, noise: Any = 0.0, selection: Selection = "top"
) -> tuple[Any, jax.Array]:
    """(weights of the next generation, leaves [n, ...]; parent int32 [n], whose weights each has taken over).

    `weights` are those of n policies, leaves [n, ...], `score` float32 [n]. The `survivors` of highest score, or random
    ones, keep place and weights. Every other place is taken by a copy of a survivor, each of which has as many children
    as the others or one more, plus normal noise times `noise`, which may be traced. Pure: to be jitted and vmapped.
    Raises ValueError unless some survive.

    Vallinder & Hughes, Cultural Evolution of Cooperation among LLM Agents (2024), https://arxiv.org/abs/2412.10270: the
    better half survives, and the new half learns from it.
    """
    n = len(score)
    if not 1 <= survivors <= n:
        raise ValueError(f"Of {n} policies 1 to {n} can survive, not {survivors}.")
    order_key, noise_key = jax.random.split(key)
    rank = score if selection == "top" else jax.random.uniform(order_key, (n,))
    order = jnp.argsort(-rank)  # the best first
    parent_of_rank = order[jnp.arange(n) % survivors]
    parent = jnp.zeros(n, jnp.int32).at[order].set(parent_of_rank.astype(jnp.int32))
    is_new = jnp.ones(n, bool).at[order[:survivors]].set(False)
    leaves, structure = jax.tree.flatten(weights)
    keys = jax.random.split(noise_key, len(leaves))

    def copied(leaf: jax.Array, key: jax.Array) -> jax.Array:
        varied = leaf[parent] + noise * jax.random.normal(key, leaf.shape, leaf.dtype)
        return jnp.where(is_new.reshape(n, *(1,) * (leaf.ndim - 1)), varied, leaf[parent]).astype(leaf.dtype)

    new = [copied(leaf, own) for leaf, own in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, new), parent
