"""The reference: a page for each room of the package, folder and module, and the index of public names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

from game_pages import definitions
from markup import ROOT, contents, first_sentence

import jaxmarl_llm
from jaxmarl_llm.studies.pages.format import markdown

OTHERS, TITLE_OF_OTHERS = "others", "Keys and commands"


def modules() -> dict[str, list[str]]:
    """{folder of the package: its modules}, e.g. "rl" and "rl.advantages"; modules beside the folders are OTHERS."""
    names: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(jaxmarl_llm.__path__, "jaxmarl_llm."):
        path = module.name.removeprefix("jaxmarl_llm.")
        folder = path if module.ispkg else path.rpartition(".")[0]
        names.setdefault(folder or OTHERS, []).append(module.name)
    return {folder: sorted(names[folder]) for folder in sorted(names, key=lambda folder: (folder == OTHERS, folder))}


def rooms() -> dict[str, str]:
    """{room: its contents in a sentence}, from the table of CONTRIBUTING.md, in its order: an import points upwards."""
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\w+)/` \| (.*) \|$", guide, re.MULTILINE))


def source(name: str) -> str:
    return Path(importlib.import_module(name).__file__ or "").read_text(encoding="utf-8")


def constants(name: str) -> list[str]:
    """The public constants and type aliases that a module defines."""
    nodes = [node for node in ast.parse(source(name)).body if not isinstance(node, ast.FunctionDef)]
    return list(
        dict.fromkeys(constant for node in nodes for constant, _ in definitions(node) if not constant.startswith("_"))
    )


def reference() -> dict[str, str]:
    """{path: text}: a page for each module and each folder of the package, and an index of rooms and public names."""
    folders, about = modules(), rooms()
    if unknown := {*about} ^ {folder for folder in folders if "." not in folder} - {OTHERS}:
        raise ValueError(f"CONTRIBUTING.md and the package have other rooms: {', '.join(sorted(unknown))}.")
    below = {room: [folder for folder in folders if folder.startswith(f"{room}.")] for room in about}
    texts: dict[str, str] = {}
    for folder, names in folders.items():
        texts |= folder_pages(folder, names, below.get(folder, []))
    table: list[tuple] = [("room", "holds", "folders")]
    for room, holds in about.items():
        links = ", ".join(f"[{title_of(folder)}]({folder}.md)" for folder in below[room])
        table.append((f"[{room}]({room}.md)", holds[:1].upper() + holds[1:], links))
    table.append((f"[{TITLE_OF_OTHERS.lower()}]({OTHERS}.md)", ABOUT_OTHERS, ""))
    offered: list[tuple] = [("name", "where it is defined")]
    for name, home in jaxmarl_llm._MODULE_OF.items():
        kind = "mod" if name in jaxmarl_llm._MODULES else "obj"
        offered.append((f"`{name}`", f"{{py:{kind}}}`jaxmarl_llm.{home}.{name}`"))
    texts["reference/index.md"] = "\n\n".join([
        "# Reference",
        "A page for each module, by room of the package. A room imports only from rooms above it.",
        markdown(table),
        "[Which options work together](capabilities.md) is a table of its own.",
        "## Public names",
        "The names that `import jaxmarl_llm` offers, in the order in which data flows:",
        markdown(offered),
        contents([*about, OTHERS, "capabilities"]),
    ])  # fmt: skip
    return texts


ABOUT_OTHERS = "Random keys by the name of an event; the commands `play`, `match` and `serve`"


def title_of(folder: str) -> str:
    return TITLE_OF_OTHERS if folder == OTHERS else folder.replace(".", "/")


def folder_pages(folder: str, names: list[str], below: list[str]) -> dict[str, str]:
    """{path: text}: the page of a folder and a page for each of its modules. The folder's page has a table of modules,
    links to the folders `below`, and the names that the package itself defines."""
    parts, texts, offered = [f"# {title_of(folder)}"], {}, set()
    rows: list[tuple] = [("module", "about")]
    pages = [f"{inner.rpartition('.')[2]}/ <{inner}>" for inner in below]
    for name in filter(source, names):  # without empty __init__.py
        module, path = importlib.import_module(name), name.removeprefix("jaxmarl_llm.")
        text = names_of(name, offered)
        offered |= set(getattr(module, "__all__", ()))
        if path == folder:
            parts.append(text)
            continue
        short = name.rpartition(".")[2]
        texts[f"reference/{path}.md"] = f"# {path}\n\n{text}\n"
        rows.append((f"[{short}]({path}.md)", first_sentence(module.__doc__ or "")))
        pages.append(f"{short} <{path}>")
    if below:
        links = ", ".join(f"[{title_of(inner)}]({inner}.md)" for inner in below)
        parts.insert(1, f"Folders of this room have pages of their own: {links}.")
    if texts:
        parts.insert(1, markdown(rows))
    return texts | {f"reference/{folder}.md": "\n\n".join([*parts, *([contents(pages)] if pages else [])]) + "\n"}


def names_of(name: str, offered: set[str]) -> str:
    """The directives that show a module's public names, without those that its package offered before."""
    module, here = importlib.import_module(name), constants(name)
    lines = [f".. automodule:: {name}"]
    # shown elsewhere: by the package, or below
    if hidden := sorted({*here, *offered} & set(vars(module))):
        lines += [f"   :exclude-members: {', '.join(hidden)}"]
    for constant in here:
        lines += ["", f".. autodata:: {name}.{constant}"]
        lines += ["   :no-value:"] if len(repr(getattr(module, constant))) > 100 else []
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```"
