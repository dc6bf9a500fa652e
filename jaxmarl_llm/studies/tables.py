"""Runs the frozen tables that have not run yet, one study after the other, at low priority.

python -m experiments run --frozen --into ../main/experiments

It is best started in a worktree of the commit that holds the freezes. Each table is taken into the results and gets its
page as soon as it is there. The same command continues what was stopped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from jaxmarl_llm.studies import catalogue, frozen
from jaxmarl_llm.studies.cli import STOPPED
from jaxmarl_llm.studies.pages import pages, publish
from jaxmarl_llm.studies.pages.format import duration
from jaxmarl_llm.studies.pages.results import load
from jaxmarl_llm.text.arguments import read_arguments

LOWEST = 19  # the priority of a table: whatever else runs goes first


@dataclasses.dataclass(frozen=True)
class Options:
    frozen: bool = False
    """Must be given: a single study runs by its name."""
    out: Path = Path("runs")
    """The folder of the run directories."""
    into: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """The folder of the package in another checkout, whose results and pages are written. Default: this one's."""
    why: str = "Predictions were sorted by source and frozen; the table ran on seeds that nobody had seen."
    """Why a former table is replaced."""


def waiting(package: str, into: Path) -> list[str]:
    """The studies that are frozen, and whose table is not among the results of `into`; by the seconds of the former."""
    names = {}
    for file in catalogue.home(package).glob(f"results/*/{frozen.FILE}"):
        digest = json.loads(file.read_text(encoding="utf-8"))["digest"]
        table = into / "results" / file.parent.name / "results.json"
        results: dict[str, Any] = load(table) if table.exists() else {"seconds": 0.0}
        if results.get("frozen", {}).get("digest") != digest:
            names[file.parent.name] = results["seconds"]
    return sorted(names, key=lambda name: (names[name], name))


def run(package: str, options: Options, console: Console) -> None:
    """Runs every table that waits, and writes its page. A table that fails stops no other.

    Raises ValueError without `frozen`, and after the last table if any failed.
    """
    if not options.frozen:
        raise ValueError(f"Give --frozen to run all frozen tables, or run one study: `python -m {package} NAME`.")
    into = options.into or catalogue.home(package)
    names = waiting(package, into)
    console.print(f"{len(names)} tables: {', '.join(names)}")
    os.nice(LOWEST)
    failures: list[str] = []
    for number, name in enumerate(names):
        out, began = options.out / f"{name}-frozen", time.monotonic()
        command = [sys.executable, "-m", package, name, "--frozen", "--out", str(out)]
        code = subprocess.run(command).returncode
        if code == STOPPED:
            return
        if code:
            failures.append(f"The table of {name} ended with status {code}: `{' '.join(command[1:])}` shows why.")
            console.print(failures[-1], markup=False, soft_wrap=True)
            continue
        publish.publish(package, publish.Options((out,), why=options.why, into=into), console)
        pages.draw(folder := into / "results" / name, load(folder / "results.json"))
        pages.write(package, into)
        console.print(f"{name}: {duration(time.monotonic() - began)}; {len(names) - number - 1} tables are left.")
    if failures:
        raise ValueError(" ".join(failures))


def command(package: str, arguments: Sequence[str], console: Console) -> None:
    """The command `run`."""
    prog = f"python -m {package} run"
    run(package, read_arguments(Options, prog, str(__doc__), arguments), console)
