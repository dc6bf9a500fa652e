"""Objects of a user's own modules, named MODULE:NAME on a command line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from jaxmarl_llm.text.refusals import suggest


def import_object(words: str, place: str) -> Any:
    """The object `MODULE:NAME`; the current directory holds modules too.

    `place` says in errors what names it, e.g. "--reward". Raises ValueError for a module that cannot be imported, and
    for a name that it lacks.
    """
    kind, _, name = words.partition(":")
    sys.path[:0] = [""] * ("" not in sys.path and str(Path.cwd()) not in sys.path)
    try:
        module = importlib.import_module(kind)
    except Exception as error:  # the file is anybody's code
        raise ValueError(
            f"The module {kind} of {place} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    if not hasattr(module, name):
        raise ValueError(f"The module {kind} has no {name}. {suggest(name, vars(module))}".strip())
    return getattr(module, name)
