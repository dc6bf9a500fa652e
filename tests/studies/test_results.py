"""Measured numbers become results: against scipy, brute force and by hand; files are whole, deterministic, checked."""

import io
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from jaxmarl_llm.studies import results

SEEDS, UPDATES = 6, 230
INFO = {
    "recipe": "toy",
    "claim": "Both|and beats one [0,  1].",
    "paper": "Nobody (2026)",
    "direction": [
        {"metric": "reward", "a": "both", "b": "one", "sign": 1},
        {"metric": "tail", "a": "both", "b": "one", "sign": 1},
        {"metric": "reward", "arm": "both", "at_least": 0.5},
    ],
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
    typed = [str(results.HERE / "__main__.py"), "toy", "--out", str(out), "--seeds", "6", f"--out={out}"]
    provenance = {"command": typed, "commit": "0123456789abcdef-dirty"}
    return out, results.write(out, INFO, curves, seconds=93, final=final, provenance=provenance)


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
    assert len(found["update"]) == 100 and (found["update"][0], found["update"][-1]) == (0, 1000)
    assert set(np.diff(found["update"])) == {10, 11}
    column = values[:, found["update"][37]]
    expected = (column.mean(), *stats.t.interval(0.95, 4, column.mean(), stats.sem(column)))
    for end, value in zip(results.ENDS, expected, strict=True):
        assert found[end][37] == pytest.approx(value, rel=1e-4) and float(f"{found[end][37]:.5g}") == found[end][37]


def test_arms_are_compared_seed_by_seed(measured):
    curves, final = measured
    arms = results.collect(curves, final=final)["arms"]
    (test,) = results.compare(arms, [("both", "one")], "exploited")
    difference = final["both"]["exploited"] - final["one"]["exploited"]
    interval = stats.ttest_1samp(difference, 0).confidence_interval()
    flipped = [abs(np.dot(s, difference)) for s in itertools.product((1, -1), repeat=SEEDS)]
    assert test["p"] == np.mean([x >= abs(difference.sum()) - 1e-12 for x in flipped])
    assert tuple(test["difference"].values()) == pytest.approx((difference.mean(), *interval))
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
    assert set(returned) == {*results.KEYS, "skipped"}
    assert set(returned["arms"]["both"]) == {"reward", "tail", "ratio", "exploited"}
    assert set(returned["curves"]["both"]) == {"reward", "tail"}  # what is shown
    assert len(returned["curves"]["one"]["tail"]["update"]) == 23
    assert {(t["metric"], t["a"], t["b"]) for t in returned["tests"]} == {
        ("reward", "both", "one"),
        ("tail", "both", "one"),
    }
    assert returned["settings"] == {"both": {"rate": 0.5, "path": "x"}, "one": {"rate": None}}
    assert (returned["claim"], returned["seeds"]) == (INFO["claim"], list(range(SEEDS)))
    assert returned["provenance"]["command"] == "python -m experiments toy --seeds 6"
    assert len(text.splitlines()) < 200  # a list is one line


def test_the_curves_are_drawn(written):
    from matplotlib.image import imread

    out, returned = written
    image = imread(out / "curves.png")
    height, width, _ = image.shape
    assert width > 1000 and height > 300
    colours = {tuple(pixel) for pixel in (image[..., :3].reshape(-1, 3) * 255).round().astype(int).tolist()}
    for colour in results.OKABE_ITO[:2]:  # both arms, not hidden
        assert tuple(bytes.fromhex(colour[1:])) in colours
    assert not list(out.glob("*.partial"))
    assert results.plot(returned) == (out / "curves.png").read_bytes()  # from the file alone, and again the same


def test_arms_that_are_judged_only_once_have_an_empty_plot(tmp_path):
    info = INFO | {"metrics": ["x"], "direction": []}
    results.write(tmp_path, info, {}, seconds=1, final={"both": {"x": [1.0, 2.0]}})
    assert (tmp_path / "curves.png").stat().st_size > 1000


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
        "both": {"reward": np.arange(6), "tail": np.arange(6)},
        "one": {"reward": np.ones(6), "tail": [np.nan] * 6},
    }
    found = results.write(tmp_path, INFO | {"direction": INFO["direction"][:1]}, {}, seconds=1, final=final)
    assert [test["metric"] for test in found["tests"]] == ["reward"]
    assert found["arms"]["one"]["tail"] == {"mean": None, "low": None, "high": None, "per_seed": [None] * 6}
    text = results.readme([tmp_path / "results.json"], tmp_path)
    assert "| one | reward 1.00 [1.00, 1.00] |" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paper": ""}, "it lacks paper"),
        ({"metrics": []}, "it lacks metrics"),
        ({"direction": [{"metric": "reward", "a": "both", "b": "one", "sign": 0}]}, "sign: 1 or -1"),
        ({"direction": [{"metric": "reward", "arm": "both", "above": 1}]}, "at_least or at_most"),
        ({"direction": [{"metric": "reward", "arm": "three", "at_most": 1}]}, r"\['three'\]; the arms are both, one"),
        ({"direction": [{"metric": "rewards", "arm": "both", "at_most": 1}]}, "both has no rewards"),
        (
            {"direction": [{"metric": "r", "a": "both", "b": "one", "sign": 1}]},
            "both has no r: .* metrics ratio, reward",
        ),
    ],
)
def test_information_that_is_not_complete_is_refused(measured, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        results.write(tmp_path, INFO | changes, measured[0], seconds=1)
    assert not list(tmp_path.iterdir())


A, B = {"metric": "x", "a": "a", "b": "b"}, {"metric": "x", "arm": "a"}


@pytest.mark.parametrize(
    ("a", "b", "stated", "outcome"),
    [
        ([3, 4, 5, 4, 3, 4], [0] * 6, A | {"sign": 1}, "a above b: in the direction stated"),
        ([3, 4, 5, 4, 3, 4], [0] * 6, A | {"sign": -1}, "a below b: contradicted"),
        ([0] * 6, [3, 4, 5, 4, 3, 4], A | {"sign": -1}, "a below b: in the direction stated"),
        ([3, -4, 5, -4, 3, 4], [0] * 6, A | {"sign": 1}, "a above b: not shown"),
        ([1, 1, 1, 1, 1, 1], [1] * 6, A | {"sign": 1}, "a above b: not shown"),
        ([3, 4, 5, 4, 3], [0] * 5, A | {"sign": 1}, "a above b: not shown"),  # 5 pairs cannot show it
        ([9], [0], A | {"sign": 1}, "a above b: not shown"),
        ([3, 4, 5], [0] * 3, B | {"at_least": 1}, "a at least 1: holds"),
        ([3, 4, 5], [0] * 3, B | {"at_least": 3.9}, "a at least 3.9: not shown"),
        ([3, 4, 5], [0] * 3, B | {"at_most": 1}, "a at most 1: contradicted"),
        ([1, 1, 1], [0] * 3, B | {"at_least": 1}, "a at least 1: holds"),
        ([9], [0], B | {"at_least": 1}, "a at least 1: not shown"),
    ],
)
def test_the_verdict_on_what_was_stated(a, b, stated, outcome):
    arms = results.collect({}, final={"a": {"x": a}, "b": {"x": b}})["arms"]
    found = {"direction": [stated], "arms": arms, "tests": results.compare(arms, [("a", "b")], "x")}
    (sentence,) = results.verdict(json.loads(json.dumps(found), parse_constant=lambda name: None))
    assert sentence.startswith(f"x, {outcome}, ") and f"({len(a)} seed" in sentence
    assert ("p cannot go below 0.0625" in sentence) == (len(a) == 5)


def test_an_arm_of_which_updates_were_left_out_shows_nothing(tmp_path):
    """All its numbers look well, as weights that are not finite are never taken over."""
    x = np.arange(6.0)[:, None] + np.zeros((6, 3))
    curves = {"both": {"reward": x + 9, "skipped": np.zeros((6, 3))}, "one": {"reward": x, "skipped": np.eye(6, 3)}}
    found = results.write(tmp_path, INFO | {"direction": INFO["direction"][:1]}, curves, seconds=1)
    assert found["skipped"] == {"one": 3}
    above, left_out = results.verdict(found)
    assert "not shown" in above and left_out.startswith("one: 3 updates, of all seeds, were left out")
    assert "one: 3 updates" in results.readme([tmp_path / "results.json"], tmp_path)


def test_the_console_shows_means_tests_and_every_seed(written):
    _, returned = written
    console = Console(file=io.StringIO(), width=120)
    results.show(returned, console)
    text = console.file.getvalue()
    cell, test = returned["arms"]["both"]["reward"], returned["tests"][0]
    for part in (
        f"{cell['mean']:.3f} ±{(cell['high'] - cell['low']) / 2:.3f}",
        f"p = {test['p']:.2g}",
        "reward, seed by seed: both " + " ".join(f"{x:.3g}" for x in cell["per_seed"])[:4],
        INFO["claim"],
        "both above one: in the direction stated",
    ):
        assert part in text


def test_the_command_writes_the_table_of_all_results(written, tmp_path, monkeypatch):
    out, returned = written
    second = tmp_path / "another"
    second.mkdir()
    (second / "results.json").write_text((out / "results.json").read_text())
    readme, files = tmp_path / "README.md", (out / "results.json", second / "results.json")
    typed = [*map(str, files), "--readme", str(readme)]
    monkeypatch.setattr(sys, "argv", ["results", *typed])
    results.run(threading.Event(), Console(file=io.StringIO()))
    text = readme.read_text()
    assert text == results.readme(files[::-1], tmp_path)  # whatever the order
    assert text.index("## another") < text.index("## toy_small")
    reward = returned["arms"]["both"]["reward"]
    row = next(line for line in text.splitlines() if line.startswith("| [toy_small](#toy_small)"))
    assert f"| both | reward {reward['mean']:#.3g} [{reward['low']:#.3g}, {reward['high']:#.3g}]<br>tail " in row
    assert row.endswith("| 6 | 230 | tiny | 1.6 min | 0123456789-dirty |")
    assert "Nobody (2026)" in row and text.count("\npython -m experiments toy --seeds 6\n") == 2
    assert "(another/curves.png)" in text
    for sentence in results.verdict(returned):
        assert f"- {sentence}\n" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in tables} == {10, 6}

    sys.argv.append("--check")
    results.run(threading.Event(), Console(file=io.StringIO()))  # does not complain
    readme.write_text(text.replace("tiny", "huge"))
    command = [sys.executable, "-m", "jaxmarl_llm.studies.results", *typed, "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "is not what its results say" in done.stderr
    assert "huge" in readme.read_text()  # a check writes nothing


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*No such file"),
        ("{", "is not JSON"),
        ("[]", "lacks recipe"),
        ('{"recipe": 1}', "it lacks claim, "),
    ],
)
def test_a_file_that_is_no_result_is_named(tmp_path, content, message):
    file = tmp_path / "results.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=message):
        results.readme([file], tmp_path)


def test_a_result_that_lacks_a_part_is_named(written, tmp_path):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(written[1] | {"tests": []}))
    with pytest.raises(ValueError, match="is not complete"):
        results.readme([file], tmp_path)


def test_the_table_in_the_repository_is_what_its_results_say():
    files = list(results.HERE.glob("results/*/results.json"))
    if not files:
        pytest.skip("no results yet")
    assert (results.HERE / "README.md").read_text() == results.readme(files, results.HERE)
