"""All games by name: what `play` offers and the contract test holds to the contract.

A file of games ends with `GAMES`: names, each with what makes the game in its default settings.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

REGISTRY: dict[str, Callable[[], Any]] = {}
for _file in iter_modules(__path__):
    for _name, _game in getattr(import_module(f"{__name__}.{_file.name}"), "GAMES", {}).items():
        if _name in REGISTRY:
            raise ValueError(f"Two games are called {_name!r}, one of them in {_file.name}.py: rename one.")
        REGISTRY[_name] = _game
