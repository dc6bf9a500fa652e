"""What a published run of a pretrained model leaves beside its numbers."""

from __future__ import annotations

import json
import shutil

import pytest
from rich.console import Console

from jaxmarl_llm.studies import catalogue
from jaxmarl_llm.studies.pages.page import links
from jaxmarl_llm.studies.pages.publish import Options, copy_games, publish
from jaxmarl_llm.view import page

RESULTS = {"arms": {"ours": {}, "base": {}}, "seeds": [7, 8]}


def test_the_games_of_the_first_seed_of_each_arm_are_kept(tmp_path):
    run, folder = tmp_path / "run", tmp_path / "results/toy"
    folder.mkdir(parents=True)
    for arm in ("base", "ours"):
        for seed in (7, 8):
            home = run / f"{arm}-{seed}"
            home.mkdir(parents=True)
            games = [{"arm": arm, "seed": seed, "update": update, "seats": []} for update in (0, 3)]
            (home / page.GAMES).write_bytes(page.lines_of(games))
            (home / "transcript.md").write_text(f"{arm} {seed}")
    copy_games(run, folder, RESULTS)
    kept = [(game["arm"], game["seed"], game["update"]) for game in page.read(folder / page.GAMES)]
    assert kept == [("ours", 7, 0), ("ours", 7, 3), ("base", 7, 0), ("base", 7, 3)]
    assert (folder / "transcript.md").read_text() == "ours 7"
    assert "[Games before and after training](games.jsonl), shown by `python -m" in links({}, folder)


def test_a_run_without_games_leaves_none(tmp_path):
    (tmp_path / page.GAMES).write_text("of a former run")
    copy_games(tmp_path, tmp_path, RESULTS)
    assert not any(tmp_path.iterdir()) and "Games" not in links({}, tmp_path)


def test_a_run_that_judges_nothing_is_published_under_a_name(tmp_path):
    results, console = catalogue.home("experiments") / "results", Console(quiet=True)
    for name in ("small_model-kuhn", "mars"):
        (tmp_path / name).mkdir()
        shutil.copy(results / name / "results.json", tmp_path / name)
    one, judged, into = tmp_path / "small_model-kuhn", tmp_path / "mars", tmp_path / "package"
    wrong = [((one,), "kuhn"), ((one, judged), "small_model-kuhn"), ((one, one), "small_model-kuhn")]
    wrong += [((judged,), "mars-again"), ((one,), "small_model-x/../mars"), ((one,), "small_model-")]
    for runs, name in wrong:
        with pytest.raises(ValueError, match="--name is of one run"):
            publish("experiments", Options(runs, "a test", into, name), console)
    for runs, why in (((), "a test"), ((one,), " ")):
        with pytest.raises(ValueError, match="Name at least one"):
            publish("experiments", Options(runs, why, into), console)
    assert not into.exists()
    publish("experiments", Options((one,), "a test", into, "small_model-kuhn"), console)
    shutil.copy(results / "small_model-commons/results.json", one)
    with pytest.raises(ValueError, match="holds a table of kuhn"):
        publish("experiments", Options((one,), "a test", into, "small_model-kuhn"), console)
    shutil.copy(results / "small_model-kuhn/results.json", one)
    publish("experiments", Options((one,), "a test", into), console)
    published = {file.parent.name for file in into.rglob("results.json")}
    assert published == {"small_model-kuhn", "small_model-smollm2"}


def test_a_table_that_judges_nothing_is_refused(tmp_path):
    results = json.loads((catalogue.home("experiments") / "results/mars/results.json").read_text(encoding="utf-8"))
    (tmp_path / "results.json").write_text(json.dumps(results | {"shorter": True}))
    with pytest.raises(ValueError, match="recorded itself as shorter"):
        publish("experiments", Options((tmp_path,), "a test", tmp_path / "package"), Console(quiet=True))
    assert not (tmp_path / "package").exists()
