"""The results of a study on the console: a table, the first main metric by seed, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxmarl_llm.studies.cli import span
from jaxmarl_llm.studies.computed import LABEL
from jaxmarl_llm.studies.pages.format import count
from jaxmarl_llm.studies.pages.reached import count_unreached, counts_of, tell_seeds, tell_unreached
from jaxmarl_llm.studies.pages.results import has
from jaxmarl_llm.studies.pages.verdicts import judge
from jaxmarl_llm.studies.study import ANY
from jaxmarl_llm.studies.sweep import choose
from jaxmarl_llm.training.setup import TINY

BORDER = 3  # columns of text around a cell


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


class Line(NamedTuple):
    """A line of the table: its arm, or two arms whose difference it is, and {metric: cell}."""

    arms: tuple[str, ...]
    cells: dict[str, str]


def rows_of(results: Mapping[str, Any]) -> list[Line]:
    """Arms x main metrics, as mean ± half of the interval; then the tested differences between arms with p."""
    rows, counts = [], counts_of(results, {})
    for arm, metrics in results["arms"].items():
        before, cells = results["before"].get(arm, {}), {}
        for metric in (metric for metric in results["metrics"] if has(metrics, metric)):
            began = f"{span(before[metric], 3)} → " if has(before, metric) else ""
            never, seeds = count_unreached(results, arm, metric, counts)
            reached = began + span(metrics[metric], 3) + f"\nnever in {never} of {seeds}" * bool(never)
            cells[metric] = tell_unreached(results, arm, metric, counts) or reached
        rows.append(Line((arm,), cells))
    tested: dict[tuple[str, str], dict[str, str]] = {}
    for test in results["tests"]:
        cell = f"{span(test['difference'], 3)}\np = {test['p']:.2g}"
        tested.setdefault((test["a"], test["b"]), {})[test["metric"]] = cell
    return rows + [Line(pair, cells) for pair, cells in tested.items()]


def names_of(rows: Sequence[Line], width: int) -> dict[str, str]:
    """{arm: its name in a table}: itself, or its number where a name would take more than half of the width."""
    arms = [row.arms[0] for row in rows if len(row.arms) == 1]
    longest = max(len(" − ".join(row.arms)) for row in rows)
    return {arm: arm if longest <= width // 2 else f"{place}" for place, arm in enumerate(arms, 1)}


def tables(results: Mapping[str, Any], width: int) -> list[Table]:
    """The rows as tables of at most `width` columns of text: metrics that do not fit stand in further tables.

    No name of an arm is cut. Names are numbers if they are long, and `caption` has the arms.
    """
    rows = rows_of(results)
    names = names_of(rows, width)
    labels = [" − ".join(names[arm] for arm in row.arms) for row in rows]
    cells = {metric: [row.cells.get(metric, "") for row in rows] for metric in results["metrics"]}
    widths = {metric: max(map(len, (*"\n".join(cells[metric]).split("\n"), *metric.split()))) for metric in cells}
    parts: list[list[str]] = [[]]
    for metric in results["metrics"]:
        columns = [*parts[-1], metric]
        if parts[-1] and max(map(len, labels)) + sum(widths[x] + BORDER for x in columns) + BORDER + 1 > width:
            parts.append([])
        parts[-1].append(metric)
    shown = [_table(rows, labels, part) for part in parts]
    shown[0].title = _title(results)
    return shown


def _table(rows: Sequence[Line], labels: Sequence[str], metrics: Sequence[str]) -> Table:
    shown = Table(title_justify="left")
    shown.add_column("arm", no_wrap=True)
    for metric in metrics:
        shown.add_column(escape(metric), justify="right", overflow="fold")
    for row, label in zip(rows, labels, strict=True):
        if len(row.arms) == 1 or any(metric in row.cells for metric in metrics):
            shown.add_row(escape(label), *(row.cells.get(metric, "") for metric in metrics))
        if row is [row for row in rows if len(row.arms) == 1][-1]:
            shown.add_section()
    return shown


def _title(results: Mapping[str, Any]) -> str:
    size = f"{count(results['updates'], 'update')}, {count(len(results['seeds']), 'seed')}"
    return escape(f"{results['study']}, {results['model']}, {size}")


def caption(results: Mapping[str, Any], width: int) -> str:
    """The meaning of the parts that the cells have, and the arms of numbers."""
    rows = rows_of(results)
    names, cells = names_of(rows, width), [cell for row in rows for cell in row.cells.values()]
    over = "seeds" if len(results["seeds"]) > 1 else "games"
    meanings = {
        "±": f"mean ± half of the 95% Student-t interval over {over}",
        "p =": "p of the exact paired sign-flip test",
        "→": "before → after training",
    }
    told = "; ".join(meaning for part, meaning in meanings.items() if any(part in cell for cell in cells))
    return "\n".join([*filter(None, [told]), *(f"{name}  {arm}" for name, arm in names.items() if name != arm)])


def show(results: Mapping[str, Any], console: Console) -> None:
    """Prints the table, the first main metric by seed, and the claim with its verdicts."""
    for part in tables(results, console.width):
        console.print(part)
    first, arms, counts = results["metrics"][0], results["arms"], counts_of(results, {})
    seeds = [f"{arm} {tell_seeds(results, arm, first, counts)}" for arm in arms if has(arms[arm], first)]
    scope = results.get("scope", TINY)
    tested = results["model"] in (scope, LABEL) or scope == ANY
    claim = "Claim" if tested else f"Claim about {'tiny policies' if scope == TINY else scope}, not tested by this run"
    untold = "sweep" in results or (tested and not judge(results))  # a claim that nothing judges is no result
    lines = [
        *filter(None, [caption(results, console.width)]),
        f"{first}, seed by seed: {'; '.join(seeds)}",
        *([] if untold else [f"{claim}: {results['claim']}"]),
        *verdicts(results),
    ]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
