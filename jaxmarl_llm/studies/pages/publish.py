"""Takes finished runs into the results of the package, and keeps the verdicts of the tables that they replace.

python -m experiments publish runs/mars-frozen --why "Frozen, on seeds that nobody had seen."

A run that judges predictions must be the frozen table of its study; a run of another model than the study is about
judges none. Git holds main, predicted and checked metrics of a run, a number a seed, and the games of a pretrained
model's first seed; the rest stays in its directory.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from jaxmarl_llm.studies import catalogue, frozen
from jaxmarl_llm.studies.computed import LABEL
from jaxmarl_llm.studies.lanes import run_name
from jaxmarl_llm.studies.pages import history
from jaxmarl_llm.studies.pages.results import load, run_of, slim, text_of, write_atomically
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.training.setup import TINY
from jaxmarl_llm.view.page import GAMES


@dataclasses.dataclass(frozen=True)
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of finished runs."""
    why: str
    """Why the former table is replaced, in a sentence."""
    into: Annotated[Path | None, tyro.conf.arg(help_behavior_hint="")] = None
    """The folder of the package in another checkout, whose results are written. Default: this one's."""
    name: str = ""
    """The folder of a run that judges no prediction. Default: STUDY-MODEL."""


def publish(package: str, options: Options, console: Console) -> None:
    """Copies results.json of each run, and adds the former table to the history.

    Raises ValueError, before it writes, for a run with predictions that is not the frozen table of its study or is
    shorter than it. Raises it also where `check_name` does, and without a run or a reason.
    """
    if not options.runs or not options.why.strip():
        raise ValueError("Name at least one directory of a finished run, and say why in a sentence.")
    home = (options.into or catalogue.home(package)) / "results"
    loaded = {run: load(run / "results.json") for run in options.runs}
    for run, results in loaded.items():
        name = results["study"]
        if "sweep" in results:
            raise ValueError(f"{run} is a sweep, from which a setting is chosen: no result.")
        if options.name:
            check_name(options, results, home)
        if results["predictions"]:
            kept = frozen.read(package, name)
            if results.get("frozen", {}).get("digest") != kept["digest"] or results["seeds"] != kept["seeds"]:
                raise ValueError(f"{run} is not the frozen table of {name}: run `python -m {package} {name} --frozen`.")
            if results["shorter"]:
                raise ValueError(f"{run} recorded itself as shorter than its study, so that it judges nothing.")
    for run, results in loaded.items():
        judged = bool(results["predictions"])
        folder = home / (results["study"] if judged else options.name or f"{results['study']}-{results['model']}")
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "results.json"
        if file.exists() and run_of(former := load(file)) != run_of(results):
            history.add(folder, history.entry_of(former, options.why))
        write_atomically(file, text_of(slim(results)).encode())
        if results["model"] not in (TINY, LABEL):
            copy_games(run, folder, results)
        console.print(
            f"{escape(str(folder))}: {run_of(results)}. Write what was found into about.toml.", soft_wrap=True
        )


def check_name(options: Options, results: Mapping[str, Any], home: Path) -> None:
    """Raises ValueError unless `--name` is a folder for one run that judges nothing, and has no table of other arms."""
    single = len(options.runs) == 1 and not results["predictions"]
    if not single or not re.fullmatch(rf"{re.escape(results['study'])}-\w[\w.-]*", options.name):
        raise ValueError(
            f"--name is of one run that judges no prediction: {results['study']}- with letters, digits, . _ or -."
        )
    file = home / options.name / "results.json"
    if file.exists() and (former := load(file)["arms"].keys()) != results["arms"].keys():
        raise ValueError(f"{options.name} holds a table of {', '.join(former)}: choose another --name.")


def copy_games(run: Path, folder: Path, results: Mapping[str, Any]) -> None:
    """Copies the games of the first seed of each arm as one file, and the transcript of the first arm that has one.

    Those of a former run are removed.
    """
    for name in (GAMES, "transcript.md"):
        (folder / name).unlink(missing_ok=True)
    homes = [run / run_name(arm, results["seeds"][0], alone=True) for arm in results["arms"]]
    games = [home / GAMES for home in homes if (home / GAMES).exists()]
    if games:
        write_atomically(folder / GAMES, b"".join(file.read_bytes() for file in games))
    for transcript in [home / "transcript.md" for home in homes if (home / "transcript.md").exists()][:1]:
        shutil.copy(transcript, folder)


def command(package: str, arguments: Sequence[str], console: Console) -> None:
    """The command `publish`."""
    prog = f"python -m {package} publish"
    publish(package, read_arguments(Options, prog, str(__doc__), arguments), console)
