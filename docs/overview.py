"""The README's picture: the loop with its shapes, and the learning curves of one study.

python docs/overview.py     # writes docs/overview.svg from experiments/results/social_dilemma/results.json
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from jaxmarl_llm.studies.pages import OKABE_ITO

HERE = Path(__file__).parent
RESULTS = HERE.parent / "experiments/results/social_dilemma/results.json"
# what a box says, its shapes, where it stands: x, y of its middle
BOXES = {
    "play": ("games x policies", "prompts, sampling, parsing,\nrules, rewards", 0.25, 0.73),
    "record": ("trajectory", "tokens, logp  [rows, tokens]\nreward  [games, turns, seats]", 0.75, 0.73),
    "advantage": ("advantage, per agent", "[games, turns, seats]", 0.75, 0.3),
    "update": ("loss and update", "logp, advantage, mask\n[rows, sampled tokens]", 0.25, 0.3),
}
ARROWS = (("play", "record"), ("record", "advantage"), ("advantage", "update"), ("update", "play"))
WIDTH, HEIGHT = 0.44, 0.26


def loop(axes: Axes) -> None:
    """Draws the four stages of an update, which one jit holds."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    frame = {"boxstyle": "round,pad=0,rounding_size=0.03", "linewidth": 1.2}
    axes.add_patch(FancyBboxPatch((0.005, 0.1), 0.99, 0.83, fc="#f7f7f7", ec="#999999", linestyle="--", **frame))
    axes.text(
        0.5, 0.06, "one jit, over a device mesh: no Python between tokens", ha="center", va="top", color="#555555"
    )
    for title, shapes, x, y in BOXES.values():
        corner = (x - WIDTH / 2, y - HEIGHT / 2)
        axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, fc="white", ec=OKABE_ITO[0], **frame))
        axes.text(x, y + 0.07, title, ha="center", va="center", weight="bold")
        axes.text(x, y - 0.04, shapes, ha="center", va="center", fontsize=8, color="#333333")
    for start, end in ARROWS:
        (*_, x, y), (*_, x2, y2) = BOXES[start], BOXES[end]
        dx, dy = np.sign([x2 - x, y2 - y]) * [WIDTH / 2, HEIGHT / 2]
        axes.annotate("", (x2 - dx, y2 - dy), (x + dx, y + dy), arrowprops={"arrowstyle": "-|>", "color": "#333333"})


def curves(axes: Axes, results: dict[str, Any], metric: str) -> None:
    """Draws every arm's mean and 95% band of a metric."""
    for color, (arm, found) in zip(OKABE_ITO, results["curves"].items(), strict=False):
        x, mean, low, high = (np.array(found[metric][key], float) for key in ("update", "mean", "low", "high"))
        axes.plot(x, mean, color=color, label=arm)
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    axes.set(xlabel="update", ylabel="points a round in self-play", ylim=(0.9, 3.1))
    axes.set_title(f"iterated prisoner's dilemma, {len(results['seeds'])} seeds, 95% bands", fontsize=10)
    axes.legend(frameon=False, loc="center right", title="credit")
    axes.spines[["top", "right"]].set_visible(False)


def picture(results: dict[str, Any]) -> bytes:
    """The SVG; the same results give the same bytes, with one version of matplotlib."""
    figure, image = Figure(figsize=(10, 3.6), layout="constrained"), io.StringIO()
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    loop(left)
    curves(right, results, "points")
    with matplotlib.rc_context({"svg.hashsalt": "overview", "svg.fonttype": "none"}):
        figure.savefig(image, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", image.getvalue(), flags=re.MULTILINE).encode()


if __name__ == "__main__":
    (HERE / "overview.svg").write_bytes(picture(json.loads(RESULTS.read_text())))
