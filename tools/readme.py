"""The generated parts of the README: its picture, and its tables of methods and games.

python tools/readme.py     # writes docs/overview.svg, and the tables between their marks in README.md
"""

from __future__ import annotations

import ast
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

from jaxmarl_llm import environments
from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.studies.pages import results
from jaxmarl_llm.studies.pages.about import read_about
from jaxmarl_llm.studies.pages.facets import OKABE_ITO
from jaxmarl_llm.studies.pages.format import markdown
from jaxmarl_llm.studies.pages.index import kind
from jaxmarl_llm.studies.pages.page import is_counted, standing
from jaxmarl_llm.studies.predictions import judge

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "experiments/results"
# {name: (title, shapes, x and y of the center)}
BOXES = {
    "play": ("games x policies", "prompts, sampling, parsing,\nrules, rewards", 0.25, 0.73),
    "record": ("trajectory", "tokens, logp  [rows, tokens]\nreward  [games, turns, seats]", 0.75, 0.73),
    "advantage": ("advantage, per agent", "[games, turns, seats]", 0.75, 0.3),
    "update": ("loss and update", "logp, advantage, mask\n[rows, sampled tokens]", 0.25, 0.3),
}
ARROWS = (("play", "record"), ("record", "advantage"), ("advantage", "update"), ("update", "play"))
WIDTH, HEIGHT = 0.44, 0.26


def loop(axes: Axes) -> None:
    """Draws the four stages of an update inside one jit."""
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
    """Draws the mean and the 95% band of a metric for every arm."""
    for color, (arm, metrics) in zip(OKABE_ITO, results["curves"].items(), strict=False):
        x, mean, low, high = (np.array(metrics[metric][key], float) for key in ("update", "mean", "low", "high"))
        axes.plot(x, mean, color=color, label=arm)
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    axes.set(xlabel="update", ylabel="points a round in self-play", ylim=(0.9, 3.1))
    axes.set_title(f"iterated prisoner's dilemma, {len(results['seeds'])} seeds, 95% bands", fontsize=10)
    axes.legend(frameon=False, loc="center right", title="credit")
    axes.spines[["top", "right"]].set_visible(False)


def picture(results: dict[str, Any]) -> bytes:
    """The picture as SVG; the same results give the same bytes under one version of matplotlib."""
    figure, image = Figure(figsize=(10, 3.6), layout="constrained"), io.StringIO()
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    loop(left)
    curves(right, results, "points")
    with matplotlib.rc_context({"svg.hashsalt": "overview", "svg.fonttype": "none"}):
        figure.savefig(image, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", image.getvalue(), flags=re.MULTILINE).encode()


# studies from which one learns something, each of another question
CHOSEN = (
    "mars", "dr_mas", "search_self_play", "cooper", "votes", "horizon", "exploitability", "co_players", "punishment",
    "trust_and_split",
)  # fmt: skip


def methods() -> str:
    """The count of the papers' directions, and a table of ten studies: question, page, finding, status."""
    judged = []
    for file in sorted(RUNS.glob("*/results.json")):
        verdicts = judge(run := results.load(file))
        judged += [(verdicts, "frozen" in run)] * is_counted(verdicts, read_about(file.parent))
    papers = [(x.outcome, before) for verdicts, before in judged for x in verdicts if x.prediction.source == "paper"]
    outcomes = [outcome for outcome, _ in papers]
    told = (
        f"Of {len(outcomes)} comparisons drawn from papers {outcomes.count('holds')} hold in these small settings, "
        f"{outcomes.count('contradicted')} are contradicted, {outcomes.count('not shown')} are not shown; "
        f"{sum(before for _, before in papers)} were frozen before a run on new seeds, the others sorted after their "
        "table. A study whose setting cannot show the claim, or whose condition failed, is not counted."
    )
    rows: list[Any] = [("question", "study", "found", "status")]
    for name in CHOSEN:
        file = RUNS / name / "results.json"
        run, about = results.load(file), read_about(file.parent)
        waits = "frozen" not in run and not about.get("unfit")
        short = about["short"] if about["run"] == results.run_of(run) else ""
        page = f"[{name}]({file.parent.relative_to(ROOT).as_posix()}/README.md)"
        rows.append(
            (
                run["question"],
                page,
                short,
                f"{standing(judge(run), about)}, {kind(run)}{', not yet frozen' * waits}",
            )
        )
    return f"{told}\n\n{markdown(rows)}"


def games() -> str:
    """A table with a row for each file of games: the title of its docstring, and the names of its games."""
    rows: list[Any] = [("genre", "names")]
    for file in sorted(Path(environments.__file__).parent.rglob("*.py"), key=lambda file: file.stem):
        names = [
            name for name, game in REGISTRY.items() if getattr(game, "func", game).__module__.endswith(f".{file.stem}")
        ]
        if names:
            first = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
            genre = re.split("[:;]", " ".join(first.rstrip(".").split()))[0]
            rows.append((genre, ", ".join(f"`{name}`" for name in names)))
    return markdown(rows)


def fill(readme: str) -> str:
    """The text of the README with both tables replaced."""
    for name, table in (("methods", methods()), ("games", games())):
        mark = re.compile(rf"(<!-- {name}[^>]* -->\n).*?(\n<!-- end -->)", re.DOTALL)
        readme = mark.sub(lambda match, table=table: match[1] + table + match[2], readme)
    return readme


if __name__ == "__main__":
    (ROOT / "docs/overview.svg").write_bytes(
        picture(json.loads((RUNS / "social_dilemma/results.json").read_text(encoding="utf-8")))
    )
    (ROOT / "README.md").write_text(fill((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
