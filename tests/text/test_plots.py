"""Curves in a terminal: heights are in proportion, and nothing is wider than it may be."""

import math

import pytest

from jaxmarl_llm.text.plots import plot, sparkline


def test_a_sparkline_spans_its_values():
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([5.0, 5.0]) == sparkline([0.0, 0.0]) == sparkline([-2.0, -2.0]) == "▁▁"
    assert sparkline([0.48, 0.492, 0.48]) == "▁▂▁" and sparkline([0.0, 0.02]) == "▁▂"
    assert sparkline([100.0, 101.0]) == "▁▁" and sparkline([-0.02, 0.02]) == "▁█"
    assert sparkline([0.0, math.nan, 7.0, 3.5]) == "▁ █▅"
    assert sparkline([math.nan]) == sparkline([]) == ""
    falling = [1 - i / 40 for i in range(41)]
    line = sparkline(falling)
    assert len(line) == 16 and line[-1] == "▁" and "█" not in line  # the highest values have left the picture


def test_a_plot_has_columns_in_proportion():
    assert len(plot([math.nan, 1.0], 0.0, 1.0)) == 9
    lines = plot([1.0, 0.5, 0.0, -1.0, 2.0], 0.0, 1.0, height=4, width=10)
    assert len(lines) == 5 and lines[0].startswith("  1.00 ┤") and lines[-1] == "  0.00 ┼" + "─" * 10
    body = [line[8:].ljust(10) for line in lines[:-1]]
    columns = ["".join(line[2 * i] for line in body).strip() for i in range(5)]
    assert [len(column) for column in columns] == [4, 2, 0, 0, 4]
    assert all(line[2 * i] == line[2 * i + 1] for line in body for i in range(5))


@pytest.mark.parametrize("values", [[], [0.0] * 61])
def test_a_plot_that_does_not_fit_is_refused(values):
    with pytest.raises(ValueError, match="A plot of width 60 takes 1 to 60 values"):
        plot(values, 0, 1)
