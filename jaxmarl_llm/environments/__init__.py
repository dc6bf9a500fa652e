"""The registry of games, by name. `play` and `match` offer them, and the contract test checks each of them.

A file of games ends with `GAMES`: a dict from names to functions or classes that make a game in its default settings.
"""

import ast
import dataclasses
import re
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


def make_game(words: str) -> Any:
    """The game of `NAME`, or of `NAME:FIELD=VALUE,...` with other settings: `prisoners_dilemma:rounds=10`.

    A value is a number, True, False, None, a tuple in brackets, or a text. Raises ValueError for an unknown name or
    field and for settings that the game refuses.
    """
    name, colon, rest = words.partition(":")
    try:
        game = REGISTRY[name]()
    except KeyError as error:
        raise ValueError(*error.args) from None
    if not colon:
        return game
    known = [field.name for field in dataclasses.fields(game) if field.init]
    fields = {}
    for part in re.split(r",(?![^(]*\))", rest):
        field, equals, text = part.partition("=")
        if field not in known or not equals:
            listed = f"Its settings are {', '.join(known)}." if known else "It has no settings."
            raise ValueError(f"{name} is followed by :FIELD=VALUE,..., got {part!r}. {suggest(field, known)}{listed}")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        kind = type(getattr(game, field))
        if kind in (bool, int, float, str, tuple) and type(value) is not kind and (kind, type(value)) != (float, int):
            raise ValueError(f"{field} of {name} is {getattr(game, field)!r}, and {text!r} is no {kind.__name__}.")
        fields[field] = value
    try:
        return dataclasses.replace(game, **fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{words} is no game: {error}") from None
