"""The script for one GPU: what it carries, and the command of each of its jobs, without a run."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile

import pytest
import tyro

from experiments.benchmarks import accelerator
from jaxmarl_llm.studies import registry
from jaxmarl_llm.studies.settings import Settings, select_arms
from jaxmarl_llm.training.recipe import Recipe
from tests.support.budget import ROOT

SCRIPT = ROOT / "experiments/clusters/one_gpu.sh"
BENCHMARKS = {"decoding", "steps"}


def call(home, job, **settings):
    """The finished process of a job whose Python writes its arguments to `asked`, a line each call."""
    python = home / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\t" "$@" >> {home}/asked\necho >> {home}/asked\ncat > /dev/null\n')
    python.chmod(0o755)
    given = {"KEPT": home / "kept", "CARRIED": home / "carried", "PYTHON": python} | settings
    environment = os.environ | {name: str(value) for name, value in given.items()}
    command = ["bash", str(SCRIPT), job, str(home / "out")]
    return subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def asked(home) -> list[list[str]]:
    """The arguments of `python -m` of every command that was given."""
    lines = [line.split("\t")[:-1] for line in (home / "asked").read_text().splitlines()]
    return [words[1:] for words in lines if words[0] == "-m"]


def jobs() -> list[str]:
    """The jobs of the script's `case`."""
    text = SCRIPT.read_text().partition("case $job in")[2]
    return [job for line in re.findall(r"^  ([a-z_ |]+)\)", text, re.M) for job in line.split(" | ")]


@pytest.mark.parametrize("job", sorted({*jobs()} - BENCHMARKS - {"carry"}))
def test_a_job_is_a_command_of_a_study_whose_recipes_can_run(tmp_path, job):
    ended = call(tmp_path, job, SEEDS=3, EXTRA="--updates 7")
    commands = asked(tmp_path)
    assert commands and ended.returncode in (0, *([1] if job in ("bits", "models") else [])), ended.stderr
    for module, *words in commands:
        assert module == "experiments"
        settings = tyro.cli(Settings, args=words)
        study = registry.load("experiments", settings.study).study
        arms = select_arms(settings.for_study(study), study)
        assert arms and all(isinstance(arm, Recipe) and arm.updates == 7 for arm in arms.values())
        assert settings.seeds == 3 or job in ("bits", "models")
        for arm in arms.values():
            arm.check()


@pytest.mark.parametrize("job", sorted(BENCHMARKS))
def test_a_benchmark_measures_what_the_settings_name(tmp_path, monkeypatch, job):
    assert call(tmp_path, job, ROWS="2 4", SLOTS="192", ATTENTIONS="plain", GPU_MODEL="some").returncode == 0
    ((module, *words),) = asked(tmp_path)
    given: dict = {}
    assert module == "experiments.benchmarks.accelerator"
    monkeypatch.setattr(accelerator, "alone", lambda function, source, *more: more)
    monkeypatch.setattr(accelerator, "show", lambda results: given.update(results))
    tyro.cli(accelerator.main, args=words)
    assert (
        given["some"]
        == {
            "decoding": {"decoding": ("smollm2", (2, 4), (192,), 3)},
            "steps": {f"plain, policies: {n}": ("smollm2", "plain", n, 16, 3) for n in (1, 2)},
        }[job]
    )


def test_a_wheel_that_travels_in_pieces_is_installed_when_all_are_there(tmp_path):
    carried, name = tmp_path / "carried", "toy-1.0-py3-none-any.whl"
    carried.mkdir()
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("toy.py", "NUMBER = 3\n")
        wheel.writestr("toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        wheel.writestr("toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("toy-1.0.dist-info/RECORD", "toy.py,,\n")
    whole = (tmp_path / name).read_bytes()
    (carried / f"{name}.whole").write_text(f"{hashlib.sha256(whole).hexdigest()}  {name}\n")
    for number, piece in enumerate((whole[:300], whole[300:])):
        for old in carried.glob("*.part*"):
            old.unlink()  # a transfer brings one piece
        (carried / f"{name}.part0{number}").write_bytes(piece)
        ended = call(tmp_path, "carry", PYTHON=sys.executable)
        assert ended.returncode == 0, ended.stderr
        assert (f"{name} is not whole yet" in ended.stdout) == (number == 0)
        assert (tmp_path / "kept/site/toy.py").exists() == (number == 1)


def test_a_job_without_time_left_is_one_to_continue_and_an_unknown_one_is_named(tmp_path):
    late = call(tmp_path, "co_players", SECONDS_AT_MOST=0)
    assert late.returncode == 75 and not (tmp_path / "asked").exists()
    unknown = call(tmp_path, "no_job")
    assert unknown.returncode == 2 and unknown.stderr == "Unknown job no_job\n"
