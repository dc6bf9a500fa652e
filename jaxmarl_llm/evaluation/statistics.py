"""Means with intervals, and exact paired tests. NumPy, float64."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from scipy import stats


def student_interval(values: Any, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean and Student-t interval (mean, low, high) of independent values [n]; NaNs are skipped.

    With fewer than two values there is no interval: low and high are NaN (and so is the mean of none).
    """
    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    if len(values) < 2:
        return (float(values[0]) if len(values) else np.nan), np.nan, np.nan
    mean, error = values.mean(), stats.sem(values)
    half = stats.t.ppf((1 + confidence) / 2, len(values) - 1) * error
    return float(mean), float(mean - half), float(mean + half)


def summarise(values: np.ndarray) -> dict[str, Any]:
    """{mean, low, high, per_seed} of values [seeds, games]: over seeds, or over games if there is one seed."""
    values = np.asarray(values, np.float64)
    count = np.sum(~np.isnan(values), 1)
    per_seed = np.where(count > 0, np.nansum(values, 1) / np.maximum(count, 1), np.nan)
    mean, low, high = student_interval(per_seed if len(values) > 1 else values[0])
    clean = lambda x: None if np.isnan(x) else float(x)
    return {"mean": clean(mean), "low": clean(low), "high": clean(high), "per_seed": [clean(x) for x in per_seed]}


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float, float]:
    """Rate and score interval (rate, low, high) of a proportion (Wilson 1927); all NaN if n is 0.

    The interval does not shrink to a point at 0 of n or n of n. Raises ValueError unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be from 0 to n = {n}, got {successes}.")
    if n == 0:
        return np.nan, np.nan, np.nan
    interval = stats.binomtest(int(successes), int(n)).proportion_ci(confidence, "wilson")
    return float(successes / n), float(interval.low), float(interval.high)


def difference_interval(a: Any, b: Any, confidence: float = 0.95) -> tuple[float, float, float]:
    """mean(a) - mean(b) and Welch's interval (difference, low, high) of two independent samples [n], [m].

    Example: always-defect's payoffs against a policy and the policy's payoffs with itself (the temptation).
    """
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(confidence)
    return float(np.mean(a) - np.mean(b)), float(interval.low), float(interval.high)


def _differences(a: Any, b: Any) -> np.ndarray:
    """a - b of the pairs in which both are finite."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"Paired samples are two of the same length [n], got shapes {a.shape} and {b.shape}.")
    both = np.isfinite(a) & np.isfinite(b)
    return a[both] - b[both]


EXACT, SAMPLED = 20, 2**18
"""Above EXACT pairs a sign-flip test samples SAMPLED sign patterns, the same in every call, in place of all 2^n."""


def paired_interval(a: Any, b: Any, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of a - b and its Student-t interval (difference, low, high) of paired samples [n], e.g. two arms by seed.

    Pairs that are not finite are skipped. Raises ValueError unless both are [n].
    """
    return student_interval(_differences(a, b), confidence)


def sign_flip_test(a: Any, b: Any) -> float:
    """Two-sided p of the paired sign-flip (permutation) test of no difference between paired samples [n].

    With d = a - b, the share of all 2^n sign patterns s in {-1, 1}^n with |sum_i s_i d_i| >= |sum_i d_i|, ties within
    rounding included. It is at least 2 / 2^n unless every d is 0: 5 pairs cannot go below 0.0625, 10 not below 0.002.
    It is 1 if all d are 0 or n is 0. Pairs that are not finite are skipped. Above `EXACT` pairs patterns are sampled,
    and the observed one counts as one of them. Raises ValueError unless both are [n].
    """
    return _sign_flip_p(_differences(a, b).tobytes())


@functools.lru_cache(maxsize=4096)  # pages and figures ask for the same samples, with 2^20 patterns each
def _sign_flip_p(sample: bytes) -> float:
    difference = np.frombuffer(sample)
    # Not scipy.stats.permutation_test: its tolerance is relative to the observed sum, so that it misses ties where
    # that is nearly 0 (rates in tenths: 1 sample in 100), and it refuses fewer than two pairs.
    tolerance = 1e-12 * np.abs(difference).sum()
    # A pattern and its opposite have the same |sum|: of all patterns those do that leave the last sign as it is.
    sums = _subset_sums(difference[:-1] if 0 < len(difference) <= EXACT else difference)
    sums *= -2  # in place: an array of 2^20 numbers costs more to allocate than to compute
    sums += difference.sum()
    return float(np.mean(np.abs(sums, out=sums) >= np.abs(difference.sum()) - tolerance))


def sign_flip_interval(a: Any, b: Any, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of a - b and the interval (difference, low, high) of the shifts that `sign_flip_test` does not reject.

    A shift m is rejected with p = the share of all 2^n subsets of d whose mean is at most m, the empty one included. So
    the ends are order statistics of the means of subsets. Too few pairs for this confidence have no interval: low and
    high are NaN. Pairs that are not finite are skipped.
    Hartigan, Using Subsample Values as Typical Values (1969), https://doi.org/10.1080/01621459.1969.10501057.
    """
    return _sign_flip_ends(_differences(a, b).tobytes(), confidence)


@functools.lru_cache(maxsize=4096)
def _sign_flip_ends(sample: bytes, confidence: float) -> tuple[float, float, float]:
    difference = np.frombuffer(sample)
    mean = float(difference.mean()) if len(difference) else np.nan
    sums, counts = _subset_sums(difference), _subset_sizes(len(difference))
    means = sums[1:] / counts[1:] if counts[1:].all() else sums[counts > 0] / counts[counts > 0]
    patterns = len(sums) if len(difference) <= EXACT else len(means) + 1
    rank = int((1 - confidence) / 2 * patterns)  # place of the first mean that is not rejected, from 1
    if rank < 1 or len(means) < 2:
        return mean, np.nan, np.nan
    return mean, _smallest(means, rank), -_smallest(np.negative(means, out=means), rank)


def _smallest(x: np.ndarray, rank: int) -> float:
    """The `rank`-th smallest of x, from 1. To order the small ones takes a tenth of the time for all 2^20."""
    sample = np.sort(x[_places(len(x))])
    small = x[x <= sample[min(len(sample) - 1, int(1.3 * rank / len(x) * len(sample)) + 20)]]
    return float(np.partition(small if len(small) >= rank else x, rank - 1)[rank - 1])


@functools.lru_cache(maxsize=2)
def _places(n: int) -> np.ndarray:
    """The same random indices below n in every call."""
    return np.random.default_rng(0).integers(0, n, min(n, 2**13))


def _subset_sums(x: np.ndarray) -> np.ndarray:
    """The sum of x [n] over each subset: of all 2^n, or of the same `SAMPLED` ones; the first subset is empty."""
    if len(x) > EXACT:
        chosen = np.random.default_rng(0).integers(0, 2, (SAMPLED, len(x)), np.int8)
        chosen[0] = 0
        return chosen @ x
    sums = np.zeros(2 ** len(x))
    for i, value in enumerate(x):
        np.add(sums[: 2**i], value, out=sums[2**i : 2 ** (i + 1)])
    return sums


@functools.lru_cache(maxsize=2)  # 8 MB each
def _subset_sizes(n: int) -> np.ndarray:
    return _subset_sums(np.ones(n))


def censored_ranks(a: Any, b: Any, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """The ranks of paired samples [n] among all 2n values; values at or beyond `limit` share the last rank.

    Ranks take the place of a metric that ends at a limit, e.g. updates until success that were never reached.
    """
    a, b = (np.minimum(np.asarray(x, np.float64), limit) for x in (a, b))
    ranks = stats.rankdata(np.concatenate([a, b]), nan_policy="omit")
    return ranks[: len(a)], ranks[len(a) :]


def interquartile_interval(values: Any, confidence: float = 0.95, resamples: int = 2000) -> tuple[float, float, float]:
    """The mean of the middle half of values [n] and its percentile bootstrap interval (mean, low, high).

    NaNs are skipped, and fewer than two values have no interval. A quarter of the values is dropped at each end,
    rounded down, as in scipy's trimmed mean. The resamples are the same in every call. Agarwal et al., Deep
    Reinforcement Learning at the Edge of the Statistical Precipice (2021), https://arxiv.org/abs/2108.13264.
    """
    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    if len(values) < 2:
        return (float(values[0]) if len(values) else np.nan), np.nan, np.nan
    drawn = np.random.default_rng(0).choice(values, (resamples, len(values)))
    low, high = np.quantile(stats.trim_mean(drawn, 0.25, axis=1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(stats.trim_mean(values, 0.25)), float(low), float(high)


def probability_of_improvement(a: Any, b: Any) -> float:
    """P(x > y) + P(x = y) / 2 over all pairs of values [n] of a and [m] of b. NaNs are skipped; NaN without pairs. It
    is Mann and Whitney's U over n m, as Agarwal et al. (2021) report it."""
    a, b = (x[~np.isnan(x)] for x in (np.asarray(a, np.float64), np.asarray(b, np.float64)))
    if not len(a) or not len(b):
        return np.nan
    return float(stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)))


def holm(p: Any) -> np.ndarray:
    """Holm's adjusted p of several tests [m]: of the i-th smallest the largest of (m - j + 1) p_(j) over j <= i, at
    most 1. Below 0.05 it keeps the chance that any of them is wrongly found at 0.05.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure (1979), https://www.jstor.org/stable/4615733.
    """
    p = np.asarray(p, np.float64)
    order = np.argsort(p)
    adjusted = np.minimum(np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order]), 1)
    return adjusted[np.argsort(order)]


def pass_at_k(successes: Any, n: int, k: int) -> np.ndarray:
    """The chance that k attempts hold a success, from n attempts with c successes each: [...] -> float64 [...].

    1 - C(n - c, k) / C(n, k), the share of all k-subsets of the attempts that hold one. Its mean over samples of n
    attempts is exactly 1 - (1 - p)^k, while 1 - (1 - c/n)^k is too low. pass@1 is the mean.
    Raises ValueError unless 1 <= k <= n and 0 <= c <= n.

    Chen et al., Evaluating Large Language Models Trained on Code (2021), https://arxiv.org/abs/2107.03374.
    """
    return 1 - _share_without(np.asarray(successes), n, k)


def coverage(outcomes: Any, k: int | None = None) -> np.ndarray:
    """The expected number of distinct outcomes in k of n attempts, k = n by default: int [..., n] -> float64 [...].

    The sum over outcomes v of 1 - C(n - m_v, k) / C(n, k), for v reached by m_v attempts. A negative outcome is none.
    With one outcome this is `pass_at_k`. Raises ValueError unless 1 <= k <= n.
    """
    outcomes = np.asarray(outcomes)
    n = outcomes.shape[-1]
    same = (outcomes[..., :, None] == outcomes[..., None, :]).sum(-1)  # [..., n]: m of the attempt's outcome
    share = (1 - _share_without(same, n, n if k is None else k)) / same
    return np.where(outcomes >= 0, share, 0).sum(-1)


def success_by_turn(turn: Any, turns: int) -> np.ndarray:
    """The share of games won by the end of each turn: int [n], the turn of a game's success, -1 for none -> float64
    [turns]."""
    turn = np.asarray(turn)
    return np.array([((turn >= 0) & (turn <= last)).mean() for last in range(turns)])


def _share_without(count: np.ndarray, n: int, k: int) -> np.ndarray:
    """C(n - count, k) / C(n, k): the share of k-subsets of n without any of `count` members. It is a product, since
    binomials of many attempts are large."""
    if not 1 <= k <= n:
        raise ValueError(f"k attempts of {n} are from 1 to {n}, got k = {k}.")
    if ((count < 0) | (count > n)).any():
        raise ValueError(f"Of {n} attempts 0 to {n} count, got {count.min()} to {count.max()}.")
    share = np.ones(np.shape(count))
    for i in range(k):
        share = share * np.maximum(n - count - i, 0) / (n - i)
    return share
