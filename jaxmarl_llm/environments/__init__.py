"""The registry of games, by name. `play` offers them, and the contract test checks each of them.

A file of games ends with `GAMES`: a dict from names to functions or classes that make a game in its default settings.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from jaxmarl_llm.text.refusals import suggest


class Games(dict[str, Callable[[], Any]]):
    """Games by name. An unknown name is a KeyError that names the nearest game."""

    def __missing__(self, name: str) -> Callable[[], Any]:
        raise KeyError(f"No game is called {name!r}. {suggest(name, self)}Possible are {', '.join(sorted(self))}.")


REGISTRY = Games()
_home: dict[str, str] = {}
for _file in sorted(walk_packages(__path__, f"{__name__}."), key=lambda file: file.name.rpartition(".")[2]):
    _games = getattr(import_module(_file.name), "GAMES", {})
    _where = f"{_file.name.rpartition('.')[2]}.py"
    if not isinstance(_games, dict) or not all(callable(_game) for _game in _games.values()):
        raise ValueError(f"GAMES of {_where} must be a dict from names to classes or functions that make a game.")
    for _name, _game in _games.items():
        if _name in REGISTRY:
            raise ValueError(f"Two games are called {_name!r}, in {_home[_name]} and {_where}: rename one.")
        REGISTRY[_name], _home[_name] = _game, _where


def check_name(name: str) -> None:
    """Raises ValueError if no game has this name."""
    try:
        REGISTRY[name]
    except KeyError as error:
        raise ValueError(*error.args) from None
