"""The figures of a page, as SVG: a forest plot of predicted comparisons, and the curves of the metric that decides.

The same results give the same bytes under one version of matplotlib.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from xml.etree import ElementTree

from jaxmarl_llm.studies.pages.forest import forest_figure
from jaxmarl_llm.studies.pages.panels import curves_figure
from jaxmarl_llm.studies.pages.results import decisive

FOREST, CURVES = "forest.svg", "curves.svg"
SPACES = {"": "http://www.w3.org/2000/svg", "xlink": "http://www.w3.org/1999/xlink"}


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
    return _shorter(image.getvalue())


def _shorter(image: str) -> bytes:
    """The same picture in fewer bytes: without metadata, groups that say nothing, and rotations by 0 degrees."""
    for prefix, address in SPACES.items():
        ElementTree.register_namespace(prefix, address)
    root = ElementTree.fromstring(image)
    for child in root.findall("{*}metadata"):
        root.remove(child)
    pending = [root]
    while pending:
        parent = pending.pop()
        children: list[ElementTree.Element] = []
        for child in parent:
            if child.tag.endswith("}g"):
                child.attrib.pop("id", None)
            if child.get("transform", "").startswith("rotate(-0 "):
                del child.attrib["transform"]
            children += child if child.tag.endswith("}g") and not child.attrib else [child]
        if children != list(parent):
            parent[:] = children
            pending.append(parent)
        else:
            pending += children
    for element in root.iter():
        element.text, element.tail = (element.text or "").strip() or None, "\n"
    text = ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")
    for font in set(re.findall(r"font-family: [^;\"]*; ", text)):
        text = text.replace(font, "").replace("butt}", f"butt}} text{{{font.strip('; ')}}}", 1)
    # a tenth of a point is invisible
    rounded = lambda number: re.sub(r"\.0\b", "", re.sub(r"(\.\d)\d+", r"\1", number[0]))
    path = lambda steps: re.sub(r"\s*([A-Za-z])\s*", r"\1", rounded(steps).replace("&#10;", " "))
    text = re.sub(r'(?<= d=")[^"]*', path, text)
    text = re.sub(r'(?<= [xy]=")[-\d.]*', rounded, text)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text.strip()}\n'.encode()
