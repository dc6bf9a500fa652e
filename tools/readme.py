"""The generated parts of the README: its picture, and its tables of methods and games.

python tools/readme.py                      # writes docs/overview.svg, and the tables between their marks in README.md
python tools/readme.py runs/demo runs/1     # takes these runs of the demo into docs/demo.json before
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.studies.pages import results
from jaxmarl_llm.studies.pages.about import read_about
from jaxmarl_llm.studies.pages.facets import OKABE_ITO
from jaxmarl_llm.studies.pages.format import markdown
from jaxmarl_llm.studies.pages.index import kind
from jaxmarl_llm.studies.pages.page import is_counted, standing, waiting
from jaxmarl_llm.studies.pages.verdicts import judge

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "experiments/results"
DEMO = ROOT / "docs/demo.json"
# {name: (title, shapes, x and y of the center)}
BOXES = {
    "play": ("games x policies", "prompts, sampling,\nrules, rewards", 0.25, 0.73),
    "record": ("trajectory", "tokens, logp\n[rows, tokens]", 0.75, 0.73),
    "advantage": ("advantage, per agent", "[games, turns, seats]", 0.75, 0.3),
    "update": ("loss and update", "[rows, sampled tokens]", 0.25, 0.3),
}
ARROWS = (("play", "record"), ("record", "advantage"), ("advantage", "update"), ("update", "play"))
WIDTH, HEIGHT = 0.46, 0.26
INK = "#808080"  # read on white and on black
COLORS = {"cooperate": OKABE_ITO[0], "defect": OKABE_ITO[1]}


def loop(axes: Axes) -> None:
    """Draws the four stages of an update inside one jit."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    axes.set_title("one update, in one jit, over a device mesh", fontsize=9, color=INK)
    frame = {"boxstyle": "round,pad=0,rounding_size=0.03", "linewidth": 1.2}
    for title, shapes, x, y in BOXES.values():
        corner = (x - WIDTH / 2, y - HEIGHT / 2)
        axes.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, fc="none", ec=OKABE_ITO[0], **frame))
        axes.text(x, y + 0.06, title, ha="center", va="center", weight="bold", fontsize=8, color=INK)
        axes.text(x, y - 0.04, shapes, ha="center", va="center", fontsize=7, color=INK)
    for start, end in ARROWS:
        (*_, x, y), (*_, x2, y2) = BOXES[start], BOXES[end]
        dx, dy = np.sign([x2 - x, y2 - y]) * [WIDTH / 2, HEIGHT / 2]
        axes.annotate("", (x2 - dx, y2 - dy), (x + dx, y + dy), arrowprops={"arrowstyle": "-|>", "color": INK})


def answers(axes: Axes, told: list[dict[str, Any]]) -> None:
    """Draws the answers that a policy would give before and after training, under both meanings of the letters."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    axes.set_title("SmolLM2-135M is told, and says", fontsize=9, color=INK)
    for place, line in enumerate(told):
        top = 0.9 - 0.5 * place
        means = ", ".join(f"{letter} means {move}" for letter, move in sorted(line["means"].items()))
        axes.text(0, top, f"... {means}. Answer A or B.", fontsize=8, color=INK, style="italic", va="center")
        for row, when in enumerate(("before", "after")):
            y, left = top - 0.15 * (row + 1), 0.2
            axes.text(0.17, y, when, fontsize=8, color=INK, ha="right", va="center")
            for letter, share in sorted(line[when].items(), key=lambda pair: line["means"].get(pair[0], "")):
                width = 0.78 * share
                axes.barh(y, width, 0.11, left, color=COLORS.get(line["means"].get(letter, ""), INK))
                if width > 0.05:
                    axes.text(left + width / 2, y, letter, color="white", weight="bold", ha="center", va="center")
                left += width
    for x, (move, color) in zip((0.2, 0.62), COLORS.items(), strict=True):
        axes.text(x, -0.03, f"■ {move}", fontsize=8, color=color, va="center")


def curves(axes: Axes, cooperation: dict[str, list[float]]) -> None:
    """Draws the cooperation of every seed of the demo."""
    for color, values in zip(OKABE_ITO, cooperation.values(), strict=False):
        axes.plot(range(1, len(values) + 1), values, color=color)
    updates = max(map(len, cooperation.values()))
    axes.set(ylim=(-0.03, 0.7), xlim=(1, updates), xticks=range(5, updates + 1, 5))
    axes.text(updates, 0.62, f"{len(cooperation)} seeds", color=INK, fontsize=8, ha="right")
    axes.set_title("make demo: cooperation by update", fontsize=9, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=8)


def picture(demo: dict[str, Any]) -> bytes:
    """The picture as SVG; the same runs give the same bytes under one version of matplotlib."""
    figure, image = Figure(figsize=(10, 2.9), layout="constrained"), io.StringIO()
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.1, 1, 1))
    loop(left)
    answers(middle, demo["told"])
    curves(right, demo["cooperation"])
    with matplotlib.rc_context({"svg.hashsalt": "overview", "svg.fonttype": "none"}):
        figure.savefig(image, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return re.sub(r"[ \t]+$", "", image.getvalue(), flags=re.MULTILINE).encode()


def read_demo(runs: list[Path]) -> dict[str, Any]:
    """The facts of finished demos that the picture shows: every run's cooperation, and the first run's answers before
    and after training, under both meanings of the letters."""
    cooperation: dict[str, list[float]] = {}
    told: dict[str, dict[str, Any]] = {}
    for run in runs:
        (home,) = run.glob("naive-*")
        lines = [json.loads(line) for line in (home / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        cooperation[str(lines[0]["seed"])] = [round(line["cooperation"], 4) for line in lines]
    (home,) = runs[0].glob("naive-*")
    for line in (home / "games.jsonl").read_text(encoding="utf-8").splitlines():
        game = json.loads(line)
        seat = game["seats"][0]
        means = dict(re.findall(r"\b([AB]) means (\w+)", seat["messages"][0]["content"]))
        shown = told.setdefault(means["A"], {"means": means})
        shown["after" if game["update"] else "before"] = dict(seat["answers"][0]["tokens"][0]["top"])
    return {"cooperation": cooperation, "told": [told[move] for move in sorted(told)]}


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
    counted = [(x, before) for verdicts, before in judged for x in verdicts if not x.prediction.condition]
    papers = [(x.outcome, before) for x, before in counted if x.prediction.source == "paper"]
    outcomes, frozen = [outcome for outcome, _ in papers], sum(before for _, before in papers)
    rest = "" if frozen == len(papers) else "; the others were sorted after theirs"
    told = (
        f"Of {len(outcomes)} predictions drawn from papers {outcomes.count('holds')} hold in these small settings, "
        f"{outcomes.count('contradicted')} are contradicted, {outcomes.count('not shown')} are not shown; "
        f"{frozen if rest else 'all'} were frozen before a run on new seeds, most after an earlier table{rest}. A "
        "study whose setting cannot show the claim, or whose condition failed, is not counted."
    )
    rows: list[Any] = [("question", "study", "found", "status")]
    for name in CHOSEN:
        file = RUNS / name / "results.json"
        run, about = results.load(file), read_about(file.parent)
        short = about["short"] if about["run"] == results.run_of(run) else ""
        page = f"[{name}]({file.parent.relative_to(ROOT).as_posix()}/README.md)"
        rows.append(
            (
                run["question"],
                page,
                short,
                f"{standing(judge(run), about)}, {kind(run)}{waiting(run, about, file.parent)}",
            )
        )
    return f"{told}\n\n{markdown(rows)}"


ROOMS = {
    "classic": "Board and card games, compared with OpenSpiel",
    "social": "Dilemmas, public goods, negotiation and trade",
    "teams": "Teams that solve a task together",
    "judged": "Answers that a judge, a reward model or a vote scores",
    "solo": "Tasks of several turns for one seat",
}


def games() -> str:
    """A table with a row for each folder of games: its kind, and the names of its games."""
    names: dict[str, list[str]] = {room: [] for room in ROOMS}
    for name, game in REGISTRY.items():
        names[getattr(game, "func", game).__module__.split(".")[-2]].append(f"`{name}`")
    return markdown([("games", "names"), *((ROOMS[room], ", ".join(names[room])) for room in ROOMS)])


def fill(readme: str) -> str:
    """The text of the README with both tables replaced."""
    for name, table in (("methods", methods()), ("games", games())):
        mark = re.compile(rf"(<!-- {name}[^>]* -->\n).*?(\n<!-- end -->)", re.DOTALL)
        readme = mark.sub(lambda match, table=table: match[1] + table + match[2], readme)
    return readme


if __name__ == "__main__":
    if len(sys.argv) > 1:
        DEMO.write_text(json.dumps(read_demo([Path(run) for run in sys.argv[1:]])) + "\n", encoding="utf-8")
    (ROOT / "docs/overview.svg").write_bytes(picture(json.loads(DEMO.read_text(encoding="utf-8"))))
    (ROOT / "README.md").write_text(fill((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
