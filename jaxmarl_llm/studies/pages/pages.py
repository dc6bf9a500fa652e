"""Writes the pages of results: a page with two figures for each run, and an index with a row a run.

The command `pages` makes `results/NAME/README.md` and the index from `results/NAME/results.json` and the words beside
it (`page.py`). With --check it proves from git that nothing was moved (`history.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxmarl_llm.studies import catalogue, frozen
from jaxmarl_llm.studies.pages import figures, history
from jaxmarl_llm.studies.pages.about import read_lines
from jaxmarl_llm.studies.pages.index import collection, index
from jaxmarl_llm.studies.pages.page import page, waiting_page
from jaxmarl_llm.studies.pages.results import (
    load,
    write_atomically,
)
from jaxmarl_llm.text.arguments import read_arguments


@dataclasses.dataclass(frozen=True)
class Options:
    check: bool = False
    """Only compare: exit with 1 if a page differs from its results, or if git shows that something was moved."""
    figures: bool = False
    """Also draw the figures again."""


def run(package: str, options: Options, console: Console) -> None:
    """Writes all pages of a package and its index. Raises ValueError without any results."""
    home = catalogue.home(package)
    if options.check:
        texts = texts_of(package, home)
        stale = [file for file, text in texts.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
        if stale:
            raise SystemExit(f"{stale[0]} is not what its results say: run `python -m {package} pages`.")
        if moved := history.faults(package, home):
            raise SystemExit("\n".join(moved))
        return
    for file in home.glob("results/*/results.json") if options.figures else ():
        draw(file.parent, load(file))
    console.print(f"Wrote {write(package, home)} pages.")


def write(package: str, home: Path) -> int:
    """Writes all pages and the index into a folder of a package, and returns their number."""
    texts = texts_of(package, home)
    for file, text in texts.items():
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, text.encode())
    return len(texts)


def texts_of(package: str, home: Path) -> dict[Path, str]:
    """{file: Markdown} of all pages and the index. Raises ValueError without any results."""
    files = sorted(home.glob("results/*/results.json"))
    if not files:
        raise ValueError(f"There is no {home}/results/*/results.json: run `python -m {package} NAME` first.")
    texts = {file.with_name("README.md"): page(file) for file in files}
    texts |= {file.with_name("README.md"): waiting_page(package, file) for file in frozen.without_table(home)}
    texts[home / "README.md"] = index(files, home, package)
    studies: dict[Path, list[Path]] = {}
    for file in files:
        studies.setdefault(home / "results" / load(file)["study"] / "README.md", []).append(file)
    return texts | {page: collection(runs) for page, runs in studies.items() if page not in texts}


def draw(folder: Path, results: Mapping[str, Any]) -> None:
    """Writes the figures of a page; one that has nothing to show is removed."""
    for name, image in figures.draw(results, read_lines(folder, results["study"])).items():
        if image is None:
            (folder / name).unlink(missing_ok=True)
        else:
            write_atomically(folder / name, image)


def command(package: str, arguments: Sequence[str], console: Console) -> None:
    """The command `pages`."""
    run(
        package,
        read_arguments(Options, f"python -m {package} pages", str(__doc__), arguments),
        console,
    )
