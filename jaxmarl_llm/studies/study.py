"""A study: a question, the arms that answer it, and predictions, written before any run.

A study is a module with a constant `STUDY`. `predictions` has the kinds of predictions, and how they are judged. A
metric is each seed's mean over the last tenth of the updates, or a number in `derived`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np

from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.predictions import AtLeast as AtLeast
from jaxmarl_llm.studies.predictions import AtMost as AtMost
from jaxmarl_llm.studies.predictions import Higher as Higher
from jaxmarl_llm.studies.predictions import Lower as Lower
from jaxmarl_llm.studies.predictions import NotHigher as NotHigher
from jaxmarl_llm.studies.predictions import NotLower as NotLower
from jaxmarl_llm.studies.predictions import Prediction
from jaxmarl_llm.studies.predictions import Within as Within
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.setup import TINY

ANY = "any"


@dataclasses.dataclass(frozen=True)
class Paper:
    title: str
    url: str
    year: int
    checked: Literal["release", "paper", "abstract"]
    """The best source that the study's author has read: released code, the paper, or its abstract."""

    def __str__(self) -> str:
        return f"{self.title}, {self.year}"


@dataclasses.dataclass(frozen=True)
class Study:
    """A comparison, mostly from a paper: one question, the arms that answer it, metrics and predictions."""

    question: str
    """One short sentence, shown in the list of studies."""
    claim: str
    """The expected answer, written before any run."""
    arms: Mapping[str, Recipe | Computed]
    method: str
    """The arm of the published method, or of ours. A pretrained model trains with it unless `--arms` names others."""
    metrics: tuple[str, ...]
    """The main metrics, columns of the table: means over the last tenth of the updates, or names in `derived`."""
    paper: Paper | None = None
    """The paper of the method; None for an idea of one's own, whose page shows the verdicts and no status."""
    predictions: tuple[Prediction, ...] = ()
    checks: tuple[Prediction, ...] = ()
    """Statements that hold if the code is right: identities, unbiasedness, arms that cannot be paid. They are shown
    apart, and never counted."""
    censored: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """{metric: its value in a seed that never reached what it counts}, e.g. the number of updates."""
    x: str = "update"
    """The x axis of the curves."""
    scope: str = TINY
    """The policies that the claim is about: `tiny` ones, those of `any` run, or a pretrained model's, e.g. `smollm2`,
    which then trains all arms of the table."""
    derived: Mapping[str, Callable[[Mapping[str, np.ndarray]], np.ndarray]] = dataclasses.field(default_factory=dict)
    """{metric: f}: f maps an arm's curves, {metric: [seeds, updates]}, to one number a seed, [seeds]."""
    extra: Mapping[str, Recipe] = dataclasses.field(default_factory=dict)
    """Arms that run only if `--arms` names them, e.g. arms for a pretrained model."""
    expected: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    """{(pretrained model, arm): expected result of a run of that arm alone}; the command prints it before the run."""

    @property
    def recipes(self) -> dict[str, Recipe]:
        """{arm: recipe} of the arms that train policies, from `arms` and `extra`; `Computed` arms are left out."""
        return {name: arm for name, arm in self.all_arms.items() if isinstance(arm, Recipe)}

    @property
    def all_arms(self) -> dict[str, Recipe | Computed]:
        return {**self.arms, **self.extra}

    @property
    def counts(self) -> dict[str, str]:
        """{censored metric: the metric whose rise it counts}, e.g. {"updates to 90%": "right"}.

        The second is the keyword `metric` of a partial function in `derived`; metrics without one are left out.
        """
        functions = {name: f for name, f in self.derived.items() if name in self.censored and isinstance(f, partial)}
        return {name: f.keywords["metric"] for name, f in functions.items() if "metric" in f.keywords}

    def censored_after(self, updates: Mapping[str, int]) -> dict[str, float]:
        """`censored` of a run with {arm: updates}, which may be fewer or more than the study's.

        A metric of `counts` is counted in updates or games, which end with the run. Arms of unlike lengths keep the
        study's values.
        """
        shares = {(count, self.all_arms[arm].updates) for arm, count in updates.items()}
        if len(shares) != 1 or len({*next(iter(shares))}) == 1:
            return dict(self.censored)
        ((ran, whole),) = shares
        return {name: limit * ran / whole if name in self.counts else limit for name, limit in self.censored.items()}

    def check(self, name: str) -> None:
        """Raises ValueError, before anything compiles, for missing or inconsistent fields. `name` is the study's."""
        empty = [field for field in ("question", "claim", "arms", "metrics") if not getattr(self, field)]
        if empty:
            raise ValueError(f"The study {name} must state {', '.join(empty)}.")
        if self.paper is not None and not self.paper.url.startswith("https://"):
            raise ValueError(f"The paper of the study {name} needs a link, got {self.paper.url!r}.")
        if not (isinstance(self.scope, str) and self.scope):
            raise ValueError(f"The scope of the study {name} is tiny, any or a model's name, got {self.scope!r}.")
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
            if prediction.source is None or not prediction.where:
                raise ValueError(
                    f"{name} predicts {prediction}, but not whose prediction it is: give source='paper', 'theory' or "
                    "'pilot', and where (the place, the derivation, the seeds). A statement that must hold is a check."
                )
            if prediction.source == "paper" and self.paper is None:
                raise ValueError(f"{name} predicts {prediction} of a paper, and names none: give paper=Paper(...).")
        for check in self.checks:
            if check.source is not None or check.condition:
                raise ValueError(f"{check} of {name} is a check, which has no source and is no condition.")
        for prediction in (*self.predictions, *self.checks):
            for arm in prediction.arms:
                if arm not in self.arms:
                    raise ValueError(f"{name} predicts {prediction} of the arm {arm!r}, but its arms are {known}.")
