"""Parts that several games share: views, scripted players, draws, and the spelling of numbers and choices.

Shapes: A seats, N actions, K fields of an observation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.base import View
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.text.grammar import Choice, Free, Grammar, options_of

Script = Callable[[Any, jax.Array, jax.Array], jax.Array]  # (state, seat int32, key) -> action int32
Columns = Sequence[Any] | jax.Array
MESSAGE: Grammar = (Free(b"\n"),)  # one line of free text, action 0


def make_view(
    game: Any,
    phrases: Columns,
    acting: Any,
    ended: jax.Array,
    *,
    role: Any = 0,
    grammar: Any = 0,
    legal: jax.Array | None = None,
    to: Any = None,
    hears: jax.Array | None = None,
) -> View:
    """The view of a game that is over at `ended` (bool); then no seat acts. Every array is broadcast over the seats.
    The measures of the view are 0: `step` replaces them.

    phrases: K columns, int [A] or scalars, or one array [A, K] or [K]. They are told to the seats `to` (bool [A] or
    scalar). By default these are the acting seats, and nobody after the end.

    legal: bool [A, N] or [N], by default all actions of the seat's grammar.
    """
    seats = (game.agents,)
    acting = jnp.broadcast_to(acting, seats) & ~ended
    grammar = jnp.broadcast_to(grammar, seats).astype(jnp.int32)
    if isinstance(phrases, Sequence):
        phrases = jnp.stack([jnp.broadcast_to(column, seats) for column in phrases], 1)
    told = jnp.broadcast_to(acting if to is None else to, seats)[:, None]
    legal = jnp.asarray(_sayable(game))[grammar] if legal is None else jnp.broadcast_to(legal, (*seats, game.actions))
    measures = Extras(game).measures
    return View(
        phrases=jnp.where(told, jnp.broadcast_to(phrases, seats + phrases.shape[-1:]), -1).astype(jnp.int32),
        acting=acting,
        role=jnp.broadcast_to(role, seats).astype(jnp.int32),
        grammar=grammar,
        legal=legal,
        terminated=ended,
        truncated=jnp.bool_(False),
        hears=hears,
        measured=jnp.zeros((*seats, len(measures))) if measures else None,
    )


def _sayable(game: Any) -> np.ndarray:
    """bool [grammars, N]: the actions that each grammar can say."""
    actions = np.arange(game.actions)
    return np.stack([np.isin(actions, list(options_of(grammar))) for grammar in game.grammars])


def turn_of(game: Any, actor: jax.Array, ended: jax.Array, phrases: Columns, legal: Any, grammar: Any = 0) -> View:
    """The `View` of a two-seat game in which seat `actor` (int32) acts; the seat number is its role.

    `phrases` are as in `make_view`. legal: bool [N]. After the end every action is legal.
    """
    seats = np.arange(2)
    return make_view(game, phrases, seats == actor, ended, role=seats, grammar=grammar, legal=legal | ended)


def uniform(key: jax.Array, legal: jax.Array) -> jax.Array:
    """A legal action (bool [N]), int32, drawn uniformly."""
    return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf)).astype(jnp.int32)


def random_player(view: Callable[[Any], View]) -> Script:
    """A script that draws a legal action uniformly; `view` maps a state to its view."""
    return lambda state, seat, key: uniform(key, view(state).legal[seat])


def draw(key: jax.Array, count: int | jax.Array) -> jax.Array:
    """The number of a deal, int32, uniform over 0 to count - 1."""
    return jax.random.randint(key, (), 0, count, jnp.int32)


def all_deals(start: Callable, *counts: int) -> tuple[Any, np.ndarray]:
    """(initial states start(i, j, ...) for i, j, ... below the counts, stacked; their probabilities, all equal)."""
    numbers = [index.ravel() for index in np.indices(counts, np.int32)]
    return jax.vmap(start)(*map(jnp.asarray, numbers)), np.full(len(numbers[0]), 1 / len(numbers[0]))


def one_deal(game: Any) -> tuple[Any, np.ndarray]:
    """(the initial state of a game without chance, with a leading axis; its probability, 1), as `initial_states`."""
    state, _ = game.reset(jax.random.key(0), jnp.int32(0))
    return jax.tree.map(lambda leaf: leaf[None], state), np.ones(1)


def zero_sum(points: jax.Array) -> jax.Array:
    """Rewards float32 [2, 1] of a game in which seat 0 wins these points, a scalar, from seat 1."""
    return jnp.stack([points, -points])[:, None].astype(jnp.float32)


def everyone_else(agents: int) -> jax.Array:
    """bool [A, A]: all pairs of two different seats."""
    return ~jnp.eye(agents, dtype=bool)


def choice(texts: Sequence[str]) -> Grammar:
    """A grammar that chooses among these texts; text k is action k."""
    return (Choice(tuple(enumerate(texts))),)


def digits(size: int) -> tuple[str, ...]:
    """Numbers below `size` in digits of equal width. With other widths 1 would begin 11, and a seat without an end
    token could not stop at 1."""
    width = len(str(size - 1))
    return tuple(f"{number:0{width}d}" for number in range(size))


def span(size: int) -> str:
    """The sentence that says which numbers below `size` may be answered."""
    return f"Answer a number from {digits(size)[0]} to {size - 1}."


def introduction(rounds: int, agents: int, seat: int) -> str:
    """The sentence that begins the rules of a game of several rounds."""
    return f"A game of {rounds} round{'s' * (rounds > 1)} for {agents} players. You are player {seat + 1}."


def at_least(least: int, **values: int) -> None:
    """Raises ValueError for the first of the values that is below `least` or no whole number."""
    for name, value in values.items():
        if not isinstance(value, int | np.integer):
            raise ValueError(f"{name} must be a whole number, got {value!r}.")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}.")


def not_negative(**values: float) -> None:
    """Raises ValueError for the first of the values that is negative or not finite."""
    for name, value in values.items():
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and not negative, got {value}.")
