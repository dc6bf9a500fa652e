"""Every file of a run, its page, its sinks and the console name a seed itself, not its place among the runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxmarl_llm.runs.log import RunLog
from jaxmarl_llm.studies.program import read_curves
from tests.support.recipe_plays import exit_status
from tests.support.seeds import seeds_of

TWO = ("mars", "--arms", "centred", "--seeds", "2", "--first-seed", "3", "--updates", "2", "--checkpoint-every", "1")


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        assert exit_status(*TWO, "--out", out, patch=patch) == 0
    return out


@pytest.mark.commands
@pytest.mark.parametrize(
    ("file", "seeds"),
    [
        ("study.json", {3, 4}),
        ("results.json", {3, 4}),
        ("centred/metrics.jsonl", {3, 4}),
        ("centred/games.jsonl", {3}),  # the first seed's games are shown
        ("games.html", {3}),
        ("checkpoints/centred/2/checkpoint.json", {3, 4}),
    ],
)
def test_a_file_of_a_run_names_the_seeds(two, file, seeds):
    assert seeds_of(two)[file] == seeds


@pytest.mark.commands
def test_no_file_of_a_run_names_another_seed(two):
    found = seeds_of(two)
    assert set().union(*found.values()) == {3, 4}, {file: of for file, of in found.items() if not of <= {3, 4}}
    boards = {Path(file).parent.name for file in found if "/tensorboard/" in file}
    assert boards == {"seed_3", "seed_4"}


@pytest.mark.commands
def test_a_finished_run_with_other_seeds_is_read_again(two, monkeypatch, capsys):
    assert exit_status(*TWO, "--out", two, patch=monkeypatch) == 0
    curves = read_curves(two, "centred", (3, 4), 2, False)
    lines = [json.loads(line) for line in (two / "centred/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    written = [[line["right"] for line in lines if line["seed"] == seed] for seed in (3, 4)]
    np.testing.assert_array_equal(curves["right"], written)
    with pytest.raises(ValueError, match="does not hold 2 updates of seed 0"):
        read_curves(two, "centred", (0, 1), 2, False)


@pytest.mark.parametrize("seeds", [(0,), (7,), (0, 1), (3, 4), (9, 10, 11)])
def test_a_log_that_is_continued_names_the_seeds_in_every_place(seeds, tmp_path):
    said = []
    for start in (0, 1):
        with RunLog(tmp_path, seeds, {}, said.append) as log:
            log.truncate(start)
            skipped = np.arange(len(seeds)) == len(seeds) - 1  # by the last seed alone
            log.scalars(start, {"skipped": skipped.astype(np.int32)})
            assert log.streak.tolist() == (skipped * (start + 1)).tolist()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["seed"] for line in lines] == 2 * list(seeds)
    assert seeds_of(tmp_path)["health.jsonl"] == {seeds[-1]}
    assert len(said) == 1 and (f"of seed {seeds[-1]} is" in said[0]) == (len(seeds) > 1)
    assert {path.name for path in (tmp_path / "tensorboard").iterdir()} == {f"seed_{seed}" for seed in seeds}
