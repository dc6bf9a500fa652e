"""Functions for `Study.derived`: one number for each seed from its learning curves.

Shapes: `curves` is {metric: [seeds, updates]}; every function returns [seeds].
"""

from collections.abc import Mapping

import numpy as np


def updates_to(curves: Mapping[str, np.ndarray], *, metric: str, bound: float = 0.9, over: int = 5) -> np.ndarray:
    """The first update t, from 1, with mean(metric[t : t + over]) >= bound; the last update if there is none."""
    curve = curves[metric]
    mean = np.lib.stride_tricks.sliding_window_view(curve, min(over, curve.shape[1]), axis=1).mean(2)
    reached = mean >= bound
    return np.where(reached.any(1), reached.argmax(1) + 1, curve.shape[1])


def sum_until(
    curves: Mapping[str, np.ndarray], *, metric: str, spent: str, bound: float = 0.9, over: int = 5
) -> np.ndarray:
    """The sum of the metric `spent` up to the update in which `updates_to` is reached; of all updates if it is not."""
    until = updates_to(curves, metric=metric, bound=bound, over=over).astype(int)
    return np.take_along_axis(np.cumsum(curves[spent], 1), until[:, None] - 1, 1)[:, 0]


def fall_from_peak(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """The peak of a metric minus its final value, both as means over a tenth of the updates."""
    over = max(1, curves[metric].shape[1] // 10)
    mean = np.lib.stride_tricks.sliding_window_view(curves[metric], over, axis=1).mean(2)
    return mean.max(1) - mean[:, -1]


def share_of_falls(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """Share of updates after which a metric is lower, beyond rounding; NaN for an arm that does not measure it."""
    curve = curves.get(metric)
    if curve is None:
        return np.full(len(next(iter(curves.values()))), np.nan)
    return (np.diff(curve, axis=1) < -1e-6).mean(1)


def mean_over_updates(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """The mean of a metric over all updates: the area under its curve, which rewards an early rise. NaN for an arm
    that does not measure it."""
    return _curve(curves, metric).mean(1)


def mean_while(curves: Mapping[str, np.ndarray], *, metric: str, low: str, bound: float = 0.5) -> np.ndarray:
    """The mean of a metric over updates in which the metric `low` is at most `bound`; NaN for a seed without any.

    For example, `low="solved"` restricts the mean to updates in which the task is unsolved. Both metrics are [seeds,
    updates], and the result is [seeds].
    """
    there = curves[low] <= bound
    total = np.where(there, curves[metric], 0).sum(1)
    return np.where(there.any(1), total / np.maximum(there.sum(1), 1), np.nan)


def last_share(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """sum("METRIC/sum") / sum("METRIC/count") over the last tenth of the updates.

    NaN for a seed with a count of 0, and for an arm that lacks these metrics.
    """
    if f"{metric}/sum" not in curves:
        return np.full(len(next(iter(curves.values()))), np.nan)
    total, count = (curves[f"{metric}/{part}"] for part in ("sum", "count"))
    last = slice(-max(1, total.shape[1] // 10), None)
    total, count = total[:, last].sum(1), count[:, last].sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def last_mean(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """The mean of a metric over the last tenth of the updates; NaN for an arm that does not measure it."""
    curve = _curve(curves, metric)
    return curve[:, -max(1, curve.shape[1] // 10) :].mean(1)


def rise_since(curves: Mapping[str, np.ndarray], *, metric: str, first: int) -> np.ndarray:
    """The mean of a metric over the last tenth of the updates, minus its mean over the first `first` updates; NaN for
    an arm that does not measure it."""
    return last_mean(curves, metric=metric) - _curve(curves, metric)[:, :first].mean(1)


def share_left(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """The mean of a metric over the last tenth of the updates, divided by its mean over the first tenth."""
    curve, tenth = curves[metric], max(1, curves[metric].shape[1] // 10)
    return curve[:, -tenth:].mean(1) / curve[:, :tenth].mean(1)


def at_first(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """The value of a metric in the first update; NaN for an arm that does not measure it."""
    return _curve(curves, metric)[:, 0]


def largest_rise(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """The largest rise of a metric above any earlier value; NaN for an arm that does not measure it.

    Updates in which no seed measures the metric are left out.
    """
    if metric not in curves:
        return np.full(len(next(iter(curves.values()))), np.nan)
    measured = curves[metric][:, ~np.isnan(curves[metric]).all(0)]
    return (measured - np.minimum.accumulate(measured, 1)).max(1)


def when_reached(
    curves: Mapping[str, np.ndarray], *, metric: str, other: str, bound: float, over: int = 5
) -> np.ndarray:
    """The mean of `metric` in the first window of `over` updates in which the mean of `other` is at least `bound`; in
    the last window if there is none. For example, the return when the KL first reaches 1."""
    over = min(over, curves[metric].shape[1])
    mean, reaches = (np.lib.stride_tricks.sliding_window_view(curves[x], over, 1).mean(2) for x in (metric, other))
    far = reaches >= bound
    at = np.where(far.any(1), far.argmax(1), far.shape[1] - 1)
    return np.take_along_axis(mean, at[:, None], 1)[:, 0]


def last_over_first(curves: Mapping[str, np.ndarray], *, metric: str) -> np.ndarray:
    """The mean of a metric over the last tenth of the updates, divided by its value in the first update."""
    return last_mean(curves, metric=metric) / at_first(curves, metric=metric)


def _curve(curves: Mapping[str, np.ndarray], metric: str) -> np.ndarray:
    """The curve of a metric [seeds, updates]; NaN for an arm that does not measure it."""
    return curves.get(metric, np.full_like(next(iter(curves.values())), np.nan))
