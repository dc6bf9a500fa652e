"""Labels of the lines of a benchmark's plot; a benchmark whose other side is not installed."""

import importlib
import subprocess
import sys

import pytest

from experiments.benchmarks import pairs
from experiments.benchmarks.adapters import draw
from experiments.benchmarks.pairs import label_of

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


@pytest.mark.parametrize("name", ["self_play", "iteration"])
def test_a_command_without_torch_is_one_sentence(name):
    """In a process in which torch cannot be found, whether it is installed or not."""
    program = f"import runpy, sys; sys.modules['torch'] = None; runpy.run_module('experiments.benchmarks.{name}')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.strip() == SENTENCE


def test_a_line_that_ends_early_says_where_and_why():
    assert label_of("ours", (2, 5, 10), (1.0, 2.0, 4.0), 10, "slow") == "ours"
    assert label_of("theirs", (2, 5, 10), (1.0, 2.0, None), 10, "slow") == "theirs\n(to 5: slow)"
    assert label_of("theirs", (2, 5, 10), (None, None, None), 10, "slow") == "theirs"


def test_the_plot_of_adapters_says_why_processes_end(tmp_path):
    sizes = {"ours": (1, 2, 4), "swapped": (1, 2, 4), "processes": (2,)}
    rows = [
        {"policies": p, "side": side, "seconds": 1.0 * p, "megabytes": 9.0 * p}
        for side, ps in sizes.items()
        for p in ps
    ]
    draw(rows, tmp_path / "plot.svg")
    assert "each holds a base model" in (tmp_path / "plot.svg").read_text()
