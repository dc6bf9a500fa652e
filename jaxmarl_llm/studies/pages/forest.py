"""The forest plot of a page: predicted comparisons with their effects and intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxmarl_llm.studies.pages.about import axis_in
from jaxmarl_llm.studies.pages.facets import OKABE_ITO
from jaxmarl_llm.studies.pages.format import count
from jaxmarl_llm.studies.pages.verdicts import Verdict, judge
from jaxmarl_llm.studies.predictions import Prediction

OF_SOURCE = {"paper": OKABE_ITO[0], "theory": OKABE_ITO[2], "pilot": OKABE_ITO[1]}
TOLD = {"paper": "the paper's", "theory": "theory's", "pilot": "a pilot's"}
SIDE = "#e8f0e0"  # the side on which a prediction holds
ROW, WIDE = 0.24, 44  # inches of a line of text; letters of a label on one line


def forest_figure(results: Mapping[str, Any], lines: Mapping[str, str]) -> Any:
    """A matplotlib figure with a panel for each predicted metric, and in it a row for each prediction.

    A row has the effect, its interval and the predicted side. `lines` is {metric: its line in about.toml}. None without
    a prediction that was measured.
    """
    from matplotlib.figure import Figure

    verdicts = [verdict for verdict in judge(results) if verdict.seeds]
    if not verdicts:
        return None
    by_metric: dict[tuple[str, bool], list[Verdict]] = {}
    for verdict in verdicts:
        by_metric.setdefault((verdict.prediction.metric, bool(verdict.prediction.than)), []).append(verdict)
    heights = [_height(rows) for rows in by_metric.values()]
    figure = Figure(figsize=(8, sum(heights) + 0.6), layout="constrained")
    panels = figure.subplots(len(by_metric), 1, squeeze=False, height_ratios=heights).ravel()
    for panel, ((metric, compared), rows) in zip(panels, by_metric.items(), strict=True):
        direction = axis_in(results, metric, lines).direction
        title = (f"difference in {metric}" if compared else metric) + (f" ({direction})" if direction else "")
        _draw(panel, rows)
        panel.set_title(title, fontsize=9, loc="left")
        if compared:
            panel.axvline(0, color="#888888", linewidth=0.8, zorder=0)
    _explain(figure, verdicts, f"Effects and 95% intervals, {count(len(results['seeds']), 'seed')}")
    return figure


def label_of(prediction: Prediction) -> str:
    """The arms of a prediction, on two lines if one is too short."""
    if not prediction.than:
        return prediction.arm
    line = f"{prediction.arm} − {prediction.than}"
    return line if len(line) <= WIDE else f"{prediction.arm}\n− {prediction.than}"


def _height(rows: Sequence[Verdict]) -> float:
    """Inches of a panel."""
    text = max(1 + label_of(verdict.prediction).count("\n") for verdict in rows)
    return ROW * len(rows) * (1 + 0.5 * (text - 1)) + 0.62


def _draw(panel: Any, rows: Sequence[Verdict]) -> None:
    """Draws the rows of a panel. Rows that look alike are one artist, which keeps the file small."""
    looks: dict[tuple[str, str], list[tuple[int, Verdict]]] = {}
    for row, verdict in enumerate(rows):
        looks.setdefault((verdict.prediction.source or "theory", verdict.outcome), []).append((row, verdict))
    for (source, outcome), alike in looks.items():
        places, color = [row for row, _ in alike], OF_SOURCE[source]
        ends = [[np.nan if x is None else x for x in verdict.effect.values()] for _, verdict in alike]
        means, lows, highs = zip(*ends, strict=True)
        panel.hlines(places, lows, highs, color=color, linewidth=2)
        panel.plot(means, places, linestyle="none", color=color, **_mark(outcome, color))
    regions = [verdict.prediction.region for verdict in rows]
    bounds = [end for region in regions for end in region if math.isfinite(end)]
    panel.update_datalim([(end, 0) for end in bounds])  # the bound is within the axis
    panel.autoscale_view(scaley=False)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    left, right = panel.get_xlim()
    starts = [max(start, left) for start, _ in regions]
    widths = [min(end, right) - start for (_, end), start in zip(regions, starts, strict=True)]
    panel.barh(range(len(rows)), widths, left=starts, height=0.9, color=SIDE, linewidth=0, zorder=-1)
    panel.set_xlim(left, right)
    panel.set_yticks(range(len(rows)), [label_of(verdict.prediction) for verdict in rows], fontsize=8)
    panel.tick_params(axis="x", labelsize=8)
    panel.locator_params(axis="x", nbins=6)
    panel.spines[["top", "right"]].set_visible(False)


def _mark(outcome: str, color: str) -> dict[str, Any]:
    """The mark of an effect: filled where the prediction holds, open where it is not shown, a cross against it."""
    if outcome == "contradicted":
        return {"marker": "x", "markersize": 6, "markeredgewidth": 2.5}
    return {"marker": "o", "markersize": 6, "markerfacecolor": color if outcome == "holds" else "white"}


def _explain(figure: Any, verdicts: Sequence[Verdict], title: str) -> None:
    """A legend of the colours and the marks that the figure has."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sources = {verdict.prediction.source or "theory" for verdict in verdicts}
    outcomes = {verdict.outcome for verdict in verdicts}
    handles: list[Any] = [
        Line2D([], [], color=color, linewidth=2, label=TOLD[source])
        for source, color in OF_SOURCE.items()
        if source in sources
    ]
    handles += [
        Line2D([], [], color="#444444", linestyle="none", label=outcome, **_mark(outcome, "#444444"))
        for outcome in ("holds", "not shown", "contradicted")
        if outcome in outcomes
    ]
    handles.append(Patch(color=SIDE, label="predicted side"))
    figure.legend(
        handles=handles,
        title=title,
        loc="outside upper center",
        ncols=len(handles),
        fontsize=7.5,
        title_fontsize=9,
        frameon=False,
        handlelength=1.5,
        columnspacing=1.4,
    )
