"""Imports the studies of a package and checks them."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from jaxmarl_llm.studies.catalogue import find
from jaxmarl_llm.studies.study import Study
from jaxmarl_llm.text.refusals import suggest


class Entry(NamedTuple):
    """A study with its name and its module."""

    name: str
    module: str  # dotted
    study: Study
    further: tuple[str, ...] = ()  # modules whose code the study runs and its module does not import


def load(package: str, name: str) -> Entry:
    """Imports and checks the study of a name. Raises ValueError for an unknown name."""
    known = find(package)
    if name not in known:
        near = suggest(name, known)
        listed = f"`python -m {package}` lists all studies." if near else f"The studies are {', '.join(known)}."
        raise ValueError(f"There is no study {name!r}. {near}{listed}")
    return load_module(known[name])


def load_module(module: str) -> Entry:
    """Imports and checks the study of a module; its name is the last part of the module's name."""
    name, study = module.rpartition(".")[2], importlib.import_module(module).STUDY
    study.check(name)
    return Entry(name, module, study)
