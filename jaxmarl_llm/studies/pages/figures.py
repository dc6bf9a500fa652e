"""The figures of a page, as SVG: a forest plot of predicted comparisons, and the curves of the metric that decides.

The same results give the same bytes under one version of matplotlib.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from jaxmarl_llm.studies.pages.forest import forest_figure
from jaxmarl_llm.studies.pages.panels import curves_figure
from jaxmarl_llm.studies.pages.results import decisive

FOREST, CURVES = "forest.svg", "curves.svg"


def draw(
    results: Mapping[str, Any], lines: Mapping[str, str], metrics: Sequence[str] | None = None
) -> dict[str, bytes | None]:
    """{file: SVG} of the forest plot and of the curves of metrics, by default of the one that decides.

    `lines` is {metric: its line in about.toml}. None for a figure that has nothing to show. Without matplotlib there
    are no figures.
    """
    if find_spec("matplotlib") is None:
        return {}
    wanted = [decisive(results)] if metrics is None else metrics
    drawn = {
        FOREST: forest_figure(results, lines),
        CURVES: curves_figure(results, [metric for metric in wanted if metric], lines),
    }
    return {name: figure and _svg(figure, results["study"]) for name, figure in drawn.items()}


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
