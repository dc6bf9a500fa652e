"""Random games, and what a seat is told in them as text."""

from functools import cache
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.environments.base import MessageFrom, View
from jaxmarl_llm.text.grammar import Choice
from tests.support.toys import play_out


def played(game: Any, groups: int, seed: int = 0) -> tuple[np.ndarray, dict[str, Any], Any]:
    """Openings, record (leaves [T, G, ...]) and deals of games with random legal actions."""
    numbers = np.arange(groups, dtype=np.int32)

    def play(key):
        keys = jax.vmap(lambda group: jax.random.fold_in(key, group))(numbers)
        return *play_out(game, key, groups), jax.vmap(game.reset)(keys, numbers)[0]

    prompt, record, deals = jax.device_get(jax.jit(play)(jax.random.key(seed)))
    return prompt, record, deals


def render(fields: Any, text: np.ndarray, hears: np.ndarray | None = None) -> str:
    """The phrases joined; words heard of seat k are written <k>. `hears` bool [A], of whom the seat is told."""
    pieces = []
    for field, phrase in zip(fields, text, strict=True):
        if isinstance(field, MessageFrom):
            pieces += [f"<{field.seat}>"] * bool(hears is not None and hears[field.seat])
        elif phrase >= 0:
            pieces.append(field[phrase])
    return "".join(pieces)


def told(game: Any, view: View, *at: int, seat: int) -> str:
    """What a seat is told in one view of a batch."""
    hears = None if view.hears is None else view.hears[at][:, seat]
    return render(_observation(game), view.phrases[at][seat], hears)


def answers(game: Any, view: View, *at: int, seat: int) -> set[str]:
    """What a seat may choose to answer."""
    legal = view.legal[at][seat]
    return {text for number, text in _options(game, int(view.grammar[at][seat])) if legal[number]}


@cache
def _observation(game: Any) -> Any:
    return game.observation


@cache
def _options(game: Any, grammar: int) -> tuple[tuple[int, str], ...]:
    (choice,) = (part for part in game.grammars[grammar] if isinstance(part, Choice))
    return choice.options
