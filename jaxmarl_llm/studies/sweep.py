"""Sweeps: one arm for each value of an hparam, e.g. `naive[learning_rate=0.001]`, and the value that was best.

Several hparams make a grid. Tiny policies train all values side by side, in the program of the arm itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxmarl_llm.studies.pages.format import count, interval
from jaxmarl_llm.studies.pages.reached import counts_of, tell_unreached
from jaxmarl_llm.studies.predictions import Higher, Lower, NotHigher, NotLower
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.text.refusals import suggest
from jaxmarl_llm.training.recipe import Recipe

RATE = "learning_rate"
LEADING = 5  # values of a line of progress
RISES, FALLS = (Higher, NotLower), (Lower, NotHigher)
Grid = dict[str, tuple[float, ...]]  # {hparam: its values}
Best = Literal["highest", "lowest", ""]


def read(words: Sequence[str]) -> Grid:
    """The grid of the words NAME=VALUE,VALUE,... of --sweep. Raises ValueError for anything else."""
    grid: Grid = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            values = tuple(float(value) for value in text.split(","))
        except ValueError:
            values = ()
        if not values or not all(map(math.isfinite, values)) or not name:
            raise ValueError(f"--sweep takes NAME=NUMBER,NUMBER,... for each hparam, got {word!r}.")
        if name in grid or len({*values}) < len(values):
            raise ValueError(f"--sweep names {'a value of ' * (name not in grid)}{name} twice: got {word!r}.")
        if name.partition("/")[0] == RATE and min(values) <= 0:
            raise ValueError(f"{name} must be a positive number, got {min(values):g}.")
        if name == "entropy" and min(values) < 0:
            raise ValueError(f"entropy must not be negative, got {min(values):g}.")
        grid[name] = values
    return grid


def sweep_arms(arms: Mapping[str, Recipe], grid: Grid) -> dict[str, Recipe]:
    """Every arm with every value of the grid, {ARM[NAME=VALUE,...]: recipe}.

    As the option --learning-rate does, a swept learning rate takes the place of single policies' rates. Raises
    ValueError for a name that is no hparam of an arm.
    """
    result = {}
    for arm, recipe in arms.items():
        known = [*(name for name in recipe.all_hparams if name not in recipe.choices)]
        known += [f"{RATE}/{policy}" for policy in recipe.learners]
        for name in grid:
            if name in recipe.choices:
                raise ValueError(f"{name!r} of the arm {arm} is a choice, not a number: --arms names its options.")
            if name not in known:
                listed = ", ".join(dict.fromkeys(known))
                raise ValueError(f"The arm {arm} has no hparam {name!r}. {suggest(name, known)}There are {listed}.")
        kept = {x: y for x, y in recipe.hparams.items() if not (RATE in grid and x.startswith(f"{RATE}/"))}
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            words = ",".join(f"{name}={_spell(value)}" for name, value in point.items())
            result[f"{arm}[{words}]"] = dataclasses.replace(recipe, hparams={**kept, **point})
    return result


def arm_of(name: str) -> str:
    """The arm whose sweep has an arm of this name, or the name of an arm that is none of a sweep's."""
    return name.partition("[")[0]


def labels(arms: Sequence[str]) -> list[str]:
    """Short names of a sweep's arms: the values alone if all are of one arm and of one hparam, else `NAME=VALUE`s."""
    words = [name.partition("[")[2].removesuffix("]") for name in arms]
    if len({*map(arm_of, arms)}) > 1:
        return [*arms]
    return [word.rpartition("=")[2] if "," not in word else word for word in words]


def title(arms: Sequence[str]) -> str:
    """A sweep's program in a few words: `centred, 3 values of learning_rate`."""
    words = [name.partition("[")[2].removesuffix("]").split(",") for name in arms]
    hparams = dict.fromkeys(word.partition("=")[0] for point in words for word in point)
    return f"{' and '.join(dict.fromkeys(map(arm_of, arms)))}, {count(len(words), 'value')} of {', '.join(hparams)}"


def standing(arms: Sequence[str], metric: str, means: Sequence[float]) -> str:
    """The metric of every arm of a sweep now, highest first, as many as a line takes."""
    ranked = sorted(zip(labels(arms), means, strict=True), key=lambda pair: (math.isnan(pair[1]), -pair[1]))
    told = [f"{label}: {mean:.3f}" for label, mean in ranked]
    return f"{metric} by value " + ", ".join(told if len(told) <= LEADING else [*told[:LEADING], f"lowest {told[-1]}"])


def _spell(value: float) -> str:
    """The shortest text that reads as the value."""
    return min(f"{value:g}", repr(value), key=lambda text: (float(text) != value, len(text)))


def best_end(study: Study) -> Best:
    """The better end of the first main metric, by the comparisons that the study predicts of its method; "" if they
    say nothing. A censored metric counts until something is reached, so that less is better."""
    metric, ends = study.metrics[0], set[Best]()
    for x in study.predictions:
        if x.metric == metric and x.than and study.method in x.arms and isinstance(x, (*RISES, *FALLS)):
            ends.add("highest" if isinstance(x, RISES) == (x.arm == study.method) else "lowest")
    if metric in study.censored:
        return "lowest"
    return ends.pop() if len(ends) == 1 else ""


def choose(results: Mapping[str, Any]) -> str:
    """The best arm of a sweep by the first main metric, with its interval, as a sentence; both ends if it is not known
    which one is better."""
    metric, seeds = results["metrics"][0], results["seeds"]
    cells = {arm: metrics.get(metric, {"mean": None}) for arm, metrics in results["arms"].items()}
    means = {arm: cell["mean"] for arm, cell in cells.items() if cell["mean"] is not None}
    if not means:
        return f"No arm of the sweep measured {metric} in its last updates."
    if all(tell_unreached(results, arm, metric, counts_of(results, {})) for arm in means):
        return f"No arm of the sweep reached what {metric!r} counts: more --updates may."
    if len(means) > 1 and len({*means.values()}) == 1:
        others = f"; the table also has {', '.join(results['metrics'][1:])}" if results["metrics"][1:] else ""
        return f"{metric} is {interval(cells[next(iter(means))])} in every arm of the sweep: it chooses none{others}."
    told, best = [], results["sweep"]["best"]
    for word, take in {"highest": max, "lowest": min}.items():
        if best in (word, ""):
            arm = take(means, key=means.__getitem__)
            equal = [other for other in means if means[other] == means[arm]]
            told.append(f"{word} {metric}: {' and '.join(equal)}, {interval(cells[arm])}")
    over = f"mean and 95% interval over {count(len(seeds), 'seed')}" if len(seeds) > 1 else "one seed"
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]} ({over}). This is a choice on these seeds: confirm it on others."
