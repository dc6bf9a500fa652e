"""From measured numbers to `results.json`: intervals, paired tests, learning curves.

results.json:

  study, question, claim, paper, model, updates, seconds
  metrics      the main ones, in order: those that tables and plots show
  predictions  what was written before the run, as `study.record_of` says
  settings     {arm: {...}}, all of them       seeds [...]
  arms         {arm: {metric: {mean, low, high, per_seed}}}, 95% Student-t intervals over seeds
  before       the same of `Recipe.evaluate` before the first update; an arm without an evaluation has none
  tests        [{metric, a, b, difference: {mean, low, high}, p, seeds}], arm a less arm b, paired by seed
  shorter      whether the run made fewer updates than the study, so that it shows nothing of what was predicted
  curves       {arm: {metric: {update, mean, low, high}}} of main and predicted metrics, at most 100 updates, 5 digits
  skipped      {arm: skipped updates of all its seeds, because a loss or a gradient was not finite}
  provenance   command, commit, hardware, flags of XLA and jax, packages, platform, python

A value that is not finite, or was not measured, is null. With one seed, an evaluation that returns a value a game has
an interval over games. With several, its entries in `arms` and `before` also have `within`, the interval over games of
each seed: [[low, high], ...].
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxmarl_llm.evaluation.statistics import paired_interval, sign_flip_test, student_interval, summarise
from jaxmarl_llm.runs import log
from jaxmarl_llm.studies.study import Prediction, prediction_of

INFO = ("study", "question", "claim", "paper", "predictions", "metrics", "settings", "seeds", "updates", "model")
KEYS = (*INFO, "arms", "before", "tests", "curves", "seconds", "provenance")

Arms = Mapping[str, Mapping[str, Any]]  # {arm: {metric: ...}}
ENDS = ("mean", "low", "high")


def over_seeds(values: np.ndarray) -> dict[str, Any]:
    """{mean, low, high, per_seed} of values [seeds, n]: each seed's mean; no interval of one seed, whatever n is."""
    return summarise(np.array(summarise(values)["per_seed"], np.float64)[:, None])


def curve(values: np.ndarray, points: int = 100) -> dict[str, list[Any]]:
    """{update, mean, low, high} over seeds of values [seeds, updates], where measured, evenly thinned to `points`."""
    measured = np.flatnonzero(~np.isnan(values).all(0))
    if len(measured) > points:
        measured = measured[np.linspace(0, len(measured) - 1, points).round().astype(int)]
    rows = [[float(f"{x:.5g}") for x in student_interval(values[:, update])] for update in measured]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return {"update": measured.tolist(), **{end: list(x) for end, x in zip(ENDS, columns, strict=True)}}


def collect(
    curves: Arms,
    *,
    tail: float = 0.1,
    final: Arms | None = None,
    games: Arms | None = None,
    drawn: Collection[str] | None = None,
) -> dict[str, Any]:
    """{arms, curves} as in results.json, of {arm: {metric: [seeds, updates]}}, not finite where not measured.

    The number of a curve is each seed's mean over the last `tail` of the updates (at least one; null if nothing was
    measured there). `final`, {arm: {metric: [seeds]}}, is measured once, and takes the place of a curve of its name; so
    does `games`, {arm: {metric: [seeds, games]}}, where there is one seed and several games. Curves are kept of the
    metrics `drawn`, or of all. Raises ValueError for other shapes.
    """
    found: dict[str, Any] = {"arms": {}, "curves": {}}
    for source, shape in ((curves, "[seeds, updates]"), (final or {}, "[seeds]")):
        cells = [(arm, metric, given) for arm in source for metric, given in source[arm].items()]
        for arm, metric, given in cells:
            values = np.asarray(given, np.float64)
            if values.ndim != len(shape.split()) or not values.size:
                raise ValueError(f"{metric} of {arm} must be {shape}, got {list(values.shape)}.")
            values = np.where(np.isfinite(values), values, np.nan).reshape(len(values), -1)
            last = values[:, -max(1, round(tail * values.shape[1])) :]
            found["arms"].setdefault(arm, {})[metric] = over_seeds(last)
            if source is curves and (drawn is None or metric in drawn):
                found["curves"].setdefault(arm, {})[metric] = curve(values)
    for arm, metrics in summarise_arms(games or {}).items():
        cells = found["arms"].setdefault(arm, {})
        for metric, cell in metrics.items():
            if len(cell["per_seed"]) == 1 and cell["low"] is not None:
                cells[metric] = cell
            elif "within" in cell and metric in cells:
                cells[metric] = cells[metric] | {"within": cell["within"]}
    return found


def summarise_arms(games: Arms) -> dict[str, dict[str, Any]]:
    """{arm: {metric: {mean, low, high, per_seed}}} of {arm: {metric: [seeds, games]}}.

    The interval is over seeds, or over games where there is one seed; of several seeds with several games each,
    `within` has the interval over games of each seed. Arms without a metric are dropped.
    """

    def cell(values: np.ndarray) -> dict[str, Any]:
        values = np.where(np.isfinite(values), values, np.nan)
        if min(values.shape) < 2:
            return summarise(values)
        return summarise(values) | {"within": [list(student_interval(games)[1:]) for games in values]}

    return {arm: {name: cell(x) for name, x in of.items()} for arm, of in games.items() if of}


def count_moves(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, int] | None:
    """In how many seeds a metric rose and fell beyond its two intervals over games, of cells with `within`."""
    if "within" not in before or "within" not in after:
        return None
    pairs = [pair for pair in zip(before["within"], after["within"], strict=True) if None not in (*pair[0], *pair[1])]
    return sum(b[0] > a[1] for a, b in pairs), sum(b[1] < a[0] for a, b in pairs)


def compare(arms: Arms, pairs: Iterable[tuple[str, str]], metric: str) -> list[dict[str, Any]]:
    """{metric, a, b, difference, p, seeds} of each pair of arms: a less b, paired by seed, where both have a value.

    `difference` is {mean, low, high} (paired Student-t interval), p that of the exact sign-flip test. Raises ValueError
    if an arm lacks the metric.
    """
    tests = []
    for a, b in pairs:
        for arm in (a, b):
            if metric not in arms.get(arm, {}):
                known = sorted({name for metrics in arms.values() for name in metrics})
                raise ValueError(f"{arm} has no {metric}: arms are {', '.join(arms)}, metrics {', '.join(known)}.")
        x, y = (np.array(arms[arm][metric]["per_seed"], np.float64) for arm in (a, b))
        difference = dict(zip(ENDS, paired_interval(x, y), strict=True))
        test = {"metric": metric, "a": a, "b": b, "difference": difference}
        tests.append({**test, "p": sign_flip_test(x, y), "seeds": int(np.isfinite(x - y).sum())})
    return tests


def check(info: Mapping[str, Any]) -> None:
    """Raises ValueError unless `info` has all that a run states before it: call it before anything compiles."""
    if missing := [name for name in INFO if not info.get(name) and name != "predictions"]:
        raise ValueError(f"A study must state {', '.join(INFO)}; it lacks {', '.join(missing)}.")
    for prediction in predictions_of(info):
        if unknown := set(prediction.arms) - set(info["settings"]):
            raise ValueError(f"{prediction} names {sorted(unknown)}; the arms are {', '.join(info['settings'])}.")


def predictions_of(info: Mapping[str, Any]) -> list[Prediction]:
    """The predictions of a results.json. Raises ValueError for one that is none."""
    return [prediction_of(record) for record in info["predictions"]]


def has(metrics: Mapping[str, Any], metric: str) -> bool:
    """Whether an arm was measured in a metric, by one seed at least."""
    return metric in metrics and metrics[metric]["mean"] is not None


def write(
    directory: str | os.PathLike[str],
    info: Mapping[str, Any],
    curves: Arms,
    *,
    seconds: float,
    final: Arms | None = None,
    before: Arms | None = None,
    after: Arms | None = None,
    provenance: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes results.json into a directory, whole or not at all, and returns what it holds.

    `info` has the entries `INFO`; curves and `final` are as in `collect`; `before` and `after` are what the evaluation
    found, {arm: {metric: [seeds, games]}}. Pairs of arms that a prediction names are tested on all main metrics and on
    the predicted ones. `provenance`: `log.provenance()` of when the run began. Raises ValueError as `check` does, and
    if a predicted metric was not measured.
    """
    check(info)
    out = log.writable_directory(directory)
    predictions = predictions_of(info)
    drawn = {*info["metrics"], *(prediction.metric for prediction in predictions)}
    found = collect(curves, final=final, games=after, drawn=drawn)
    arms = found["arms"]
    for prediction in predictions:
        compare(arms, [(arm, arm) for arm in prediction.arms], prediction.metric)  # is there, or an error that says so
    paired = [(prediction.metric, *prediction.arms) for prediction in predictions if len(prediction.arms) == 2]
    tests = []
    for metric in dict.fromkeys([*info["metrics"], *(metric for metric, _, _ in paired)]):
        for a, b in dict.fromkeys((a, b) for _, a, b in paired):
            if (metric, a, b) in paired or (has(arms[a], metric) and has(arms[b], metric)):
                tests += compare(arms, [(a, b)], metric)
    run = dict(provenance or log.provenance())
    run["command"] = shell(run["command"])
    skipped = {arm: int(np.nansum(np.asarray(metrics.get("skipped", 0.0)))) for arm, metrics in curves.items()}
    results = {**info, **found, "before": summarise_arms(before or {}), "seeds": list(info["seeds"]), "tests": tests}
    results |= {"seconds": round(seconds, 1), "skipped": {arm: count for arm, count in skipped.items() if count}}
    text = json.dumps({**results, "provenance": run}, default=lambda x: x.tolist() if hasattr(x, "tolist") else str(x))
    results = json.loads(text, parse_constant=lambda name: None)  # NaN, Infinity
    write_atomically(out / "results.json", text_of(results).encode())
    return results


def text_of(results: Mapping[str, Any]) -> str:
    """The text of a results.json: a list of numbers is one line."""
    text = json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False)
    # No string holds a raw line break, so that no match begins inside of one.
    return re.sub(r'\[\n[^\[\]{}"]*\]', lambda match: "[" + " ".join(match[0][1:-1].split()) + "]", text) + "\n"


def shell(command: Sequence[str]) -> str:
    """sys.argv as it was typed, without --out: the first of it is the whole path of the module."""
    file, options = Path(command[0]), list(command[1:])
    if "--out" in options:
        del options[options.index("--out") : options.index("--out") + 2]
    module = ["-m", file.parent.name] if file.name == "__main__.py" else [file.name]
    return shlex.join(["python", *module, *(option for option in options if not option.startswith("--out="))])


def write_atomically(file: Path, content: bytes) -> None:
    """Writes beside the file and renames, so that a run that is killed leaves the old file or the new one."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    partial.replace(file)


def load(file: Path) -> dict[str, Any]:
    """A results.json. Raises ValueError, one sentence, if there is none or it is not one."""
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {file} ({error.strerror}).") from None
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}).") from None
    if missing := [name for name in KEYS if not isinstance(results, dict) or name not in results]:
        raise ValueError(f"{file} is not the result of a study: it lacks {', '.join(missing)}.")
    return results
