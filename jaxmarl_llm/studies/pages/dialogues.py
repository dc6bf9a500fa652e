"""The dialogues of finished runs as JSONL for supervised training elsewhere: OpenAI messages, or preference pairs.

python -m experiments dialogues runs/demo --out dialogues.jsonl --least 10
python -m experiments dialogues runs/demo --out pairs.jsonl --pairs

A line is a seat's dialogue in one game, {"messages": [{"role", "content"}], "reward", "study", "arm", "seed", "update",
"group", "member", "seat", "policy"}; or with `--pairs`, {"prompt", "chosen", "rejected", "policy"} of the best and the
worst game of a group, which begin alike. They are the games that a run shows (`--games`), as in its games.jsonl.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from jaxmarl_llm.runs.log import writable_directory
from jaxmarl_llm.studies.pages.results import write_atomically
from jaxmarl_llm.view import page

Line = dict[str, Any]
ABOUT = ("study", "arm", "seed", "update", "group", "member")


@dataclasses.dataclass(frozen=True)
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of runs."""
    out: Path
    """The file."""
    least: float = float("-inf")
    """The smallest reward of a seat whose dialogue is written, and of a chosen one."""
    pairs: bool = False
    """Preference pairs instead of dialogues."""
    before: bool = False
    """Games of before training, too; otherwise only those after it."""


def run(options: Options, console: Console) -> None:
    """Writes the file. Raises ValueError without runs, for a directory without games or a file of one of the runs, and
    where no dialogue is left."""
    if not options.runs:
        raise ValueError("Name the directory of at least one run.")
    out = options.out.resolve()
    if out.is_dir() or (out.exists() and any(run.resolve() in out.parents for run in options.runs)):
        raise ValueError(f"{options.out} is a directory or a file of a run: give --out another name.")
    games: list[Line] = []
    lines: list[Line] = []
    for directory in dict.fromkeys(run.resolve() for run in options.runs):
        files = sorted(directory.rglob(page.GAMES))
        if not files:
            raise ValueError(f"{directory} holds no {page.GAMES}: is it a run, and was it run with --games 0?")
        own = [game for file in files for game in page.read(file) if game["update"] or options.before]
        lines += (pairs if options.pairs else dialogues)(own, options.least)
        games += own
    if not lines:
        raise ValueError(f"None of {len(games)} games has a dialogue to write, with --least {options.least:g}.")
    writable_directory(out.parent)
    write_atomically(options.out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
    console.print(f"{escape(str(options.out))}: {len(lines)} lines of {len(games)} games.")


def dialogues(games: Sequence[Line], least: float) -> Iterator[Line]:
    """A line for each seat with a recorded dialogue, which ends with the seat's last answer."""
    for game in games:
        for seat, own in enumerate(game["seats"]):
            if own["reward"] >= least and (messages := to_last_answer(own["messages"])):
                about = {name: game[name] for name in ABOUT}
                yield {"messages": messages, "reward": own["reward"], **about, "seat": seat, "policy": own["policy"]}


def pairs(games: Sequence[Line], least: float) -> Iterator[Line]:
    """The best and the worst dialogue of each seat in a group, if their rewards differ, with what both begin with."""
    groups: dict[tuple, list[Line]] = {}
    for line in dialogues(games, float("-inf")):
        key = tuple(line[name] for name in ("study", "arm", "seed", "update", "group", "seat", "policy"))
        groups.setdefault(key, []).append(line)
    for lines in groups.values():
        best, worst = (choose(lines, key=lambda line: line["reward"]) for choose in (max, min))
        if best["reward"] == worst["reward"] or best["reward"] < least:
            continue
        chosen, rejected = best["messages"], worst["messages"]
        first = next(i for i, message in enumerate(chosen) if message["role"] == "assistant")
        if chosen[:first] == rejected[:first]:
            said = {"chosen": chosen[first:], "rejected": rejected[first:]}
            yield {"prompt": chosen[:first], **said, "policy": best["policy"]}


def to_last_answer(messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The messages up to the last of the assistant; none if it said nothing."""
    said = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return list(messages[: said[-1] + 1]) if said else []


def command(package: str, arguments: Sequence[str], console: Console) -> None:
    """The command `dialogues`."""
    prog = f"python -m {package} dialogues"
    run(tyro.cli(Options, args=list(arguments), prog=prog, description=__doc__), console)
