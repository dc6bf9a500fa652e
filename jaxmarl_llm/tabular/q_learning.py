"""Tabular Q-learning from one transition or from many at once, and Boltzmann policies."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.returns import Number


def q_learning(
    table: jax.Array,
    state: jax.Array,
    action: jax.Array,
    reward: jax.Array,
    next_state: jax.Array,
    *,
    rate: Number,
    discount: Number,
) -> jax.Array:
    """The table float32 [S, N] after n transitions at once, each array [n]:

        q[s, a] += rate mean over transitions from s, a of (r + discount max_b q[s', b] - q[s, a])

    All errors use the old table. A mean, not a sum, makes a cell that many agents share move as far as an agent's own.
    With one transition this is Watkins & Dayan (1992), https://doi.org/10.1007/BF00992698.
    """
    error = reward + discount * table[next_state].max(1) - table[state, action]
    total = jnp.zeros_like(table).at[state, action].add(error)
    count = jnp.zeros_like(table).at[state, action].add(1.0)
    return table + rate * total / jnp.maximum(count, 1.0)


def boltzmann(q: jax.Array, temperature: Number) -> jax.Array:
    """Log-probabilities of the Boltzmann policy, pi ~ exp(q / temperature), over the last axis."""
    return jax.nn.log_softmax(q / temperature)
