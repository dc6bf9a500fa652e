"""Settings as JSON: functions by name, arguments and digest, recipes and other dataclasses by their fields."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any, cast

from jaxmarl_llm.training.recipe import Recipe


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
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr}
        return {"kind": type(value).__name__, **fields}
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
