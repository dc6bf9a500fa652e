"""What changed when the tables were looked at again: a made-up history, and the real ones by plain loops.

The long case reads the histories of all studies.
"""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from jaxmarl_llm.studies.pages import again, history
from jaxmarl_llm.studies.pages.again import RULE, SEEDS, Change
from jaxmarl_llm.studies.pages.results import checks_of, load
from jaxmarl_llm.studies.pages.verdicts import judge

FILES = sorted((Path(__file__).parents[3] / "experiments/results").glob("*/results.json"))


def entry(digest, source=None, **outcomes):
    verdicts = [{"prediction": name, "source": source, "outcome": x.replace("_", " ")} for name, x in outcomes.items()]
    return {"run": "", "digest": digest, "verdicts": verdicts}


def test_each_change_has_its_reason(tmp_path):
    """A real table on new seeds, after one that was judged by two rules and a frozen one that was given up."""
    (real,) = (file for file in FILES if file.parent.name == "durations")
    shutil.copytree(real.parent, tmp_path / "durations")
    file = tmp_path / "durations" / "results.json"
    first, second = judge(results := load(file))
    a, b = str(first.prediction), str(second.prediction)
    check = str(checks_of(results)[0])
    entries = [
        entry(None, **{a: "as predicted", b: "as predicted", check: "as predicted", "gone": "not shown"}),
        entry(None, "paper", **{a: "holds", b: "not shown"}),
        entry("given up", "paper", **{a: "contradicted", b: "contradicted"}),
    ]
    (file.parent / history.FILE).write_text(json.dumps(entries))
    every = again.changes({file: results})
    assert every == [
        Change("durations", a, "paper", "holds", "holds", RULE),
        Change("durations", b, "paper", "holds", "not shown", RULE),
        Change("durations", a, first.prediction.source, "holds", first.outcome, SEEDS),
        Change("durations", b, second.prediction.source, "not shown", second.outcome, SEEDS),
    ]
    stays = first.outcome == "holds"
    assert again.held_again(every)[first.prediction.source] == (stays, 1)
    assert again.sorting({file: results}) == (2, 1, 1, {})


@pytest.mark.long
def test_the_page_counts_every_line_of_the_real_histories():
    every = {file: json.loads(path.read_text()) for file in FILES if (path := file.with_name(history.FILE)).exists()}
    histories = {file: entries for file, entries in every.items() if not all(entry["digest"] for entry in entries)}
    assert {"experience", "meta_bandit"} & {file.parent.name for file in every.keys() - histories.keys()}
    read = {file: load(file) for file in histories}
    every, lines = again.changes(read), again.sorting(read)
    assert sum(lines[:3]) == sum(len(entries[0]["verdicts"]) for entries in histories.values())

    held, stays = Counter(), Counter()
    for file, results in read.items():
        if "frozen" not in results:
            continue
        before = [x for x in histories[file] if x["digest"] is None][-1]
        old = {x["prediction"]: x["outcome"] for x in before["verdicts"]}
        for verdict in judge(results):
            if old.get(str(verdict.prediction)) == "holds" and not verdict.prediction.condition:
                held[verdict.prediction.source] += 1
                stays[verdict.prediction.source] += verdict.outcome == "holds"
    assert held.total() > 50
    assert again.held_again(every) == {source: (stays[source], held[source]) for source in again.SOURCES}
    paper = f"of the {held['paper']} among them that papers state, {stays['paper']}."
    said = f"Of {held.total()} comparisons that held on the seeds of an earlier table, {stays.total()} hold on new ones"
    index = (FILES[0].parents[2] / "README.md").read_text()
    assert f"{said}; {paper}" in index

    page = again.page(FILES, "results")
    moved = [x for x in every if x.before != x.after]
    assert page.count(f"| {RULE} |") + page.count(f"| {SEEDS} |") == len(moved) > 20
    for x in moved:
        row = f"| [{x.study}](results/{x.study}/README.md) | {x.prediction} | {x.source} | {x.before} | {x.after} |"
        assert row in page
