"""A benchmark whose other side is not installed says so before it loads anything."""

import importlib
import subprocess
import sys

import pytest

from experiments.benchmarks import pairs

SENTENCE = "This benchmark runs transformers beside ours and needs torch: pip install -e '.[bench]'."


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("decoding", {}),
        ("ragged", {"with_afresh": True}),
        ("adapters", {"policies": (1,), "swapped": (1,), "processes": ()}),
        ("accelerator", {"only": ("transformers",)}),
    ],
)
def test_a_benchmark_without_torch_is_one_sentence(name, given, monkeypatch):
    monkeypatch.setattr(pairs, "find_spec", lambda name: None)
    benchmark = importlib.import_module(f"experiments.benchmarks.{name}")
    with pytest.raises(SystemExit) as end:
        benchmark.main(**given)
    assert end.value.code == SENTENCE


@pytest.mark.skipif(pairs.find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("name", ["self_play", "iteration"])
def test_a_command_without_torch_is_one_sentence(name):
    done = subprocess.run([sys.executable, "-m", f"experiments.benchmarks.{name}"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.strip() == SENTENCE
