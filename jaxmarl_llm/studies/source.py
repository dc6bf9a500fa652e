"""A digest of the code that a run imports. A paused run continues only with the same code."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = __name__.partition(".")[0]


def source_digest(modules: Iterable[str]) -> str:
    """SHA-256 of the modules and their transitive imports (`source_files`)."""
    digest = hashlib.sha256()
    for name, content in sorted(source_files(modules).items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def source_files(modules: Iterable[str]) -> dict[str, bytes]:
    """{module: source} of the modules and their transitive imports from the same packages and this one.

    Imports are read from the source, including those inside functions. An imported package counts with all of its
    files, because it may load them by `import_module`, as `environments` does. Changes in other files leave
    the result the same.
    """
    waiting = list(modules)
    roots = {PACKAGE, *(name.partition(".")[0] for name in waiting)}
    sources: dict[str, bytes] = {}
    while waiting:
        name = waiting.pop()
        file = _file(name) if name not in sources and name.partition(".")[0] in roots else None
        if file is not None:
            sources[name] = file.read_bytes()
            waiting += _imports(ast.parse(sources[name]), roots)
            if file.name == "__init__.py":
                waiting += (f"{name}.{path.stem}" for path in file.parent.glob("*.py") if path != file)
                waiting += (f"{name}.{path.parent.name}" for path in file.parent.glob("*/__init__.py"))
    return sources


def _file(name: str) -> Path | None:
    """The file of a module or package, without importing it; None for any other name."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded:
        return Path(loaded)
    root, *parts = name.split(".")
    spec = importlib.util.find_spec(root)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *parts)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                return file
    return None


def _imports(tree: ast.Module, roots: set[str]) -> Iterator[str]:
    """Modules that a file imports: any by `import x`, and those of the packages `roots` by `from x import y`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in roots:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in names if _file(name) is not None]
            yield from modules
            if len(modules) < len(names):
                yield node.module
