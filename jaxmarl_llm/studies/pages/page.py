"""The page of a run, from the files in its folder of results.

`notes.md` and `about.toml` (`about.py`) are written by hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from jaxmarl_llm.evaluation.statistics import interquartile_interval, probability_of_improvement
from jaxmarl_llm.studies import frozen, registry
from jaxmarl_llm.studies.pages import history, report
from jaxmarl_llm.studies.pages.about import read_about
from jaxmarl_llm.studies.pages.format import count, duration, interval, markdown
from jaxmarl_llm.studies.pages.reached import count_unreached, counts_of, tell_unreached
from jaxmarl_llm.studies.pages.results import (
    ENDS,
    checks_of,
    count_moves,
    decisive,
    has,
    load,
    paired_tests,
    predictions_of,
    run_of,
)
from jaxmarl_llm.studies.pages.verdicts import NEAR, NOT_TESTED, UNMET, Verdict, judge, passes, status
from jaxmarl_llm.view.page import GAMES

CHECKED = {"release": "released code", "paper": "paper", "abstract": "abstract alone"}
NOT_FROZEN = "**Not yet frozen.** The predictions were sorted, and some restated, after this table was seen."


def standing(verdicts: Sequence[Verdict], about: Mapping[str, Any]) -> str:
    """The status of a study about its paper. "not tested" if `about` says why its setting is unfit for the claim."""
    return NOT_TESTED if about.get("unfit") else status(verdicts)


def waiting(results: Mapping[str, Any], about: Mapping[str, Any], folder: Path) -> str:
    """The wait of a table that counts and was not frozen, after a semicolon; empty for a frozen one."""
    if "frozen" in results or about.get("unfit"):
        return ""
    return "; its frozen table has not run yet" if (folder / frozen.FILE).exists() else "; not yet frozen"


def is_counted(verdicts: Sequence[Verdict], about: Mapping[str, Any]) -> bool:
    """False if the setting of a study is unfit for the paper's claim, or if a condition is not met."""
    return not about.get("unfit") and status(verdicts) != UNMET


def page(file: Path) -> str:
    """Markdown of the page of one results.json. Raises ValueError for an incomplete file."""
    results, folder = load(file), file.parent
    about = read_about(folder)
    try:
        verdicts = judge(results)
        rows = robust_statistics(results, verdicts)
        folded = {
            "Checks of the code": check_list(results),
            "All arms": markdown(drop_empty_columns(arms(results, counts_of(results, about)))),
            "Differences": markdown(tests) if len(tests := differences(results)) > 1 else "",
            "Robust statistics of the predicted differences": ROBUST + markdown(rows) if len(rows) > 1 else "",
            "What was known before, and what the seeds vary": disclosures(results, about, folder),
            "What the study claimed before this table": results["claim"],
            "Former tables": "\n\n".join(history.lines(history.read(folder))),
            "Run": run_details(results),
        }  # fmt: skip
        parts = [
            f"# {folder.name}",
            f"*{results['question']}*",
            finding(results, about, verdicts),
            header(results, about, verdicts),
            "" if about.get("unfit") or not verdicts else frozen_state(results, folder),
            "![Predicted differences and their intervals](forest.svg)" if any(x.seeds for x in verdicts) else "",
            "![Learning curves](curves.svg)" if decisive(results) else "",
            "## Predictions\n\n" + prediction_table(results, verdicts) if verdicts else "",
            explanations(results, about, folder),
            *(f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" for title, text in folded.items() if text),
            links(results, folder),
        ]
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"{file} is not complete ({error!r}): run its study again.") from None
    return "\n\n".join(filter(None, parts)) + "\n"


UNFIT = "This setting cannot show the claim, so its table is not run again and not counted: "
ROBUST = (
    "Interquartile means with 95% bootstrap intervals, and the share of pairs of runs with the first arm above.\n\n"
)


def finding(results: Mapping[str, Any], about: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    """The written finding if it is about this run, else the verdicts on the paper's directions."""
    if about.get("found") and about.get("run") == run_of(results):
        older = (
            ""
            if "frozen" in results or about.get("recounted")
            else " (Intervals in this paragraph were computed by an earlier rule; the table has the verdicts.)"
        )
        return f"**Found.** {about['found']}{older * bool(verdicts)}"
    papers = [f"- {verdict.sentence}" for verdict in verdicts if verdict.prediction.source == "paper"]
    return "**Found**, of the paper's directions:\n\n" + "\n".join(papers) if papers else ""


def header(results: Mapping[str, Any], about: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    """The paper's claim, the status, the setting and what the method was checked against.

    Without a paper there is no status, only the outcomes of our own predictions.
    """
    paper = results["paper"]
    status_ = f"Status: **{standing(verdicts, about)}**. " * bool(paper)
    return "\n".join(filter(None, [
        f"- Paper: {link(paper)}" + (f": {about['claim']}" if about.get("claim") else ".") if paper else "",
        f"- {status_}{tally(verdicts, bool(paper))}" if verdicts else "",
        f"- {UNFIT}{about['unfit']}" if about.get("unfit") else "",
        f"- Setting: `{about.get('setting', results['model'])}`; {count(len(results['seeds']), 'seed')}, "
        f"{duration(results['seconds'])}.",
        f"- The method was checked against the {CHECKED[paper['checked']]}." if paper else "",
    ]))  # fmt: skip


def frozen_state(results: Mapping[str, Any], folder: Path) -> str:
    """A sentence on whether the predictions of this table were frozen before it ran."""
    if "frozen" not in results:
        later = (
            " Predictions and seeds have been frozen since; the table on these seeds has not run yet."
            if (folder / frozen.FILE).exists()
            else ""
        )
        return NOT_FROZEN + later
    seeds, commit = results["seeds"], results["frozen"]["commit"]
    kept, tried = read_freeze(folder), tried_before(results, folder)
    told = " What was tried before the freeze stands below." if ". " in tried else f" Before the freeze: {tried}"
    waits = " A later freeze waits for its table." * (bool(kept) and kept["digest"] != results["frozen"]["digest"])
    which = f"seeds {seeds[0]} to {seeds[-1]}, which follow from its digest"
    return f"**Frozen** at {commit[:10]}, then run on {which}.{told * bool(tried)}{waits}"


def read_freeze(folder: Path) -> dict[str, Any]:
    """A study's latest freeze, the content of frozen.json in its folder of results; {} without the file."""
    file = folder / frozen.FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def waiting_page(package: str, file: Path) -> str:
    """The page of a study that was frozen, and has no table yet; `file` is its frozen.json."""
    kept, study = read_freeze(file.parent), registry.load(package, file.parent.name).study
    first, *_, last = kept["seeds"]
    rows = [("prediction", "whose"), *((str(x), f"{x.source}: {x.where}") for x in study.predictions)]
    parts = (
        f"# {file.parent.name}",
        f"*{study.question}*",
        f"**Frozen** on {kept['date']}; the table on seeds {first} to {last} is not published.",
        f"Claim: {study.claim}",
        markdown(rows),
        f"Before the freeze: {kept['tried'].rstrip('.')}.",
        *history.lines(history.read(file.parent)),
    )
    return "\n\n".join(parts) + "\n"


def tried_before(results: Mapping[str, Any], folder: Path) -> str:
    """The pilots that the freeze of this table names, with a full stop; empty without such a freeze."""
    kept = read_freeze(folder)
    if not kept or kept["digest"] != results.get("frozen", {}).get("digest"):
        return ""
    return kept["tried"].rstrip(".") + "."


def prediction_table(results: Mapping[str, Any], verdicts: Sequence[Verdict]) -> str:
    """A table with a row for each prediction, then a sentence for each arm with skipped updates."""
    rows: list[Sequence[Any]] = [("prediction", "whose", "verdict", "measured [95% interval], p after Holm")]
    for x in verdicts:
        whose = f"{x.prediction.source}{' (condition)' * x.prediction.condition}: {x.prediction.where}"
        met = f" (condition {'met' if x.outcome == 'holds' else 'not met'})" * x.prediction.condition
        rows.append((x.prediction, whose, f"**{x.outcome}**{met}", x.told))
    return "\n\n".join([markdown(rows), READING, *resolution(results, verdicts), *report.remarks(results)])


READING = """A prediction holds, or is contradicted, if p of the paired sign-flip test is at most 0.05 after Holm's
correction over this table. The interval is of one comparison, not corrected. [How to read a page](../../README.md)."""


def resolution(results: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[str]:
    """A sentence on the smallest possible p, if that is near the level, or on the number of p near it."""
    tested = [x for x in verdicts if x.p is not None]
    least, near = len(tested) * 2 / 2 ** len(results["seeds"]), sum(x.near for x in verdicts)
    sentences = []
    if tested and least > NEAR[0]:
        sentences.append(
            f"With {count(len(results['seeds']), 'seed')} and {len(tested)} tests the smallest p after Holm is "
            f"{least:.2g}: one seed against a prediction can hide it."
        )
    elif near:
        sentences.append(f"{near} of {len(tested)} have a p from {NEAR[0]} to {NEAR[1]}, close to the level.")
    return sentences


def tally(verdicts: Sequence[Verdict], of_paper: bool = True) -> str:
    """The outcomes of the paper's predictions, if there is a paper, and of our own, in a sentence each."""
    told = []
    for whose, sources in (("The paper's", {"paper"}), ("Our own", {"theory", "pilot"})):
        outcomes = [x.outcome for x in verdicts if x.prediction.source in sources and not x.prediction.condition]
        if outcomes:
            parts = [f"{outcomes.count(x)} {word}" for x, word in OUTCOMES.items() if x in outcomes]
            told.append(f"{whose} {count(len(outcomes), 'prediction')}: {', '.join(parts)}.")
    none = of_paper and not (told and told[0].startswith("The"))
    return " ".join(["None is the paper's."] * none + told)


OUTCOMES = {"holds": "held", "contradicted": "contradicted", "not shown": "not shown"}


def check_list(results: Mapping[str, Any]) -> str:
    """A Markdown list of the checks: yes or no for the mean over seeds, then the number of seeds that pass alone."""
    lines = []
    for check in checks_of(results):
        kept, seeds, every = passes(check, results)
        lines.append(f"- {check}: {'yes' if kept else '**no**'}, {seeds} of {count(every, 'seed')} alone")
    return "\n".join(lines)


def explanations(results: Mapping[str, Any], about: Mapping[str, Any], folder: Path) -> str:
    """A line for each arm and each metric; without them, where they are explained."""
    if about.get("arms"):
        lists = [(title, about.get(title.lower(), {})) for title in ("Arms", "Metrics")]
        return "\n\n".join(
            f"## {title}\n\n" + "\n".join(f"- `{name}`: {text}" for name, text in told.items()) for title, told in lists
        )
    module = next(folder.parent.parent.glob(f"*/{results['study']}.py"), None)
    if module is None:
        return ""
    path = Path(os.path.relpath(module, folder)).as_posix()
    return f"The arms and the metrics are explained at the top of [{module.name}]({path})."


def disclosures(results: Mapping[str, Any], about: Mapping[str, Any], folder: Path) -> str:
    """Facts that were known before the table ran, pilots in full, and the noise that the interval covers."""
    tried = tried_before(results, folder)
    parts = [
        about.get("disclosed", ""),
        f"Before the freeze: {tried}" * (". " in tried),
        f"Noise: {about['noise']}" if about.get("noise") else "",
    ]
    return "\n\n".join(filter(None, parts))


def notes_title(results: Mapping[str, Any], folder: Path) -> str:
    """The title of the notes beside a table: they are of a former one, or older than its corrected verdicts."""
    if not (folder / "history.json").exists():  # this table is the first one
        return "Notes"
    if "frozen" in results:
        return "Notes on the former table"
    return "Notes" + ", from before the verdicts were corrected" * bool(results["predictions"])


def links(results: Mapping[str, Any], folder: Path) -> str:
    files = {
        "notes.md": notes_title(results, folder),
        "transcript.md": "A transcript",
        GAMES: "Games before and after training",
    }
    lines = ["- [All numbers](results.json)"]
    lines += [f"- [{title}]({name})" for name, title in files.items() if (folder / name).exists()]
    if (folder / GAMES).exists():
        lines[-1] += f", shown by `python -m jaxmarl_llm.view {folder.parents[1].name}/results/{folder.name}`"
    return "\n".join(lines)


def link(paper: Mapping[str, Any]) -> str:
    return f"[{paper['title']}, {paper['year']}]({paper['url']})"


def arms(results: Mapping[str, Any], counts: Mapping[str, str]) -> list[Sequence[Any]]:
    """A head and a row for each arm: its main metrics, after their values before training if measured.

    `counts` says of a metric such as `updates to 90%` which metric it counts (`counts_of`).
    """
    rows: list[Sequence[Any]] = [("arm", *results["metrics"])]
    for arm, metrics in results["arms"].items():
        before, cells = results["before"].get(arm, {}), []
        for metric in results["metrics"]:
            cell = interval(metrics[metric]) if has(metrics, metric) else ""
            if cell and has(before, metric):
                cell = f"{interval(before[metric])} → {cell}"
                if (change := count_moves(before[metric], metrics[metric])) is not None:
                    cell += f", rose in {change[0]}, fell in {change[1]} of {count(len(results['seeds']), 'seed')}"
            never, seeds = count_unreached(results, arm, metric, counts)
            cell += f", never in {never} of {seeds}" * bool(never)
            cells.append(tell_unreached(results, arm, metric, counts) or cell)
        rows.append((arm, *cells))
    return rows


def drop_empty_columns(table: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """The table without columns that are empty below their head, e.g. a metric of other arms."""
    kept = [any(cells) for cells in zip(*table[1:], strict=True)]
    return [tuple(compress(line, kept)) for line in table]


def robust_statistics(results: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[Sequence[Any]]:
    """A head and a row for each predicted difference: interquartile means, and the share of runs with arm a above."""
    rows: list[Sequence[Any]] = [("metric", "arm", "mean", "other arm", "mean", "first above")]
    for prediction in (verdict.prediction for verdict in verdicts if verdict.prediction.than and verdict.seeds):
        both, cells = [], []
        for arm in prediction.arms:
            both.append(np.array(results["arms"][arm][prediction.metric]["per_seed"], np.float64))
            ends = (None if np.isnan(end) else end for end in interquartile_interval(both[-1]))
            cells += [arm, interval(dict(zip(ENDS, ends, strict=True)))]
        rows.append((prediction.metric, *cells, f"{probability_of_improvement(*both):.2f}"))
    return rows


def differences(results: Mapping[str, Any]) -> list[Sequence[Any]]:
    """A head and a row for each paired test."""
    rows: list[Sequence[Any]] = [("metric", "difference", "mean [95% interval]", "p, not corrected", "seeds")]
    for t in paired_tests(results["arms"], results["metrics"], predictions_of(results)):
        rows.append((t["metric"], f"{t['a']} − {t['b']}", interval(t["difference"]), f"{t['p']:.2g}", t["seeds"]))
    return rows


def run_details(results: Mapping[str, Any]) -> str:
    """The command, and a paragraph with the size, time, commit, devices and versions of a run."""
    run, seeds = results["provenance"], len(results["seeds"])
    kinds = run.get("hardware", {}).get("devices", {"not recorded": 1})
    devices = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    packages = ", ".join(f"{name} {version}" for name, version in run["packages"].items())
    sentences = [
        f"{count(seeds, 'seed')}, {count(results['updates'], 'update')}, model {results['model']}, "
        f"{duration(results['seconds'])}, commit {commit(results)}.",
        f"Devices: {devices}; {run['platform']}, Python {run['python']}, {packages}.",
        run.get("note", ""),
    ]
    command = run["command"].replace(".ablate ", " ")  # the command's former name
    return f"```\n{command}\n```\n\n" + "\n".join(filter(None, sentences))


def commit(results: Mapping[str, Any]) -> str:
    short, *dirty = (results["provenance"]["commit"] or "unknown").split("-")
    return "-".join([short[:10], *dirty])
