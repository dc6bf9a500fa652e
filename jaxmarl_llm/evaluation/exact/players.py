"""Exact results of a match: players as tables over the information sets of a game, and the payoffs of all seatings.

Shapes: A seats, I information sets, N actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.around.one_by_one import OneByOne
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.environments.helpers import random_player
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.solve import Tree

RANDOM = random_player(lambda state: state).__code__  # type: ignore[attr-defined]


def tree_of(game: Any, limit: int) -> Tree:
    """The tree of a game; seats that move at once are asked one after another. Raises ValueError as `solve.tree`."""
    extras = Extras(game)
    if extras.initial_states is not None and extras.view is not None:
        states, _ = extras.initial_states()
        if (np.asarray(jax.vmap(extras.view)(states).acting).sum(1) > 1).any():
            game = OneByOne(game)
    return solve.tree(game, limit=limit)


def script_table(tree: Tree, script: Callable[[Any, jax.Array, jax.Array], jax.Array]) -> np.ndarray:
    """The policy of a scripted player, [I, N].

    Raises ValueError for a script that draws its actions, except uniformly from all legal ones, and for a script that
    knows more than its seat was told.
    """
    if getattr(script, "__code__", None) is RANDOM:
        return solve.uniform(tree)
    nodes = np.flatnonzero(tree.seat >= 0)
    deal, moves, length = tree.histories(nodes)
    seats = tree.seat[nodes].astype(np.int32)

    def act(deal: jax.Array, moves: jax.Array, length: jax.Array, seat: jax.Array) -> jax.Array:
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf)[deal], tree.start[0])

        def play(t: jax.Array, state: Any) -> Any:
            mover = tree.environment.view(state).acting.argmax()
            action = jnp.zeros(tree.environment.agents, jnp.int32).at[mover].set(moves[t])
            return tree.environment.step(state, action, jax.random.key(0))[0]

        state = jax.lax.fori_loop(0, length, play, state)
        draw = jax.vmap(lambda key: script(state, seat, key).astype(jnp.int32), out_axes=None)
        return draw(jax.random.split(jax.random.key(0), 2))  # vmap refuses an action that depends on the key

    try:
        action = np.asarray(jax.jit(jax.vmap(act))(deal, moves, length, seats))
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise ValueError("A script that draws its actions has no exact table here.") from None
    table = np.zeros(tree.legal.shape)
    table[tree.information[nodes], action] = 1
    if (table.sum(1) > 1).any():
        raise ValueError("A script that knows more than its seat was told is no policy of this game.")
    return table


def match_payoffs(tree: Tree, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Exact mean payoffs float64 [A, 2] in each seating a: of the first player in seat a, and of the second one, the
    mean over all other seats. Tables are [I, N]."""
    agents = tree.form.payoff.shape[1]
    result = np.zeros((agents, 2))
    for seat in range(agents):
        mine = np.arange(agents) == seat
        paid = solve.expected_value(tree, np.where(mine[tree.owner][:, None], first, second))
        result[seat] = paid[seat], paid[~mine].mean()
    return result
