"""From reward components to one reward for each seat. Arrays in, arrays out."""

import jax
import jax.numpy as jnp


def weigh(reward: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum of the components times their weights: reward [B,T,A,C], weights [C] -> [B,T,A].

    Raises ValueError if there is not one weight for each component.
    """
    if weights.shape != reward.shape[-1:]:
        raise ValueError(f"weights has shape {weights.shape}, but there are {reward.shape[-1]} reward components.")
    return (reward * weights[None, None, None, :]).sum(axis=-1)  # not a matrix product: those are bfloat16 on a TPU


def team_sum(reward: jax.Array) -> jax.Array:
    """Every seat gets the sum over all seats, in every turn: reward [B,T,A] -> [B,T,A]."""
    return jnp.broadcast_to(reward.sum(axis=-1, keepdims=True), reward.shape)
