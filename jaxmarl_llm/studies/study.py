"""A study: a question, the arms that answer it, and predictions, written before any run.

A study is a module with a constant `STUDY`. Each prediction is a record with a method `verdict`:

  Lower("updates to 90%", "centred", than="pooled")   the mean of `centred` is lower, paired by seed
  Higher("success", "cory", than="alone")             the mean is higher
  AtMost("invalid", "unmasked", 0.05)                 the mean is 0.05 at most
  AtLeast("efficiency", "sum", 0.9)                   the mean is 0.9 at least

A metric is each seed's mean over the last tenth of the updates, or a number in `derived`. A difference is shown if its
95% interval excludes 0 and p is at most 0.05. A bound is shown if the whole interval keeps it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.pages.format import count, interval
from jaxmarl_llm.training.recipe import Recipe

LEVEL = 0.05  # significance level of the tests


@dataclasses.dataclass(frozen=True)
class Paper:
    title: str
    url: str
    year: int
    checked: Literal["release", "paper", "abstract"]
    """The best source that the study's author has read: released code, the paper, or its abstract."""

    def __str__(self) -> str:
        return f"{self.title}, {self.year}"


class Verdict(NamedTuple):
    outcome: Literal["as predicted", "contradicted", "not shown"]
    sentence: str  # the prediction, the outcome and the numbers


@dataclasses.dataclass(frozen=True)
class Lower:
    """The metric's mean is lower in `arm` than in the other arm."""

    metric: str
    arm: str
    than: str

    @property
    def arms(self) -> tuple[str, ...]:
        return self.arm, self.than

    def verdict(self, results: Mapping[str, Any]) -> Verdict:
        return _of_difference(self, "below", -1, results)


@dataclasses.dataclass(frozen=True)
class Higher:
    """The metric's mean is higher in `arm` than in the other arm."""

    metric: str
    arm: str
    than: str

    @property
    def arms(self) -> tuple[str, ...]:
        return self.arm, self.than

    def verdict(self, results: Mapping[str, Any]) -> Verdict:
        return _of_difference(self, "above", 1, results)


@dataclasses.dataclass(frozen=True)
class AtMost:
    """The metric's mean in `arm` is at most `bound`."""

    metric: str
    arm: str
    bound: float

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.arm,)

    def verdict(self, results: Mapping[str, Any]) -> Verdict:
        return _of_bound(self, "at most", -1, results)


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """The metric's mean in `arm` is at least `bound`."""

    metric: str
    arm: str
    bound: float

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.arm,)

    def verdict(self, results: Mapping[str, Any]) -> Verdict:
        return _of_bound(self, "at least", 1, results)


Prediction = Lower | Higher | AtMost | AtLeast
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Lower, Higher, AtMost, AtLeast)}


def record_of(prediction: Prediction) -> dict[str, Any]:
    """The prediction as JSON: {kind, metric, arm, than or bound}."""
    return {"kind": type(prediction).__name__, **dataclasses.asdict(prediction)}


def prediction_of(record: Mapping[str, Any]) -> Prediction:
    """Inverse of `record_of`. Raises ValueError for an unknown kind or for other fields."""
    fields = {name: value for name, value in record.items() if name != "kind"}
    try:
        return KINDS[record["kind"]](**fields)
    except (KeyError, TypeError):
        raise ValueError(f"A prediction is one of {', '.join(KINDS)} with its fields, got {dict(record)}.") from None


def _of_difference(prediction: Lower | Higher, word: str, sign: int, results: Mapping[str, Any]) -> Verdict:
    name = (prediction.metric, prediction.arm, prediction.than)
    test = next(test for test in results["tests"] if (test["metric"], test["a"], test["b"]) == name)
    n, numbers = test["seeds"], f"difference {interval(test['difference'])}, p = {test['p']:.2g}"
    note = f", and p cannot go below {min(1, 2 / 2**n):.3g}" if 2 / 2**n > LEVEL else ""
    cell = test["difference"] if test["p"] <= LEVEL else {"low": None, "high": None}
    outcome = _outcome(prediction, cell, 0.0, sign, results)
    return _verdict(prediction, f"{word} {prediction.than}", outcome, numbers, n, note)


def _of_bound(prediction: AtMost | AtLeast, word: str, sign: int, results: Mapping[str, Any]) -> Verdict:
    cell = results["arms"][prediction.arm][prediction.metric]
    n, numbers = sum(x is not None for x in cell["per_seed"]), f"mean {interval(cell)}"
    ends = cell if n > 1 else {"low": None, "high": None}  # with one seed the interval is over games
    outcome = _outcome(prediction, ends, prediction.bound, sign, results)
    return _verdict(prediction, f"{word} {prediction.bound:g}", outcome, numbers, n, "")


def _outcome(prediction: Prediction, cell: Mapping[str, Any], bound: float, sign: int, results: Mapping) -> Any:
    """The outcome for an interval `cell`, in the direction `sign` from `bound`.

    It is "not shown" if the run had fewer updates than the study, or if an arm skipped updates.
    """
    ends = [sign * (cell[end] - bound) for end in ("low", "high") if cell[end] is not None]
    if not ends or results.get("shorter") or any(arm in results.get("skipped", {}) for arm in prediction.arms):
        return "not shown"
    return "as predicted" if min(ends) >= 0 else "contradicted" if max(ends) < 0 else "not shown"


def _verdict(prediction: Prediction, claim: str, outcome: Any, numbers: str, n: int, note: str) -> Verdict:
    seeds = count(n, "seed") + note
    return Verdict(outcome, f"{prediction.metric}, {prediction.arm} {claim}: {outcome}, {numbers} ({seeds}).")


@dataclasses.dataclass(frozen=True)
class Study:
    """A comparison from a paper: one question, the arms that answer it, metrics and predictions."""

    paper: Paper
    question: str
    """One short sentence, shown in the list of studies."""
    claim: str
    """The expected answer, written before any run."""
    arms: Mapping[str, Recipe | Computed]
    method: str
    """The arm of the published method, or of ours. A pretrained model trains with it unless `--arms` names others."""
    metrics: tuple[str, ...]
    """The main metrics, columns of the table: means over the last tenth of the updates, or names in `derived`."""
    predictions: tuple[Prediction, ...] = ()
    derived: Mapping[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]] = dataclasses.field(default_factory=dict)
    """{metric: f}: f maps an arm's curves, {metric: [seeds, updates]}, to one number a seed, [seeds]."""
    extra: Mapping[str, Recipe] = dataclasses.field(default_factory=dict)
    """Arms that run only if `--arms` names them, e.g. arms for a pretrained model."""
    expected: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    """{(pretrained model, arm): expected result of a run of that arm alone}; the command prints it before the run."""

    @property
    def recipes(self) -> dict[str, Recipe]:
        """The arms that train policies, including `extra`."""
        return {name: arm for name, arm in self.all_arms.items() if isinstance(arm, Recipe)}

    @property
    def all_arms(self) -> dict[str, Recipe | Computed]:
        return {**self.arms, **self.extra}

    def check(self, name: str) -> None:
        """Raises ValueError, before anything compiles, for missing or inconsistent fields. `name` is the study's."""
        empty = [field for field in ("question", "claim", "arms", "metrics") if not getattr(self, field)]
        if empty:
            raise ValueError(f"The study {name} must state {', '.join(empty)}.")
        if not self.paper.url.startswith("https://"):
            raise ValueError(f"The paper of the study {name} needs a link, got {self.paper.url!r}.")
        known = ", ".join(self.arms)
        if self.method not in self.arms:
            raise ValueError(f"The method of the study {name} is {self.method!r}, but its arms are {known}.")
        for arm in self.all_arms:
            if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", arm):
                raise ValueError(f"The arm {arm!r} of {name} names a folder: use letters, digits, - . _ and /.")
        for model, arm in self.expected:
            if arm not in self.all_arms:
                raise ValueError(f"{name} expects a result of {model} in the arm {arm!r}, but its arms are {known}.")
        for prediction in self.predictions:
            for arm in prediction.arms:
                if arm not in self.arms:
                    raise ValueError(f"{name} predicts {prediction} of the arm {arm!r}, but its arms are {known}.")
