"""Measured numbers become results: against scipy, brute force and by hand; files are whole, deterministic, checked.

The long case computes all pages of the repository.
"""

import dataclasses
import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from jaxmarl_llm.studies.pages import figures, pages, report, results
from jaxmarl_llm.studies.pages import page as page_module
from jaxmarl_llm.studies.pages.facets import OKABE_ITO
from jaxmarl_llm.studies.pages.forest import OF_SOURCE, SIDE
from jaxmarl_llm.studies.pages.verdicts import judge
from jaxmarl_llm.studies.predictions import AtLeast, AtMost, Higher, record_of
from jaxmarl_llm.studies.study import Paper

SEEDS, UPDATES = 8, 230
PAPER = {"source": "paper", "where": "Table 1"}
INFO = {
    "study": "toy",
    "question": "Do both beat one?",
    "claim": "Both|and beats one [0,  1].",
    "paper": dataclasses.asdict(Paper("Nobody", "https://arxiv.org/abs/2602.00000", 2026, "abstract")),
    "predictions": [
        record_of(x)
        for x in (
            Higher("reward", "both", than="one", **PAPER),
            Higher("tail", "both", than="one", source="theory", where="chance"),
        )
    ],
    "checks": [record_of(AtLeast("reward", "both", 0.5)), record_of(AtMost("ratio", "one", 0.5))],
    "x": "step",
    "metrics": ["reward", "tail"],
    "settings": {"both": {"rate": np.float32(0.5), "path": Path("x")}, "one": {"rate": float("inf")}},
    "seeds": range(SEEDS),
    "updates": UPDATES,
    "model": "tiny",
}


@pytest.fixture(scope="module")
def measured():
    """One arm learns, the other does not; `tail` is judged every tenth update; `ratio` is no main metric."""
    generator = np.random.default_rng(0)
    curves = {}
    for arm, gain in (("both", 1.0), ("one", 0.0)):
        reward = gain * np.linspace(0, 1, UPDATES) + generator.normal(0, 0.1, (SEEDS, UPDATES))
        judged = np.where(np.arange(UPDATES) % 10 == 9, generator.normal(size=(SEEDS, UPDATES)), np.nan)
        curves[arm] = {"reward": reward, "tail": judged, "ratio": np.ones((SEEDS, UPDATES))}
    final = {arm: {"exploited": generator.normal(size=SEEDS)} for arm in curves}
    return curves, final


@pytest.fixture(scope="module")
def written(measured, tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "toy_small"
    curves, final = measured
    typed = [str(Path("/somewhere/experiments/__main__.py")), "toy", "--out", str(out), "--seeds", "8", f"--out={out}"]
    provenance = {"command": typed, "commit": "0123456789abcdef-dirty", "packages": {"jax": "0.10.2"}}
    provenance |= {"hardware": {"devices": {"cpu": 1}}, "platform": "Linux x86_64", "python": "3.11.7"}
    found = results.write(out, INFO, curves, seconds=93, final=final, provenance=provenance)
    pages.draw(out, found)
    return out, found


def test_arms_are_judged_by_the_last_tenth_of_their_updates(measured):
    curves, final = measured
    found = results.collect(curves, final=final)["arms"]
    for arm in curves:
        ends = {
            "reward": curves[arm]["reward"][:, 207:].mean(1),  # of 230
            "tail": curves[arm]["tail"][:, [209, 219, 229]].mean(1),
            "exploited": final[arm]["exploited"],
        }
        for metric, expected in ends.items():
            cell = found[arm][metric]
            error = stats.t.interval(0.95, SEEDS - 1, expected.mean(), stats.sem(expected))
            assert cell["per_seed"] == pytest.approx(expected.tolist())
            assert (cell["mean"], cell["low"], cell["high"]) == pytest.approx((expected.mean(), *error))


def test_what_was_not_measured_is_null_and_left_out():
    values = np.arange(40.0).reshape(2, 20)
    values[1, 18:] = np.nan, np.inf
    values[0, 18] = np.inf
    found = results.collect({"a": {"x": values}})
    assert found["arms"]["a"]["x"] == {"mean": 19, "low": None, "high": None, "per_seed": [19, None]}
    assert found["curves"]["a"]["x"]["update"] == [*range(18), 19]  # nobody measured update 18
    assert found["curves"]["a"]["x"]["mean"][:2] == [10, 11]


def test_one_seed_has_no_interval():  # the updates of one run are not independent
    cell = results.collect({"a": {"x": np.arange(30.0)[None]}})["arms"]["a"]["x"]
    assert cell == {"mean": 28, "low": None, "high": None, "per_seed": [28]}


def test_what_is_judged_once_takes_the_place_of_its_curve():
    found = results.collect({"a": {"x": np.zeros((2, 5))}}, final={"a": {"x": [1.0, 3.0]}})
    assert found["arms"]["a"]["x"]["per_seed"] == [1, 3] and found["curves"]["a"]["x"]["mean"] == [0] * 5


@pytest.mark.parametrize("final", (False, True))
def test_other_shapes_are_refused(final):
    with pytest.raises(ValueError, match=r"x of a must be \[seeds(, updates)?\], got \[2, 2, 2\]"):
        cells = {"a": {"x": np.zeros((2, 2, 2))}}
        results.collect({} if final else cells, final=cells if final else None)


def test_a_long_curve_is_thinned_evenly_from_end_to_end():
    values = np.random.default_rng(0).normal(size=(5, 1001))
    found = results.curve(values)
    assert len(found["update"]) == 50 and (found["update"][0], found["update"][-1]) == (0, 1000)
    assert set(np.diff(found["update"])) == {20, 21}
    column = values[:, found["update"][17]]
    expected = (column.mean(), *stats.t.interval(0.95, 4, column.mean(), stats.sem(column)))
    for end, value in zip(results.ENDS, expected, strict=True):
        assert found[end][17] == pytest.approx(value, rel=1e-3) and float(f"{found[end][17]:.4g}") == found[end][17]


def test_arms_are_compared_seed_by_seed(measured):
    curves, final = measured
    arms = results.collect(curves, final=final)["arms"]
    (test,) = results.compare(arms, [("both", "one")], "exploited")
    difference = final["both"]["exploited"] - final["one"]["exploited"]
    subsets = [difference[list(s)] for n in range(1, SEEDS + 1) for s in itertools.combinations(range(SEEDS), n)]
    means = sorted(subset.mean() for subset in subsets)
    flipped = [abs(np.dot(s, difference)) for s in itertools.product((1, -1), repeat=SEEDS)]
    assert test["p"] == np.mean([x >= abs(difference.sum()) - 1e-12 for x in flipped])
    assert tuple(test["difference"].values()) == pytest.approx((difference.mean(), means[5], means[-6]))  # 2.5%
    assert (test["metric"], test["a"], test["b"], test["seeds"]) == ("exploited", "both", "one", SEEDS)


def test_a_seed_that_one_arm_lost_is_not_compared():
    arms = results.collect({}, final={"a": {"x": [5, 2, np.nan, 4]}, "b": {"x": [4, 0, 7, 1]}})["arms"]
    (test,) = results.compare(arms, [("a", "b")], "x")
    assert (test["seeds"], test["p"], test["difference"]["mean"]) == (3, 0.25, 2)


def test_arms_and_metrics_that_are_not_there_are_named():
    arms = results.collect({}, final={"a": {"x": [1.0]}, "b": {"y": [2.0]}})["arms"]
    with pytest.raises(ValueError, match="b has no x: arms are a, b, metrics x, y"):
        results.compare(arms, [("a", "b")], "x")


def test_the_file_holds_what_was_returned(written):
    out, returned = written
    text = (out / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == returned
    assert set(returned) == {*results.KEYS, "skipped", "checks", "x", "tests"}
    assert set(returned["arms"]["both"]) == {"reward", "tail", "ratio", "exploited"}
    assert set(returned["curves"]["both"]) == {"reward", "tail", "ratio"}  # shown or checked
    assert len(returned["curves"]["one"]["tail"]["update"]) == 23
    assert {(t["metric"], t["a"], t["b"]) for t in returned["tests"]} == {
        ("reward", "both", "one"),
        ("tail", "both", "one"),
    }
    assert returned["settings"] == {"both": {"rate": 0.5, "path": "x"}, "one": {"rate": None}}
    assert (returned["claim"], returned["seeds"]) == (INFO["claim"], list(range(SEEDS)))
    assert returned["provenance"]["command"] == "python -m experiments toy --seeds 8"
    assert len(text.splitlines()) < 200  # a list is one line


def test_what_a_repository_holds_is_small(written):
    _, returned = written
    small = results.slim(returned | {"policies": {"both": {}}})
    assert set(small["arms"]["both"]) == {"reward", "tail", "ratio"} and set(small["curves"]["one"]) == {"reward"}
    assert set(small) == set(returned) - {"tests"}


def test_the_figures_are_drawn(written):
    out, returned = written
    curves, forest = ((out / name).read_text() for name in ("curves.svg", "forest.svg"))
    for text in (curves, forest):
        assert text.startswith("<?xml") and text.rstrip().endswith("</svg>") and len(text) < 40_000
    for part in ("toy, tiny: reward", ">step<", ">both<", *(color.lower() for color in OKABE_ITO[:2])):
        assert part in curves  # both arms, not hidden
    for part in (
        ">difference in reward<",
        ">difference in tail<",
        "both − one",
        "8 seeds",
        SIDE,
        OF_SOURCE["theory"].lower(),
    ):
        assert part in forest
    assert not list(out.glob("*.partial"))
    again = figures.draw(returned, {})  # from the file alone, and again the same
    assert again == {name: (out / name).read_bytes() for name in (figures.CURVES, figures.FOREST)}
    assert ">tail<" in figures.draw(returned, {}, returned["metrics"])[figures.CURVES].decode()


def test_a_figure_without_anything_to_show_is_not_there(tmp_path):
    info = INFO | {"metrics": ["x"], "predictions": [], "checks": []}
    found = results.write(tmp_path, info, {}, seconds=1, final={"both": {"x": [1.0, 2.0]}})
    (tmp_path / "curves.svg").write_text("of an earlier table")
    pages.draw(tmp_path, found)
    assert not list(tmp_path.glob("*.svg")) and "svg" not in pages.page(page_of(tmp_path, found))


def test_many_arms_are_drawn_in_panels_of_four_and_those_in_predictions_first(tmp_path):
    names = [f"arm{i}" for i in range(20)]
    curves = {arm: {"x": np.random.default_rng(i).normal(size=(8, 5))} for i, arm in enumerate(names)}
    stated = [record_of(Higher("x", "arm19", than="arm18", **PAPER))]
    info = INFO | {"metrics": ["x"], "predictions": stated, "checks": [], "settings": {arm: {} for arm in names}}
    text = figures.draw(results.write(tmp_path, info, curves, seconds=1), {})[figures.CURVES].decode()
    shown = [arm for arm in names if f">{arm}<" in text]
    assert shown == [*names[:10], "arm18", "arm19"] and "12 of 20 arms" in text and len(text) < 40_000


def test_one_seed_has_an_interval_over_the_games_of_its_evaluation(tmp_path):
    games = np.arange(12.0)
    curves = {"both": {"won": np.full((1, 5), 5.5)}, "one": {"won": np.full((1, 5), 0.0)}}
    info = INFO | {"predictions": [], "checks": [], "metrics": ["won"], "seeds": [3]}
    after = {"both": {"won": games[None]}, "one": {"won": np.zeros((1, 1))}}
    found = results.write(tmp_path, info, curves, seconds=1, before={"both": {"won": games[None] / 2}}, after=after)
    expected = stats.ttest_1samp(games, 0).confidence_interval()
    cell = found["arms"]["both"]["won"]
    assert (cell["mean"], cell["low"], cell["high"]) == pytest.approx((5.5, *expected)) and cell["per_seed"] == [5.5]
    assert found["arms"]["one"]["won"] == {"mean": 0, "low": None, "high": None, "per_seed": [0]}
    assert found["before"]["both"]["won"]["mean"] == 2.75 and "one" not in found["before"]
    console = Console(file=io.StringIO(), width=120)
    report.show(found, console)
    half = (expected[1] - expected[0]) / 2
    assert f"2.750 ±{half / 2:.3f} → 5.500 ±{half:.3f}" in console.file.getvalue()
    bound = record_of(AtLeast("won", "both", 1.0, **PAPER))
    assert judge(found | {"predictions": [bound]})[0].outcome == "not shown"  # one seed shows nothing of another one
    assert "2.75 [" in pages.page(page_of(tmp_path, found)) and "→ 5.50 [" in pages.page(page_of(tmp_path, found))


def test_seeds_whose_games_moved_beyond_their_intervals_are_counted(tmp_path):
    generator = np.random.default_rng(1)
    old = generator.normal(0, 1, (3, 50))
    new = old[:, ::-1] + np.array([[2.0], [0.0], [-2.0]])
    curves = {"both": {"won": new.mean(1)[:, None]}}
    info = INFO | {"predictions": [], "metrics": ["won"], "seeds": [0, 1, 2], "settings": {"both": {}}, "checks": []}
    found = results.write(
        tmp_path, info, curves, seconds=1, before={"both": {"won": old}}, after={"both": {"won": new}}
    )
    before, after = found["before"]["both"]["won"], found["arms"]["both"]["won"]
    for cell, values in ((before, old), (after, new)):
        expected = [list(stats.ttest_1samp(games, 0).confidence_interval()) for games in values]
        np.testing.assert_allclose(cell["within"], expected)
    assert results.count_moves(before, after) == (1, 1) and results.count_moves(after, before) == (1, 1)
    assert results.count_moves(before, {"mean": 1.0}) is None
    assert "], rose in 1, fell in 1 of 3 seeds |" in pages.page(page_of(tmp_path, found))


def page_of(folder, found):
    provenance = found["provenance"] | {"hardware": {"devices": {"cpu": 1}}}
    (folder / "results.json").write_text(json.dumps(found | {"provenance": provenance}))
    return folder / "results.json"


def test_a_run_that_cannot_be_written_leaves_the_old_results(written, measured, monkeypatch):
    out, _ = written
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def killed(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        results.write(out, INFO | {"claim": "Other."}, measured[0], seconds=1)
    for partial in out.glob("*.partial"):
        partial.unlink()
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_arms_without_a_metric_are_not_compared_in_it(tmp_path):
    final = {
        "both": {"reward": np.arange(8), "tail": np.arange(8)},
        "one": {"reward": np.ones(8), "tail": [np.nan] * 8},
    }
    info = INFO | {"predictions": INFO["predictions"][:1], "checks": []}
    found = results.write(tmp_path, info, {}, seconds=1, final=final)
    assert [test["metric"] for test in found["tests"]] == ["reward"]
    assert found["arms"]["one"]["tail"] == {"mean": None, "low": None, "high": None, "per_seed": [None] * 8}
    assert "| one | 1.00 [1.00, 1.00] |  |" in pages.page(page_of(tmp_path, found))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paper": ""}, "it lacks paper"),
        ({"metrics": []}, "it lacks metrics"),
        ({"predictions": [{"kind": "Above", "metric": "reward"}]}, "A prediction is one of Higher, Lower"),
        ({"predictions": [record_of(AtMost("reward", "three", 1))]}, r"\['three'\]; the arms are both, one"),
        ({"predictions": [record_of(AtMost("rewards", "both", 1))]}, "both has no rewards"),
        ({"predictions": [record_of(Higher("r", "both", than="one"))]}, "both has no r: .* metrics ratio, reward"),
    ],
)
def test_information_that_is_not_complete_is_refused(measured, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        results.write(tmp_path, INFO | changes, measured[0], seconds=1)
    assert not list(tmp_path.iterdir())


def test_an_arm_with_skipped_updates_shows_nothing(tmp_path):
    """All its numbers look well, as weights that are not finite are never taken over."""
    x = np.arange(8.0)[:, None] + np.zeros((8, 3))
    curves = {"both": {"reward": x + 9, "skipped": np.zeros((8, 3))}, "one": {"reward": x, "skipped": np.eye(8, 3)}}
    info = INFO | {"predictions": INFO["predictions"][:1], "checks": []}
    found = results.write(tmp_path, info, curves, seconds=1)
    assert found["skipped"] == {"one": 3}
    above, skipped = report.verdicts(found)
    assert "not shown" in above and skipped.startswith("one: 3 updates, of all seeds, were skipped")
    assert "one: 3 updates" in pages.page(page_of(tmp_path, found))


def test_the_console_shows_means_tests_and_every_seed(written):
    _, returned = written
    console = Console(file=io.StringIO(), width=120)
    report.show(returned, console)
    text = console.file.getvalue()
    cell, test = returned["arms"]["both"]["reward"], returned["tests"][0]
    for part in (
        f"{cell['mean']:.3f} ±{(cell['high'] - cell['low']) / 2:.3f}",
        f"p = {test['p']:.2g}",
        "reward, seed by seed: both " + " ".join(f"{x:.3g}" for x in cell["per_seed"])[:4],
        INFO["claim"],
        "both above one: holds",
    ):
        assert part in text


def test_a_caption_explains_no_part_that_the_table_lacks(written, tmp_path):
    _, returned = written
    assert report.caption(returned, 120) == (
        "mean ± half of the 95% Student-t interval over seeds; p of the exact paired sign-flip test"
    )
    info = INFO | {"predictions": [], "checks": [], "seeds": [0]}
    one = results.write(tmp_path, info, {"both": {"reward": np.ones((1, 3))}}, seconds=1)
    assert report.caption(one, 120) == ""
    console = Console(file=io.StringIO(), width=120)
    report.show(one, console)
    assert "±" not in console.file.getvalue() and "sign-flip" not in console.file.getvalue()


NAMES = [f"paid/choose_direct_third_reputation_{i}" for i in range(3)]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("arms", [NAMES, ["a", "b", "c"]])
def test_a_narrow_console_cuts_no_arm(tmp_path, arms, width):
    generator = np.random.default_rng(0)
    metrics = [f"updates to {i}0%" for i in range(1, 8)]
    curves = {arm: {metric: generator.normal(size=(8, 5)) + 1000 for metric in metrics} for arm in arms}
    stated = [record_of(Higher(metrics[0], arms[0], than=arms[1], **PAPER))]
    info = INFO | {"metrics": metrics, "predictions": stated, "checks": [], "settings": {arm: {} for arm in arms}}
    written = results.write(tmp_path, info, curves, seconds=1)
    console = Console(file=io.StringIO(), width=width)
    for table in report.tables(written, width):
        assert console.measure(table).minimum <= width
        console.print(table)
    text = console.file.getvalue() + report.caption(written, width)
    assert "…" not in text and max(map(len, console.file.getvalue().splitlines())) <= width
    for arm in arms:
        assert arm in text
        for metric in metrics:
            cell = written["arms"][arm][metric]
            assert f"{cell['mean']:.3f} ±{(cell['high'] - cell['low']) / 2:.3f}" in text
    named = arms == NAMES and width == 80
    assert ("2 − 1" in text or "1 − 2" in text) == named and (f"{arms[0]} − {arms[1]}" in text) != named


def test_a_count_that_no_seed_reaches_says_so_with_the_final_value(tmp_path):
    """Of two arms, one never gets there and the other does in five of eight seeds."""
    final = {"updates to 90%": np.array([30.0] * 5 + [60.0] * 3)}, {"updates to 90%": np.full(8, 60.0)}
    curves = {"both": {"reward": np.full((8, 60), 0.95)}, "one": {"reward": np.full((8, 60), 0.61)}}
    info = INFO | {"metrics": ["reward", "updates to 90%"], "predictions": [], "checks": []}
    info |= {"censored": {"updates to 90%": 60}, "counts": {"updates to 90%": "reward"}}
    found = results.write(tmp_path, info, curves, seconds=1, final=dict(zip(("both", "one"), final, strict=True)))
    console = Console(file=io.StringIO(), width=120)
    report.show(found, console)
    for text in (console.file.getvalue(), pages.page(page_of(tmp_path, found))):
        assert text.count("not reached (0.610 at the end)") == 1 and text.count("never in 3 of 8") == 1
    said = io.StringIO()
    report.show(found | {"metrics": ["updates to 90%", "reward"]}, Console(file=said, width=120))
    both, one = ", ".join(["30.0"] * 5 + ["not reached"] * 3), ", ".join(["not reached"] * 8)
    assert f"updates to 90%, seed by seed: both {both}; one {one}\n" in said.getvalue()
    old = {name: part for name, part in found.items() if name != "counts"}  # about.toml may say it
    assert "not reached" not in pages.page(page_of(tmp_path, old))
    (tmp_path / "about.toml").write_text('[counts]\n"updates to 90%" = "reward"\n')
    assert "| one | 0.610 [0.610, 0.610] | not reached (0.610 at the end) |" in pages.page(page_of(tmp_path, old))


@pytest.fixture
def package(written, tmp_path, monkeypatch):
    """A package of experiments with two results."""
    home = tmp_path / "toy_results"
    for name in ("toy_small", "another"):
        (home / "results" / name).mkdir(parents=True)
        (home / "results" / name / "results.json").write_text((written[0] / "results.json").read_text())
    (home / "__init__.py").write_text("")
    (home / "results" / "another" / "notes.md").write_text("# Found\n")
    monkeypatch.syspath_prepend(tmp_path)
    return home


def test_the_command_writes_a_page_for_each_result_and_the_index(package, written):
    console = Console(file=io.StringIO())
    pages.command("toy_results", [], console)
    index, page = (package / "README.md").read_text(), (package / "results/another/README.md").read_text()
    assert index.index("[another](results/another/README.md)") < index.index("[toy_small](results/toy_small/README.md)")
    row = next(line for line in index.splitlines() if "[toy_small]" in line)
    assert row.startswith(
        "| Do both beat one? | [toy_small](results/toy_small/README.md) | [Nobody, 2026](https://arxiv"
    )
    assert row.endswith("| tiny policies | holds here; not yet frozen |")
    assert (
        "- Of 2 predictions drawn from papers, 2 hold here" in index and "- Of 4 checks of the code, 2 pass." in index
    )
    reward = written[1]["arms"]["both"]["reward"]
    assert f"| both | {reward['mean']:#.3g} [{reward['low']:#.3g}, {reward['high']:#.3g}] | " in page
    assert "\npython -m experiments toy --seeds 8\n" in page and "commit 0123456789-dirty" in page
    assert "(curves.svg)" in page and "(forest.svg)" in page and "(notes.md)" in page
    assert "- reward: both at least 0.5: yes, 8 of 8 seeds alone" in page and "- ratio: one at most 0.5: **no**" in page
    assert "(notes.md)" not in (package / "results/toy_small/README.md").read_text()
    for verdict in judge(written[1]):
        told = verdict.prediction
        assert f"| {told} | {told.source}: {told.where} | **{verdict.outcome}** | {verdict.told} |" in page
    both = (package / "results/toy/README.md").read_text()  # the study has no run of its own name
    assert re.findall(r"^\| \[(\w+)\]\(../(\w+)/README.md\)", both, re.M) == [
        (arm, run) for run in ("another", "toy_small") for arm in ("both", "one")
    ]
    assert both.count("| tiny | 8 | 230 | 1.6 min |") == 4

    stale = package / "results" / "another" / "README.md"
    stale.write_text(page.replace("tiny", "huge"))
    with pytest.raises(SystemExit, match="is not what its results say: run `python -m toy_results pages`"):
        pages.command("toy_results", ["--check"], console)
    assert "huge" in stale.read_text()  # a check writes nothing


def test_a_run_without_predictions_says_so_in_the_index(package, written):
    file = package / "results/another/results.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"predictions": [], "tests": []}))
    row = next(line for line in pages.index([file], package, "toy_results").splitlines() if "[another]" in line)
    assert f"| no table: the numbers of {len(written[1]['seeds'])} seeds, on its page |" in row
    assert row.endswith("| no predictions |")


def test_a_page_without_a_paper_shows_verdicts_and_no_status(package, written):
    """Nor does the index."""
    own = [dict(record, source="theory") for record in written[1]["predictions"]]
    file = package / "results/another/results.json"
    file.write_text(json.dumps(written[1] | {"paper": None, "predictions": own}))
    pages.command("toy_results", [], Console(file=io.StringIO()))
    page, index = (package / "results/another/README.md").read_text(), (package / "README.md").read_text()
    assert "- Our own " in page and "**holds**" in page
    assert not any(word in page for word in ("Paper:", "Status:", "paper's", "checked against"))
    row = next(line for line in index.splitlines() if "[another]" in line)
    assert row.startswith("| Do both beat one? | [another](results/another/README.md) | – |") and row.endswith("| – |")


def test_the_written_words_are_of_one_run(package, written):
    """Of another run than theirs, the page tells what was found by its verdicts."""
    words = """
run = "{run}"
found = "Both are better."
short = "Both win"
claim = "Both win in Table 1."
setting = "a toy"
noise = "All of it is drawn."
[arms]
both = "one and the other"
[metrics]
reward = "points a game"
"""
    for name, run in (("another", "0123456789, seeds 0 to 7"), ("toy_small", "0123456789, seeds 8 to 15")):
        (package / "results" / name / "about.toml").write_text(words.format(run=run))
    pages.command("toy_results", [], Console(quiet=True))
    theirs, other = ((package / "results" / name / "README.md").read_text() for name in ("another", "toy_small"))
    assert "**Found.** Both are better." in theirs and "Both are better." not in other
    assert "**Found**, of the paper's directions:\n\n- reward: both above one: holds, difference" in other
    for page in (theirs, other):
        assert "- `both`: one and the other" in page and "- `reward`: points a game" in page and "`a toy`" in page
        assert "Both win in Table 1." in page and "Noise: All of it is drawn." in page
    index = (package / "README.md").read_text()
    assert index.count("| Both win |") == 1
    (package / "results" / "another" / "about.toml").write_text('unfit = "nothing is dealt."')
    pages.command("toy_results", [], Console(quiet=True))
    page, index = (package / "results/another/README.md").read_text(), (package / "README.md").read_text()
    assert "- Status: **not tested**. " in page and "cannot show the claim" in page and "nothing is dealt." in page
    assert (
        "1 study with predictions, whose setting cannot show the paper's claim" in index
        and index.count("| not tested |") == 1
    )
    (package / "results" / "another" / "about.toml").write_text("run = ")
    with pytest.raises(ValueError, match=r"about\.toml is not TOML"):
        pages.command("toy_results", [], Console(quiet=True))


def test_without_results_there_is_a_sentence(package):
    for file in package.glob("results/*/results.json"):
        file.unlink()
    with pytest.raises(ValueError, match="run `python -m toy_results NAME` first"):
        pages.command("toy_results", [], Console(quiet=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*No such file"),
        ("{", "is not JSON"),
        ("[]", "lacks study"),
        ('{"study": 1}', "it lacks question, "),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, content, message):
    file = tmp_path / "results.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=message):
        pages.page(file)


def test_a_result_that_lacks_a_part_is_named(written, tmp_path):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(written[1] | {"provenance": {}}))
    with pytest.raises(ValueError, match="is not complete"):
        pages.page(file)


@pytest.mark.long
def test_the_pages_in_the_repository_are_what_their_results_say():
    pages.command("experiments", ["--check"], Console(quiet=True))


def test_a_column_that_is_empty_for_all_arms_is_not_shown():
    table = [("arm", "a", "b", "c"), ("one", "", "1", ""), ("two", "", "", "2")]
    assert page_module.drop_empty_columns(table) == [("arm", "b", "c"), ("one", "1", ""), ("two", "", "2")]
