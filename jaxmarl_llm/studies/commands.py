"""The command line of a package of studies: list them, run one, or process the results of runs.

`python -m PACKAGE`                lists the studies
`python -m PACKAGE WORD [...]`     lists those whose name, question, paper or description has every word
`python -m PACKAGE NAME [...]`     runs the study NAME; `--help` shows its options
`python -m PACKAGE freeze [...]`   freezes predictions and settings, and gives the seeds of the table
`python -m PACKAGE publish [...]`  takes the frozen table of a finished run into the results
`python -m PACKAGE run --frozen`   runs the frozen tables that have not run yet
`python -m PACKAGE pages [...]`    writes a page for each result and an index
`python -m PACKAGE release [...]`  copies trained policies of runs into one folder
`python -m PACKAGE dialogues [...]` writes dialogues of runs as JSONL, e.g. for supervised training
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from jaxmarl_llm.studies import catalogue

ROOM = "jaxmarl_llm.studies"
BUILT_IN = {
    "freeze": f"{ROOM}.frozen",
    "publish": f"{ROOM}.pages.publish",
    "run": f"{ROOM}.tables",
    "pages": f"{ROOM}.pages.pages",
    "release": f"{ROOM}.pages.release",
    "dialogues": f"{ROOM}.pages.dialogues",
}
"""Modules whose `command(package, arguments, console)` is a command. Each is imported when it is asked for."""


NICKNAMES = {"--lr": "--learning-rate", "--steps": "--updates"}  # options of other libraries


def main(package: str, further: Mapping[str, str] | None = None) -> None:
    """Runs the command that sys.argv names.

    `further` is {name: module} of commands from outside this folder, each a function `command(package, arguments)`.
    """
    name, *arguments = sys.argv[1:] or ["--help"]
    further = further or {}
    words = [] if name in ("-h", "--help") else [name, *arguments]
    command = name in further or name in BUILT_IN or any(word.startswith("-") for word in words)
    if not command and _list(package, further, words):
        return
    if name in further:
        importlib.import_module(further[name]).command(package, arguments)
        return
    from jaxmarl_llm.studies import frozen, runner
    from jaxmarl_llm.studies.cli import execute

    if name in BUILT_IN:
        module = importlib.import_module(BUILT_IN[name])
        execute(lambda stop, console: module.command(package, arguments, console))
    else:
        cores = frozen.CORES if "--frozen" in arguments else None
        execute(lambda stop, console: runner.run(*_parse(package, sys.argv[1:]), stop, console), cores)


def _parse(package: str, words: Sequence[str]) -> tuple[Any, Any]:
    """(entry of the study, settings of the run)."""
    from jaxmarl_llm.studies import registry, runner
    from jaxmarl_llm.studies.settings import Settings
    from jaxmarl_llm.text.arguments import read_arguments

    entry = None if words[0].startswith("-") else registry.load(package, words[0])  # before tyro, for a clear error
    if entry and len(words) > 1:
        _check_arms(package, entry.name, *takewhile(lambda word: not word.startswith("-"), words[1:]))
    prog = f"python -m {package} {entry.name if entry else 'NAME'}"
    about = f"{_describe(entry)}\n\n{runner.__doc__}" if entry else runner.__doc__
    settings = read_arguments(Settings, prog, str(about), words, NICKNAMES)
    return entry or registry.load(package, settings.study), settings


def _describe(entry: Any) -> str:
    """The words of a study that its options take: arms, policies, and hparams of its method."""
    study, recipes = entry.study, entry.study.recipes
    method = recipes.get(study.method)
    policies = dict.fromkeys(name for recipe in recipes.values() for name in recipe.learners)
    hparams = [name for name in method.all_hparams if name not in method.choices] if method else []
    told = {
        "Arms": [*study.all_arms],
        "Arm of the method": [study.method],
        "Policies that learn": [*policies],
        "Hparams of the method": hparams,
    }
    lines = [f"{name}: {', '.join(words)}." for name, words in told.items() if words]
    return "\n\n".join([f"{entry.name}: {study.question}", *lines])


def _check_arms(package: str, name: str, *words: str) -> None:
    """Raises ValueError if the word after the name of a study is one of its arms: arms are an option."""
    from jaxmarl_llm.studies import registry

    arms = registry.load(package, name).study.all_arms
    if words and words[0] in arms:
        given = " ".join(word for word in words if word in arms)
        raise ValueError(
            f"{words[0]} is an arm of {name}, and arms are given by --arms: python -m {package} {name} --arms {given}."
        )


def _list(package: str, further: Mapping[str, str], words: Sequence[str]) -> bool:
    """Prints the studies that have every word, with question and paper. jax is not imported, which would take seconds.

    If the first of several words is a study, it is imported, since the next word may be an arm.

    False if there is none, or if the only word is the name of a study or nearly one.
    """
    from jaxmarl_llm.text.console import lasting
    from jaxmarl_llm.text.refusals import suggest

    with lasting():
        try:
            if len(words) > 1 and words[0] in catalogue.files(package):
                _check_arms(package, *words)
            named = len(words) == 1 and (words[0] in (names := catalogue.files(package)) or suggest(words[0], names))
            listed = [] if named else catalogue.listing(package, " ".join(words))
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        if words and not listed:
            return False
        print("\n".join(listed))
        print(f"Run one with `python -m {package} NAME`. Find some with `python -m {package} WORD`, also by a paper.")
        print(f"Further commands: {', '.join((*BUILT_IN, *further))}.")
    return True
