"""Docstrings for Sphinx: they are plain text with code in backticks, bullets, and indented tables and formulas."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any


def restructured(text: str) -> str:
    """A docstring as reStructuredText: paragraphs and bullets stay, what is indented or aligned is shown as it is."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.split("\n")
        if re.match(r"(-|\d+\.) ", block):
            blocks.append(_inline("\n\n".join(re.split(r"\n(?=(?:-|\d+\.) )", block))))
        elif any(re.search(r"^\s|\S {2,}\S", line) for line in lines):
            first = next(i for i, line in enumerate(lines) if re.search(r"^\s|\S {2,}\S", line))
            head, rest = (lines[:first], lines[first:]) if lines[first].startswith(" ") else ([], lines)
            literal = "\n".join("    " + line for line in rest)
            blocks.append((_inline("\n".join(head)) + "\n\n" if head else "") + "::\n\n" + literal)
        else:
            blocks.append(_inline(block))
    return "\n\n".join(blocks)


def _inline(text: str) -> str:
    """Code keeps its backticks, `*words*` their stress; no other sign has a meaning."""
    parts = re.split(r"(``.+?``|`[^`]+`|https?://[^\s),]+|(?<!\w)\*\w[\w' -]*\*(?!\w))", text, flags=re.DOTALL)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = re.sub(r"([\\*_|`])", r"\\\1", part)
        elif part[0] == "`":
            code = " ".join(part.strip("`").split())
            parts[i] = f"``{code}``" + "\\ " * (parts[i + 1][:1].isalnum())
    return "".join(parts)


def docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx calls this for each docstring. A field or constant without one is described by the comment beside it."""
    text = "\n".join(lines)
    if text.startswith("Alias for field number") or (what == "data" and text == (inspect.getdoc(type(obj)) or "")):
        text = ""
    lines[:] = restructured(text or (beside(name) if what in ("attribute", "data") else "")).split("\n")


def beside(name: str) -> str:
    """The comment behind a field of a class or behind a constant, by its dotted name."""
    home, _, field = name.rpartition(".")
    found = re.search(rf"^ *{field}(?:: [^#\n]*| = [^#\n]*)  # (.*)$", source(home), re.MULTILINE)
    return found[1] if found else ""


@cache
def source(name: str) -> str:
    """The text of a module, or of a class in one; nothing for an alias."""
    try:
        return Path(importlib.import_module(name).__file__ or "").read_text()
    except ImportError:
        home, _, last = name.rpartition(".")
        where = getattr(getattr(importlib.import_module(home), last), "__module__", home)  # a package may offer it too
        found = re.search(rf"^class {last}\b.*?(?=^\S|\Z)", source(where), re.MULTILINE | re.DOTALL)
        return found[0] if found else ""


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """What every dataclass and pytree has is not listed."""
    return True if name in ("replace", "_asdict", "_fields", "_replace", "tree_flatten", "tree_unflatten") else None
