"""The studies of a package: its modules with a constant `STUDY`, each named by its file."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from pathlib import Path
from typing import NamedTuple

from jaxmarl_llm.studies.study import Study


class Entry(NamedTuple):
    """A study with its name and its module."""

    name: str
    module: str  # dotted
    study: Study
    further: tuple[str, ...] = ()  # modules whose code the study runs and its module does not import


def home(package: str) -> Path:
    """The folder of a package. Raises ValueError for an unknown package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"There is no package {package!r}: start the command where it lies.")
    return Path(next(iter(spec.submodule_search_locations)))


def find(package: str) -> dict[str, str]:
    """{name: module} of all studies, sorted by name. Files that begin with `_` are templates and are left out.

    The files are read, and no module is imported. Raises ValueError if two studies have one name.
    """
    folder = home(package)
    modules: dict[str, str] = {}
    for file in sorted(folder.rglob("*.py"), key=lambda file: (file.stem, file)):
        if file.stem.startswith("_") or "\nSTUDY = " not in file.read_text(encoding="utf-8"):
            continue
        module = ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        if file.stem in modules:
            raise ValueError(f"{modules[file.stem]} and {module} are both called {file.stem}: rename one of them.")
        modules[file.stem] = module
    return modules


def load(package: str, name: str) -> Entry:
    """Imports and checks the study of a name. Raises ValueError for an unknown name."""
    known = find(package)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise ValueError(f"There is no study {name!r}. {hint}The studies are {', '.join(known)}.")
    return load_module(known[name])


def load_module(module: str) -> Entry:
    """Imports and checks the study of a module; its name is the last part of the module's name."""
    name, study = module.rpartition(".")[2], importlib.import_module(module).STUDY
    study.check(name)
    return Entry(name, module, study)
