"""The results of a study on the console: a table, the first main metric by seed, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxmarl_llm.studies.cli import span
from jaxmarl_llm.studies.computed import LABEL
from jaxmarl_llm.studies.pages.format import count, number
from jaxmarl_llm.studies.pages.results import has
from jaxmarl_llm.studies.predictions import judge
from jaxmarl_llm.studies.sweep import choose


def verdicts(results: Mapping[str, Any]) -> list[str]:
    """A sentence with numbers for each prediction, then the remarks."""
    return [verdict.sentence for verdict in judge(results)] + remarks(results)


def remarks(results: Mapping[str, Any]) -> list[str]:
    """Sentences for a run that is too short, for each arm with skipped updates, and for the best arm of a sweep."""
    sentences = []
    if results["predictions"] and results.get("shorter"):
        sentences.append("This run is shorter than the study's: it shows nothing of what was predicted.")
    for arm, skipped in results.get("skipped", {}).items():
        sentences.append(f"{arm}: {skipped} updates, of all seeds, were skipped, because they were not finite.")
    if "sweep" in results:
        sentences.append(choose(results))
    return sentences


def table(results: Mapping[str, Any]) -> Table:
    """Arms x main metrics, as mean ± half of the interval; then the tested differences between arms with p."""
    size = f"{count(results['updates'], 'update')}, {count(len(results['seeds']), 'seed')}"
    title = f"{results['study']}, {results['model']}, {size}"
    shown = Table(title=escape(title), title_justify="left", caption_justify="left")
    over = "seeds" if len(results["seeds"]) > 1 else "games"
    shown.caption = f"mean ± half of the 95% Student-t interval over {over}; p of the exact paired sign-flip test"
    if any(results["before"].values()):
        shown.caption += "; before → after training"
    shown.add_column("arm", overflow="fold")  # arms of a sweep differ in their last letters
    for metric in results["metrics"]:
        shown.add_column(escape(metric), justify="right")
    for arm, metrics in results["arms"].items():
        cells = []
        for metric in results["metrics"]:
            before = results["before"].get(arm, {})
            began = f"{span(before[metric], 3)} → " if has(before, metric) else ""
            cells.append(began + span(metrics[metric], 3) if has(metrics, metric) else "")
        shown.add_row(escape(arm), *cells)
    shown.add_section()
    tests = {(test["a"], test["b"], test["metric"]): test for test in results["tests"]}
    for a, b in dict.fromkeys(key[:2] for key in tests):
        of_pair = [tests.get((a, b, metric)) for metric in results["metrics"]]
        cells = [f"{span(t['difference'], 3)}\np = {t['p']:.2g}" if t else "" for t in of_pair]
        shown.add_row(escape(f"{a} − {b}"), *cells)
    return shown


def show(results: Mapping[str, Any], console: Console) -> None:
    """Prints the table, the first main metric by seed, the claim and the verdicts."""
    console.print(table(results))
    first, arms = results["metrics"][0], results["arms"]
    seeds = [f"{arm} {' '.join(map(number, arms[arm][first]['per_seed']))}" for arm in arms if has(arms[arm], first)]
    tested = results["model"] in ("tiny", LABEL) or results.get("scope") == "any"
    claim = "Claim" if tested else "Claim about tiny policies, not tested by this run"
    if "sweep" in results:
        claim = "Claim, not tested by a sweep, which judges no prediction"
    lines = [f"{first}, seed by seed: {'; '.join(seeds)}", f"{claim}: {results['claim']}", *verdicts(results)]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
