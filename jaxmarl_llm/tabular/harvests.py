"""A common stock that grows back and is harvested by effort, and fines of agents whose effort is above a norm.

    h_i = q e_i R        R' = R + g R (1 - R / K) - sum_i h_i

R is the stock, K its capacity, g its growth in a year and e_i in [0, 1] an agent's effort. An effort of 1 takes the
share q of the stock (Schaefer 1954, for a fishery). All numbers may be traced.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.returns import Number


class Common(NamedTuple):
    growth: Number  # g, per year
    capacity: Number = 100.0  # K
    catch: Number = 0.1  # q
    least: Number = 1.0  # a smaller stock is extinct


def sustainable_yield(common: Common) -> Number:
    """The largest harvest that can last: max over R of g R (1 - R / K) = g K / 4, at q sum e = g / 2."""
    return common.growth * common.capacity / 4


def sustained_stock(common: Common, effort: jax.Array) -> jax.Array:
    """The stable stock [...] under constant efforts [..., A]: max(0, K (1 - q sum_i e_i / g))."""
    return jnp.maximum(common.capacity * (1 - common.catch * effort.sum(-1) / common.growth), 0.0)


def harvest(common: Common, stock: jax.Array, effort: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(the stock after a year, 0 if it is extinct; harvests [A]) from a stock and efforts [A]."""
    taken = common.catch * effort * stock
    after = stock * (1 + common.growth * (1 - stock / common.capacity)) - taken.sum()
    return jnp.where(after < common.least, 0.0, after), taken


def impose_fines(
    effort: jax.Array, norm: jax.Array, watches: jax.Array, seen: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(number of fines that each agent imposes, number that it gets), float32 [A], from efforts [A] and a norm.

    An agent with `watches` (bool [A]) sees the agent `seen` (int32 [A]), and fines it if its effort is above the norm.
    """
    imposed = (watches & (effort[seen] > norm)).astype(jnp.float32)
    return imposed, jnp.zeros(len(effort)).at[seen].add(imposed)
