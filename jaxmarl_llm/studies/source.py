"""The code that a run depends on, as one digest: a run that was paused is only continued by the same code."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

OWN = __name__.partition(".")[0]


def source_digest(modules: Iterable[str]) -> str:
    """SHA-256 of the modules and of all that they import, transitively, within their own packages and this one.

    Imports are read from the source, those inside functions too. A package's `__init__` counts if a name is taken from
    it that is no module. Any other file can be edited, or added, without a change of the digest.
    """
    waiting = list(modules)
    roots = {OWN, *(name.partition(".")[0] for name in waiting)}
    found: dict[str, bytes] = {}
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] not in roots:
            continue
        file = _file(name)
        if file is None:
            continue
        found[name] = file.read_bytes()
        waiting += _imports(ast.parse(found[name]))
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{len(found[name])}\0".encode() + found[name])
    return digest.hexdigest()


def _file(name: str) -> Path | None:
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded:
        return Path(loaded)
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # a name in a module, not a module
        return None
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            known = [name for name in submodules if _file(name) is not None]
            yield from known
            if len(known) < len(submodules):
                yield node.module
