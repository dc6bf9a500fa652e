"""The page of all verdicts before and after the tables were looked at again, by source and by reason.

A comparison moves for one of two reasons. The rule of the verdict changed on the same table (RULE), or the latest
frozen table ran on new seeds (SEEDS). Comparisons are the same if they read the same: a restated one is a new line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jaxmarl_llm.studies.pages import history
from jaxmarl_llm.studies.pages.about import read_about
from jaxmarl_llm.studies.pages.format import markdown
from jaxmarl_llm.studies.pages.results import checks_of, load, predictions_of

RULE, SEEDS = "rule of the verdict", "new seeds"
SOURCES = ("paper", "theory", "pilot")
OUTCOMES = ("holds", "not shown", "contradicted")
FORMER = {"as predicted": "holds"}  # an outcome in the words of the former rule

INTRODUCTION = """# What changed when we looked again

The index of results once said that 447 of 605 predictions came "as predicted", and the word "reproduced" stood beside
names of papers. No sum was wrong. The count was: identities, bounds that any run keeps, and predictions that had been
turned to what pilots showed stood in it beside the papers' claims. A reader of the notes counted by hand, in a list
that this repository does not hold: where predictions were written after pilots, 168 of 208 had held; where the
direction was the paper's and nothing was tuned on outcomes, 38 of 89 had. In `search_self_play` a bound was loosened
after the table had contradicted it, and a later rewrite of its notes lost the sentence that said so.

So every line was read again beside its paper and its history, and sorted: whose prediction it is, and where that is
written. What must hold if the code is right became a check, which counts for nothing. Verdicts got another rule: the
exact sign-flip test after Holm over all predictions of a study. Then studies were frozen and run on twenty seeds that
nobody had seen.

This page is computed from the results and their histories. It says what became of each line, and its limits are these.
Who sorted the lines knew the old tables. The settings are those in which the old tables were made, but for noise: with
the seed `normalisers` draws its bank, `votes` and `self_votes` what members know, and evaluations their games; the two
halves of sums in `referee` and `referee_taught` are drawn once, where they were even and odd. So new seeds show that a
result was no luck of ten seeds, and not that it holds elsewhere. Third, rounding: tables of the history ran again on
the same seeds after changes that rounded sums otherwise, and 26 verdicts moved: 15 in three reruns of `sizes`, 10 in
`cory_kl`, 1 in `progress`. By our count 33 reruns with 220 verdicts were such; with every rerun on equal seeds, also
those of changed settings, it is 44 with 285. None of them is in the tables below."""


class Verdicts(NamedTuple):
    """The verdicts of one table under one rule."""

    frozen: bool
    outcomes: dict[str, str]  # {prediction: outcome}
    sources: dict[str, str]


class Change(NamedTuple):
    """A comparison before and after."""

    study: str
    prediction: str
    source: str
    before: str
    after: str
    reason: str


class Sorting(NamedTuple):
    """Numbers of lines of the oldest tables, by what became of them."""

    kept: int
    checks: int
    restated: int  # or dropped
    new: Counter[str]  # lines without a former one, by source


def was_open(file: Path) -> bool:
    """True if a former table of a results.json was not frozen. A study that was frozen from the start has none."""
    return any(entry["digest"] is None for entry in history.read(file.parent))


def tables(file: Path, results: Mapping[str, Any]) -> list[Verdicts]:
    """The tables of a results.json, the oldest first. A table that was judged by two rules stands twice."""
    entries = [*history.read(file.parent), history.entry_of(results, "")]
    return [
        Verdicts(
            entry["digest"] is not None,
            {x["prediction"]: FORMER.get(x["outcome"], x["outcome"]) for x in entry["verdicts"]},
            {x["prediction"]: x["source"] for x in entry["verdicts"]},
        )
        for entry in entries
    ]


def changes(read: Mapping[Path, Mapping[str, Any]]) -> list[Change]:
    """Every comparison, also those whose verdict stayed: of one table by both rules, and of the last table that was not
    frozen with the latest one. `read` is {file: results}. Conditions are left out: a study whose condition fails is not
    counted."""
    every = []
    for file, results in read.items():
        *older, latest = tables(file, results)
        conditions = {str(prediction) for prediction in predictions_of(results) if prediction.condition}
        open_ones = [table for table in (*older, latest) if not table.frozen]
        pairs = [(before, after, RULE) for before, after in pairwise(open_ones)]
        pairs += [(open_ones[-1], latest, SEEDS)] if latest.frozen and open_ones else []
        every += [
            Change(file.parent.name, name, after.sources[name], outcome, after.outcomes[name], reason)
            for before, after, reason in pairs
            for name, outcome in before.outcomes.items()
            if name in after.outcomes and name not in conditions
        ]
    return every


def held_again(every: Iterable[Change]) -> dict[str, tuple[int, int]]:
    """{source: (comparisons that hold on the old and the new seeds, those that hold on the old ones)}, by today's
    rule."""
    held = [x for x in every if x.reason == SEEDS and x.before == "holds"]
    of_source = {source: [x.after == "holds" for x in held if x.source == source] for source in SOURCES}
    return {source: (sum(stays), len(stays)) for source, stays in of_source.items()}


def sorting(read: Mapping[Path, Mapping[str, Any]]) -> Sorting:
    """Counts what became of the lines of the oldest tables: which of them the latest tables still have."""
    kept = checks = lost = 0
    new: Counter[str] = Counter()
    for file, results in read.items():
        first, *later = tables(file, results)
        if not later:
            continue
        latest, of_code = later[-1], {str(check) for check in checks_of(results)}
        gone = [name for name in first.outcomes if name not in latest.outcomes]
        kept += len(first.outcomes) - len(gone)
        checks += sum(name in of_code for name in gone)
        lost += sum(name not in of_code for name in gone)
        new.update(latest.sources[name] for name in latest.outcomes if name not in first.outcomes)
    return Sorting(kept, checks, lost, new)


def page(files: Iterable[Path], results_at: str) -> str:
    """The page in Markdown. `results_at` is the address of the folder of all results."""
    read = {file: load(file) for file in sorted(files) if was_open(file)}
    every, lines = changes(read), sorting(read)
    judged = {file: results for file, results in read.items() if results["predictions"]}
    frozen = sum("frozen" in results for results in judged.values())
    waits = any(
        "frozen" not in results and not read_about(file.parent).get("unfit") for file, results in judged.items()
    )
    rest = " so far" if waits else "; the others are of settings that cannot show what their papers claim"
    new = ", ".join(f"{lines.new[source]} {source}" for source in SOURCES)
    total = lines.kept + lines.checks + lines.restated
    shares = [f"{source} {again} of {before}" for source, (again, before) in held_again(every).items()]
    parts = [
        INTRODUCTION,
        "## Lines that were sorted",
        f"Of {total} lines {lines.kept} still stand as they read, {lines.checks} became checks, "
        f"{lines.restated} were restated or dropped. {lines.new.total()} lines are new, by source: {new}.",
        "## The same tables under today's rule",
        _table(every, RULE),
        "## New seeds",
        f"{frozen} of {len(judged)} tables have run on new seeds{rest}. Both columns are judged by today's rule. A "
        "study that was frozen twice counts with its latest table; the other one is on its page.",
        _table(every, SEEDS),
        f"Of the comparisons that had held on the old seeds, these hold on new ones: {', '.join(shares)}.",
        "## Every verdict that moved",
        markdown([
            ("study", "comparison", "source", "before", "after", "reason"),
            *(
                (f"[{x.study}]({results_at}/{x.study}/README.md)", x.prediction, x.source, x.before, x.after, x.reason)
                for x in every
                if x.before != x.after
            ),
        ]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _table(every: Iterable[Change], reason: str) -> str:
    """A table of the verdicts before and after, for one reason."""
    count = Counter((x.source, x.before, x.after) for x in every if x.reason == reason)
    rows: list[tuple[Any, ...]] = [("source", "before", *(f"now {x}" for x in OUTCOMES))]
    rows += [
        (source, before, *(count[source, before, after] for after in OUTCOMES))
        for source in SOURCES
        for before in OUTCOMES
    ]
    return markdown(rows)
