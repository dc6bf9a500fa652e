"""The pages of games: one a game, one a folder of games, and the index of all."""

from __future__ import annotations

import ast
import io
import re
from typing import Any

import numpy as np
from markup import ROOT, contents, docstring_of, facts, fence
from rich.console import Console

from jaxmarl_llm import play
from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.bridges.table import Table, possible
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.studies.pages.format import markdown
from jaxmarl_llm.text.grammar import Free

GENRES = {  # folder of environments/: (title, a sentence)
    "classic": (
        "Board and card games",
        "Two seats against each other, and Hanabi: a team whose seats see all cards but their own.",
    ),
    "social": ("Social games", "Each seat has rewards of its own: 2x2 games, common stocks, fines, bargaining."),
    "teams": ("Team games", "The seats share a task: search, signals, solving and verifying, discussion, advice."),
    "judged": ("Judged answers", "A rule, a referee or a reward model pays an answer, and some of them can be gamed."),
    "solo": ("Games of one seat", "One policy and its environment, mostly over several turns."),
}
HEAD = ("game", "seats", "most turns", "own words", "solved here", "compared with OpenSpiel")


def games() -> dict[str, str]:
    """{path: text}: a page for each game and each folder of games, and the index."""
    compared, texts = comparisons(), {}
    rows: dict[str, dict[str, tuple]] = {folder: {} for folder in GENRES}
    for name in sorted(REGISTRY):
        game = REGISTRY[name]()
        solution, tests = exact(game), compared.get(type(game).__name__, [])
        free = any(isinstance(part, Free) for parts in game.grammars for part in parts)
        yes = ["yes" if is_so else "" for is_so in (free, solution.startswith("|"), tests)]
        rows[folder_of(game)][name] = (f"[{name}]({name}.md)", game.agents, game.turns, *yes)
        texts[f"games/{name}.md"] = game_page(name, game, solution, tests)
    sections = []
    for folder, (title, sentence) in GENRES.items():
        table = markdown([HEAD, *rows[folder].values()])
        texts[f"games/{folder}.md"] = "\n\n".join([f"# {title}", sentence, table, contents(rows[folder])]) + "\n"
        sections += [f"## {title}", sentence, table]
    texts["games/index.md"] = "\n\n".join([
        "# Games",
        f"The {len(REGISTRY)} games of `jaxmarl_llm.environments.REGISTRY` with their default settings, by folder of "
        "`environments/`. Each page is made from the game itself: the rules as each seat is told them, a game of "
        "random players, the answers, the scripted players, and exact values where they take seconds. "
        "[Write a game](../howto/game.md) adds one.",
        *sections,
        contents(GENRES),
    ])  # fmt: skip
    return texts


def folder_of(game: Any) -> str:
    """The folder of environments/ that holds a game's class."""
    return type(game).__module__.split(".")[2]


def game_page(name: str, game: Any, solution: str, tests: list[str]) -> str:
    kind, table = type(game), Table(game, 0)
    told: dict[str, list[str]] = {}
    for seat, pieces in enumerate(table.rules):
        told.setdefault("".join(pieces), []).append(f"{game.roles[int(table.view.role[seat])]}, seat {seat}")
    rows = [
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
        docstring_of(kind),
        facts(rows),
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
    rows: list[tuple] = [("players", *(f"seat {seat}" for seat in seats))]
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
