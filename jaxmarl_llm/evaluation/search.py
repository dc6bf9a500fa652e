"""Players from game theory as scripted players: tables of a game's tree (equilibria, minimax) and UCT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import View
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.evaluation.exact.solve import Tree


class Walk(struct.PyTreeNode):
    """A state with its node in the tree."""

    game: Any
    node: jax.Array  # int32


class Guests:
    """A game with further scripted players, by name: policies [I, N] of its tree, or functions such as `uct`.

    Raises ValueError for a table of another game.
    """

    def __init__(self, tree: Tree, players: Mapping[str, np.ndarray | Callable]):
        for name, player in players.items():
            if not callable(player) and np.shape(player) != tree.legal.shape:
                raise ValueError(f"{name!r} must be a function or a table of the shape {tree.legal.shape}.")
        self.tree, self.players = tree, players
        self._next = np.full((len(tree.parent), tree.legal.shape[1]), -1, np.int32)
        after = np.flatnonzero(tree.parent >= 0)
        self._next[tree.parent[after], tree.action[after]] = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tree.environment, name)

    @property
    def scripts(self) -> Mapping[str, Callable]:
        def guest(player):
            if callable(player):
                return lambda state, seat, key: player(state.game, seat, key)
            table = jnp.log(jnp.asarray(player, jnp.float32))
            where = jnp.asarray(self.tree.information)
            return lambda state, seat, key: jax.random.categorical(key, table[where[state.node]]).astype(jnp.int32)

        return {name: guest(player) for name, player in {**self.tree.environment.scripts, **self.players}.items()}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[Walk, View]:
        state, view = self.tree.environment.reset(key, group)
        same = [
            (jnp.asarray(leaf) == now[None]).reshape(len(leaf), -1).all(1)
            for leaf, now in zip(jax.tree.leaves(self.tree.start[0]), jax.tree.leaves(state), strict=True)
        ]
        return Walk(state, jnp.argmax(jnp.stack(same).all(0)).astype(jnp.int32)), view

    def prompt(self, state: Walk) -> jax.Array:
        return self.tree.environment.prompt(state.game)

    def step(self, state: Walk, action: jax.Array, key: jax.Array) -> tuple[Walk, View, jax.Array]:
        game, view, reward = self.tree.environment.step(state.game, action, key)
        mover = jnp.maximum(jnp.asarray(self.tree.seat)[state.node], 0)
        return Walk(game, jnp.asarray(self._next)[state.node, action[mover]]), view, reward


class Search(struct.PyTreeNode):
    """The nodes of one search, M of them."""

    state: Any  # [M, ...]
    mover: jax.Array  # int32 [M]
    legal: jax.Array  # bool [M, N], of the mover
    over: jax.Array  # bool [M]
    child: jax.Array  # int32 [M, N], -1: never tried
    visits: jax.Array  # float32 [M]
    total: jax.Array  # float32 [M, A], sum of the returns from the root over games through this node
    paid: jax.Array  # float32 [M, A], rewards of one game before this node


def uct(environment: Any, simulations: int, exploration: float = 2**0.5) -> Callable:
    """Plain UCT as a scripted player: choose(state, seat, key) -> action int32, in jit.

    Kocsis and Szepesvari 2006, https://doi.org/10.1007/11871842_29. Each simulation descends by UCB1 (`exploration` in
    units of reward), adds one node and plays at random from there. The choice is the most visited action. The player
    sees the whole state, so with hidden information it would cheat.
    Raises ValueError for a game whose initial_states() are not exactly one or whose seats move at the same time, and
    for fewer than one simulation. Long because all steps of a simulation close over the game and its sizes.
    """
    deals = len(initial()[1]) if (initial := Extras(environment).initial_states) else 0
    if deals != 1:
        raise ValueError(f"UCT sees the whole state, so the game must have one deal, not {deals or 'unknown ones'}.")
    if simulations < 1:
        raise ValueError(f"simulations must be at least 1, got {simulations}.")
    if int(environment.reset(jax.random.key(0), jnp.int32(0))[1].acting.sum()) != 1:
        raise ValueError("UCT needs a game in which one seat moves at a time.")
    size, agents, options = simulations + 1, environment.agents, environment.actions

    def about(view: View) -> dict[str, jax.Array]:
        mover = jnp.argmax(view.acting).astype(jnp.int32)
        return {"mover": mover, "legal": view.legal[mover], "over": view.terminated | view.truncated}

    def play(state: Any, mover: jax.Array, action: jax.Array) -> tuple[Any, dict, jax.Array]:
        moves = jnp.where(jnp.arange(agents) == mover, action, 0).astype(jnp.int32)
        state, view, reward = environment.step(state, moves, jax.random.key(0))
        return state, about(view), reward.sum(-1)

    def pick(search: Search, node: jax.Array, key: jax.Array) -> jax.Array:
        child, mover = search.child[node], search.mover[node]
        visits = jnp.maximum(search.visits[child], 1)
        score = search.total[child, mover] / visits
        score += exploration * jnp.sqrt(jnp.log(jnp.maximum(search.visits[node], 1)) / visits)
        score = jnp.where(child < 0, jnp.inf, score)
        best = search.legal[node] & (score >= jnp.where(search.legal[node], score, -jnp.inf).max())
        return jax.random.categorical(key, jnp.where(best, 0.0, -jnp.inf)).astype(jnp.int32)

    def simulate(number: jax.Array, search: Search, key: jax.Array) -> Search:
        def descend(carry):
            node, action, depth, path = carry
            node = search.child[node, action]
            return node, pick(search, node, jax.random.fold_in(key, depth)), depth + 1, path.at[depth].set(node)

        def inside(carry):
            child = search.child[carry[0], carry[1]]
            return (child >= 0) & ~search.over[child]

        path = jnp.full((environment.turns + 2,), size, jnp.int32).at[0].set(0)  # the index `size` is dropped
        carry = jnp.int32(0), pick(search, jnp.int32(0), jax.random.fold_in(key, 0)), jnp.int32(1), path
        node, action, depth, path = jax.lax.while_loop(inside, descend, carry)
        known = search.child[node, action]  # the game ends there, or the node is new
        at = jnp.where(known < 0, number + 1, known)
        state, facts, reward = play(jax.tree.map(lambda leaf: leaf[node], search.state), search.mover[node], action)
        paid = search.paid[node] + reward
        put = lambda old, new: old.at[at].set(new)
        grown = {name: put(getattr(search, name), fact) for name, fact in {**facts, "paid": paid}.items()}
        states = jax.tree.map(put, search.state, state)
        search = search.replace(**grown, state=states, child=search.child.at[node, action].set(at))

        def at_random(carry):
            state, facts, paid, key = carry
            key, now = jax.random.split(key)
            action = jax.random.categorical(now, jnp.where(facts["legal"], 0.0, -jnp.inf))
            state, facts, reward = play(state, facts["mover"], action)
            return state, facts, paid + reward, key

        last = (state, facts, paid, jax.random.fold_in(key, environment.turns + 2))
        paid = jax.lax.while_loop(lambda carry: ~carry[1]["over"], at_random, last)[2]
        path = path.at[depth].set(at)
        return search.replace(
            visits=search.visits.at[path].add(1, mode="drop"),
            total=search.total.at[path].add(jnp.broadcast_to(paid[None], (len(path), agents)), mode="drop"),
        )

    def choose(state: Any, seat: jax.Array, key: jax.Array) -> jax.Array:
        facts = about(environment.view(state))
        grow = lambda leaf: jnp.broadcast_to(jnp.asarray(leaf)[None], (size, *jnp.shape(leaf)))
        nothing = jnp.zeros((size, agents))
        search = Search(
            state=jax.tree.map(grow, state),
            **jax.tree.map(grow, facts),
            child=jnp.full((size, options), -1, jnp.int32),
            visits=jnp.zeros((size,)),
            total=nothing,
            paid=nothing,
        )
        grown = jax.lax.fori_loop(0, simulations, lambda k, s: simulate(k, s, jax.random.fold_in(key, k)), search)
        tried = grown.child[0]
        return jnp.argmax(jnp.where(tried >= 0, grown.visits[tried], -1)).astype(jnp.int32)

    return choose
