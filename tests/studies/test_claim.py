"""More seeds in a finished run: the first numbers stay, the new ones are those of a whole run, and refusals.

The long cases train three small runs, a slow one a fourth; the short ones claim directories without them.
"""

import json
import re
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments._template import STUDY
from jaxmarl_llm.studies import registry, runner
from jaxmarl_llm.studies.claim import claim_directory
from jaxmarl_llm.studies.lanes import homes_of, programs, split_seeds
from jaxmarl_llm.studies.settings import Settings
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view import page

ENTRY = registry.load_module("experiments._template")


def scored(parts):
    """Two games a seed, of which the second follows the weights."""
    return lambda weights, key: {"score": np.array([1.0, sum(abs(x).sum() for x in jax.tree.leaves(weights))])}


def start(out: Path, seeds: int, stop: threading.Event | None = None, games: int = 1) -> bool:
    few = {"seats": (("first", "first"),), "groups": 1, "group_size": 2, "updates": 2, "evaluate": scored}
    few["size"] = TinySize(layers=1)
    arms = {name: replace(arm, **few) for name, arm in STUDY.arms.items()}
    study = replace(STUDY, arms=arms, metrics=("success", "score"))
    settings = Settings("_template", seeds=seeds, out=out, games=games)
    return runner.run(ENTRY._replace(study=study), settings, stop or threading.Event(), Console(quiet=True))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path, list[tuple[int, ...]]]:
    """Runs of two seeds, of two and later a third, which is stopped at first; and the seeds of all that was begun."""
    two, grown = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("grown") / "run"
    begun: list[tuple[int, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "init", lambda *x, f=Trainer.init, **y: begun.append(x[0].seeds) or f(*x, **y))
        assert start(two, 2)
        shutil.copytree(two, grown)
        stop = threading.Event()
        stop.set()
        assert not start(grown, 3, stop) and start(grown, 3)
    return two, grown, begun


def results(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())


@pytest.mark.long
def test_added_seeds_leave_the_first_as_they_are(runs):
    two, grown, begun = runs
    before, after = results(two), results(grown)
    assert after["seeds"] == [0, 1, 2] and {*begun[:1]} == {(0, 1, 0, 1)} and {*begun[1:]} == {(2, 2)}
    for arm in STUDY.arms:
        for metric, cell in before["arms"][arm].items():
            if metric != "seconds":
                assert after["arms"][arm][metric]["per_seed"][:2] == cell["per_seed"], metric
        for file in ("metrics.jsonl", "games.jsonl", "before.json", "policies/first/model.safetensors"):
            assert (grown / arm / file).read_bytes() == (two / arm / file).read_bytes()
            assert (grown / "seeds_2" / arm / file).stat().st_size
    assert after["seconds"] >= before["seconds"]
    record = json.loads((grown / "study.json").read_text())
    assert record["added"] == [2] and "added" not in json.loads((two / "study.json").read_text())


@pytest.mark.slow
def test_added_seeds_are_those_of_a_whole_run(runs, tmp_path):
    assert start(tmp_path, 3)
    whole, grown = results(tmp_path), results(runs[1])
    for name in ("arms", "before", "curves", "settings", "tests"):
        assert whole[name] == grown[name], name
    assert not [*tmp_path.glob("seeds_*")]


@pytest.mark.long
def test_the_same_command_reads_a_grown_run_again(runs, monkeypatch):
    written = (runs[1] / "results.json").read_bytes()
    monkeypatch.setattr(Trainer, "init", None)
    assert start(runs[1], 3) and (runs[1] / "results.json").read_bytes() == written


INFO = {"study": "toy", "seeds": [3, 4], "code": {"toy": "a"}}


@pytest.fixture
def finished(tmp_path):
    """A directory of a finished run without its files."""
    with claim_directory(tmp_path, INFO) as (_, added):
        assert added == []
    (tmp_path / "results.json").write_text('{"seeds": [3, 4]}')
    return tmp_path


def test_seeds_are_added_once_and_again(finished):
    for seeds, first in (([3, 4, 5, 6], [5]), ([3, 4, 5, 6], [5]), ([3, 4, 5, 6, 7], [5, 7])):
        with claim_directory(finished, INFO | {"seeds": seeds}) as (_, added):
            assert added == first
        (finished / "results.json").write_text(json.dumps({"seeds": seeds}))
    homes = homes_of(finished, "joint", (3, 4, 5, 6, 7), alone=False)
    folders = ["joint", "joint", "seeds_5/joint", "seeds_5/joint", "seeds_7/joint"]
    assert [home.relative_to(finished).as_posix() for home in homes.values()] == folders
    assert homes_of(finished, "joint", (5,), alone=True) == {5: finished / "joint-5"}


@pytest.mark.parametrize(
    ("seeds", "old", "says"),
    [
        ([3], {}, r"holds 2 seeds, which stay: name another --out for 1\."),
        (
            [3, 4, 5],
            {"frozen": {"digest": "0"}},
            "holds a frozen table, which never grows: more seeds are a new freeze",
        ),
        ([3, 4, 5], {"study": "toys"}, "holds a run of the study toys: name another --out for toy"),
        ([3, 4], {"sweep": {}}, "holds a sweep, and this is a run without --sweep: name another --out"),
        ([3, 5, 6], {}, "was made with seeds="),
        ([4, 5], {}, "was made with seeds="),
        ([3, 4, 5], {"code": {"toy": "b"}}, "holds a run of other code in toy, begun at"),
        ([3, 4, 5], {"seeds": 3}, "is damaged"),
    ],
)
def test_seeds_that_cannot_be_added_are_one_sentence(finished, seeds, old, says):
    file = finished / "study.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | old))
    before = file.read_bytes()
    with pytest.raises(ValueError, match=says), claim_directory(finished, INFO | {"seeds": seeds}):
        raise AssertionError
    assert file.read_bytes() == before


@pytest.mark.parametrize("text", [None, "{", '{"seeds": [3]}'])
def test_seeds_are_added_to_a_finished_run_alone(finished, text):
    (finished / "results.json").unlink() if text is None else (finished / "results.json").write_text(text)
    says = "is not finished: end the run with --seeds 2, then add seeds"
    with pytest.raises(ValueError, match=says), claim_directory(finished, INFO | {"seeds": [3, 4, 5]}):
        raise AssertionError


@pytest.mark.long
def test_all_games_of_a_finished_run_are_recorded_by_its_command(runs, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(runs[0], out)
    updates = lambda: [game["update"] for game in page.read(out / "joint/games.jsonl")]
    assert updates() == [0, 2]
    former = [(out / "joint" / file).read_bytes() for file in ("metrics.jsonl", "after.json")]
    assert start(out, 2, games=0) and updates() == [0, 2, 2]
    assert [(out / "joint" / file).read_bytes() for file in ("metrics.jsonl", "after.json")] == former
    written = (out / "joint/games.jsonl").stat().st_mtime_ns
    assert start(out, 2) and (out / "joint/games.jsonl").stat().st_mtime_ns == written


FOREIGN = ["results.json", "games.html", "curves.svg", "checkpoints/a/7/x", "a[1]/config.json", "a[1]-0/run.json"]


@pytest.mark.parametrize("name", [*FOREIGN, "games.jsonl", "data/games.jsonl"])
def test_files_of_another_origin_are_never_written_over(name, tmp_path):
    info = {"study": "mine", "seeds": [0], "code": {}, "settings": {"a[1]": {}}}
    for beside in ("log.txt", "logo.svg", "profile/metrics.jsonl", "lock"):  # a run writes none of them over
        (tmp_path / beside).parent.mkdir(exist_ok=True)
        (tmp_path / beside).write_text("somebody's")
    before = {*tmp_path.rglob("*")}
    with pytest.raises(ValueError, match="cannot work"), claim_directory(tmp_path, info):
        (tmp_path / "a[1]/seed").mkdir(parents=True)
        (tmp_path / "a[1]/seed/config.json").write_text("of a run that cannot work")
        (tmp_path / "notes.txt").write_text("somebody's, written meanwhile")
        raise ValueError("cannot work")
    assert {*tmp_path.rglob("*")} == before | {tmp_path / "notes.txt"} and (
        tmp_path / "lock"
    ).read_text() == "somebody's"
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("somebody's")
    refused = pytest.raises(ValueError, match=rf"holds {re.escape(name)}, but no study.json.*name another --out")
    with refused, claim_directory(tmp_path, info):
        pass
    assert (tmp_path / name).read_text() == "somebody's" and not (tmp_path / "study.json").exists()


def test_an_addition_that_cannot_work_leaves_the_record(finished):
    """Its settings were refused before an update, so that the directory can be used as before."""
    before = (finished / "study.json").read_bytes()
    more = INFO | {"seeds": [3, 4, 5, 6]}
    with pytest.raises(ValueError, match="no"), claim_directory(finished, more) as (_, added):
        assert added == [5]
        raise ValueError("no")
    assert (finished / "study.json").read_bytes() == before


def test_seeds_are_split_where_they_were_added():
    assert split_seeds((4, 5, 6, 7, 8), (6, 8)) == [(4, 5), (6, 7), (8,)]
    plan = programs(STUDY.recipes, (4, 5, 6, 7, 8), False, (6, 8))
    assert [x.name for x in plan] == ["per_agent+joint", "seeds_6/per_agent+joint", "seeds_8/per_agent+joint"]
    assert plan[1].names == {"per_agent": "seeds_6/per_agent", "joint": "seeds_6/joint"}
    assert [x.name for x in programs({"joint": STUDY.recipes["joint"]}, (4, 5), True, (5,))] == ["joint-4", "joint-5"]


def test_a_changed_reward_is_named(tmp_path):
    info = lambda **code: {"study": "prompts", "seeds": [0], "code": {"experiments.prompts": "a"} | code}
    for _ in range(2):
        with claim_directory(tmp_path, info(rewards="b")):
            pass
    with (
        pytest.raises(ValueError, match="other code in rewards, begun at"),
        claim_directory(tmp_path, info(rewards="c")),
    ):
        pass


def test_other_arms_are_named_before_what_follows_from_them(tmp_path):
    info = lambda *arms, **more: {
        "study": "toy", "seeds": [0], "code": {"toy": "a"}, "predictions": [], "settings": dict.fromkeys(arms), **more
    }  # fmt: skip
    with claim_directory(tmp_path, info("a", "b")):
        pass
    says = "holds a run of the arms a, b, and this asks for the arms c, d, e, f, g, h, i, j and 1 more: name another"
    with pytest.raises(ValueError, match=says), claim_directory(tmp_path, info(*"acdefghij", predictions=[1])):
        pass
    with (
        pytest.raises(ValueError, match="the arms a, b, and this asks for the arm b: "),
        claim_directory(tmp_path, info("b")),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"was made with predictions=\[\]"),
        claim_directory(tmp_path, info("b", "a", predictions=[1])),
    ):
        pass


def test_a_run_of_an_earlier_version_is_of_other_code(tmp_path):
    """Its record has one digest in place of one a module."""
    info = {"study": "toy", "seeds": [0], "code": {"toy": "a"}}
    with claim_directory(tmp_path, info):
        pass
    record = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps(record | {"code": "a"}))
    with pytest.raises(ValueError, match="holds a run of other code in toy"), claim_directory(tmp_path, info):
        pass
