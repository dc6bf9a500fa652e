"""Judging play: means with intervals. Host side, NumPy, float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats


def student_interval(values: Any, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean and Student-t interval (mean, low, high) of independent values [n]; NaNs are left out.

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
    """{mean, low, high, per_seed} of values [seeds, games]: over seeds, or over games where there is one seed."""
    values = np.asarray(values, np.float64)
    count = np.sum(~np.isnan(values), 1)
    per_seed = np.where(count > 0, np.nansum(values, 1) / np.maximum(count, 1), np.nan)
    mean, low, high = student_interval(per_seed if len(values) > 1 else values[0])
    clean = lambda x: None if np.isnan(x) else float(x)  # noqa: E731
    return {"mean": clean(mean), "low": clean(low), "high": clean(high), "per_seed": [clean(x) for x in per_seed]}
