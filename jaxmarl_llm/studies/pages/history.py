"""The history of a result: the verdicts of former tables, and the proof from git that nothing was moved after a run.

`results/NAME/history.json` is a list with an entry for each table that another one replaced, and for each freeze that
was given up:

  {"run", "seeds", "digest", "why", "rule", "verdicts": [{"prediction", "source", "outcome", "told"}]}

Entries are only added. `faults` looks in git for what must not be:

- an edited or deleted entry
- a frozen file that was changed
- a table that is gone, or that ran before its freeze
- a table of other seeds, predictions or settings than the frozen ones
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxmarl_llm.runs.git import Repository
from jaxmarl_llm.studies import frozen, registry
from jaxmarl_llm.studies.pages.results import load, run_of, write_atomically
from jaxmarl_llm.studies.pages.verdicts import judge

FILE = "history.json"
RULE = "sign-flip test, p at most 0.05 after Holm"
FILES = (frozen.FILE, FILE, "results.json")


def entry_of(results: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The entry of a table that is replaced."""
    verdicts = [
        {"prediction": str(x.prediction), "source": x.prediction.source, "outcome": x.outcome, "told": x.told}
        for x in judge(results)
    ]
    digest = results.get("frozen", {}).get("digest")
    about = {"run": run_of(results), "seeds": list(results["seeds"]), "digest": digest}
    return about | {"why": why, "rule": RULE, "verdicts": verdicts}


def read(folder: Path) -> list[dict[str, Any]]:
    """The entries of a result, the oldest first."""
    file = folder / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def add(folder: Path, entry: Mapping[str, Any]) -> None:
    """Adds an entry."""
    text = json.dumps([*read(folder), entry], indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(folder / FILE, text.encode())


def faults(package: str, home: Path) -> list[str]:
    """A sentence for each thing that must not be, from git."""
    repository = Repository(home)
    place = repository.place(home / "results")
    commits = repository.commits(*(f"{place}/*/{file}" for file in FILES[:2]))
    folders = sorted({path.split("/")[-2] for path in commits} | {x.parent.name for x in home.glob("results/*/*.json")})
    commits |= repository.commits(*(f"{place}/{folder}/results.json" for folder in folders))
    sentences: list[str] = []
    for folder in folders:
        versions = {
            file: [(commit, repository.text(commit, f"{place}/{folder}/{file}")) for commit in commits.get(path, [])]
            for file in FILES
            for path in [f"{place}/{folder}/{file}"]
            if file != "results.json" or f"{place}/{folder}/{frozen.FILE}" in commits
        }
        told = [*_faults(home / "results" / folder, versions, repository), *_code_faults(package, home, folder)]
        sentences += (f"{folder}: {sentence}" for sentence in told)
    return sentences


def _code_faults(package: str, home: Path, folder: str) -> Iterator[str]:
    """Sentences on what the study of a folder states now, and its freeze does not. Settings are not compared."""
    file = home / "results" / folder / frozen.FILE
    if not file.exists():
        return
    kept = json.loads(file.read_text(encoding="utf-8"))
    for name, now in frozen.statement(folder, registry.load(package, folder).study).items():
        if name != "settings" and now != kept[name]:
            yield f"the {name} of the study are not the frozen ones: a changed study is a new freeze"


Versions = Mapping[str, list[tuple[str, str | None]]]  # {file: its (commit, text), the oldest first; None: deleted}


def _faults(folder: Path, versions: Versions, repository: Repository) -> Iterator[str]:
    kept = [(commit, json.loads(text)) for commit, text in versions[frozen.FILE] if text]
    yield from _history_faults(folder, versions[FILE])
    if not kept:
        return
    waits = not any(text for _, text in versions["results.json"]) and not (folder / "results.json").exists()
    if not (folder / frozen.FILE).exists() or not (waits or (folder / "results.json").exists()):
        yield f"{frozen.FILE} or results.json is gone"
        return
    entries = read(folder)
    for commit, freeze in kept:
        beside = [file for file in repository.files(commit) if Path(file).name not in FILES[:2]]
        if beside:
            yield f"the freeze {commit[:10]} was committed with {beside[0]}"
        if repository.ask("rev-parse", f"{commit}^") != freeze["parent"]:
            yield f"the parent of the freeze {commit[:10]} is not the one that it states"
        yield from _digest_faults(freeze, folder)
    freeze, results = kept[-1][1], {} if waits else load(folder / "results.json")
    table = results.get("frozen", {})  # it may be of the freeze before the latest one, which then waits for its table
    known = {freeze["digest"], table.get("digest"), *(entry["digest"] for entry in entries)}
    for old, past in kept:
        if past["digest"] not in known:
            yield f"the freeze {old[:10]} is neither the latest one nor in {FILE}, and the table is not its"
    if (now := json.loads((folder / frozen.FILE).read_text(encoding="utf-8"))) != freeze:
        yield f"{frozen.FILE} differs from its commit"
        yield from _digest_faults(now, folder)
    if table:
        its = [(commit, freeze) for commit, freeze in kept if table == {"commit": commit, "digest": freeze["digest"]}]
        yield from _run_faults(results, *its[0], repository) if its else ["the table is of no freeze"]
    if not waits:
        yield from _published_faults(results, versions["results.json"], entries)


def _digest_faults(freeze: Mapping[str, Any], folder: Path) -> Iterator[str]:
    try:
        frozen.check_digest(freeze, folder / frozen.FILE)
    except ValueError as error:
        yield str(error)


def _history_faults(folder: Path, versions: list[tuple[str, str | None]]) -> Iterator[str]:
    """Entries that were changed or removed."""
    states = [(commit[:10], json.loads(text) if text else []) for commit, text in versions]
    states.append(("the working tree", read(folder)))
    for (_, before), (when, after) in pairwise(states):
        if after[: len(before)] != before:
            yield f"an entry of {FILE} was changed or removed in {when}"


def _run_faults(results: Mapping[str, Any], commit: str, freeze: Mapping[str, Any], git: Repository) -> Iterator[str]:
    """Differences between a table and its freeze."""
    run = str(results["provenance"]["commit"])
    if not git.descends(run, commit):
        yield f"the table was run at {run[:10]}, which does not follow the freeze {commit[:10]}"
    if results["seeds"] != freeze["seeds"]:
        yield "the seeds of the table are not the frozen ones"
    for name in frozen.STATED:
        now = frozen.digest_of(results[name]) if name == "settings" else results[name]
        if now != freeze[name]:
            yield f"the {name} of the table are not the frozen ones"


def _published_faults(
    results: Mapping[str, Any], versions: list[tuple[str, str | None]], entries: list[dict[str, Any]]
) -> Iterator[str]:
    """Frozen tables that were published and are gone, or whose numbers were changed."""
    states = [(commit, json.loads(text)) for commit, text in versions if text]
    runs = {run_of(results), *(entry["run"] for entry in entries)}
    for commit, past in states:
        if "frozen" not in past:
            continue
        if run_of(past) not in runs:
            yield f"the table of {run_of(past)}, in {commit[:10]}, is neither shown nor in {FILE}"
        if run_of(past) == run_of(results):
            for name, what in (("arms", "numbers of the table were"), ("frozen", "freeze of the table was")):
                if past[name] != results.get(name):
                    yield f"the {what} changed since {commit[:10]}"


def lines(entries: list[dict[str, Any]]) -> list[str]:
    """Markdown of the entries, the latest first: why each table was replaced, and its verdicts."""
    told = []
    for entry in reversed(entries):
        rule = f" ({entry['rule']})" * bool(entry["verdicts"])
        told.append(f"**{entry['run']}**{rule}. Why it was replaced: {entry['why']}")
        told.append("\n".join(f"- {x['prediction']}: {x['outcome']}, {x['told']}." for x in entry["verdicts"]))
    return [x for x in told if x]
