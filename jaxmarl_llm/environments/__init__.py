"""All games by name: what `play` offers and the contract test holds to the contract.

A file of games ends with `GAMES`: names, each with what makes the game in its default settings.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

REGISTRY: dict[str, Callable[[], Any]] = {}
_home: dict[str, str] = {}
for _file in iter_modules(__path__):
    _games = getattr(import_module(f"{__name__}.{_file.name}"), "GAMES", {})
    if not isinstance(_games, dict) or not all(callable(_game) for _game in _games.values()):
        raise ValueError(f"GAMES of {_file.name}.py must be {{name: what makes the game}}, e.g. a class.")
    for _name, _game in _games.items():
        if _name in REGISTRY:
            _files = f"{_home[_name]}.py and {_file.name}.py"
            raise ValueError(f"Two games are called {_name!r}, in {_files}: rename one.")
        REGISTRY[_name], _home[_name] = _game, _file.name
