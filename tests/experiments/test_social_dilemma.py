"""The command as a user meets it: it trains, it resumes, and it refuses what cannot work before anything compiles."""

import dataclasses
import json
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.social.dilemma_report import verdict
from orbax.checkpoint import v1 as ocp

from experiments.social.social_dilemma import NAIVE, STUDY, Choice, Settings, defaults, exploited, models, parse, recipe
from jaxmarl_llm.environments.matrix_games import MatrixGame
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies.cli import STOPPED
from jaxmarl_llm.training.recipe import for_pretrained
from jaxmarl_llm.training.trainer import Trainer
from tests.support.recipe_plays import credited, differences, exit_status, games, with_a_real_model

SMALL = ("--rounds", "3", "--games", "8", "--pool", "2", "--snapshot-every", "2", "--evaluation-games", "4")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "experiments.social.social_dilemma", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    done = run(*SMALL, "--seeds", "2", "--updates", "6", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_a_run_leaves_a_summary_that_holds_what_the_table_holds(unbroken):
    out, printed = unbroken
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["method"], summary["models"], summary["seeds"]) == ("naive", {"learner": "tiny"}, 2)
    assert summary["interval_over"] == "seeds"
    opponents = {"self", "always_cooperate", "always_defect", "tit_for_tat", "grim", "win_stay_lose_shift", "random"}
    for when in ("before", "after"):
        assert opponents | {"cooperation"} == set(summary[when]["learner"])
        for name in opponents:
            assert name in printed
            for who in ("ours", "theirs"):
                cell = summary[when]["learner"][name][who]
                assert len(cell["per_seed"]) == 2 and cell["low"] <= cell["mean"] <= cell["high"]
                assert min(cell["per_seed"]) >= 0 and max(cell["per_seed"]) <= 5
        assert {"start", "CC", "CD", "DC", "DD", "as_A", "as_B"} == set(summary[when]["learner"]["cooperation"])
        # who defects always is never met with less than the points of mutual defection on its own side
        assert min(summary[when]["learner"]["always_defect"]["theirs"]["per_seed"]) >= 1
    steps = [(line["step"], line["seed"]) for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())]
    assert steps == [(step, seed) for step in range(6) for seed in range(2)]
    assert sorted(p.name for p in (out / "tensorboard").iterdir()) == ["seed_0", "seed_1"]
    assert "cooperate" in (out / "transcript.md").read_text()


def same_files(one, other) -> None:
    for name in ("metrics.jsonl", "summary.json", "before.json", "transcript.md"):
        assert (one / name).read_text() == (other / name).read_text(), name
    states = [jax.tree.leaves(ocp.load(d / "checkpoints" / "6" / "state")) for d in (one, other)]
    assert len(states[0]) > 20
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


def test_faults_sigterm_saves_and_resume_goes_on_bit_for_bit(unbroken, tmp_path):
    arguments = (*SMALL, "--seeds", "2", "--updates", "6", "--out", str(tmp_path), "--checkpoint-every", "100")
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "metrics.jsonl"
    until = time.monotonic() + 300
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == STOPPED, err
    saved = [int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()]
    assert saved
    resumed = run(*arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    same_files(unbroken[0], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--method", "greedy"), "greedy"),
        (("--model", "gpt5"), "Unknown model 'gpt5'"),
        (("--talk",), "cannot talk"),
        (("--learning-rate", "1e-3", "1e-4"), "learning_rate takes one value, got 0.001 0.0001"),
        (("--seat1", "tiny", "--pool", "3"), "give --pool 0"),
        (("--top-p", "0"), "top_p must lie between 1e-6 and 1"),
        (("--rounds", "0"), "rounds must be at least 1, got 0"),
        (("--games", "4", "--groups", "4"), "groups of one"),
        (("--games", "10", "--groups", "4"), "10 games do not divide into 4 groups"),
        (("--rounds", "300"), "too short by"),
        (("--payoff.0.0", "3", "3", "3"), "payoff must have the shape (2, 2, 2)"),
        (("--learning-rate", "nan"), "learning_rate must be a positive number"),
        (("--pool", "-1"), "pool must be at least 0"),
        (("--groups", "2"), "groups must be a multiple of 4"),
        (("--mesh", "data=3"), "does not divide over 3 devices"),
        (("--mesh", "rows=3"), "written as data=2,fsdp=4,tensor=1"),
        (("--accumulate", "5"), "do not divide into"),
        (("--keep.every", "-1"), "keep.every=-1: give a number of steps"),
        (("--out", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_not_zero(arguments, says, tmp_path, monkeypatch, capsys):
    out = () if "--out" in arguments else ("--out", tmp_path)
    assert exit_status("social_dilemma", *arguments, *out, patch=monkeypatch) == 2
    printed = capsys.readouterr()
    assert says in printed.err + printed.out and "Traceback" not in printed.err


def test_faults_another_configuration_is_named(unbroken):
    done = run(*SMALL, "--seeds", "2", "--updates", "6", "--out", str(unbroken[0]), "--resume", "--gamma", "0.5")
    assert done.returncode == 2
    assert "gamma" in done.stderr and "0.5" in done.stderr and "0.9" in done.stderr


def test_a_run_is_not_overwritten_unasked(unbroken):
    done = run(*SMALL, "--seeds", "2", "--updates", "6", "--out", str(unbroken[0]))
    assert done.returncode == 2 and "resume" in done.stderr


def test_defaults_depend_on_method_and_model():
    assert parse(["--method", "alignment"]) == defaults(Choice("alignment"))
    pretrained = defaults(Choice(model="smollm2"))
    assert (pretrained.updates, pretrained.pool, pretrained.policies) == (24, 0, {"learner": "smollm2"})
    assert parse(["--model", "smollm2", "--games", "16"]) == dataclasses.replace(pretrained, games=16)
    two = parse(["--seat0", "smollm2", "--seat1", "gemma3-270m", "--learning-rate", "1e-4", "3e-4", "--rank", "8"])
    assert (two.updates, two.policies) == (24, {"seat_0": "smollm2", "seat_1": "gemma3-270m"})
    assert [two.of(name, "learning_rate") for name in two.policies] == [1e-4, 3e-4]
    assert [two.of(name, "rank") for name in two.policies] == [8, 8]


@pytest.mark.parametrize("method", ["naive", "sum", "alignment"])
def test_the_method_is_the_credit(method):
    arm = recipe(Settings(method, rounds=3, games=8, groups=4, pool=0))
    played = games(arm)
    episodes, reward = played.episodes, played.episodes.reward[..., 0] / 5
    of = (episodes.acted, episodes.group, 4)
    expected = {
        "naive": lambda: advantages.round_leave_one_out(reward, *of, gamma=0.9),
        "sum": lambda: advantages.round_leave_one_out(jnp.repeat(reward.sum(-1, keepdims=True), 2, -1), *of, gamma=0.9),
        "alignment": lambda: advantages.advantage_alignment(reward, *of, gamma=0.9, beta=0.5),
    }
    np.testing.assert_allclose(credited(arm, played).advantage, expected[method](), atol=1e-6)


def test_the_reference_is_the_policy_before_training():
    """At first the divergence from it is 0, and its weight changes nothing; later both do."""
    assert not recipe(Settings()).reference
    arm = recipe(Settings(rounds=2, games=8, pool=0, kl=1e-9, learning_rate=(1e-2,)))
    trainer = Trainer(
        dataclasses.replace(arm, warm_start=()), [arm.all_hparams, arm.all_hparams | {"kl": 10.0}], [0, 0]
    )
    state, seen = trainer.init(), []
    start = jax.tree.map(np.array, state.initial["learner"])
    for number in range(3):
        state, metrics = trainer.update(state, number)
        seen.append(np.asarray(metrics["kl/learner"]))
    np.testing.assert_allclose(seen[0], 0, atol=1e-9)
    assert seen[2].min() > 1e-6 and seen[2][1] < 0.7 * seen[2][0]
    jax.tree.map(np.testing.assert_array_equal, start, jax.tree.map(np.asarray, state.initial["learner"]))


def test_a_seat_has_its_own_weights_sampling_and_rate():
    settings = Settings(
        seat0="tiny", seat1="tiny", rounds=2, games=8, pool=0, learning_rate=(1e-2, 1e-9), temperature=(1.0, 0.5)
    )
    arm = dataclasses.replace(recipe(settings), warm_start=())
    trainer = Trainer(arm, [arm.all_hparams], [0], models(settings))
    assert [policy_set.sampling[0].temperature for policy_set in trainer.policy_sets.values()] == [1.0, 0.5]
    state = trainer.init()
    before = jax.tree.map(np.array, state.learners.weights)
    state, _ = trainer.update(state, 0)
    moved = jax.tree.map(lambda a, b: float(abs(np.asarray(a) - b).max()), state.learners.weights, before)
    assert max(jax.tree.leaves(moved["seat_1"])) < 1e-8 and max(jax.tree.leaves(moved["seat_0"])) > 1e-3


def test_the_verdict_asks_for_more_than_the_intervals():
    cell = lambda low, high: {"mean": (low + high) / 2, "low": low, "high": high}  # noqa: E731
    before = {"learner": {"cooperation": {"as_A": cell(0.8, 0.9), "as_B": cell(0.2, 0.4)}}}
    after = {"learner": {"cooperation": {"as_A": cell(0.1, 0.2), "as_B": cell(0.1, 0.3)}}}
    assert verdict(Settings(), before, after)["beyond_the_intervals"] == {"as_A": True, "as_B": False}


def test_the_arms_of_the_study_differ_in_two_numbers():
    for arm in STUDY.arms.values():
        assert differences(STUDY.arms["naive"], arm) <= {"hparams"}
        assert {name for name, x in arm.hparams.items() if x != NAIVE.hparams[name]} <= {"joint", "beta"}
    for stated in STUDY.stated:
        assert stated["arm"] in STUDY.arms
    pretrained = for_pretrained(STUDY.arms["sum"])
    assert (pretrained.snapshots, pretrained.seats, pretrained.game.rounds) == (0, (("learner", "learner"),), 3)


def test_who_always_defects_earns_what_the_policy_gives():
    recipe = dataclasses.replace(NAIVE, game=MatrixGame(rounds=3), warm_start=(), group_size=2)
    trainer = Trainer(recipe, [recipe.all_hparams], [0], "tiny")
    found = exploited(trainer)(trainer.weights(trainer.init(), 0))
    cooperation = 1 - found["against always_defect"]
    assert 0 < cooperation < 1 and found["always_defect earns"] == pytest.approx(1 + 4 * cooperation)
    assert abs(found["tit_for_tat earns"] - found["against tit_for_tat"]) <= 5 / 3 + 1e-6  # it pays back but the last


@pytest.mark.slow
def test_three_updates_of_a_real_model_as_a_study(tmp_path):
    assert STUDY.method in with_a_real_model("social_dilemma", tmp_path)
