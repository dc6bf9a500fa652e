"""From measured numbers to results: intervals, paired tests, learning curves, verdicts, and the table of them all.

`write` puts one run of the ablation runner into a directory; the command makes README.md of all of them.

  python -m jaxmarl_llm.studies.results [--check] [FILES ...]   # FILES: experiments/results/*/results.json

results.json:

  recipe, claim, paper, model, updates, seconds
  metrics      the main ones, in order: those that tables and plots show
  direction    what was stated before the run, each {metric, a, b, sign}: of arm a less arm b, 1 up or -1 down; or
               {metric, arm, at_least} or {metric, arm, at_most}: a number that bounds the mean of an arm
  settings     {arm: {...}}, all of them       seeds [...]
  arms         {arm: {metric: {mean, low, high, per_seed}}}, 95% Student-t intervals over seeds
  tests        [{metric, a, b, difference: {mean, low, high}, p, seeds}], paired by seed
  curves       {arm: {metric: {update, mean, low, high}}} of main and stated metrics, at most 100 updates, 5 digits
  skipped      {arm: updates of all its seeds that were left out because a loss or a gradient was not finite}
  provenance   command, commit, hardware, flags of XLA and jax, packages, platform, python

What is not a finite number, or was not measured, is null.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import shlex
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxmarl_llm.evaluation.statistics import paired_interval, sign_flip_test, student_interval, summarise
from jaxmarl_llm.studies.cli import execute, span
from jaxmarl_llm.training import log

HERE = Path(__file__).parents[2] / "experiments"
INFO = ("recipe", "claim", "paper", "direction", "metrics", "settings", "seeds", "updates", "model")
KEYS = (*INFO, "arms", "tests", "curves", "seconds", "provenance")
LEVEL = 0.05
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # tell apart colour-blind

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
    curves: Arms, *, tail: float = 0.1, final: Arms | None = None, drawn: Collection[str] | None = None
) -> dict[str, Any]:
    """{arms, curves} as in results.json, of {arm: {metric: [seeds, updates]}}, not finite where not measured.

    A curve is judged by each seed's mean over the last `tail` of the updates (at least one; null if nothing was
    measured there). `final`, {arm: {metric: [seeds]}}, is judged once, and takes the place of a curve of its name.
    Curves are kept of the metrics `drawn`, or of all. Raises ValueError for other shapes.
    """
    found: dict[str, Any] = {"arms": {}, "curves": {}}
    for source, shape in ((curves, "[seeds, updates]"), (final or {}, "[seeds]")):
        cells = [(arm, metric, hparams) for arm in source for metric, hparams in source[arm].items()]
        for arm, metric, hparams in cells:
            values = np.asarray(hparams, np.float64)
            if values.ndim != len(shape.split()) or not values.size:
                raise ValueError(f"{metric} of {arm} must be {shape}, got {list(values.shape)}.")
            values = np.where(np.isfinite(values), values, np.nan).reshape(len(values), -1)
            last = values[:, -max(1, round(tail * values.shape[1])) :]
            found["arms"].setdefault(arm, {})[metric] = over_seeds(last)
            if source is curves and (drawn is None or metric in drawn):
                found["curves"].setdefault(arm, {})[metric] = curve(values)
    return found


def compare(arms: Arms, pairs: Iterable[tuple[str, str]], metric: str) -> list[dict[str, Any]]:
    """{metric, a, b, difference, p, seeds} of each pair of arms: a less b, seed by seed, where both have a value.

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
    if missing := [name for name in INFO if not info.get(name) and name != "direction"]:
        raise ValueError(f"A recipe must state {', '.join(INFO)}; it lacks {', '.join(missing)}.")
    for stated in info["direction"]:
        difference = set(stated) == {"metric", "a", "b", "sign"} and stated["sign"] in (1, -1)
        if not difference and set(stated) not in ({"metric", "arm", "at_least"}, {"metric", "arm", "at_most"}):
            forms = "{metric, a, b, sign: 1 or -1} or {metric, arm, at_least or at_most: a number}"
            raise ValueError(f"A direction is {forms}, got {dict(stated)}.")
        if unknown := set(named(stated)) - set(info["settings"]):
            raise ValueError(f"A direction names {sorted(unknown)}; the arms are {', '.join(info['settings'])}.")


def has(metrics: Mapping[str, Any], metric: str) -> bool:
    """Whether an arm was measured in a metric, by one seed at least."""
    return metric in metrics and metrics[metric]["mean"] is not None


def named(stated: Mapping[str, Any]) -> tuple[str, ...]:
    """The arms of a direction."""
    return (stated["arm"],) if "arm" in stated else (stated["a"], stated["b"])


def write(
    directory: str | os.PathLike[str],
    info: Mapping[str, Any],
    curves: Arms,
    *,
    seconds: float,
    final: Arms | None = None,
    provenance: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes results.json and curves.png into a directory, each whole or not at all; returns what the first holds.

    `info` has recipe, claim, paper, direction, metrics, settings, seeds, updates and model; curves and `final` are as
    in `collect`. Pairs of arms that a direction names are tested on all main metrics and on those that it names.
    `provenance`: `log.provenance()` of when the run began. Raises ValueError as `check` does, and if a stated metric
    was not measured.
    """
    check(info)
    out = log.writable_directory(directory)
    stated = info["direction"]
    found = collect(curves, final=final, drawn={*info["metrics"], *(item["metric"] for item in stated)})
    arms = found["arms"]
    for item in stated:
        compare(arms, [(arm, arm) for arm in named(item)], item["metric"])  # is there, or an error that says what is
    paired = [item for item in stated if "sign" in item]
    named_tests = {(item["metric"], item["a"], item["b"]) for item in paired}
    tests = []
    for metric in dict.fromkeys([*info["metrics"], *(item["metric"] for item in paired)]):
        for a, b in dict.fromkeys((item["a"], item["b"]) for item in paired):
            if (metric, a, b) in named_tests or (has(arms[a], metric) and has(arms[b], metric)):
                tests += compare(arms, [(a, b)], metric)
    run = dict(provenance or log.provenance())
    run["command"] = shell(run["command"])
    skipped = {arm: int(np.nansum(np.asarray(metrics.get("skipped", 0.0)))) for arm, metrics in curves.items()}
    results = {**info, **found, "seeds": list(info["seeds"]), "tests": tests, "seconds": round(seconds, 1)}
    results["skipped"] = {arm: count for arm, count in skipped.items() if count}
    text = json.dumps({**results, "provenance": run}, default=lambda x: x.tolist() if hasattr(x, "tolist") else str(x))
    results = json.loads(text, parse_constant=lambda name: None)  # NaN, Infinity
    text = json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False)
    # A list of numbers on one line. No string holds a raw line break, so that no match begins inside of one.
    text = re.sub(r'\[\n[^\[\]{}"]*\]', lambda match: "[" + " ".join(match[0][1:-1].split()) + "]", text)
    replace(out / "results.json", (text + "\n").encode())
    replace(out / "curves.png", plot(results))
    return results


def shell(command: Sequence[str]) -> str:
    """sys.argv as it was typed, but for where it wrote: the first of it is the whole path of the module."""
    file, options = Path(command[0]), list(command[1:])
    if "--out" in options:
        del options[options.index("--out") : options.index("--out") + 2]
    module = ["-m", file.parent.name] if file.name == "__main__.py" else [file.name]
    return shlex.join(["python", *module, *(option for option in options if not option.startswith("--out="))])


def replace(file: Path, content: bytes) -> None:
    """Writes beside the file and renames, so that a run that is killed leaves the old one or the new one."""
    partial = file.with_name(file.name + ".partial")
    partial.write_bytes(content)
    partial.replace(file)


def plot(results: Mapping[str, Any]) -> bytes:
    """A PNG of the main metrics' curves, a panel each: every arm's mean and 95% band over seeds."""
    from matplotlib.figure import Figure

    curves = results["curves"]
    drawn = [metric for metric in results["metrics"] if any(metric in metrics for metrics in curves.values())]
    columns = min(3, max(1, len(drawn)))
    lines = math.ceil(max(1, len(drawn)) / columns)
    figure = Figure(figsize=(5 * columns + 1, 3.6 * lines + 0.6), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    legend = {}
    for panel, metric in zip(panels, drawn, strict=False):
        for i, arm in enumerate(curves):
            if metric not in curves[arm]:
                continue
            update, mean, low, high = (np.array(curves[arm][metric][x], np.float64) for x in ("update", *ENDS))
            color, dash = OKABE_ITO[i % len(OKABE_ITO)], ("-", "--", "-.", ":")[i % 4]
            (legend[arm],) = panel.plot(update, mean, dash, color=color, marker="." if len(update) < 20 else "")
            panel.fill_between(update, low, high, alpha=0.15, color=color, linewidth=0)
        panel.set(xlabel="update", title=metric)
    for panel in panels[len(drawn) :]:
        panel.axis("off")
    figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=min(4, max(1, len(legend))))
    figure.suptitle(f"{results['recipe']}, {results['model']}: mean and 95% band, {len(results['seeds'])} seeds")
    image = io.BytesIO()
    figure.savefig(image, dpi=110, format="png", metadata={"Software": None})
    return image.getvalue()


def verdict(results: Mapping[str, Any]) -> list[str]:
    """A sentence for each direction stated, with the numbers: in the direction stated (a bound holds), contradicted, or
    not shown. Then one for each arm of which updates were left out; such an arm shows nothing.

    A difference is shown if its interval leaves out 0 and p is at most 0.05, a bound if the whole interval keeps it.
    """
    sentences = []
    for stated in results["direction"]:
        metric, known, note, yes = stated["metric"], True, "", "in the direction stated"
        if "sign" in stated:
            a, b, sign, bound = stated["a"], stated["b"], stated["sign"], 0.0
            test = next(t for t in results["tests"] if (t["metric"], t["a"], t["b"]) == (metric, a, b))
            cell, n, known = test["difference"], test["seeds"], test["p"] <= LEVEL
            claim = f"{a} {'above' if sign > 0 else 'below'} {b}"
            what = f"difference {interval(cell)}, p = {test['p']:.2g}"
            if 2 / 2**n > LEVEL:
                note = f", and p cannot go below {min(1, 2 / 2**n):.3g}"
        else:
            sign, side = (1, "at_least") if "at_least" in stated else (-1, "at_most")
            cell, bound = results["arms"][stated["arm"]][metric], stated[side]
            n, yes = sum(x is not None for x in cell["per_seed"]), "holds"
            claim, what = f"{stated['arm']} {side.replace('_', ' ')} {bound:g}", f"mean {interval(cell)}"
        ends = [sign * (cell[end] - bound) for end in ("low", "high") if known and cell[end] is not None]
        whole = not any(arm in results.get("skipped", {}) for arm in named(stated))
        shown, against = whole and ends and min(ends) >= 0, whole and ends and max(ends) < 0
        outcome = yes if shown else "contradicted" if against else "not shown"
        sentences.append(f"{metric}, {claim}: {outcome}, {what} ({n} seed{'s' * (n != 1)}{note}).")
    for arm, count in results.get("skipped", {}).items():
        sentences.append(f"{arm}: {count} updates, of all seeds, were left out, as they were not finite.")
    return sentences


def number(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def interval(cell: Mapping[str, Any]) -> str:
    ends = "" if cell["low"] is None else f" [{number(cell['low'])}, {number(cell['high'])}]"
    return number(cell["mean"]) + ends


def table(results: Mapping[str, Any]) -> Table:
    """Arms by main metrics, mean ± half of the interval; then the differences between arms with their p."""
    title = f"{results['recipe']}, {results['model']}, {results['updates']} updates, {len(results['seeds'])} seeds"
    shown = Table(title=escape(title), title_justify="left", caption_justify="left")
    shown.caption = "mean ± half of the 95% Student-t interval over seeds; p of the exact paired sign-flip test"
    shown.add_column("arm")
    for metric in results["metrics"]:
        shown.add_column(escape(metric), justify="right")
    for arm, metrics in results["arms"].items():
        shown.add_row(escape(arm), *(span(metrics[m], 3) if has(metrics, m) else "" for m in results["metrics"]))
    shown.add_section()
    tests = {(test["a"], test["b"], test["metric"]): test for test in results["tests"]}
    for a, b in dict.fromkeys(key[:2] for key in tests):
        found = [tests.get((a, b, metric)) for metric in results["metrics"]]
        cells = [f"{span(t['difference'], 3)}\np = {t['p']:.2g}" if t else "" for t in found]
        shown.add_row(escape(f"{a} − {b}"), *cells)
    return shown


def show(results: Mapping[str, Any], console: Console) -> None:
    """Prints the table, the first main metric seed by seed, and the verdict."""
    console.print(table(results))
    first, arms = results["metrics"][0], results["arms"]
    seeds = [f"{arm} {' '.join(map(number, arms[arm][first]['per_seed']))}" for arm in arms if has(arms[arm], first)]
    lines = [f"{first}, seed by seed: {'; '.join(seeds)}", f"Claim: {results['claim']}", *verdict(results)]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def load(file: Path) -> dict[str, Any]:
    """A results.json. Raises ValueError, one sentence, if there is none or it is not one."""
    try:
        results = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"cannot read {file} ({error.strerror}).") from None
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}).") from None
    if missing := [name for name in KEYS if not isinstance(results, dict) or name not in results]:
        raise ValueError(f"{file} is not what `python -m experiments` writes: it lacks {', '.join(missing)}.")
    return results


INTRODUCTION = """# Results

Made by `python -m jaxmarl_llm.studies.results` from the `results.json` of every run; nothing here is typed by hand. A
metric is each seed's mean over the last tenth of the updates, or what was judged once after them; shown are the mean
over seeds and its 95% Student-t interval. Differences between arms are paired by seed, p is that of the exact two-sided
sign-flip test, not corrected for the number of tests. A direction counts as shown if the interval leaves out 0 and p is
at most 0.05."""


def readme(files: Iterable[Path], beside: Path) -> str:
    """Markdown of all results, in the order of their directories' names; links are relative to the folder `beside`."""
    head = ("recipe", "paper", "arm", "main metrics", "seeds", "updates", "model", "time", "commit")
    overview: list[Sequence[Any]] = [head]
    sections = []
    for file in sorted({file.resolve() for file in files}, key=lambda file: (file.parent.name, file)):
        results, name = load(file), file.parent.name
        place = Path(os.path.relpath(file.parent, beside.resolve())).as_posix()
        try:
            commit, *dirty = (results["provenance"]["commit"] or "unknown").split("-")
            run = len(results["seeds"]), results["updates"], results["model"], f"{results['seconds'] / 60:.1f} min"
            for arm, metrics in results["arms"].items():
                cells = "<br>".join(f"{m} {interval(metrics[m])}" for m in results["metrics"] if has(metrics, m))
                link = f"[{name}](#{name.lower()})"
                overview.append((link, results["paper"], arm, cells, *run, "-".join([commit[:10], *dirty])))
            played = f", [a transcript]({place}/transcript.md)"
            tests: list[Sequence[Any]] = [("metric", "difference", "mean [95% interval]", "p", "seeds")]
            for t in results["tests"]:
                row = t["metric"], f"{t['a']} − {t['b']}", interval(t["difference"]), f"{t['p']:.2g}", t["seeds"]
                tests.append(row)
            parts = [
                f"## {name}\n\nClaim, stated before the run: {results['claim']}",
                "\n".join(f"- {sentence}" for sentence in verdict(results)),
                markdown(tests) if results["tests"] else "",
                f"```\n{results['provenance']['command']}\n```",
                f"![Learning curves]({place}/curves.png)",
                f"[All numbers]({place}/results.json)" + played * file.with_name("transcript.md").exists(),
            ]
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise ValueError(f"{file} is not complete ({error!r}): run its recipe again.") from None
        sections.append("\n\n".join(filter(None, parts)))
    return "\n\n".join([INTRODUCTION, markdown(overview), *sections]) + "\n"


def markdown(table: Iterable[Sequence[Any]]) -> str:
    head, *lines = [[str(cell).replace("|", "\\|") for cell in line] for line in table]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


@dataclasses.dataclass(frozen=True)
class Command:
    files: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Files to read; without any, experiments/results/*/results.json."""
    readme: Path = HERE / "README.md"
    """The file to write."""
    check: bool = False
    """Write nothing; end with 1 if the file is not what would be written."""


def run(stop: threading.Event, console: Console) -> None:
    command = tyro.cli(Command, description=__doc__)
    files = command.files or tuple(HERE.glob("results/*/results.json"))
    if not files:
        raise ValueError("no experiments/results/*/results.json: run `python -m experiments RECIPE` first.")
    text = readme(files, command.readme.parent)
    if not command.check:
        replace(command.readme, text.encode())
    elif not command.readme.exists() or command.readme.read_text() != text:
        raise SystemExit(f"{command.readme} is not what its results say: run `python -m jaxmarl_llm.studies.results`.")


if __name__ == "__main__":
    execute(run)
