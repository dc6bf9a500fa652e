"""The pages of methods: one a study, one a question, the index of papers, the gallery of curves and the seconds."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

from markup import ROOT, contents, docstring_of, facts, fence

from jaxmarl_llm.studies import catalogue, frozen, registry
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.studies.pages import again, results
from jaxmarl_llm.studies.pages.format import count, markdown
from jaxmarl_llm.studies.pages.index import index as index_of
from jaxmarl_llm.studies.pages.index import kind
from jaxmarl_llm.studies.pages.page import CHECKED, notes_title, read_about
from jaxmarl_llm.studies.pages.page import link as link_to
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.view.page import GAMES, html, read

STUDIES = "experiments"
QUESTIONS = {  # page: (title, question)
    "credit_assignment": ("Credit assignment", "Which act earned the reward, and how noisy is the answer?"),
    "long_horizon": ("Long horizon", "How does a policy learn a task of many turns with a late reward?"),
    "exploration": ("Exploration", "Where do episodes part, which attempts are kept, and who teaches a policy?"),
    "rewards": ("Rewards", "What should be paid, who judges, and when is the judge gamed?"),
    "self_play": ("Self-play", "Which opponents and which games teach a policy?"),
    "social": ("Social", "When do learners with interests of their own cooperate?"),
    "preferences": (
        "Preferences and outer loops",
        "When is a rank better than a score, can an objective be learnt?",
    ),
    "teams": ("Teams", "How do several agents learn one task together?"),
    "tools": ("Tools and memory", "When do agents call tools, plan for others, and keep what others will need?"),
    "pretrained_models": ("Pretrained models", "What does a model of 135M or 270M parameters learn on two cores?"),
}


def methods() -> dict[str, str | bytes]:
    """{path: content}: a page for each study with all of its runs, for each question, and for all studies together."""
    home = catalogue.home(STUDIES)
    files = sorted(home.glob("results/*/results.json"))
    loaded = {file: results.load(file) for file in files}
    texts: dict[str, str | bytes] = {}
    study_of = {file.parent.name: result["study"] for file, result in loaded.items()}
    study_of |= {file.parent.name: file.parent.name for file in frozen.without_table(home)}
    link = lambda match: f"]({study_of[match[1]]}.md)"
    for name in catalogue.find(STUDIES):
        page = study_page(name, [file for file in files if loaded[file]["study"] == name])
        page = page.replace("](../../README.md)", "](index.md)")
        texts[f"methods/{name}.md"] = re.sub(r"\]\(\.\./([^/]+)/README\.md\)", link, page)  # in notes, to another run
    for file in files:
        for beside in sorted(file.parent.iterdir()):
            if beside.suffix in (".svg", ".json"):
                texts[f"methods/{file.parent.name}/{beside.name}"] = beside.read_bytes()
        if (games := file.with_name(GAMES)).exists():
            texts[f"_static/games/{file.parent.name}.html"] = html(shown := read(games), file.parent.name, len(shown))
    index = re.sub(r"\]\([^)]*?results/([^/]+)/README\.md\)", link, index_of(files, home, STUDIES))
    texts |= question_pages(index)
    texts["methods/looked_again.md"] = re.sub(r"\]\(results/([^/]+)/README\.md\)", link, again.page(files, "results"))
    texts["methods/seconds.md"] = seconds(json.loads((home / "benchmarks/studies.json").read_text(encoding="utf-8")))
    texts["methods/gallery.md"] = gallery({file: loaded[file] for file in files})
    return texts


INTRODUCTION = """{} studies, by question. None reproduces a paper in its own models and sizes: a status says what a
paper's direction did *here*, in a small setting ([how a status is decided](#how-a-status-is-decided)). See also
[the curves](gallery.md), [what changed when we looked again](looked_again.md) and [the seconds](seconds.md)."""


def question_pages(index: str) -> dict[str, str | bytes]:
    """The index of all studies, and a page for each question with the index's table of it."""
    introduction, *sections = re.split(r"^## ", index.replace("# Results", "# Methods", 1), flags=re.MULTILINE)
    tables = {title.lower().replace(" ", "_"): table.strip() for title, table in (x.split("\n", 1) for x in sections)}
    studies = studies_by_question()
    if unknown := {*tables, *studies} ^ {*QUESTIONS}:
        raise ValueError(f"QUESTIONS and the folders of {STUDIES} differ: {', '.join(sorted(unknown))}.")
    texts: dict[str, str | bytes] = {}
    title, rules = introduction.strip().split("\n\n", 1)
    parts = [title, INTRODUCTION.format(len(catalogue.find(STUDIES)))]
    for name, (title, question) in QUESTIONS.items():
        section = [question, tables[name]]
        texts[f"methods/{page_of(name)}.md"] = "\n\n".join([f"# {title}", *section, contents(studies[name])]) + "\n"
        parts += [f"## {title}", *section]
    parts += [
        "## How a status is decided",
        rules,
        contents([*map(page_of, QUESTIONS), "gallery", "looked_again", "seconds"]),
    ]
    texts["methods/index.md"] = "\n\n".join(parts) + "\n"
    return texts


def page_of(question: str) -> str:
    """The page of a question; a study of the same name has the page of this name."""
    return f"about_{question}" if question in catalogue.find(STUDIES) else question


def studies_by_question() -> dict[str, list[str]]:
    """{question of QUESTIONS: its studies}; that of a folder bears its name."""
    studies: dict[str, list[str]] = {}
    for name, module in catalogue.find(STUDIES).items():
        folder = module.split(".")[1]
        studies.setdefault("pretrained_models" if folder == "gallery" else folder, []).append(name)
    return studies


def gallery(loaded: dict[Path, Any]) -> str:
    """The page of all curves, by question, each with its study's question and the finding in a sentence."""
    question_of = {name: question for question, names in studies_by_question().items() for name in names}
    parts = ["# Gallery of curves", GALLERY]
    drawn = {file: result for file, result in loaded.items() if file.with_name("curves.svg").exists()}
    for question, (title, _) in QUESTIONS.items():
        figures = [(file, x) for file, x in drawn.items() if question_of[x["study"]] == question]
        parts += [f"## {title}"] if figures else []
        for file, result in figures:
            run = file.parent.name
            parts.append(f"### {run}\n\n{caption(file, result)} [Its page]({result['study']}.md).")
            parts.append(f"![Curves of {run}]({run}/curves.svg)")
    return "\n\n".join(parts) + "\n"


GALLERY = """Each arm's mean by update, and its 95% band over seeds. Above a figure stand the study's question and, in
bold, the finding of its page."""


def caption(file: Path, result: dict[str, Any]) -> str:
    """The question of a run's study, and its finding where the page has a short one."""
    about = read_about(file.parent)
    short = about.get("short", "") if about.get("run") == results.run_of(result) else ""
    if short:
        return f"{result['question']} **{short}.**"
    arms = ", ".join(f"`{arm}`" for arm in result["arms"])
    size = f"{count(len(result['seeds']), 'seed')}, {count(result['updates'], 'update')}"
    return f"{result['question']} Not judged: {arms} of {kind(result)}, {size}."


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
    about = docstring_of(benchmark)
    machines = "; ".join(sorted({phases["machine"] for phases in measured.values()}))
    title, machine = "# Seconds of ten seeds, by phase", f"Measured on: {machines}."
    return "\n\n".join([title, about, machine, markdown(rows)]) + "\n"


def study_page(name: str, files: list[Path]) -> str:
    """The page of a study: its facts, its module's docstring, the pages of its runs, and its code."""
    entry = registry.load(STUDIES, name)
    module, method = importlib.import_module(entry.module), entry.study.arms[entry.study.method]
    path, paper = Path(module.__file__ or "").relative_to(ROOT), entry.study.paper
    rows = [
        *([("paper", link_to(vars(paper))), ("formula read in", f"the {CHECKED[paper.checked]}")] if paper else []),
        ("method", f"`{entry.study.method}`"),
        *(
            settings_of(method)
            if isinstance(method, Recipe)
            else [("computed by", f"`{describe_function(method.compute)}`")]
        ),
        ("arms", ", ".join(f"`{arm}`" for arm in entry.study.all_arms)),
        ("file", f"`{path}`"),
    ]
    parts = [f"# {name}"]
    waits = catalogue.home(STUDIES) / "results" / name / "README.md"  # a frozen study without a table
    if not files and waits.with_name(frozen.FILE).exists():
        parts.append(waits.read_text(encoding="utf-8").split("\n\n", 2)[2].rstrip())
    for file in files:
        text, run = file.with_name("README.md").read_text(encoding="utf-8"), file.parent.name
        notes = file.with_name("notes.md")
        transcript = file.with_name("transcript.md")
        text = re.sub(r"^- \[(Notes|A transcript|Games).*\n?", "", text, flags=re.MULTILINE).rstrip()
        text = re.sub(
            r"^The arms and the metrics are explained at .*\n\n", "", text, flags=re.MULTILINE
        )  # they stand below
        text = re.sub(r"^#", "##", text, flags=re.MULTILINE).replace(f"## {run}", f"## Run: {run}", 1)
        text = re.sub(r"\]\((\w+\.\w+)\)", rf"]({run}/\1)", text)
        if notes.exists():
            here = re.sub(r"\[([^]]+)\]\(transcript\.md\)", r"\1", notes.read_text(encoding="utf-8"))  # it stands below
            title = notes_title(results.load(file), file.parent)
            text += f"\n\n### {title}\n\n" + re.sub(r"^#", "####", here, flags=re.MULTILINE)
        if file.with_name(GAMES).exists():
            link = f'<a href="../_static/games/{run}.html">Games of the first seed of each arm</a>'
            text += f"\n\n### Games before and after training\n\n<p>{link}, to click through.</p>"
        if transcript.exists():
            text += "\n\n### Transcript\n\n" + fence(
                transcript.read_text(encoding="utf-8").replace("```", "---"), "dialogue"
            )
        parts.append(text)
    parts += ["## The study", entry.study.question, facts(rows)]
    parts += [docstring_of(module), f"## The code\n\n```{{literalinclude}} /../{path}\n:language: python\n```"]
    return "\n\n".join(parts) + "\n"


def settings_of(recipe: Recipe) -> list[tuple[str, str]]:
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
