"""Export of the dialogues of runs as JSONL: OpenAI messages for supervised training, or preference pairs.

python -m experiments dialogues runs/demo --out dialogues.jsonl --least 10
python -m experiments dialogues runs/demo --out pairs.jsonl --pairs

A line holds the dialogue of one seat in one game:

  {"messages": [{"role", "content"}], "reward", "study", "arm", "seed", "update", "group", "member", "seat", "policy"}

With `--pairs` it holds the best and the worst dialogue of a seat in a group, whose games begin alike:

  {"prompt", "chosen", "rejected", "policy"}

The games are those in games.jsonl of a run, 16 of an arm by default. For all games of an update, give `--games 0` to
the run; the command of a finished run with `--games 0` records them from its last checkpoint:

python -m experiments mars --arms centred --seeds 2 --games 0
python -m experiments dialogues runs/mars-tiny --out dialogues.jsonl
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
from jaxmarl_llm.text.arguments import read_arguments
from jaxmarl_llm.text.refusals import check_new
from jaxmarl_llm.view import page

Line = dict[str, Any]
ABOUT = ("study", "arm", "seed", "update", "group", "member")


@dataclasses.dataclass(frozen=True)
class Options:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of runs."""
    out: Path
    """A new JSONL file."""
    least: float = float("-inf")
    """Dialogues below this reward of the seat are left out; with --pairs, pairs whose best is below it."""
    pairs: bool = False
    """Write preference pairs in place of dialogues."""
    before: bool = False
    """Include games from before training. Default: only games after training."""


def run(options: Options, console: Console) -> None:
    """Writes the file.

    Raises ValueError without a run, for a run without games, if no dialogue is left, or if `out` exists.
    """
    if not options.runs:
        raise ValueError("Name the directory of at least one run.")
    out = options.out.resolve()
    if out.is_dir():
        raise ValueError(f"{options.out} is a directory: give --out the name of a file.")
    check_new(options.out)
    games: list[Line] = []
    lines: list[Line] = []
    for directory in dict.fromkeys(run.resolve() for run in options.runs):
        files = sorted(directory.rglob(page.GAMES))
        if not files:
            raise ValueError(f"{directory} holds no {page.GAMES}: name the directory of a run.")
        chosen = [game for file in files for game in page.read(file) if game["update"] or options.before]
        lines += (pairs if options.pairs else dialogues)(chosen, options.least)
        games += chosen
    if not lines:
        raise ValueError(f"None of {len(games)} games has a dialogue to write, with --least {options.least:g}.")
    writable_directory(out.parent)
    write_atomically(options.out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
    console.print(f"{escape(str(options.out))}: {len(lines)} lines of {len(games)} games.")


def dialogues(games: Sequence[Line], least: float) -> Iterator[Line]:
    """A line for each seat whose reward is at least `least`; its dialogue ends with the seat's last answer."""
    for game in games:
        for seat, x in enumerate(game["seats"]):
            if x["reward"] >= least and (messages := to_last_answer(x["messages"])):
                about = {name: game[name] for name in ABOUT}
                yield {"messages": messages, "reward": x["reward"], **about, "seat": seat, "policy": x["policy"]}


def pairs(games: Sequence[Line], least: float) -> Iterator[Line]:
    """A pair for each seat of a group: its best and its worst dialogue, if rewards differ and both have one prompt."""
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
    """The messages up to the assistant's last one; [] without any."""
    said = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return list(messages[: said[-1] + 1]) if said else []


def command(package: str, arguments: Sequence[str], console: Console) -> None:
    """The command `dialogues`."""
    prog = f"python -m {package} dialogues"
    run(read_arguments(Options, prog, str(__doc__), arguments), console)
