"""The registry of games, by name. `play` and `match` offer them, and the contract test checks each of them.

A file of games ends with `GAMES`: a dict from names to functions or classes that make a game in its default settings.
"""

import ast
import dataclasses
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from jaxmarl_llm.text.own_code import import_object
from jaxmarl_llm.text.refusals import suggest


class Games(dict[str, Callable[[], Any]]):
    """Games by name. An unknown name is a KeyError that names the nearest game, or all without one."""

    def __missing__(self, name: str) -> Callable[[], Any]:
        near = suggest(name, self)
        listed = "`python -m jaxmarl_llm.play` lists all games." if near else f"Possible are {', '.join(sorted(self))}."
        raise KeyError(f"No game is called {name!r}. {near}{listed}")


PLAIN = bool, int, float, str, tuple  # kinds of settings that a command can name
TEXTS = "grammars", "observation"  # a seat says and sees by them, and no command sets them
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

    NAME is a game of the registry, or `MODULE:CLASS` of a user: `my_game:Hints`, `my_game:Hints:rounds=3`. A field
    is one whose value is a number, True, False, a text or a tuple; a text of one word needs no quotes. Raises
    ValueError for an unknown name or field, for settings that the game refuses, and for an object that is no game.
    """
    name, colon, rest = words.partition(":")
    if name not in REGISTRY and (module := re.match(r"[\w.]+:[A-Za-z_]\w*(?=:|$)", words)):
        name, end = module[0], module.end()
        colon, rest = words[end : end + 1], words[end + 1 :]
        game = _own_game(name)
    else:
        try:
            game = REGISTRY[name]()
        except KeyError as error:
            if Path(f"{name}.py").is_file():
                raise ValueError(f"{name} is a module here: name its game, {name}:CLASS.") from None
            raise ValueError(*error.args) from None
    if not colon:
        return game
    fields_of = dataclasses.fields(game) if dataclasses.is_dataclass(game) else ()
    now = {field.name: getattr(game, field.name) for field in fields_of if field.init}
    now = {field: value for field, value in now.items() if isinstance(value, PLAIN) and field not in TEXTS}
    listed = f"Its settings are {', '.join(now)}." if now else "It has no settings that can be named."
    fields = {}
    for field, node in _arguments(words, rest).items():
        if field not in now:
            raise ValueError(f"{name} has no setting {field!r}. {suggest(field, now)}{listed}")
        value, kind = _read(node), type(now[field])
        if type(value) is not kind and (kind, type(value)) != (float, int):
            raise ValueError(f"{field} of {name} is {now[field]!r}, and {ast.unparse(node)} is no {kind.__name__}.")
        fields[field] = value
    try:
        return dataclasses.replace(game, **fields)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{words} is no game: {error}") from None


def _own_game(words: str) -> Any:
    """The game of MODULE:CLASS, a function that makes one, or a game itself. Raises ValueError for anything else."""
    from jaxmarl_llm.environments.check import check_game

    game = import_object(words, f"the game {words}")
    if isinstance(game, type) or not hasattr(game, "reset"):
        try:
            game = game()
        except Exception as error:  # anybody's code
            raise ValueError(f"{words} makes no game without arguments: {type(error).__name__}: {error}.") from error
    try:
        check_game(game)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{words} is no game that compiles: {type(error).__name__}: {error}.") from error
    return game


def _arguments(words: str, rest: str) -> dict[str, ast.expr]:
    """{field: value} of `FIELD=VALUE,...`. Raises ValueError for other words."""
    try:
        call = ast.parse(f"f({rest})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if not isinstance(call, ast.Call) or call.args or not call.keywords or not all(x.arg for x in call.keywords):
        raise ValueError(f"A game with other settings is NAME:FIELD=VALUE,..., e.g. NAME:rounds=3, got {words!r}.")
    return {str(keyword.arg): keyword.value for keyword in call.keywords}


def _read(node: ast.expr) -> Any:
    """A literal, or the text of one word without quotes; None for anything else."""
    try:
        return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
