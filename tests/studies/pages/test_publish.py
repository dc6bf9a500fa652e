"""What a published run of a pretrained model leaves beside its numbers."""

from __future__ import annotations

from jaxmarl_llm.studies.pages.page import links
from jaxmarl_llm.studies.pages.publish import copy_games
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
