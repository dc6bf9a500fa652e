"""Pieces of Markdown and reStructuredText that the generated pages of the docs share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docstrings import restructure

ROOT = Path(__file__).parent.parent


IN_DOCS = {  # a file of the repository: its page in the docs
    r"notebooks/(\w+\.ipynb)": r"notebooks/\1",
    r"experiments/README\.md": "methods/index.md",
    r"experiments/results/(\w+)/README\.md": r"methods/\1.md",
    r"experiments/results/(\w+/\w+\.svg)": r"methods/\1",
    r"README\.md#games": "games/index.md",
    "jaxmarl_llm": "reference/index.md",
}


def links_of_docs(text: str, up: str) -> str:
    """A page of docs/ whose links to files of the repository lead to pages of the docs; `up` leads to docs/ from it."""
    for file, page in IN_DOCS.items():
        text = re.sub(rf"\]\({up}\.\./{file}\)", rf"]({up}{page})", text)
    module = lambda match: f"]({up}reference/{match[1].removesuffix('/__init__').replace('/', '.')}.md)"
    return re.sub(rf"\]\({up}\.\./jaxmarl_llm/([\w/]+)\.py\)", module, text)


def fence(text: str, kind: str = "told") -> str:
    return f"```{{code-block}} text\n:class: {kind}\n\n{text.rstrip()}\n```"


def contents(paths: Iterable[str], options: str = ":hidden:") -> str:
    return "```{toctree}\n" + options + "\n\n" + "\n".join(paths) + "\n```"


def docstring_of(thing: Any) -> str:
    return f"```{{eval-rst}}\n{restructure(inspect.getdoc(thing) or '')}\n```"


def facts(rows: Iterable[Sequence[Any]]) -> str:
    """A table of names and values, without a head."""
    lines = "\n".join(f"* - {name}\n  - {value}" for name, value in rows)
    return f"```{{list-table}}\n:stub-columns: 1\n\n{lines}\n```"


def first_sentence(text: str) -> str:
    """The first sentence of a text as one line."""
    return re.split(r"(?<=[.?])\s", " ".join(text.split()), maxsplit=1)[0]
