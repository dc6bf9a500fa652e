"""Masked sums and means, and statistics of entries that share a key.

Every reduction takes ``where``, a bool array of the same shape as the values. Entries outside ``where`` may hold
anything, also NaN and infinity: they change neither the value nor the gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# Larger deviations are divided before they are squared: float32 ends at 2^128, and a sum of squares needs room.
LARGEST_SQUARED = 2.0**32


class Mean(NamedTuple):
    """A sum and a count. Means of micro-batches and devices are added first and divided last.

    The sum of two Means is the Mean of both sets of entries. Both fields have the same shape, () unless they were
    vmapped.
    """

    sum: jax.Array
    count: jax.Array  # type: ignore[assignment]  # hides tuple.count, which is not used here

    def __add__(self, other: "Mean") -> "Mean":  # type: ignore[override]  # adds entries, does not concatenate tuples
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> jax.Array:
        """sum / count, and 0 if the count is 0."""
        return jnp.where(self.count > 0, self.sum / jnp.where(self.count > 0, self.count, 1), 0)


def keep(x: jax.Array, where: jax.Array) -> jax.Array:
    """x inside ``where``, 0 outside, in float32 at least. Apply it before any logarithm, exponential or quotient.

    A mask on the result is not enough: the gradient of a masked ``exp(inf)`` is 0 * inf = NaN.
    Raises ValueError if the shapes differ, since a broadcast ``where`` would count too few entries.
    """
    if x.shape != where.shape:
        raise ValueError(f"where has shape {where.shape}, but the values have shape {x.shape}: they must be equal.")
    return jnp.where(where, x.astype(jnp.promote_types(x.dtype, jnp.float32)), 0)


def constant(x: jax.Array, where: jax.Array) -> jax.Array:
    """``keep`` without a gradient."""
    return jax.lax.stop_gradient(keep(x, where))


def mean_of(x: jax.Array, where: jax.Array) -> Mean:
    """The mean of x [...] over the entries of ``where`` [...]."""
    kept = keep(x, where)
    return Mean(kept.sum(), where.sum(dtype=kept.dtype))


def correlation(x: jax.Array, y: jax.Array, where: jax.Array) -> jax.Array:
    """Pearson's correlation of x [...] and y [...] over the entries of ``where`` [...]; 0 without spread."""
    x, y = (keep(z - mean_of(z, where).value, where) for z in (x, y))
    spread = jnp.sqrt((x**2).sum() * (y**2).sum())
    return (x * y).sum() / jnp.where(spread > 1e-9, spread, 1)


def mean_per_row(x: jax.Array, where: jax.Array) -> Mean:
    """The mean of each row of x [R,M], averaged over the rows with an entry in ``where``. All rows weigh the same."""
    kept, count = keep(x, where), where.sum(-1)
    return Mean((kept.sum(-1) / jnp.maximum(count, 1)).sum(), (count > 0).sum(dtype=kept.dtype))


def sum_per_row(x: jax.Array, where: jax.Array, *, length: float = 1.0) -> Mean:
    """The sum of each row of x [R,M] over a constant length, averaged over the rows with an entry in ``where``.

    ``length`` is the same for every row and batch, e.g. the largest number of tokens of a row (Dr. GRPO). The count is
    rows times length, so that parts of a batch add up.
    """
    kept = keep(x, where)
    return Mean(kept.sum(), length * where.any(-1).sum(dtype=kept.dtype))


def mean_per_turn(x: jax.Array, where: jax.Array, *, turn: jax.Array) -> Mean:
    """The mean of each utterance of x [R,M], averaged over utterances. ``turn`` is int [R,M], as in ``utterance_of``.

    An utterance is the entries of ``where`` in one turn of one row. Rows with more turns weigh more.
    """
    key = utterance_of(turn)
    count = segment_count(key, key.size, where)
    return Mean((keep(x, where) / jnp.maximum(count[key], 1)).sum(), (count > 0).sum(dtype=count.dtype))


def utterance_of(turn: jax.Array) -> jax.Array:
    """A key for each utterance: turn int [R,M] -> int [R,M] in 0..R*M-1, equal where both row and turn are equal.

    The tokens of a turn must be contiguous in their row, as in ``SampledTokens`` of a rollout.
    """
    rows, tokens = turn.shape
    nth = jnp.pad(jnp.cumsum(turn[:, 1:] != turn[:, :-1], axis=1), ((0, 0), (1, 0)))
    return nth + tokens * jnp.arange(rows)[:, None]


def segment_count(key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    """The number of ``where`` entries under each key: key int [...] in 0..num_segments-1 -> float32 [num_segments]."""
    return _segment_sum(jnp.ones(key.shape), key, num_segments, where)


def segment_mean(x: jax.Array, key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    """The mean of x [...] under each key [...] -> [num_segments], 0 for a key without entries.

    The mean is low[k] + sum of (x - low[k]) / count[k], with low[k] the smallest entry of the key. Equal entries then
    have exactly their value as mean, whereas the float32 mean of three times 0.1 is not 0.1.
    """
    kept = keep(x, where)
    count = segment_count(key, num_segments, where)
    candidates = jnp.where(where, kept, jnp.inf).ravel()
    low = jax.ops.segment_min(jax.lax.stop_gradient(candidates), key.ravel(), num_segments)
    low = jnp.where(count > 0, low, 0)
    return low + _segment_sum(kept - low[key], key, num_segments, where) / jnp.maximum(count, 1)


def segment_unit(x: jax.Array, key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    """A unit for x [...] under each key -> [num_segments]: squares of x / unit[key] do not overflow. A constant.

    The unit is 1 if every |x| of the key is below 2^32, so ordinary numbers keep all their bits. Otherwise it is the
    power of two just below the largest |x| of the key, and a division by a power of two is exact. Without units the
    float32 square of 1e20 is infinite, and an estimate divided by it is 0.
    """
    size = jnp.abs(constant(x, where))
    largest = jax.ops.segment_max(size.ravel(), key.ravel(), num_segments)  # -inf for a key without entries
    mantissa, _ = jnp.frexp(largest)  # in [1/2, 1)
    return jnp.where((largest >= LARGEST_SQUARED) & jnp.isfinite(largest), largest / (2 * mantissa), 1)


def segment_variance(x: jax.Array, key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    """Population variance of x [...] under each key [...] -> [num_segments], exactly 0 if the key's entries are equal.

    The result is not finite for deviations of 1.8e19 or more, whose squares overflow float32.
    """
    deviation = keep(x, where) - segment_mean(x, key, num_segments, where)[key]
    return segment_mean(deviation**2, key, num_segments, where)


def _segment_sum(x: jax.Array, key: jax.Array, num_segments: int, where: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(keep(x, where).ravel(), key.ravel(), num_segments)
