"""What changed when the tables were looked at again: a made-up history, and the real one by plain loops."""

import json
from pathlib import Path

import pytest

from jaxmarl_llm.studies.pages import again
from jaxmarl_llm.studies.pages.again import RULE, SEEDS, Change
from jaxmarl_llm.studies.pages.results import load

FILES = sorted((Path(__file__).parents[3] / "experiments/results").glob("*/results.json"))
OLD, NEW = "0000000001, seeds 0 to 9", "0000000002, seeds 1000 to 1019"


def lines(source=None, **outcomes):
    return [
        {"prediction": name, "source": source, "outcome": outcome, "told": ""} for name, outcome in outcomes.items()
    ]


@pytest.fixture
def read(tmp_path, monkeypatch):
    """A study whose first table was judged by the former rule, then by today's, and which then ran on new seeds."""
    entries = [
        {
            "run": OLD,
            "verdicts": lines(a="as predicted", b="as predicted", c="not shown", d="as predicted", e="not shown"),
        },
        {"run": OLD, "verdicts": lines("paper", a="holds", b="not shown", c="not shown", f="holds")},
    ]
    (tmp_path / "history.json").write_text(json.dumps(entries))
    now = [(name, "paper", outcome) for name, outcome in (("a", "contradicted"), ("b", "not shown"), ("f", "holds"))]
    table = lambda file, results: [
        *(
            again.Verdicts(
                entry["run"],
                {x["prediction"]: again.FORMER.get(x["outcome"], x["outcome"]) for x in entry["verdicts"]},
                {x["prediction"]: x["source"] for x in entry["verdicts"]},
            )
            for entry in entries
        ),
        again.Verdicts(NEW, {name: x for name, _, x in now}, {name: source for name, source, _ in now}),
    ]
    monkeypatch.setattr(again, "tables", table)
    monkeypatch.setattr(again, "checks_of", lambda results: ["d"])
    return {tmp_path / "toy" / "results.json": {}}


def test_each_change_has_its_reason(read):
    assert again.changes(read) == [
        Change("toy", "a", "paper", "holds", "holds", RULE),
        Change("toy", "b", "paper", "holds", "not shown", RULE),
        Change("toy", "c", "paper", "not shown", "not shown", RULE),
        Change("toy", "a", "paper", "holds", "contradicted", SEEDS),
        Change("toy", "b", "paper", "not shown", "not shown", SEEDS),
        Change("toy", "f", "paper", "holds", "holds", SEEDS),
    ]
    assert again.held_again(read) == (1, 2) and again.held_again(read, ("pilot",)) == (0, 0)
    assert again.sorting(read) == (3, 1, 1, {"paper": 1})


def test_the_page_counts_every_line_of_the_real_histories():
    read = {file: load(file) for file in FILES if file.with_name("history.json").exists()}
    histories = {file: json.loads(file.with_name("history.json").read_text()) for file in read}
    found, lines_sorted = again.changes(read), again.sorting(read)
    assert sum(lines_sorted[:3]) == sum(len(entries[0]["verdicts"]) for entries in histories.values())

    held = stays = 0
    for file, results in read.items():
        if "frozen" not in results:
            continue
        before = histories[file][-1]
        assert before["run"].partition(" ")[0] != results["frozen"]["commit"]
        old = {x["prediction"]: x["outcome"] for x in before["verdicts"]}
        new = {x.prediction: x.after for x in found if x.study == file.parent.name and x.reason == SEEDS}
        same = [name for name, outcome in old.items() if outcome == "holds" and name in new]
        held += len(same)
        stays += sum(new[name] == "holds" for name in same)
    earlier = [x for x in found if x.reason == SEEDS and x.before == "holds"]
    assert 0 < stays <= held <= len(earlier)

    page = again.page(FILES, "results")
    moved = [x for x in found if x.before != x.after]
    assert page.count("| rule of the verdict |") + page.count("| new seeds |") == len(moved) > 20
    for x in moved:
        assert (
            f"| [{x.study}](results/{x.study}/README.md) | {x.prediction} | {x.source} | {x.before} | {x.after} |"
            in page
        )
