"""`results.json`, the result of a run: intervals, paired tests and learning curves from measured numbers.

Entries of results.json:

  study, question, claim, model, updates, seconds
  paper        title, url, year and what was checked; null for an idea of one's own
  metrics      the main metrics, in the order of tables and plots
  predictions  the predictions, as records (`predictions.record_of`), with their sources
  checks       statements that hold if the code is right, as records
  censored     {metric: its value in a seed that never reached what it counts}
  counts       {censored metric: the metric whose rise it counts}; absent in older runs
  x            the x axis of the curves
  frozen       {commit, digest} of the freeze whose table this is (`frozen.py`); absent for any other run
  settings     {arm: all of its settings}
  seeds        [...]
  arms         {arm: {metric: {mean, low, high, per_seed}}}, 95% Student-t intervals over seeds
  before       the same for `Recipe.evaluate` before the first update; nothing for an arm without an evaluation
  tests        [{metric, a, b, difference: {mean, low, high}, p, seeds}], arm a minus arm b, paired by seed: the exact
               sign-flip test, and the interval that inverts it; not in a repository, where pages compute them
  shorter      true if the run made fewer updates than the study: no prediction is judged
  curves       {arm: {metric: {update, mean, low, high}}} of main and predicted metrics, at most 50 updates, 4 digits;
               with two to five seeds also `seeds`, [seeds, updates]
  skipped      {arm: updates skipped for a loss or gradient that was not finite, summed over seeds}
  provenance   command, commit, hardware, flags of XLA and jax, packages, platform, python

A value that is not finite, or was not measured, is null. An evaluation that returns one value a game has, with one
seed, an interval over games. With several seeds, its entries in `arms` and `before` also have `within`, the interval
over games of each seed: [[low, high], ...].
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

from jaxmarl_llm.evaluation.statistics import sign_flip_interval, sign_flip_test, student_interval, summarise
from jaxmarl_llm.runs import log
from jaxmarl_llm.studies.predictions import Prediction, prediction_of

INFO = ("study", "question", "claim", "paper", "predictions", "metrics", "settings", "seeds", "updates", "model")
KEYS = (*INFO, "arms", "before", "curves", "seconds", "provenance")

Arms = Mapping[str, Mapping[str, Any]]  # {arm: {metric: ...}}
ENDS = ("mean", "low", "high")
FEW = 5  # seeds of which figures show each


def over_seeds(values: np.ndarray) -> dict[str, Any]:
    """{mean, low, high, per_seed} of values [seeds, n], from each seed's mean; one seed has no interval."""
    return summarise(np.array(summarise(values)["per_seed"], np.float64)[:, None])


def curve(values: np.ndarray, points: int = 50) -> dict[str, list[Any]]:
    """{update, mean, low, high} over seeds of values [seeds, updates]: the measured ones, at most `points`.

    From two to `FEW` seeds it has `seeds` too, the curve of each seed.
    """
    short = lambda x: float(f"{x:.4g}")
    measured = np.flatnonzero(~np.isnan(values).all(0))
    if len(measured) > points:
        measured = measured[np.linspace(0, len(measured) - 1, points).round().astype(int)]
    rows = [[short(x) for x in student_interval(values[:, update])] for update in measured]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    thinned = {"update": measured.tolist(), **{end: list(x) for end, x in zip(ENDS, columns, strict=True)}}
    if 1 < len(values) <= FEW:
        thinned["seeds"] = [[short(x) for x in seed] for seed in values[:, measured]]
    return thinned


def collect(
    curves: Arms,
    *,
    tail: float = 0.1,
    final: Arms | None = None,
    games: Arms | None = None,
    drawn: Collection[str] | None = None,
) -> dict[str, Any]:
    """{arms, curves} as in results.json, from {arm: {metric: [seeds, updates]}} with NaN where nothing was measured.

    A seed's number is the mean of its curve over the last `tail` of the updates, at least one; null without a
    measurement there. `final`, {arm: {metric: [seeds]}}, replaces the number of a metric with the same name. So does
    `games`, {arm: {metric: [seeds, games]}}, with one seed and several games. `drawn` names the metrics whose curves
    are kept; None keeps all. Raises ValueError for other shapes.
    """
    collected: dict[str, Any] = {"arms": {}, "curves": {}}
    for source, shape in ((curves, "[seeds, updates]"), (final or {}, "[seeds]")):
        cells = [(arm, metric, given) for arm in source for metric, given in source[arm].items()]
        for arm, metric, given in cells:
            values = np.asarray(given, np.float64)
            if values.ndim != len(shape.split()) or not values.size:
                raise ValueError(f"{metric} of {arm} must be {shape}, got {list(values.shape)}.")
            values = np.where(np.isfinite(values), values, np.nan).reshape(len(values), -1)
            last = values[:, -max(1, round(tail * values.shape[1])) :]
            collected["arms"].setdefault(arm, {})[metric] = over_seeds(last)
            if source is curves and (drawn is None or metric in drawn):
                collected["curves"].setdefault(arm, {})[metric] = curve(values)
    for arm, metrics in summarise_arms(games or {}).items():
        cells = collected["arms"].setdefault(arm, {})
        for metric, cell in metrics.items():
            if len(cell["per_seed"]) == 1 and cell["low"] is not None:
                cells[metric] = cell
            elif "within" in cell and metric in cells:
                cells[metric] = cells[metric] | {"within": cell["within"]}
    return collected


def summarise_arms(games: Arms) -> dict[str, dict[str, Any]]:
    """{arm: {metric: {mean, low, high, per_seed}}} of {arm: {metric: [seeds, games]}}.

    The interval is over seeds, or over games with one seed. For several seeds and several games, `within` has the
    interval over games of each seed. Arms without a metric are left out.
    """

    def cell(values: np.ndarray) -> dict[str, Any]:
        values = np.where(np.isfinite(values), values, np.nan)
        if min(values.shape) < 2:
            return summarise(values)
        return summarise(values) | {"within": [list(student_interval(games)[1:]) for games in values]}

    return {arm: {name: cell(x) for name, x in metrics.items()} for arm, metrics in games.items() if metrics}


def count_moves(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, int] | None:
    """(seeds that rose, seeds that fell) beyond their two intervals over games; None for cells without `within`."""
    if "within" not in before or "within" not in after:
        return None
    pairs = [pair for pair in zip(before["within"], after["within"], strict=True) if None not in (*pair[0], *pair[1])]
    return sum(b[0] > a[1] for a, b in pairs), sum(b[1] < a[0] for a, b in pairs)


def compare(arms: Arms, pairs: Iterable[tuple[str, str]], metric: str) -> list[dict[str, Any]]:
    """{metric, a, b, difference, p, seeds} for each pair of arms: a minus b, over seeds with both values.

    p is of the exact sign-flip test, and `difference`, {mean, low, high}, has the interval that inverts it. Raises
    ValueError if an arm lacks the metric.
    """
    tests = []
    for a, b in pairs:
        for arm in (a, b):
            if metric not in arms.get(arm, {}):
                known = sorted({name for metrics in arms.values() for name in metrics})
                raise ValueError(f"{arm} has no {metric}: arms are {', '.join(arms)}, metrics {', '.join(known)}.")
        x, y = (np.array(arms[arm][metric]["per_seed"], np.float64) for arm in (a, b))
        ends = (None if np.isnan(end) else end for end in sign_flip_interval(x, y))
        difference = dict(zip(ENDS, ends, strict=True))
        test = {"metric": metric, "a": a, "b": b, "difference": difference}
        tests.append({**test, "p": sign_flip_test(x, y), "seeds": int(np.isfinite(x - y).sum())})
    return tests


def check(info: Mapping[str, Any]) -> None:
    """Raises ValueError unless `info` has the entries INFO and known arms: call it before anything compiles."""
    optional = {"predictions", *(["paper"] if info.get("paper", "") is None else [])}  # an idea of one's own has none
    if missing := [name for name in INFO if not info.get(name) and name not in optional]:
        raise ValueError(f"A study must state {', '.join(INFO)}; it lacks {', '.join(missing)}.")
    for prediction in (*predictions_of(info), *checks_of(info)):
        if unknown := set(prediction.arms) - set(info["settings"]):
            raise ValueError(f"{prediction} names {sorted(unknown)}; the arms are {', '.join(info['settings'])}.")


def predictions_of(info: Mapping[str, Any]) -> list[Prediction]:
    """The predictions of a results.json. Raises ValueError for an invalid record."""
    return [prediction_of(record) for record in info["predictions"]]


def checks_of(info: Mapping[str, Any]) -> list[Prediction]:
    """The checks of a results.json. Raises ValueError for an invalid record."""
    return [prediction_of(record) for record in info.get("checks", ())]


def run_of(results: Mapping[str, Any]) -> str:
    """The name of a run: its commit's first ten digits and its seeds, e.g. `0123456789, seeds 1000 to 1019`."""
    seeds, commit = results["seeds"], (results["provenance"]["commit"] or "unknown").partition("-")[0]
    return f"{commit[:10]}, " + (f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}")


def has(metrics: Mapping[str, Any], metric: str) -> bool:
    """True if at least one seed of an arm measured the metric."""
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
    """Writes results.json into a directory, atomically, and returns its content.

    `info` has the entries `INFO`; `curves` and `final` are as in `collect`. `before` and `after` are results of the
    evaluation, {arm: {metric: [seeds, games]}}. `provenance` is `log.provenance()` from the start of the run. Pairs of
    arms in a prediction are tested on all main metrics and on the predicted ones. Raises ValueError as `check` does,
    and for a predicted metric without a measurement.
    """
    check(info)
    out = log.writable_directory(directory)
    stated = [*predictions_of(info), *checks_of(info)]
    drawn = {*info["metrics"], *(prediction.metric for prediction in stated)}
    parts = collect(curves, final=final, games=after, drawn=drawn)
    for prediction in stated:
        compare(parts["arms"], [(arm, arm) for arm in prediction.arms], prediction.metric)  # for its ValueError
    tests = paired_tests(parts["arms"], info["metrics"], predictions_of(info))
    run = dict(provenance or log.provenance())
    run["command"] = shell(run["command"])
    skipped = {arm: int(np.nansum(np.asarray(metrics.get("skipped", 0.0)))) for arm, metrics in curves.items()}
    results = {**info, **parts, "before": summarise_arms(before or {}), "seeds": list(info["seeds"]), "tests": tests}
    results |= {"seconds": round(seconds, 1), "skipped": {arm: count for arm, count in skipped.items() if count}}
    text = json.dumps({**results, "provenance": run}, default=lambda x: x.tolist() if hasattr(x, "tolist") else str(x))
    results = json.loads(text, parse_constant=lambda name: None)  # NaN, Infinity
    write_atomically(out / "results.json", text_of(results).encode())
    return results


def paired_tests(arms: Arms, metrics: Iterable[str], predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
    """The tests of all pairs of arms in a prediction, on the main metrics and on the predicted ones."""
    paired = [(prediction.metric, *prediction.arms) for prediction in predictions if len(prediction.arms) == 2]
    tests = []
    for metric in dict.fromkeys([*metrics, *(metric for metric, _, _ in paired)]):
        for a, b in dict.fromkeys((a, b) for _, a, b in paired):
            if has(arms[a], metric) and has(arms[b], metric):
                tests += compare(arms, [(a, b)], metric)
    return tests


def slim(results: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a results.json that belongs into a repository.

    It has main, predicted and checked metrics alone, with eight digits, and curves of the metric that decides
    (`decisive`).
    """
    kept = {*results["metrics"], *(x.metric for x in (*predictions_of(results), *checks_of(results)))}
    small = {name: part for name, part in results.items() if name not in ("policies", "tests")}
    for name, metrics in (("arms", kept), ("before", kept), ("curves", {decisive(results)})):
        small[name] = {
            arm: {metric: _round(cell) for metric, cell in cells.items() if metric in metrics}
            for arm, cells in results[name].items()
        }
    return small


def _round(value: Any) -> Any:
    """The value with eight digits a number."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {name: _round(inner) for name, inner in value.items()}
    return [_round(inner) for inner in value] if isinstance(value, list) else value


def changes(curve: Mapping[str, Any]) -> bool:
    """True if a curve has two different values: a figure of others shows nothing."""
    return len({value for value in curve["mean"] if value is not None}) > 1


def decisive(results: Mapping[str, Any]) -> str | None:
    """The metric of a page's curves: of the first prediction, else main metric, that changes during training."""
    drawn = {metric for cells in results["curves"].values() for metric, curve in cells.items() if changes(curve)}
    wanted = [*(prediction.metric for prediction in predictions_of(results)), *results["metrics"]]
    return next((name for name in wanted if name in drawn), None)


def text_of(results: Mapping[str, Any]) -> str:
    """The text of a results.json, with each list of numbers on one line."""
    text = json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False)
    # JSON strings hold no raw line break, so no match begins inside a string.
    return re.sub(r'\[\n[^\[\]{}"]*\]', lambda match: "[" + " ".join(match[0][1:-1].split()) + "]", text) + "\n"


def shell(command: Sequence[str]) -> str:
    """The command of `sys.argv` as typed, without --out. Its first entry is the full path of the module."""
    file, options = Path(command[0]), list(command[1:])
    if "--out" in options:
        del options[options.index("--out") : options.index("--out") + 2]
    module = ["-m", file.parent.name] if file.name == "__main__.py" else [file.name]
    return shlex.join(["python", *module, *(option for option in options if not option.startswith("--out="))])


def write_atomically(file: Path, content: bytes) -> None:
    """Writes a temporary file and renames it, so a killed run leaves either the old or the new file."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    partial.replace(file)


def load(file: Path) -> dict[str, Any]:
    """Reads a results.json. Raises ValueError for a missing file or a file of another kind."""
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {file} ({error.strerror}).") from None
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}).") from None
    if missing := [name for name in KEYS if not isinstance(results, dict) or name not in results]:
        raise ValueError(f"{file} is not the result of a study: it lacks {', '.join(missing)}.")
    return results
