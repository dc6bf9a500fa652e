"""Writes the pages of the docs that are generated from code: games, methods, names, and options that work together.

`conf.py` calls `main` before every build. The folders of GENERATED are not committed.
"""

from __future__ import annotations

import capabilities
from game_pages import games
from markup import ROOT
from method_pages import methods
from reference_pages import reference

from jaxmarl_llm.view import page

DOCS = ROOT / "docs"
EXAMPLE = DOCS / "_static/example"  # games.jsonl, which tools/example_games.py writes, and its page
GENERATED = ("games", "methods", "reference", "notebooks", "_static/games")


def main() -> None:
    """Writes every changed page, and removes pages that are no longer generated."""
    texts = reference() | methods() | notebooks() | games()
    texts |= {"reference/capabilities.md": capabilities.page()}
    texts = {DOCS / path: text.encode() if isinstance(text, str) else text for path, text in texts.items()}
    for folder in GENERATED:
        for file in (DOCS / folder).rglob("*.*"):
            if file not in texts:
                file.unlink()
    page.write(EXAMPLE, EXAMPLE)
    for file, content in texts.items():
        if not file.exists() or file.read_bytes() != content:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def notebooks() -> dict[str, bytes]:
    return {f"notebooks/{file.name}": file.read_bytes() for file in sorted((ROOT / "notebooks").glob("*.ipynb"))}
