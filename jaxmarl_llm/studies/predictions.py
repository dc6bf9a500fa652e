"""Predictions of a study and their sources.

A prediction is a comparison of two arms, or a bound on one arm, written before the run:

  Higher("success", "cory", than="alone", source="paper", where="Table 3")     the mean is higher
  Lower("updates to 90%", "centred", than="pooled", source="theory", where="...")  the mean is lower
  Higher(..., by=0.1)                                                          higher by more than 0.1
  NotLower("points", "adapter", than="whole", by=0.05, ...)                    not lower by more than 0.05
  NotHigher("cost", "adapter", than="whole", by=0.05, ...)                     not higher by more than 0.05
  Within("points", "adapter", than="whole", by=0.05, ...)                      neither
  AtLeast("efficiency", "sum", 0.9, ...), AtMost("invalid", "unmasked", 0.05, ...)  a level that the paper states

`source` says whose the prediction is: the paper's direction (`where` is its place), theory (`where` derives it), or a
pilot (`where` says the seeds). A prediction with `condition=True` must hold for the study to say anything. A statement
that must hold if the code is right is a check: the same classes without a source, in `Study.checks`.

A verdict (`pages/verdicts.py`) is by the exact paired sign-flip test over seeds, corrected by Holm over the study's
predictions. A prediction holds if p is at most 0.05 in its direction, and is contradicted if p is at most 0.05 in the
other one.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

FEWEST = 8  # seeds of a verdict

Source = Literal["paper", "theory", "pilot"]


@dataclasses.dataclass(frozen=True)
class Prediction(abc.ABC):
    """A statement on one metric of an arm, or of two arms paired by seed. Its kinds say where it holds (`region`)."""

    metric: str
    arm: str
    than: str = ""
    """The other arm; empty for a bound."""
    by: float = 0.0
    """The margin of a comparison, or the level of a bound."""
    source: Source | None = dataclasses.field(default=None, kw_only=True)
    where: str = dataclasses.field(default="", kw_only=True)
    """The place in the paper, the derivation, or the seeds of the pilot."""
    condition: bool = dataclasses.field(default=False, kw_only=True)
    """The study says nothing unless this holds."""

    word: ClassVar[str] = ""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.arm, self.than) if self.than else (self.arm,)

    @property
    @abc.abstractmethod
    def region(self) -> tuple[float, float]:
        """The values of the difference, or of the bounded metric, for which it holds: from, to."""

    def sides(self, difference: np.ndarray) -> tuple[np.ndarray, ...]:
        """Values [n], one array for each end of the region, that are at least 0 where the prediction is true."""
        low, high = self.region
        ends = (low, difference - low), (high, high - difference)
        return tuple(side for end, side in ends if math.isfinite(end))

    def __str__(self) -> str:
        margin = f" by {self.by:g}" if self.by else ""
        return f"{self.metric}: {self.arm} {self.word} {self.than}{margin}"


class Higher(Prediction):
    word = "above"

    @property
    def region(self) -> tuple[float, float]:
        return self.by, math.inf


class Lower(Prediction):
    word = "below"

    @property
    def region(self) -> tuple[float, float]:
        return -math.inf, -self.by


class NotLower(Prediction):
    word = "not below"

    @property
    def region(self) -> tuple[float, float]:
        return -self.by, math.inf


class NotHigher(Prediction):
    word = "not above"

    @property
    def region(self) -> tuple[float, float]:
        return -math.inf, self.by


class Within(Prediction):
    word = "equal to"

    @property
    def region(self) -> tuple[float, float]:
        return -self.by, self.by


class _Bound(Prediction):
    def __init__(self, metric: str, arm: str, bound: float, **about: Any) -> None:
        super().__init__(metric, arm, "", bound, **about)

    def __str__(self) -> str:
        return f"{self.metric}: {self.arm} {self.word} {self.by:g}"


class AtLeast(_Bound):
    word = "at least"

    @property
    def region(self) -> tuple[float, float]:
        return self.by, math.inf


class AtMost(_Bound):
    word = "at most"

    @property
    def region(self) -> tuple[float, float]:
        return -math.inf, self.by


KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Higher, Lower, NotLower, NotHigher, Within, AtLeast, AtMost)}


def record_of(prediction: Prediction) -> dict[str, Any]:
    """The prediction as JSON: its kind and its fields that are not empty."""
    fields = dataclasses.asdict(prediction)
    if isinstance(prediction, _Bound):
        fields["bound"] = fields.pop("by")
    kept = {name: value for name, value in fields.items() if value not in ("", None, False) or name == "bound"}
    return {"kind": type(prediction).__name__, **{name: x for name, x in kept.items() if name != "by" or x}}


def prediction_of(record: Mapping[str, Any]) -> Prediction:
    """Inverse of `record_of`. Raises ValueError for an unknown kind or for other fields."""
    fields = {name: value for name, value in record.items() if name != "kind"}
    try:
        return KINDS[record["kind"]](**fields)
    except (KeyError, TypeError):
        raise ValueError(f"A prediction is one of {', '.join(KINDS)} with its fields, got {dict(record)}.") from None
