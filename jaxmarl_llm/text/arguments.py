"""The options of a command, read from its words; a wrong word is one sentence."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TypeVar

import tyro

from jaxmarl_llm.text.console import help_of
from jaxmarl_llm.text.refusals import suggest

Settings = TypeVar("Settings")
FRAME = "│ "


def read_arguments(
    kind: type[Settings],
    prog: str,
    description: str,
    words: Sequence[str] | None = None,
    nicknames: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of a command, of the dataclass `kind`; `words` are those of sys.argv by default.

    `--help` prints the options and ends the command. A wrong word is a sentence on stderr and exit status 2.
    `nicknames` is {option of other libraries: the option here}.
    """
    words = sys.argv[1:] if words is None else words
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(kind, args=list(words), prog=prog, description=help_of(description))
    except SystemExit as end:
        if not end.code:
            raise
    unknown = [word.partition("=")[0] for word in words if re.match(r"--[a-zA-Z]", word)]
    known = options(kind)
    unknown = [option for option in unknown if option.replace("_", "-") not in known]
    if unknown:
        near = (nicknames or {}).get(unknown[0])
        hint = f"Did you mean {near}? " if near else suggest(unknown[0], known)
        said = f"There is no option {unknown[0]}. {hint}".strip()
    else:
        said = _sentence(printed.getvalue())
    print(f"error: {said} `{prog} --help` lists the options.", file=sys.stderr)
    raise SystemExit(2)


def options(kind: type) -> list[str]:
    """All options of a command as they are typed, in the order of its help."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"])
    lines = [line.strip(FRAME) for line in printed.getvalue().splitlines()]
    words = [word for line in lines if line.startswith("-") for word in re.split(r"[\s,|]+", line)]
    return list(dict.fromkeys(word for word in words if re.match(r"--\w", word)))


def _sentence(box: str) -> str:
    """The first thing that a framed error says."""
    lines = [line.strip("│╭╮╰╯").rstrip() for line in box.splitlines()[1:]]  # the first one is the title
    lines = [line for line in lines if line.strip()]
    parts = [[*part] for rule, part in itertools.groupby(lines, lambda line: not line.strip("- ─")) if not rule]
    first = parts[0] if parts else ["The words are none of this command's"]
    if first[0].strip().startswith("Missing from"):
        indent = min(len(line) - len(line.lstrip()) for line in first[1:])
        missing = [line.strip() for line in first[1:] if len(line) - len(line.lstrip()) == indent]
        return f"Missing: {', '.join(missing)}."
    said = " ".join(" ".join(first).split())
    said = re.sub(r"^Unrecognized options: (.*)", r"No option takes the word \1", said).removeprefix("Error parsing ")
    return said if said.endswith(".") else f"{said}."
