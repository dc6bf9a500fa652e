"""Conversion of docstrings to reStructuredText for Sphinx: from plain text with backticks, bullets and indents."""

from __future__ import annotations

import re
from typing import Any


def restructure(text: str) -> str:
    """A docstring as reStructuredText: paragraphs and bullets stay, indented or aligned lines become literal blocks."""
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
    """A text with `code` as literal and `*words*` as emphasis; all other markup is escaped."""
    parts = re.split(r"(``.+?``|`[^`]+`|https?://[^\s),]+|(?<!\w)\*\w[\w' -]*\*(?!\w))", text, flags=re.DOTALL)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = re.sub(r"([\\*_|`])", r"\\\1", part)
        elif part[0] == "`":
            code = " ".join(part.strip("`").split())
            parts[i] = f"``{code}``" + "\\ " * (parts[i + 1][:1].isalnum())
    return "".join(parts)


def docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's handler of `autodoc-process-docstring`: it rewrites `lines` in place."""
    text = "\n".join(lines).strip()
    inherited = what == "data" and text.split() == (type(obj).__doc__ or "").split()
    lines[:] = [] if inherited or text.startswith("Alias for field number") else restructure(text).split("\n")


def mark_comments(text: str) -> str:
    """The source of a module with `#:` in place of `#` beside fields and constants, for Sphinx."""
    return re.sub(r"^( *\w+(?:: | = )[^#\n]*)  # ", r"\1  #: ", text, flags=re.MULTILINE)


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Sphinx's handler of `autodoc-skip-member`: True for methods that every dataclass, tuple or pytree has."""
    return True if name in ("replace", "_asdict", "_fields", "_replace", "tree_flatten", "tree_unflatten") else None
