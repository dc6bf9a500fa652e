"""Labels of the lines of a benchmark's plot."""

from experiments.benchmarks.adapters import draw
from experiments.benchmarks.pairs import label_of


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
