"""Sums and means over the entries that count, and statistics of entries that share a key.

Every reduction takes ``where``, a bool array of the same shape as the values. An entry that does not count may hold
anything, NaN and infinity included: it changes neither the value nor the gradient.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    """A mean that is not yet divided, so that micro-batches and devices add up to the mean over everything.

    Adding two of them joins two sets of entries. Both fields have the same shape, () unless they were vmapped.
    """

    sum: jax.Array
    count: jax.Array  # type: ignore[assignment]  # hides tuple.count, which nobody needs here

    def __add__(self, other: "Mean") -> "Mean":  # type: ignore[override]  # entries join, tuples do not
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> jax.Array:
        """sum / count, and 0 where nothing counted."""
        return jnp.where(self.count > 0, self.sum / jnp.where(self.count > 0, self.count, 1), 0)


def keep(x: jax.Array, where: jax.Array) -> jax.Array:
    """x where it counts and 0 elsewhere, in float32 at least: apply it before any logarithm, exponential or quotient.

    Masking the result is not enough: the gradient of a masked ``exp(inf)`` is 0 * inf = NaN.
    Raises ValueError if the shapes differ, since a broadcast ``where`` would count too few entries.
    """
    if x.shape != where.shape:
        raise ValueError(f"where has shape {where.shape}, but the values have shape {x.shape}: they must be equal.")
    return jnp.where(where, x.astype(jnp.promote_types(x.dtype, jnp.float32)), 0)


def mean_of(x: jax.Array, where: jax.Array) -> Mean:
    """The mean of x [...] over the entries where ``where`` [...] is true."""
    kept = keep(x, where)
    return Mean(kept.sum(), where.sum(dtype=kept.dtype))


def segment_count(key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    """How many entries count under each key: key int [...] in 0..num_segments-1 -> float32 [num_segments]."""
    return _segment_sum(jnp.ones(key.shape), key, num_segments, where)


def segment_mean(x: jax.Array, key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    """Mean of x [...] under each key [...] -> [num_segments], 0 for a key without entries.

    low[k] + sum of (x - low[k]) / count[k], where low[k] is the key's smallest entry: equal entries then have exactly
    that mean, whereas the float32 mean of three times 0.1 is not 0.1.
    """
    kept = keep(x, where)
    count = segment_count(key, num_segments, where)
    candidates = jnp.where(where, kept, jnp.inf).ravel()
    low = jax.ops.segment_min(jax.lax.stop_gradient(candidates), key.ravel(), num_segments)
    low = jnp.where(count > 0, low, 0)
    return low + _segment_sum(kept - low[key], key, num_segments, where) / jnp.maximum(count, 1)


def segment_variance(x: jax.Array, key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    """Population variance of x [...] under each key [...] -> [num_segments], exactly 0 if a key's entries are equal."""
    deviation = keep(x, where) - segment_mean(x, key, num_segments, where)[key]
    return segment_mean(deviation**2, key, num_segments, where)


def _segment_sum(x: jax.Array, key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(keep(x, where).ravel(), key.ravel(), num_segments)


@jax.custom_batching.custom_vmap
def any_lane(x: jax.Array) -> jax.Array:
    """Whether any entry of x is true, in any lane of any surrounding vmap: bool [...] -> bool [], never batched.

    As the condition of a ``while_loop`` it keeps a vmapped loop a plain loop: with ``jnp.any`` the condition is
    batched, and JAX then selects between the old and the new carry, caches included, in every step of every lane. The
    body goes on in lanes that have finished until all have, so it must leave a finished lane unchanged.
    """
    return jnp.any(x)


@any_lane.def_vmap
def _any_lane_rule(axis_size: int, in_batched: list[bool], x: jax.Array) -> tuple[Any, bool]:
    return any_lane(x), False
