"""A common stock that grows back, harvested by effort under a norm that others enforce: one year, and what is best.

    h_i = q e_i R        R' = R + g R (1 - R / K) - sum_i h_i

R is the stock, K its capacity, g its growth, e_i in 0 to 1 an agent's effort, q the share of the stock that an effort
of 1 takes (Schaefer 1954, of a fishery). All numbers may be traced.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.returns import Number


class Common(NamedTuple):
    growth: Number  # g, a year
    capacity: Number = 100.0  # K
    catch: Number = 0.1  # q
    least: Number = 1.0  # a smaller stock is gone


def sustainable_yield(common: Common) -> Number:
    """The most that can be taken each year for ever: max over R of g R (1 - R / K) = g K / 4, at q sum e = g / 2."""
    return common.growth * common.capacity / 4


def sustained_stock(common: Common, effort: jax.Array) -> jax.Array:
    """Where a stock stays under efforts [..., A] that stay as they are: max(0, K (1 - q sum_i e_i / g)), [...]."""
    return jnp.maximum(common.capacity * (1 - common.catch * effort.sum(-1) / common.growth), 0.0)


def harvested(common: Common, stock: jax.Array, effort: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(the stock after a year, 0 if it is gone; harvests [A]) of a stock and efforts [A]."""
    taken = common.catch * effort * stock
    after = stock * (1 + common.growth * (1 - stock / common.capacity)) - taken.sum()
    return jnp.where(after < common.least, 0.0, after), taken


def fined(effort: jax.Array, norm: jax.Array, watches: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(fines that each agent imposes, fines that each gets), float32 [A] each, of efforts [A] and a norm.

    An agent who `watches` (bool [A]) sees another (int32 [A]) and fines it if that one's effort is above the norm.
    """
    imposed = (watches & (effort[seen] > norm)).astype(jnp.float32)
    return imposed, jnp.zeros(len(effort)).at[seen].add(imposed)
