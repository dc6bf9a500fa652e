"""Numbers of learning curves, for `Study.derived`."""

from collections.abc import Mapping

import numpy as np


def updates_to(curves: Mapping[str, np.ndarray], *, of: str, bound: float = 0.9, over: int = 5) -> np.ndarray:
    """The first update, counted from 1, at which the mean of the metric `of` over it and the next ones, `over` in all,
    is at least `bound`; the last update if none is: {metric: [seeds, updates]} -> [seeds]."""
    curve = curves[of]
    mean = np.lib.stride_tricks.sliding_window_view(curve, min(over, curve.shape[1]), axis=1).mean(2)
    reached = mean >= bound
    return np.where(reached.any(1), reached.argmax(1) + 1, curve.shape[1])


def fall_from_peak(curves: Mapping[str, np.ndarray], *, of: str) -> np.ndarray:
    """How far the metric `of` ends below its peak, both as means over a tenth of the updates: {metric: [seeds,
    updates]} -> [seeds], 0 if it ends at its peak."""
    over = max(1, curves[of].shape[1] // 10)
    mean = np.lib.stride_tricks.sliding_window_view(curves[of], over, axis=1).mean(2)
    return mean.max(1) - mean[:, -1]


def mean_over_updates(curves: Mapping[str, np.ndarray], *, of: str) -> np.ndarray:
    """The mean of the metric `of` over all updates, which counts how soon it rises as well as where it ends: {metric:
    [seeds, updates]} -> [seeds]."""
    return curves[of].mean(1)


def mean_while(curves: Mapping[str, np.ndarray], *, of: str, low: str, bound: float = 0.5) -> np.ndarray:
    """The mean of the metric `of` over the updates in which the metric `low` is at most `bound`, e.g. while a task is
    not solved yet: {metric: [seeds, updates]} -> [seeds], NaN where there is no such update."""
    there = curves[low] <= bound
    total = np.where(there, curves[of], 0).sum(1)
    return np.where(there.any(1), total / np.maximum(there.sum(1), 1), np.nan)


def last_share(curves: Mapping[str, np.ndarray], *, of: str) -> np.ndarray:
    """The share of cases over the last tenth of the updates, from the metrics `of`/sum and `of`/count: {metric: [seeds,
    updates]} -> [seeds], NaN where no case occurred, and of an arm without these metrics."""
    if f"{of}/sum" not in curves:
        return np.full(len(next(iter(curves.values()))), np.nan)
    total, count = (curves[f"{of}/{part}"] for part in ("sum", "count"))
    last = slice(-max(1, total.shape[1] // 10), None)
    total, count = total[:, last].sum(1), count[:, last].sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def last_mean(curves: Mapping[str, np.ndarray], *, of: str) -> np.ndarray:
    """The mean over the last tenth of the updates of the metric `of`, which not all arms measure: {metric: [seeds,
    updates]} -> [seeds], NaN of an arm without it."""
    curve = curves.get(of, np.full_like(next(iter(curves.values())), np.nan))
    return curve[:, -max(1, curve.shape[1] // 10) :].mean(1)


def rise_since(curves: Mapping[str, np.ndarray], *, of: str, first: int) -> np.ndarray:
    """The mean over the last tenth of the updates of the metric `of`, less that over the `first` ones: {metric: [seeds,
    updates]} -> [seeds]."""
    return last_mean(curves, of=of) - curves[of][:, :first].mean(1)


def at_first(curves: Mapping[str, np.ndarray], *, of: str) -> np.ndarray:
    """The metric `of` in the first update, which not all arms measure: {metric: [seeds, updates]} -> [seeds], NaN of an
    arm without it."""
    return curves.get(of, np.full_like(next(iter(curves.values())), np.nan))[:, 0]


def largest_rise(curves: Mapping[str, np.ndarray], *, of: str) -> np.ndarray:
    """The largest rise above an earlier value of the metric `of`, which not all updates measure, and not all arms:
    {metric: [seeds, updates]} -> [seeds], NaN of an arm without it."""
    if of not in curves:
        return np.full(len(next(iter(curves.values()))), np.nan)
    measured = curves[of][:, ~np.isnan(curves[of]).all(0)]
    return (measured - np.minimum.accumulate(measured, 1)).max(1)
