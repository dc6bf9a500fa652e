"""The identity of a run: its settings as JSON, and a digest of the code that it imports.

A stopped run continues only with the same settings and the same code.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, cast

from jaxmarl_llm.training.recipe import DEFAULT_HPARAMS, Recipe
from jaxmarl_llm.training.records import NEW

PACKAGE = __name__.partition(".")[0]


def describe(value: Any) -> Any:
    """Settings as JSON: a function as its name and bound arguments, a dataclass as its kind and repr fields."""
    if isinstance(value, functools.partial):
        positional = {"arguments": describe(value.args)} if value.args else {}
        keywords = {name: describe(bound) for name, bound in value.keywords.items()}
        return {"function": describe(value.func), **positional, **keywords}
    if isinstance(value, Recipe):
        numbers: Mapping[str, Any] = value.hparams
        if any(map(callable, numbers.values())):  # the numbers of a schedule, in place of its name
            numbers = {name: x for name, x in value.all_hparams.items() if name not in value.choices}
        value = dataclasses.replace(value, hparams=cast(Any, numbers), choices=cast(Any, value.all_choices))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [field for field in dataclasses.fields(value) if field.repr and not _is_left_out(field, value)]
        return {"kind": type(value).__name__, **{field.name: describe(getattr(value, field.name)) for field in shown}}
    if isinstance(value, Mapping):
        return {str(key): describe(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [describe(inner) for inner in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return _describe(value)
    return value if isinstance(value, str | int | float | None) else type(value).__qualname__


def describe_whole(recipe: Recipe) -> Any:
    """`describe` of a recipe, with the default of every hparam that it leaves out: to read, not to compare runs by."""
    return describe(recipe.with_hparams(**{**DEFAULT_HPARAMS, **recipe.hparams}))


def _is_left_out(field: dataclasses.Field, value: Any) -> bool:
    """True for a field of NEW with its default: settings of published results stay as they are."""
    return field.metadata == NEW and getattr(value, field.name) == field.default


def _describe(function: Any) -> Any:
    """The name of a function, or of the class of an object that can be called. A lambda and an inner function also have
    a digest of their code, their default arguments and their free variables."""
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    defaults = getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)
    if code is None or not ("<lambda>" in name or cells or ("<locals>" in name and any(defaults))):
        return name
    digest = zlib.crc32(repr(_code_facts(code)).encode())
    return {
        "function": f"{name} {digest:08x}",
        **({"defaults": describe(defaults)} if any(defaults) else {}),
        **{inner: describe(cell.cell_contents) for inner, cell in zip(code.co_freevars, cells, strict=True)},
    }


def _code_facts(code: CodeType) -> tuple[Any, ...]:
    """Instructions, constants and names of a function and of the functions in it, without file and lines."""
    return code.co_code, [_settle(x) for x in code.co_consts], code.co_names


def _settle(constant: Any) -> Any:
    """A constant in a form that is the same in every process; a set of strings has another order in each."""
    if isinstance(constant, CodeType):
        return _code_facts(constant)
    return sorted(constant, key=repr) if isinstance(constant, frozenset) else constant


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
