"""Verdicts of predictions from a run, the status of a study about its paper, and whether checks pass.

A verdict is by the exact paired sign-flip test over seeds, corrected by Holm over the study's predictions. A prediction
holds if p is at most `LEVEL` in its direction, and is contradicted if p is at most `LEVEL` in the other one. A metric
that ends at a limit (`censored`) is compared by rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxmarl_llm.evaluation.statistics import censored_ranks, holm, sign_flip_interval, sign_flip_test
from jaxmarl_llm.studies.pages.format import count, interval, number
from jaxmarl_llm.studies.pages.results import ENDS
from jaxmarl_llm.studies.predictions import FEWEST, Higher, Lower, Prediction, prediction_of

LEVEL = 0.05  # significance level of the tests
NEAR = 0.02, 0.10  # values of p that are near the level
SMALL = 0.01  # share of either arm below which a difference is said to be small

Outcome = Literal["holds", "contradicted", "not shown"]


class Verdict(NamedTuple):
    """The outcome of a prediction in a run."""

    prediction: Prediction
    outcome: Outcome
    effect: dict[str, float | None]  # {mean, low, high} of arm minus other arm, or of the bounded metric
    seeds: int  # seeds that measured it; 1 if the value is equal in all of them
    p: float | None  # p of the sign-flip test; None without a test
    adjusted: float | None  # p after Holm
    told: str  # effect, interval, p and seeds in words

    @property
    def near(self) -> bool:
        """True if the adjusted p is near the level."""
        return self.adjusted is not None and NEAR[0] < self.adjusted < NEAR[1]

    @property
    def sentence(self) -> str:
        return f"{self.prediction}: {self.outcome}{', close to the level' * self.near}, {self.told}."


def judge(results: Mapping[str, Any]) -> list[Verdict]:
    """The verdicts of a results.json, in the order of its predictions, corrected by Holm over all that are tested."""
    predictions = [prediction_of(record) for record in results["predictions"]]
    measured = [_measure(prediction, results) for prediction in predictions]
    tested = [i for i, measure in enumerate(measured) if measure.p is not None]
    adjusted: list[float | None] = [None] * len(measured)
    for i, p in zip(tested, holm([measured[i].p for i in tested]), strict=True):
        adjusted[i] = float(p)
    every = zip(predictions, measured, adjusted, strict=True)
    return [_verdict(prediction, measure, p, results) for prediction, measure, p in every]


class _Measure(NamedTuple):
    effect: dict[str, float | None]
    n: int
    toward: float  # mean of the side that is least true, above 0 in the predicted direction
    p: float | None
    kept: int  # seeds that keep the prediction; a seed without a difference keeps no predicted direction
    equal: int  # seeds in which both arms, or metric and bound, are equal


def values_of(prediction: Prediction, results: Mapping[str, Any]) -> list[np.ndarray]:
    """The values of its arms, [seeds] each, with NaN where nothing was measured."""
    nothing = {"per_seed": [None] * len(results["seeds"])}
    cells = [results["arms"].get(arm, {}).get(prediction.metric, nothing) for arm in prediction.arms]
    return [np.array(cell["per_seed"], np.float64) for cell in cells]


def _measure(prediction: Prediction, results: Mapping[str, Any]) -> _Measure:
    values = values_of(prediction, results)
    limit = results.get("censored", {}).get(prediction.metric)
    ends = sign_flip_interval(values[0], values[1] if prediction.than else np.zeros_like(values[0]))
    effect = dict(zip(ENDS, _clean(ends), strict=True))
    if limit is not None and prediction.than and not prediction.by:
        values = [*censored_ranks(values[0], values[1], limit)]
    difference = values[0] - values[1] if prediction.than else values[0]
    difference = difference[np.isfinite(difference)]
    if not len(difference):
        return _Measure(effect, 0, 0.0, None, 0, 0)
    sides = prediction.sides(difference)
    toward, side = min(((float(side.mean()), side) for side in sides), key=lambda pair: pair[0])
    kept, equal = int(_keep(prediction, np.stack(sides)).sum()), int((np.min(sides, 0) == 0).sum())
    if np.ptp(difference) <= 1e-12 * max(1, np.abs(difference).max()):
        return _Measure(effect, 1, toward, None, kept, equal)
    ps = [sign_flip_test(side, np.zeros(len(side))) for side in sides]
    p = max(ps) if toward > 0 else sign_flip_test(side, np.zeros(len(side)))
    return _Measure(effect, len(difference), toward, p, kept, equal)


def _verdict(prediction: Prediction, measure: _Measure, adjusted: float | None, results: Mapping[str, Any]) -> Verdict:
    invalid = results.get("shorter") or any(arm in results.get("skipped", {}) for arm in prediction.arms)
    enough = measure.n >= FEWEST or (measure.n == 1 and len(results["seeds"]) >= FEWEST)
    shown = enough and not invalid and (measure.n == 1 or (adjusted is not None and adjusted <= LEVEL))
    outcome: Outcome = "not shown"
    if shown and measure.toward:
        outcome = "holds" if measure.toward > 0 else "contradicted"
    told = _tell(prediction, measure, adjusted, results)
    if _is_small(prediction, measure, results, outcome):
        told += f", small: under {SMALL:.0%} of either arm"
    if outcome == "not shown" and measure.n >= FEWEST:
        told += _largest(prediction, measure, results)
    return Verdict(prediction, outcome, measure.effect, measure.n, measure.p, adjusted, told)


def _tell(prediction: Prediction, measure: _Measure, adjusted: float | None, results: Mapping[str, Any]) -> str:
    """Effect, interval, p and seeds of a verdict, as one sentence without its outcome."""
    if not measure.n:
        return "not measured in this run"
    told = f"{'difference' if prediction.than else 'mean'} {interval(measure.effect)}"
    if measure.n == 1:
        told += ", equal in all seeds"
    elif adjusted is not None:
        told += f", p {spell_p(adjusted, measure.n)}, {measure.kept} of {count(measure.n, 'seed')} keep it"
        told += f" ({measure.equal} equal)" * bool(measure.equal)
    limit = results.get("censored", {}).get(prediction.metric)
    if limit is not None:
        never = [f"{int((x >= limit).sum())} of {len(x)}" for x in values_of(prediction, results)]
        by_rank = prediction.than and not prediction.by and adjusted is not None
        ranked = "p and seeds are of ranks, the interval is of means; " if by_rank else ""
        told += f"; {ranked}never reached in {' and '.join(never)}"
    return told


def _is_small(prediction: Prediction, measure: _Measure, results: Mapping[str, Any], outcome: Outcome) -> bool:
    """True for a difference with a direction, not 0, whose size is below `SMALL` of the means of both arms.

    The size is the largest that the interval allows if no direction is shown.
    """
    sizes = [abs(end) for end in measure.effect.values() if end is not None]
    if not isinstance(prediction, Higher | Lower) or not sizes or not any(sizes):
        return False
    means = [np.nanmean(values) for values in values_of(prediction, results)]
    return bool((max(sizes) if outcome == "not shown" else sizes[0]) < SMALL * min(map(abs, means)))


def _largest(prediction: Prediction, measure: _Measure, results: Mapping[str, Any]) -> str:
    """The rest of a comparison that is not shown: the side of its interval, or the largest effect that it allows."""
    low, high = measure.effect["low"], measure.effect["high"]
    if not isinstance(prediction, Higher | Lower) or low is None or high is None:
        return ""
    sign = 1 if isinstance(prediction, Higher) else -1
    if low > 0 or high < 0:
        side = "in" if (low > 0) == (sign > 0) else "against"
        return f"; {side} the predicted direction, but not after the correction"
    end, other = (high if sign > 0 else low), np.nanmean(values_of(prediction, results)[1])
    share = f" ({abs(end / other):.0%} of {prediction.than})" if 0 < abs(end) <= abs(other) else ""
    return f"; an effect beyond {number(end)}{share} is excluded"


def spell_p(p: float, n: int) -> str:
    """p with two digits and a sign of relation; `<= 0.002` at the floor 2 / 2^n of the test."""
    floor = 2 / 2**n
    if p <= max(floor * (1 + 1e-9), 1e-4):
        return f"<= {max(floor, 1e-4):.1g}"
    return f"= {p:.2g}"


def _clean(ends: Sequence[float]) -> list[float | None]:
    return [None if np.isnan(x) else float(x) for x in ends]


UNMET, NOT_TESTED = "condition not met", "not tested"
STATUSES = ("holds here", "contradicted here", "mixed", "not shown", UNMET, NOT_TESTED)


def status(verdicts: Sequence[Verdict]) -> str:
    """The status of a study about its paper: one of `STATUSES`, from the predictions that are the paper's."""
    if any(verdict.prediction.condition and verdict.outcome != "holds" for verdict in verdicts):
        return UNMET
    outcomes = {verdict.outcome for verdict in verdicts if verdict.prediction.source == "paper"}
    if not outcomes:
        return NOT_TESTED
    return (
        {"holds": "holds here", "contradicted": "contradicted here", "not shown": "not shown"}[outcomes.pop()]
        if len(outcomes) == 1
        else "mixed"
    )


def passes(check: Prediction, results: Mapping[str, Any]) -> tuple[bool, int, int]:
    """True if the mean over seeds keeps a check, the number of seeds that do, and of all that measured it.

    False if no seed measured it.
    """
    values = values_of(check, results)
    difference = values[0] - values[1] if check.than else values[0]
    difference = difference[np.isfinite(difference)]
    if not len(difference):
        return False, 0, 0
    sides = np.stack(check.sides(difference))
    return bool(_keep(check, sides.mean(1))), int(_keep(check, sides).sum()), len(difference)


def _keep(prediction: Prediction, sides: np.ndarray) -> Any:
    """bool [...]: whether values [sides, ...] keep a prediction; a predicted direction is kept by no equality."""
    return np.asarray((sides > 0) if isinstance(prediction, Higher | Lower) else (sides >= 0)).all(0)
