"""The learning curves of a page, in panels."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxmarl_llm.evaluation.statistics import student_interval
from jaxmarl_llm.studies.pages.about import Axis, axis_in
from jaxmarl_llm.studies.pages.facets import Style, facets, is_drawn, styles_of
from jaxmarl_llm.studies.pages.format import count
from jaxmarl_llm.studies.pages.results import ENDS, FEW, has

LINE = 34  # letters of a y label on one line
HALF = 17  # letters of a name beside which another one fits in a legend


def curves_figure(results: Mapping[str, Any], metrics: Sequence[str], lines: Mapping[str, str]) -> Any:
    """A matplotlib figure with the curves of metrics: the mean over seeds, and its 95% Student-t band or the seeds.

    A curve begins before training if an evaluation measured the metric then. A metric that is the same number
    everywhere has no panel. `lines` is {metric: its line in about.toml}. None if no panel is left.
    """
    from matplotlib.figure import Figure

    drawn = [metric for metric in metrics if is_drawn(results, metric)]
    panels_of = [(metric, arms) for metric in drawn for arms in facets(results, metric)]
    if not panels_of:
        return None
    styles = styles_of([arms for _, arms in panels_of])
    columns = 2 if len(panels_of) == 4 else min(3, len(panels_of))
    rows = [panels_of[i : i + columns] for i in range(0, len(panels_of), columns)]
    heights = [2.4 + 0.15 * max(len(_legend(arms)[0]) for _, arms in row) for row in rows]
    figure = Figure(figsize=(3.4 * columns + 1.2 * (columns == 1), sum(heights) + 0.3), layout="constrained")
    shared = len(drawn) == 1
    panels = figure.subplots(len(rows), columns, squeeze=False, sharex=True, sharey=shared, height_ratios=heights)
    every = 1 + (len(panels_of) > 2) + (len(panels_of) > 4)
    for place, panel in enumerate(panels.ravel()):
        if place >= len(panels_of):
            panel.axis("off")
            continue
        metric, arms = panels_of[place]
        axis = axis_in(results, metric, lines)
        for arm in arms:
            _draw_curve(panel, results, arm, metric, styles[arm], axis, every)
        if axis.chance is not None:
            panel.axhline(axis.chance, color="#777777", linestyle=(0, (1, 2)), linewidth=0.9, label="chance")
        _dress(panel, arms, results.get("x", "update"))
        panel.set_ylabel(_y_label(metric, axis) if not shared or place % columns == 0 else "", fontsize=8)
    figure.suptitle(textwrap.fill(_title(results, drawn, styles), round(14 * figure.get_figwidth())), fontsize=9)
    return figure


def _legend(arms: Sequence[str]) -> tuple[list[Sequence[str]], int]:
    """The lines of a legend, and its columns: two where the names are short."""
    columns = 2 if max(map(len, arms)) <= HALF else 1
    return [arms[i : i + columns] for i in range(0, len(arms), columns)], columns


def _dress(panel: Any, arms: Sequence[str], x: str) -> None:
    """A legend above the axes, so that it covers no curve, and the x axis."""
    columns = _legend(arms)[1]
    panel.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        fontsize=7,
        frameon=False,
        borderaxespad=0.1,
        labelspacing=0.3,
        columnspacing=1.2,
    )
    panel.set_xlabel(x, fontsize=8)
    panel.tick_params(labelsize=7, labelbottom=True)
    panel.locator_params(axis="y", nbins=4)
    panel.locator_params(axis="x", nbins=4, integer=True)
    panel.spines[["top", "right"]].set_visible(False)


def _y_label(metric: str, axis: Axis) -> str:
    if not axis.direction:
        return textwrap.fill(metric, LINE)
    line = f"{metric} ({axis.direction})"
    return line if len(line) <= LINE else f"{textwrap.fill(metric, LINE)}\n({axis.direction})"


def _title(results: Mapping[str, Any], drawn: Sequence[str], shown: Mapping[str, Style]) -> str:
    seeds = len(results["seeds"])
    curves = [cells[metric] for cells in results["curves"].values() for metric in drawn if metric in cells]
    spread = "mean and 95% band"
    if seeds <= FEW and all(seeds < 3 or "seeds" in curve for curve in curves):
        spread = "mean and single seeds" if seeds > 1 else "one seed"
    every = [arm for arm, metrics in results["curves"].items() if {*drawn} & {*metrics}]
    parts = [f"{drawn[0]}, " if len(drawn) == 1 else "", spread, f", {seeds} seeds" if seeds > 1 else ""]
    part = f"; {len(shown)} of {count(len(every), 'arm')}" if len(shown) < len(every) else ""
    return f"{results['study']}, {results['model']}: {''.join(parts)}{part}"


def _draw_curve(
    panel: Any, results: Mapping[str, Any], arm: str, metric: str, style: Style, axis: Axis, every: int
) -> None:
    """Draws one of `every` points, the last one included: the mean, and the seeds, or a band within the range."""
    cells = results["curves"][arm][metric]
    before = results["before"].get(arm, {})
    curve = {"mean": cells["mean"], "low": cells["low"], "high": cells["high"], "seeds": _seeds_of(cells, results)}
    rows = {name: np.atleast_2d(np.array(x, np.float64))[:, ::-every][:, ::-1] for name, x in curve.items()}
    update = np.array(cells["update"], np.float64)[::-every][::-1]
    if has(before, metric):  # an evaluation follows its update
        first = before[metric]["per_seed"]
        first = first if "seeds" in cells else sorted(first, reverse=True)  # curves from a band: the upper one first
        began = {end: [[before[metric][end]]] for end in ENDS} | {"seeds": np.array([first]).T}
        rows = {name: _prepend(began[name], x) for name, x in rows.items()}
        update = np.concatenate([[0], update + 1])
    for seed in rows["seeds"]:
        panel.plot(update, seed, style.dash, color=style.color, linewidth=0.6, alpha=0.6)
    panel.plot(update, rows["mean"][0], style.dash, color=style.color, label=arm, linewidth=1.4)
    if not rows["seeds"].size:
        low, high = (np.clip(rows[end][0], axis.low, axis.high) for end in ("low", "high"))
        panel.fill_between(update, low, high, alpha=0.15, color=style.color, linewidth=0)


def _prepend(first: Any, rows: np.ndarray) -> np.ndarray:
    """Rows [n, points] with one point more, [n, 1], before the others."""
    return np.concatenate([np.array(first, np.float64)[: len(rows)], rows], 1) if len(rows) else rows


def _seeds_of(cells: Mapping[str, Any], results: Mapping[str, Any]) -> Any:
    """The curve of each seed, [seeds, points], where there are few: none for one seed, whose mean it is.

    Two seeds that were not recorded follow from the band: the upper one and the lower one of each point.
    """
    seeds = len(results["seeds"])
    if seeds == 2 and "seeds" not in cells:
        mean, high = (np.array(cells[end], np.float64) for end in ("mean", "high"))
        half = (high - mean) / student_interval((-1, 1))[2]
        return np.stack([mean + half, mean - half])
    if 1 < seeds <= FEW and "seeds" in cells:
        return cells["seeds"]
    return np.zeros((0, len(cells["update"])))
