"""Social preferences: utilities that depend on other agents' utilities, and social welfare. Arrays in, arrays out.

Utilities are float32 [..., A], one for each of A agents, e.g. the returns of an episode.
"""

from __future__ import annotations

from typing import Literal, get_args

import jax
import jax.numpy as jnp

Welfare = Literal["sum", "minimum", "nash"]


def interdependent(utility: jax.Array, dependence: jax.Array) -> jax.Array:
    """Interdependent utilities U_i = u_i + sum_{j != i} D_ij u_j of u [..., A] and D [A, A]: [..., A].

    D_ij is the weight of j's utility for i: 0 selfish, 1 the sum of all, below 0 rivalry. The diagonal is not used.
    Pant & Yu, Computational Foundations for Strategic Coopetition (2025), https://arxiv.org/abs/2510.18802.
    Raises ValueError unless D is [A, A].
    """
    agents = utility.shape[-1]
    if dependence.shape != (agents, agents):
        raise ValueError(f"Of {agents} agents the dependence is [{agents}, {agents}], not {list(dependence.shape)}.")
    weight = jnp.where(jnp.eye(agents, dtype=bool), 1.0, dependence)
    return (utility[..., None, :] * jnp.broadcast_to(weight, (*utility.shape, agents))).sum(-1)


def welfare(utility: jax.Array, kind: Welfare) -> jax.Array:
    """Social welfare [...] of utilities u [..., A].

        sum      the sum of u
        minimum  A times the minimum, which Rawls maximises
        nash     A times the geometric mean of max(u, 0): the product that Nash's bargainers with disagreement point 0
                 maximise

    All three are A u for equal utilities u. GTAlign (Zhu et al. 2025), https://arxiv.org/abs/2510.08872, rewards with
    the geometric mean of user and model. Raises ValueError for another kind.
    """
    if kind not in get_args(Welfare):
        raise ValueError(f"Welfare is one of {', '.join(get_args(Welfare))}, not {kind!r}.")
    agents = utility.shape[-1]
    if kind == "sum":
        return utility.sum(-1)
    if kind == "minimum":
        return agents * utility.min(-1)
    return agents * jnp.maximum(utility, 0).prod(-1) ** (1 / agents)
