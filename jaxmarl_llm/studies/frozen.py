"""The freeze of a study: its predictions and settings, committed before the run whose table judges them.

python -m experiments freeze NAME --tried "rates 1e-3 and 2e-3 on seeds 100 to 103"

It writes `results/NAME/frozen.json`, to be committed by itself. The seeds of the table follow from its digest, from
FIRST up, so nobody chooses them. `python -m experiments NAME --frozen` runs the table: in a clean tree, at a
descendant of the freeze, with the predictions and settings that were frozen. `python -m experiments publish RUN` takes
the finished run into the results. A frozen table never grows: more seeds, or a second setting, are a new freeze.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from jaxmarl_llm.runs.git import Repository
from jaxmarl_llm.studies import catalogue, registry
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.studies.pages.results import write_atomically
from jaxmarl_llm.studies.predictions import FEWEST, record_of
from jaxmarl_llm.studies.settings import Settings, select_arms
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.text.arguments import read_arguments

FILE = "frozen.json"
FIRST = 1000
"""Seeds below are of tuning (100 to 999) and of tests."""
SPAN = 10**6
STATED = ("predictions", "checks", "censored", "metrics", "settings")
SEEDS = 20
CORES = 2  # at most: with more threads XLA rounds large products otherwise


def statement(name: str, study: Study) -> dict[str, Any]:
    """The part of a study that a freeze settles, as JSON: `STATED`, with the digest of all settings."""
    return plain({
        "predictions": [record_of(prediction) for prediction in study.predictions],
        "checks": [record_of(check) for check in study.checks],
        "censored": dict(study.censored),
        "metrics": study.metrics,
        "settings": digest_of(describe(select_arms(Settings(name).for_study(study), study))),
    })  # fmt: skip


def plain(value: Any) -> Any:
    """The value as it is read from a results.json: what is not finite is null."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda name: None)


def digest_of(value: Any) -> str:
    """SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()


def digest_of_freeze(kept: Mapping[str, Any]) -> str:
    """The digest of a frozen.json: of what it states, its parent commit and its number of seeds."""
    return digest_of({**{name: kept[name] for name in STATED}, "parent": kept["parent"], "count": len(kept["seeds"])})


def seeds_of(digest: str, count: int) -> list[int]:
    """`count` seeds in a row, which follow from a digest."""
    first = FIRST + int(digest[:16], 16) % SPAN
    return list(range(first, first + count))


@dataclasses.dataclass(frozen=True)
class Options:
    names: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names of studies."""
    tried: str
    """A sentence on earlier tries and their seeds."""
    seeds: int = SEEDS


def freeze(package: str, options: Options, console: Console) -> None:
    """Writes frozen.json of each study.

    Raises ValueError before it writes: for an unknown study or one without predictions, for too few seeds, without a
    name or an entry in `tried`. The tree must be clean.
    """
    home = catalogue.home(package)
    repository = Repository(home)
    if options.seeds < FEWEST or not options.tried.strip() or not options.names:
        raise ValueError(f"Name studies, say in --tried what was tried before, and take at least {FEWEST} seeds.")
    if dirty := repository.dirty(home / "results"):
        raise ValueError(f"{dirty[0]} is not committed: what is frozen must be in the parent commit.")
    parent, files = repository.head, {}
    for name in options.names:
        study = registry.load(package, name).study
        if not study.predictions:
            raise ValueError(f"{name} predicts nothing: there is nothing to freeze.")
        kept = {**statement(name, study), "parent": parent, "seeds": [0] * options.seeds}
        digest = digest_of_freeze(kept)
        about = {"study": name, "date": datetime.now(UTC).date().isoformat(), "tried": options.tried}
        files[home / "results" / name / FILE] = (
            about | kept | {"seeds": seeds_of(digest, options.seeds), "digest": digest}
        )
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
        first, *_, last = content["seeds"]
        console.print(
            f"{escape(str(file))}: seeds {first} to {last}. Commit it by itself, then run the table.", soft_wrap=True
        )


def read(package: str, name: str) -> dict[str, Any]:
    """The freeze of a study. Raises ValueError if there is none."""
    file = catalogue.home(package) / "results" / name / FILE
    if not file.exists():
        raise ValueError(
            f"{name} is not frozen: run `python -m {package} freeze {name} --tried WORDS` and commit {FILE}."
        )
    return json.loads(file.read_text(encoding="utf-8"))


def check_run(package: str, name: str, study: Study) -> dict[str, Any]:
    """The freeze of a study whose table may run here, with `commit`, which holds it, and `head`, which is checked out.

    Raises ValueError without a freeze that is committed, in a tree that is not clean, and for other predictions or
    settings than the frozen ones.
    """
    kept = read(package, name)
    home = catalogue.home(package)
    repository, file = Repository(home), home / "results" / name / FILE
    if dirty := repository.dirty(home / "results"):
        raise ValueError(f"{dirty[0]} is not committed: the table of a frozen study runs in a clean tree.")
    path = repository.place(file)
    commits = repository.commits(file).get(path)
    if not commits or repository.text("HEAD", path) != file.read_text(encoding="utf-8").rstrip("\n"):
        raise ValueError(f"{file} is not committed: commit the freeze by itself, then run the table.")
    for part, now in statement(name, study).items():
        if now != kept[part]:
            raise ValueError(f"The {part} of {name} differ from the frozen ones: a changed study is a new freeze.")
    check_digest(kept, file)
    return {**kept, "commit": commits[-1], "head": repository.head}


def check_digest(kept: Mapping[str, Any], file: Path) -> None:
    """Raises ValueError if a frozen.json was changed after it was written."""
    digest = digest_of_freeze(kept)
    if kept["digest"] != digest or kept["seeds"] != seeds_of(digest, len(kept["seeds"])):
        raise ValueError(f"{file} was changed by hand: its digest or its seeds are not those of what it states.")


def command(package: str, arguments: Sequence[str], console: Console) -> None:
    """The command `freeze`."""
    prog = f"python -m {package} freeze"
    freeze(package, read_arguments(Options, prog, str(__doc__), arguments), console)


def without_table(home: Path) -> list[Path]:
    """The freezes of a package whose first table is not published yet."""
    return sorted(file for file in home.glob(f"results/*/{FILE}") if not file.with_name("results.json").exists())
