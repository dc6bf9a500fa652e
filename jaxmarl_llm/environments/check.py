"""Checks of a game before it is used: the object is a game, and its functions keep the shapes of the contract."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Hashable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.base import Environment, check_reward, phrases
from jaxmarl_llm.environments.bridges.python_games import HostGame
from jaxmarl_llm.environments.extras import OPTIONAL, Extras, check_measured
from jaxmarl_llm.text.grammar import options_of

PROPERTIES = ("agents", "turns", "actions", "roles", "components", "rules", "observation", "grammars", "scripts")
KNOWN = {*OPTIONAL, *(name for name in vars(Environment) if not name.startswith("_"))}
AXES = {
    "phrases": ", a phrase for each seat and field of the observation",
    "legal": ", a truth value for each seat and action",
    **dict.fromkeys(("acting", "role", "grammar"), ", a value for each seat"),
    **dict.fromkeys(("terminated", "truncated"), ", one truth value"),
}
"""The meaning of the shape of each field of a view."""
NEAR = 0.9
"""The least similarity of a misspelt name: `seat_turnz` has 0.9, the `views` of a panel 0.89."""


def check_object(game: Any) -> None:
    """Raises ValueError for an object that is no game of the contract, and names the right object. Such objects are a
    class or a function that makes a game, a name, several games, and an environment in plain Python."""
    name = getattr(game, "__name__", type(game).__name__)
    missing = [part for part in ("agents", "scripts", "reset", "step") if not hasattr(game, part)]
    if isinstance(game, HostGame):
        raise ValueError(
            f"{type(game).__name__} has no phrases and compiles to nothing: it plays as Recipe.game and unwrapped, "
            f"by pretrained models, or with Recipe.tokenizer={game.spelled_by}."
        )
    if isinstance(game, str):
        registry = sys.modules[__package__].REGISTRY  # an import would make every game a source of every study
        (near,) = difflib.get_close_matches(game, registry, n=1, cutoff=0)
        raise ValueError(f"{game!r} is a text and no game: write REGISTRY[{near!r}]() of jaxmarl_llm.environments.")
    if isinstance(game, list | tuple | set | frozenset | Mapping):
        raise ValueError(
            f"One game is wanted, and a {'dict' if isinstance(game, Mapping) else name} is given: give one of its "
            "games, or train in all of them by methods.several_games.together."
        )
    if "scripts" in missing and {"reset", "step"}.isdisjoint(missing) and not hasattr(game, "prompt"):
        made = "its class or a function that makes it" if not isinstance(game, type) else name
        raise ValueError(f"{name} is no game that compiles: give PythonGame(make, turns), where make is {made}.")
    if isinstance(game, type) or (missing and callable(game)):
        raise ValueError(f"{name} makes a game and is none: give the game itself, {name}(...).")
    if missing:
        raise ValueError(f"{name} has no {missing[0]}: the docstring of environments/base.py lists what a game has.")
    for given in sorted({*dir(type(game)), *getattr(game, "__dict__", ())} - KNOWN):
        near = [] if given.startswith("_") else difflib.get_close_matches(given, OPTIONAL, n=1, cutoff=NEAR)
        if near:
            raise ValueError(f"{name} has an attribute {given}, and nothing reads it: write {near[0]}, or rename it.")


def check_game(game: Any) -> None:
    """Raises ValueError for a game with missing parts, or with functions that return wrong shapes."""
    (_checked if isinstance(game, Hashable) else _check)(game)


def _check(game: Any) -> None:
    check_object(game)
    name = type(game).__name__
    for part in (*PROPERTIES, "prompt"):
        if not hasattr(game, part):
            raise ValueError(f"{name} has no {part}: the docstring of environments/base.py lists what a game has.")
    agents, actions = game.agents, game.actions
    _check_actions(game)
    key, seats = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((agents,), jnp.int32)
    group = jax.ShapeDtypeStruct((), jnp.int32)
    fields = {"rules": len(phrases(game.rules)), "observation": len(phrases(game.observation))}
    state, first = jax.eval_shape(game.reset, key, group)
    prompt = jax.eval_shape(game.prompt, state)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, Any]:
        after, view, reward = game.step(state, action, key)
        check_reward(game, reward)
        return after, view

    after, then = jax.eval_shape(step, state, seats, key)
    if str(jax.tree.structure(after)) != str(jax.tree.structure(state)):
        raise ValueError(f"{name}.step returns a state that is built otherwise than that of reset.")
    for (path, was), (_, now) in zip(jax.tree.leaves_with_path(state), jax.tree.leaves_with_path(after), strict=True):
        if (was.shape, was.dtype) != (now.shape, now.dtype):
            leaf = jax.tree_util.keystr(path)
            raise ValueError(
                f"{name}.step returns the state's {leaf} as {_type(now)}, and reset gave {_type(was)}: a state keeps "
                "its shapes and types."
            )
    measures = Extras(game).measures
    names = isinstance(measures, tuple) and all(isinstance(measure, str) for measure in measures)
    if not names or len({*measures, *game.components}) < len((*measures, *game.components)):
        raise ValueError(
            f"{name}.measures is a tuple of names, each different and none of a component, got {measures!r}."
        )
    for at, view in (("reset", first), ("step", then)):
        wanted = {
            "phrases": (agents, fields["observation"]),
            "legal": (agents, actions),
            "acting": (agents,),
            "role": (agents,),
            "grammar": (agents,),
            "terminated": (),
            "truncated": (),
        }
        for field, shape in wanted.items():
            if getattr(view, field).shape != shape:
                raise ValueError(
                    f"{name}.{at} gives view.{field} {_type(getattr(view, field))}: {shape} is wanted{AXES[field]}."
                )
        check_measured(game, view)
    if prompt.shape != (agents, fields["rules"]):
        raise ValueError(
            f"{name}.prompt gives {_type(prompt)}: {(agents, fields['rules'])} is wanted, a phrase for each seat and "
            "field of the rules."
        )


def _check_actions(game: Any) -> None:
    if not (isinstance(game.grammars, tuple) and game.grammars and all(isinstance(x, tuple) for x in game.grammars)):
        raise ValueError(
            f"{type(game).__name__}.grammars is a tuple of at least one tuple of parts: is a comma missing?"
        )
    largest = max(max(options_of(grammar)) for grammar in game.grammars)
    if game.actions != 1 + largest:
        raise ValueError(
            f"{type(game).__name__}.actions is {game.actions}, and {1 + largest} is wanted: one more than the largest "
            f"action of its grammars, {largest}."
        )


_checked = lru_cache(maxsize=256)(_check)


def _type(x: Any) -> str:
    return f"{x.dtype.name}{list(x.shape)}"


@cache
def _scripts() -> dict[str, str]:
    """{script: the first game of the registry that has it}."""
    games = sys.modules[__name__.rpartition(".")[0]].REGISTRY  # no import: other games are no code of a study
    return {script: name for name, game in reversed(games.items()) for script in game().scripts}


def check_learners(names: Sequence[str], game: Any) -> None:
    """Raises ValueError if nobody learns, and for a policy that would learn under the name of a script, of this game or
    of another one."""
    if not names:
        scripts = f": the scripts are {', '.join(game.scripts)}" if game.scripts else ""
        raise ValueError(
            f"Nobody learns: the line-ups seat only scripts and policies that are never trained{scripts}. Any other "
            "name, such as 'learner', is a policy that learns."
        )
    for name in names:
        if near := difflib.get_close_matches(name, game.scripts, n=1, cutoff=0.86):
            raise ValueError(f"Is {name!r} to learn, or is it {near[0]!r}, who is scripted? Rename it if it learns.")
        if name in _scripts():
            raise ValueError(
                f"{name!r} is a script of {_scripts()[name]}, and not of {type(game).__name__}, whose scripts are "
                f"{', '.join(game.scripts) or 'none'}. Rename it if it is to learn."
            )
