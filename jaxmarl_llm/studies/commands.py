"""The command line of a package of studies: list them, run one, or process the results of runs.

`python -m PACKAGE`                lists the studies
`python -m PACKAGE NAME [...]`     runs the study NAME; `--help` shows its options
`python -m PACKAGE freeze [...]`   freezes predictions and settings, and gives the seeds of the table
`python -m PACKAGE publish [...]`  takes the frozen table of a finished run into the results
`python -m PACKAGE run --frozen`   runs the frozen tables that have not run yet
`python -m PACKAGE pages [...]`    writes a page for each result and an index
`python -m PACKAGE release [...]`  copies trained policies of runs into one folder
`python -m PACKAGE dialogues [...]` writes dialogues of runs as JSONL, e.g. for supervised training
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import tyro
from rich.console import Console

from jaxmarl_llm.studies import frozen, registry, runner, tables
from jaxmarl_llm.studies.cli import execute
from jaxmarl_llm.studies.pages import dialogues, pages, publish, release
from jaxmarl_llm.studies.settings import Settings

Command = Callable[[str, Sequence[str]], None]  # (name of the package, arguments)
BUILT_IN = {
    "freeze": frozen.command,
    "publish": publish.command,
    "run": tables.command,
    "pages": pages.command,
    "release": release.command,
    "dialogues": dialogues.command,
}


def main(package: str, further: Mapping[str, Command] | None = None) -> None:
    """Runs the command that sys.argv names. `further` holds commands from outside this folder, by name."""
    name, *arguments = sys.argv[1:] or ["--help"]
    further = further or {}
    if name in ("-h", "--help"):
        execute(lambda stop, console: listing(package, further, console))
    elif name in further:
        further[name](package, arguments)
    elif name in BUILT_IN:
        execute(lambda stop, console: BUILT_IN[name](package, arguments, console))
    else:
        cores = frozen.CORES if "--frozen" in arguments else None
        execute(lambda stop, console: runner.run(*_parse(package, sys.argv[1:]), stop, console), cores)


def _parse(package: str, words: Sequence[str]) -> tuple[registry.Entry, Settings]:
    entry = None if words[0].startswith("-") else registry.load(package, words[0])  # before tyro, for a clear error
    prog = f"python -m {package}"
    settings = tyro.cli(Settings, args=list(words), prog=prog, description=runner.__doc__)
    return entry or registry.load(package, settings.study), settings


def listing(package: str, further: Mapping[str, Command], console: Console) -> None:
    """Prints every study with its question and its paper."""
    entries = [registry.load(package, name) for name in registry.find(package)]
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        study = entry.study
        text = f"{entry.name:{width}}  {study.question}\n{'':{width}}  {study.paper}: {study.paper.url}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Run one with `python -m {package} NAME`. Further commands: {', '.join((*BUILT_IN, *further))}.")
