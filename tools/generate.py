"""Writes the pages of the docs that are generated from code: games, methods, names, and options that work together.

`conf.py` calls `main` before every build. The folders of GENERATED are not committed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import capabilities
import numpy as np
from docstrings import restructure
from rich.console import Console

import jaxmarl_llm
from jaxmarl_llm import play
from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.bridges.table import Table, possible
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.studies import catalogue, registry
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.studies.pages import again, results
from jaxmarl_llm.studies.pages.format import markdown
from jaxmarl_llm.studies.pages.index import index as index_of
from jaxmarl_llm.studies.pages.page import CHECKED
from jaxmarl_llm.studies.pages.page import link as link_to
from jaxmarl_llm.studies.pages.page import page as page_of_run
from jaxmarl_llm.text.grammar import Free
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.view import page as games_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLE = DOCS / "_static/example"  # games.jsonl, which tools/example_games.py writes, and its page
GENERATED = ("games", "methods", "reference", "notebooks")
STUDIES = "experiments"


def main() -> None:
    """Writes every changed page, and removes pages that are no longer generated."""
    texts = reference() | methods() | notebooks() | games()
    texts |= {"reference/capabilities.md": capabilities.page()}
    texts = {DOCS / path: text.encode() if isinstance(text, str) else text for path, text in texts.items()}
    for folder in GENERATED:
        for file in (DOCS / folder).rglob("*.*"):
            if file not in texts:
                file.unlink()
    games_page.write(EXAMPLE, EXAMPLE)
    for file, content in texts.items():
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def notebooks() -> dict[str, bytes]:
    return {f"notebooks/{file.name}": file.read_bytes() for file in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def fence(text: str, kind: str = "told") -> str:
    return f"```{{code-block}} text\n:class: {kind}\n\n{text.rstrip()}\n```"


def contents(paths: list[str], options: str = ":hidden:") -> str:
    return "```{toctree}\n" + options + "\n\n" + "\n".join(paths) + "\n```"


# Games


def games() -> dict[str, str]:
    """{path: text}: a page for each game, and the index with their table."""
    rows: list[tuple] = [("game", "seats", "most turns", "own words", "solved here", "compared with OpenSpiel")]
    compared, texts = comparisons(), {}
    for name in sorted(REGISTRY):
        game = REGISTRY[name]()
        solution, tests = exact(game), compared.get(type(game).__name__, [])
        free = any(isinstance(part, Free) for parts in game.grammars for part in parts)
        yes = ["yes" if is_so else "" for is_so in (free, solution.startswith("|"), tests)]
        rows.append((f"[{name}]({name}.md)", game.agents, game.turns, *yes))
        texts[f"games/{name}.md"] = game_page(name, game, solution, tests)
    texts["games/index.md"] = "\n\n".join([
        "# Games",
        f"The {len(REGISTRY)} games of `jaxmarl_llm.environments.REGISTRY` with their default settings. Each page is "
        "made from the game itself: the rules as each seat is told them, a game of random players, the answers, the "
        "scripted players, and exact values where they take seconds.",
        markdown(rows),
        contents(sorted(REGISTRY)),
    ])  # fmt: skip
    return texts


def game_page(name: str, game: Any, solution: str, tests: list[str]) -> str:
    kind, table = type(game), Table(game, 0)
    told: dict[str, list[str]] = {}
    for seat, pieces in enumerate(table.rules):
        told.setdefault("".join(pieces), []).append(f"{game.roles[int(table.view.role[seat])]}, seat {seat}")
    facts = [
        ("", ""),
        ("seats", game.agents),
        ("most turns", game.turns),
        ("roles", ", ".join(game.roles)),
        ("reward components", ", ".join(game.components)),
        *([("measures, not paid", ", ".join(measures))] if (measures := Extras(game).measures) else []),
        ("scripted players", ", ".join(f"`{script}`" for script in game.scripts)),
        ("class", f"{{py:class}}`{kind.__module__}.{kind.__name__}`"),
    ]
    parts = [
        f"# {name}",
        f"```{{eval-rst}}\n{restructure(inspect.getdoc(kind) or '')}\n```",
        markdown(facts),
        "## Rules as they are told",
        *(f"{'; '.join(seats)}:\n\n{fence(text)}" for text, seats in told.items()),
        "The phrases are those of one deal; roles, cards and labels are drawn in `reset`.",
        "## Answers",
        "\n".join(f"- {answers(parts, game.actions)}" for parts in dict.fromkeys(game.grammars)),
        "## A game of random players",
        f"`python -m jaxmarl_llm.play {name} --seat -1`, without the rules:",
        fence(dialogue(name), "dialogue"),
        "## Exact values",
        solution,
    ]
    if tests:
        parts += ["## Compared with OpenSpiel", "By these tests:", "\n".join(f"- `{test}`" for test in tests)]
    return "\n\n".join(parts) + "\n"


def dialogue(name: str) -> str:
    """The output of `play` with random players, without the rules."""
    shown = io.StringIO()
    play.main(play.Settings(name, seat=-1), Console(file=shown, width=10**6))
    return shown.getvalue()[re.search(r"^seat \d+ (is told|says):", shown.getvalue(), re.MULTILINE).start() :]


def answers(parts: Any, actions: int, limit: int = 24) -> str:
    """The answers of a grammar as a list in Markdown, at most `limit`; '...' stands for free words."""
    texts = [f"`{text}`" for text in possible(parts, np.ones(actions, bool))]
    return ", ".join(texts[:limit]) + f" and {len(texts) - limit} more" * (len(texts) > limit)


def exact(game: Any, limit: int = 600_000) -> str:
    """A table of exact values from `solve`, or the error for a game with more than `limit` histories."""
    try:
        tree = solve.tree(game, limit=limit)
    except ValueError as error:
        return f"None here. {error}"
    policy, seats = solve.uniform(tree), range(game.agents)
    zero_sum = game.agents == 2 and np.allclose(tree.form.payoff.sum(1), 0)
    perfect = (tree.seat >= 0).sum() == len(tree.owner)
    rows: list[tuple] = [("", *(f"seat {seat}" for seat in seats))]
    rows.append(("all play at random", *numbers(solve.expected_value(tree, policy))))
    rows.append(("a best response to random players", *numbers(solve.best_response_value(tree, policy))))
    if zero_sum and perfect:
        rows.append(("perfect play", *numbers(solve.expected_value(tree, solve.minimax(tree)))))
    elif zero_sum:
        policy = solve.cfr(tree, 200, plus=True)
        most_of_0, most_of_1 = solve.best_response_value(tree, policy)
        ends = [numbers(x)[0] for x in (-most_of_1, most_of_0)]
        bounds = [
            " to ".join(dict.fromkeys(pair)) for pair in (ends, [numbers(-x)[0] for x in (most_of_0, -most_of_1)])
        ]
        rows.append(("the game's value lies in (200 iterations of CFR+)", *bounds))
    size = (
        f"{len(tree.parent):,} histories, {len(tree.owner):,} information sets. Points of a game, all components added."
    )
    return markdown(rows) + "\n\n" + size


def numbers(values: Any) -> list[str]:
    return [f"{x + 0:.4g}" for x in np.round(np.atleast_1d(values), 6)]


def definitions(node: ast.stmt) -> list[tuple[str, ast.AST]]:
    """(name, node) of each function or constant that a module's statement defines."""
    if isinstance(node, ast.FunctionDef):
        return [(node.name, node)]
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return []
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if isinstance(target, ast.Tuple):
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(target.elts)
        return [(x.id, value) for x, value in zip(target.elts, values, strict=True) if isinstance(x, ast.Name)]
    return [(target.id, node.value)] if isinstance(target, ast.Name) else []


def comparisons() -> dict[str, list[str]]:
    """{class of a game: tests that compare it with OpenSpiel}, from names of tests and names in their code."""
    tests_of: dict[str, list[str]] = {}
    classes = {type(make()).__name__ for make in REGISTRY.values()}
    for file in sorted((ROOT / "tests/environments").rglob("test_*.py")):
        names = {
            name: {x.id for x in ast.walk(value) if isinstance(x, ast.Name)}
            for node in ast.parse(file.read_text(encoding="utf-8")).body
            for name, value in definitions(node)
        }
        for test in (name for name in names if re.match(r"test_.*openspiel", name)):
            reached = {test}
            while more := set().union(*(names.get(name, set()) for name in reached)) - reached:
                reached |= more
            for kind in classes & reached:
                tests_of.setdefault(kind, []).append(f"{file.relative_to(ROOT)}::{test}")
    return tests_of


# Methods


def methods() -> dict[str, str | bytes]:
    """{path: content}: a page for each study with all of its runs, the index, the table of seconds and the gallery."""
    home = catalogue.home(STUDIES)
    files = sorted(home.glob("results/*/results.json"))
    loaded = {file: results.load(file) for file in files}
    texts: dict[str, str | bytes] = {}
    study_of = {file.parent.name: result["study"] for file, result in loaded.items()}
    link = lambda match: f"]({study_of[match[1]]}.md)"
    for name in catalogue.find(STUDIES):
        page = study_page(name, [file for file in files if loaded[file]["study"] == name])
        page = page.replace("](../../README.md)", "](index.md)")
        texts[f"methods/{name}.md"] = re.sub(r"\]\(\.\./([^/]+)/README\.md\)", link, page)  # in notes, to another run
    for file in files:
        for beside in sorted(file.parent.iterdir()):
            if beside.suffix in (".svg", ".json"):
                texts[f"methods/{file.parent.name}/{beside.name}"] = beside.read_bytes()
    index = re.sub(r"\]\([^)]*?results/([^/]+)/README\.md\)", link, index_of(files, home, STUDIES))
    texts["methods/index.md"] = (
        index.replace("# Results", "# Methods", 1)
        + "\n"
        + contents([*catalogue.find(STUDIES), "looked_again", "gallery", "seconds"])
    )
    texts["methods/looked_again.md"] = re.sub(r"\]\(results/([^/]+)/README\.md\)", link, again.page(files, "results"))
    texts["methods/seconds.md"] = seconds(json.loads((home / "benchmarks/studies.json").read_text(encoding="utf-8")))
    texts["methods/gallery.md"] = "\n\n".join([
        "# Gallery of curves",
        *(
            f"## [{run}]({study}.md)\n\n![Learning curves]({run}/curves.svg)"
            for run, study in study_of.items()
            if (home / "results" / run / "curves.svg").exists()
        ),
    ])  # fmt: skip
    return texts


def commit(name: str) -> str:
    """The first seven digits of a commit, with its suffix `-dirty` if there is one."""
    return name[:7] + ("-dirty" if name.endswith("-dirty") else "")


def seconds(measured: dict[str, dict[str, Any]]) -> str:
    """The page of the benchmark `studies`: its docstring and its table, the slowest study first."""
    benchmark = importlib.import_module(f"{STUDIES}.benchmarks.studies")
    columns = benchmark.COLUMNS
    rows = [("study", *columns, "commit")] + [
        (f"[{name}]({name}.md)", *(f"{phases[column]:.0f}" for column in columns), f"`{commit(phases['commit'])}`")
        for name, phases in sorted(measured.items(), key=lambda item: -item[1]["sum"])
    ]
    about = f"```{{eval-rst}}\n{restructure(inspect.getdoc(benchmark) or '')}\n```"
    machines = "; ".join(sorted({phases["machine"] for phases in measured.values()}))
    title, machine = "# Seconds of ten seeds, by phase", f"Measured on: {machines}."
    return "\n\n".join([title, about, machine, markdown(rows)]) + "\n"


def study_page(name: str, files: list[Path]) -> str:
    """The page of a study: its facts, its module's docstring, the pages of its runs, and its code."""
    entry = registry.load(STUDIES, name)
    module, method = importlib.import_module(entry.module), entry.study.arms[entry.study.method]
    path, paper = Path(module.__file__ or "").relative_to(ROOT), entry.study.paper
    facts = [
        ("", ""),
        *([("paper", link_to(vars(paper))), ("formula read in", f"the {CHECKED[paper.checked]}")] if paper else []),
        ("method", f"`{entry.study.method}`"),
        *(
            of_recipe(method)
            if isinstance(method, Recipe)
            else [("computed by", f"`{describe_function(method.compute)}`")]
        ),
        ("arms", ", ".join(f"`{arm}`" for arm in entry.study.all_arms)),
        ("file", f"`{path}`"),
    ]
    parts = [f"# {name}"]
    for file in files:
        text, run = page_of_run(file), file.parent.name
        notes = file.with_name("notes.md")
        transcript = file.with_name("transcript.md")
        text = re.sub(r"^- \[(Notes|A transcript).*\n?", "", text, flags=re.MULTILINE).rstrip()
        text = re.sub(
            r"^The arms and the metrics are explained at .*\n\n", "", text, flags=re.MULTILINE
        )  # they stand below
        text = re.sub(r"^#", "##", text, flags=re.MULTILINE).replace(f"## {run}", f"## Run: {run}", 1)
        text = re.sub(r"\]\((\w+\.\w+)\)", rf"]({run}/\1)", text)
        if notes.exists():
            here = re.sub(r"\[([^]]+)\]\(transcript\.md\)", r"\1", notes.read_text(encoding="utf-8"))  # it stands below
            text += "\n\n" + re.sub(r"^#", "###", here, flags=re.MULTILINE)
        if transcript.exists():
            text += "\n\n### Transcript\n\n" + fence(
                transcript.read_text(encoding="utf-8").replace("```", "---"), "dialogue"
            )
        parts.append(text)
    parts += ["## The study", entry.study.question, markdown(facts)]
    parts += [f"```{{eval-rst}}\n{restructure(inspect.getdoc(module) or '')}\n```"]
    parts.append(f"## The code\n\n```{{literalinclude}} /../{path}\n:language: python\n```")
    return "\n\n".join(parts) + "\n"


def of_recipe(recipe: Recipe) -> list[tuple[str, str]]:
    return [
        ("game", f"`{type(recipe.game).__name__}`"),
        ("advantage", f"`{describe_function(recipe.advantage)}`"),
        ("loss", f"`{describe_function(recipe.loss)}`"),
        ("step", f"`{describe_function(recipe.step)}`" if recipe.step else "the standard one"),
    ]


def describe_function(function: Any) -> str:
    """A function's name with its bound arguments, as in results.json."""
    described = describe(function)
    if not isinstance(described, dict):
        return str(described)
    bound = {name: x for name, x in described.items() if name not in ("function", "kind", "of") and x not in ({}, [])}
    options = bound.pop("options", {}) | bound
    base = described.get("function") or described.get("of")
    return f"{base}({', '.join(f'{name}={x}' for name, x in options.items())})" if options else str(base)


# Names


TOPICS = {
    "rl.advantages": "Advantages",
    "rl.losses": "Losses",
    "rl": "Returns, rewards, masks",
    "rollout": "Rollout",
    "training": "Training",
    "evaluation": "Evaluation",
    "view": "Viewer",
    "environments": "Environments",
    "models": "Models",
    "text": "Text",
    "devices": "Devices",
    "studies": "Studies",
    "planning": "Planning",
    "serving": "Serving",
    "": "Keys and play",
}


def modules() -> dict[str, list[str]]:
    """{topic: modules}; a module belongs to the longest topic that is a prefix of its name."""
    names: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for module in pkgutil.walk_packages(jaxmarl_llm.__path__, "jaxmarl_llm."):
        path = module.name.removeprefix("jaxmarl_llm.")
        topic = max((topic for topic in TOPICS if not topic or f"{path}.".startswith(f"{topic}.")), key=len)
        names[topic].append(module.name)
    return names


def source(name: str) -> str:
    return Path(importlib.import_module(name).__file__ or "").read_text(encoding="utf-8")


def constants(name: str) -> list[str]:
    """The public constants and type aliases that a module defines."""
    nodes = [node for node in ast.parse(source(name)).body if not isinstance(node, ast.FunctionDef)]
    return list(
        dict.fromkeys(constant for node in nodes for constant, _ in definitions(node) if not constant.startswith("_"))
    )


def reference() -> dict[str, str]:
    """{path: text}: a page for each topic, and an index of the package's public names."""
    texts = {}
    for topic, names in modules().items():
        parts, offered = [f"# {TOPICS[topic]}"], set()
        for name in filter(source, names):  # without empty __init__.py
            module = importlib.import_module(name)
            lines = [f".. automodule:: {name}"]
            names_here = constants(name)
            # shown elsewhere: by the package, or below
            if hidden := sorted({*names_here, *offered} & set(vars(module))):
                lines += [f"   :exclude-members: {', '.join(hidden)}"]
            offered |= set(getattr(module, "__all__", ()))
            for constant in names_here:
                lines += ["", f".. autodata:: {name}.{constant}"]
                lines += ["   :no-value:"] if len(repr(getattr(module, constant))) > 100 else []
            title = name.removeprefix("jaxmarl_llm.")
            parts.append(f"## {title}\n\n```{{eval-rst}}\n" + "\n".join(lines) + "\n```")
        texts[f"reference/{page_of(topic)}.md"] = "\n\n".join(parts) + "\n"
    rows: list[tuple] = [("name", "where it is defined")]
    for name, home in jaxmarl_llm._MODULE_OF.items():
        kind = "mod" if name in jaxmarl_llm._MODULES else "obj"
        rows.append((f"`{name}`", f"{{py:{kind}}}`jaxmarl_llm.{home}.{name}`"))
    texts["reference/index.md"] = "\n\n".join([
        "# Reference",
        "Every public name, by topic. The names that `import jaxmarl_llm` offers, in the order in which data flows:",
        markdown(rows),
        contents([*map(page_of, TOPICS), "capabilities"]),
    ])  # fmt: skip
    return texts


def page_of(topic: str) -> str:
    return topic or "others"
