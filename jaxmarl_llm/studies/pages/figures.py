"""The figures of a page, as SVG: a forest plot of predicted comparisons, and the curves of the metric that decides.

The same results give the same bytes under one version of matplotlib.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxmarl_llm.studies.pages.format import count
from jaxmarl_llm.studies.pages.results import ENDS, decisive, has, predictions_of
from jaxmarl_llm.studies.predictions import Prediction, judge

# colours that colour-blind readers can tell apart
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
OF_SOURCE = {"paper": OKABE_ITO[0], "theory": OKABE_ITO[2], "pilot": OKABE_ITO[1]}
SIDE = "#e8f0e0"  # the side on which a prediction holds
BANDS, SHOWN = 4, 12  # arms in one panel, and in one figure, at most
ROW = 0.24  # inches of a row


def forest(results: Mapping[str, Any]) -> bytes | None:
    """A panel for each predicted metric, and in it a row for each prediction: effect, interval, predicted side.

    The colour says whose the prediction is. None without a prediction that was measured.
    """
    from matplotlib.figure import Figure

    verdicts = [verdict for verdict in judge(results) if verdict.seeds]
    if not verdicts:
        return None
    by_metric: dict[tuple[str, bool], list[Any]] = {}
    for verdict in verdicts:
        by_metric.setdefault((verdict.prediction.metric, bool(verdict.prediction.than)), []).append(verdict)
    heights = [ROW * len(rows) + 0.62 for rows in by_metric.values()]
    figure = Figure(figsize=(8, sum(heights) + 0.35), layout="constrained")
    panels = figure.subplots(len(by_metric), 1, squeeze=False, height_ratios=heights).ravel()
    for panel, ((metric, compared), rows) in zip(panels, by_metric.items(), strict=True):
        for row, verdict in enumerate(rows):
            mean, low, high = (np.nan if x is None else x for x in verdict.effect.values())
            color = OF_SOURCE[verdict.prediction.source or "theory"]
            panel.plot([low, high], [row, row], color=color, linewidth=2, solid_capstyle="butt")
            filled = color if verdict.outcome != "not shown" else "white"
            mark = "X" if verdict.outcome == "contradicted" else "o"
            panel.plot([mean], [row], mark, color=color, markerfacecolor=filled, markersize=6)
            panel.plot(verdict.prediction.region, [row] * 2, alpha=0)  # the bound is within the axis
        if compared:
            panel.axvline(0, color="#888888", linewidth=0.8, zorder=0)
        panel.set(ylim=(len(rows) - 0.5, -0.5), title=f"difference in {metric}" if compared else metric)
        panel.title.set(fontsize=9)
        ends = panel.get_xlim()
        for row, verdict in enumerate(rows):
            start, end = verdict.prediction.region
            panel.fill_betweenx(
                [row - 0.45, row + 0.45], max(start, ends[0]), min(end, ends[1]), color=SIDE, linewidth=0, zorder=-1
            )
        panel.set_xlim(ends)
        panel.set_yticks(range(len(rows)), [label_of(verdict.prediction) for verdict in rows], fontsize=8)
        panel.tick_params(axis="x", labelsize=8)
        panel.locator_params(axis="x", nbins=6)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"Effects and 95% intervals, {count(len(results['seeds']), 'seed')}; shaded: where the prediction holds; "
        "open: not shown, cross: contradicted\nwhose prediction: the paper's blue, theory's green, a pilot's orange",
        fontsize=8,
    )
    return _svg(figure, results["study"])


def label_of(prediction: Prediction) -> str:
    return f"{prediction.arm} − {prediction.than}" if prediction.than else prediction.arm


def curves(results: Mapping[str, Any], metrics: Sequence[str] | None = None) -> bytes | None:
    """The mean and the 95% Student-t band over seeds of metrics, by default of the one that decides.

    A panel has at most `BANDS` arms. A curve begins before training if an evaluation measured the metric then. None if
    nothing was measured twice.
    """
    from matplotlib.figure import Figure

    wanted = [decisive(results)] if metrics is None else list(metrics)
    drawn = [metric for metric in wanted if metric and _is_drawn(results, metric)]
    panels_of = [(metric, arms) for metric in drawn for arms in _in_parts(results, metric)]
    order = [*dict.fromkeys(arm for _, arms in panels_of for arm in arms)]
    if not panels_of:
        return None
    columns = min(3, len(panels_of))
    lines = math.ceil(len(panels_of) / columns)
    figure = Figure(figsize=(3.4 * columns + 1.2 * (columns == 1), 2.7 * lines + 0.3), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=len(drawn) == 1).ravel()
    for panel, (metric, arms) in zip(panels, panels_of, strict=False):
        for arm in arms:
            _draw_curve(panel, results, arm, metric, order.index(arm), every=1 + (len(panels_of) > 2))
        panel.legend(fontsize=7 if max(map(len, arms)) < 30 else 5, frameon=False, loc="best")
        panel.set_xlabel(results.get("x", "update"), fontsize=8)
        panel.set_ylabel(metric if arms == panels_of[0][1] else "", fontsize=8)
        panel.set_title(metric if len(drawn) > 1 else "", fontsize=9)
        panel.tick_params(labelsize=7, labelbottom=True)
        panel.locator_params(nbins=4)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[len(panels_of) :]:
        panel.axis("off")
    what = f"{drawn[0]}, " if len(drawn) == 1 else ""
    every = {arm for arm, metrics in results["curves"].items() if {*drawn} & {*metrics}}
    shown = {arm for _, arms in panels_of for arm in arms}
    seeds = count(len(results["seeds"]), "seed") + f"; {len(shown)} of {len(every)} arms" * (len(shown) < len(every))
    figure.suptitle(f"{results['study']}, {results['model']}: {what}mean and 95% band, {seeds}", fontsize=9)
    return _svg(figure, results["study"])


def _is_drawn(results: Mapping[str, Any], metric: str) -> bool:
    return any(len(cells[metric]["update"]) > 1 for cells in results["curves"].values() if metric in cells)


def _in_parts(results: Mapping[str, Any], metric: str) -> list[list[str]]:
    """The arms of each panel: those that a prediction compares beside each other, at most `SHOWN`."""
    arms = [arm for arm, metrics in results["curves"].items() if metric in metrics]
    if len(arms) > BANDS:
        named = [arm for x in predictions_of(results) if x.metric == metric for arm in x.arms]
        arms = [*dict.fromkeys(arm for arm in (*named, *arms) if arm in arms)][:SHOWN]
    return [arms[i : i + BANDS] for i in range(0, len(arms), BANDS)]


def _draw_curve(panel: Any, results: Mapping[str, Any], arm: str, metric: str, place: int, every: int) -> None:
    """Draws one of `every` points, the last one included."""
    curve = results["curves"][arm][metric]
    update, mean, low, high = (np.array(curve[x], np.float64)[::-every][::-1] for x in ("update", *ENDS))
    if has(before := results["before"].get(arm, {}), metric):  # an evaluation follows its update
        began = [np.array([before[metric][x]], np.float64) for x in ENDS]
        mean, low, high = (np.concatenate(x) for x in zip(began, (mean, low, high), strict=True))
        update = np.concatenate([[0], update + 1])
    color, dash = OKABE_ITO[place % len(OKABE_ITO)], ("-", "--", "-.", ":")[place % BANDS]
    panel.plot(update, mean, dash, color=color, label=arm, linewidth=1.2)
    panel.fill_between(update, low, high, alpha=0.15, color=color, linewidth=0)


def _svg(figure: Any, salt: str) -> bytes:
    import matplotlib

    image = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}):
        figure.savefig(image, format="svg", metadata={"Date": None, "Creator": None})
    # a tenth of a point is invisible
    shorter = lambda path: re.sub(r"\.0\b", "", re.sub(r"(\.\d)\d+", r"\1", path[0]))
    text = re.sub(r'(?<= d=")[^"]*', shorter, image.getvalue())
    text = re.sub(r'(?<= [xy]=")[-\d.]*', shorter, text)
    return "\n".join(line.strip() for line in text.splitlines()).encode() + b"\n"
