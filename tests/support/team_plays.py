"""Team games played by scripts, and what their seats were told, for tests of the rules."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@cache
def program(game: Any):
    """One compiled program for all line-ups: (keys [G], groups [G], index of the script of each seat [A]) -> record."""

    def play(key, group, players):
        state, view = game.reset(key, group)

        def turn(carry, t):
            state, view = carry
            over = view.terminated | view.truncated
            keys, seats = jax.random.split(jax.random.fold_in(key, t), game.agents), jnp.arange(game.agents)
            says = [jax.vmap(script, (None, 0, 0))(state, seats, keys) for script in game.scripts.values()]
            action = jnp.stack(says)[players, seats].astype(jnp.int32)
            after, told, reward = game.step(state, action, key)
            carry = jax.tree.map(lambda new, old: jnp.where(over, old, new), (after, told), (state, view))
            record = {"state": state, "view": view, "after": carry[1], "action": action, "over": over}
            facts = jnp.zeros((game.agents, 0)) if told.measured is None else told.measured
            given = {"reward": reward, "measured": facts}
            return carry, {**record, **{name: jnp.where(over, 0, x) for name, x in given.items()}}

        record = jax.lax.scan(turn, (state, view), jnp.arange(game.turns))[1]
        return {**record, "prompt": game.prompt(state)}

    return jax.jit(jax.vmap(play, (0, 0, None)))


@cache
def played(game: Any, *players: str, games: int = 2000) -> dict[str, Any]:
    """Leaves [T, games, ...] of games under a script in each seat (the last one also in the seats that are left).

    `state` and `view` are from before a turn, `after` is the view that came of it; `prompt` [games, A, K'].
    """
    players += players[-1:] * (game.agents - len(players))
    scripts = jnp.array([list(game.scripts).index(name) for name in players])
    keys = jax.random.split(jax.random.key(0), games)
    record = jax.device_get(program(game)(keys, jnp.arange(games, dtype=jnp.int32), scripts))
    prompt = record.pop("prompt")
    return {**jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), record), "prompt": prompt}


@cache
def strings(game: Any):
    """Rules, observation, and the words of each grammar."""
    return game.rules, game.observation, [dict(choice.options) for (choice,) in game.grammars]


def written(fields, phrases) -> str:
    return "".join(field[index] for field, index in zip(fields, phrases, strict=True) if index >= 0)


def row(game: Any, record: dict[str, Any], g: int, seat: int) -> list[str]:
    """What a seat of game g is told: its rules, then before each turn what is told then."""
    rules, observation, _ = strings(game)
    told = [written(observation, text) for text in record["view"].phrases[~record["over"][:, g], g, seat]]
    return [written(rules, record["prompt"][g, seat]), *told]


def acted(game: Any, record: dict[str, Any], g: int) -> list[tuple[int, str]]:
    """Seat and words of each act of game g, in order."""
    said = []
    for t in np.flatnonzero(~record["over"][:, g]):
        for seat in np.flatnonzero(record["view"].acting[t, g]):
            words = strings(game)[2][record["view"].grammar[t, g, seat]]
            said.append((int(seat), words[int(record["action"][t, g, seat])]))
    return said


def given(record: dict[str, Any]) -> np.ndarray:
    """What is paid, then what is measured [T, games, A, C + M]."""
    return np.concatenate([record["reward"], record["measured"]], -1)


def totals(record: dict[str, Any]) -> np.ndarray:
    """Points and facts [games, A, C + M]"""
    return given(record).sum(0)


def close(values: np.ndarray, mean: float) -> bool:
    """Whether independent values could have this mean: within five standard errors, or exactly if they are constant."""
    return bool(abs(np.mean(values) - mean) <= 5 * np.std(values) / len(values) ** 0.5 + 1e-6)


@cache
def texts(game: Any):
    return jax.jit(jax.vmap(lambda state: jnp.concatenate([game.prompt(state), game.view(state).phrases], -1)))


def told_apart_only_by(game: Any, hidden: Any, seats: tuple[int, ...]) -> bool:
    """Whether two starts, stacked in `hidden`, look the same to every seat but those named, and differ for those."""
    first, second = np.asarray(texts(game)(hidden))
    return np.flatnonzero((first != second).any(-1)).tolist() == list(seats)


@cache
def drawn(game: Any, games: int) -> np.ndarray:
    """Starts of a group [games, numbers of a state], each from a key of its own."""
    start = jax.jit(jax.vmap(lambda key: game.reset(key, jnp.int32(0))[0]))
    return flat(start(jax.random.split(jax.random.key(1), games)))


def flat(states: Any) -> np.ndarray:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1)


def deals_are_what_reset_draws(game: Any) -> bool:
    """All deals differ, are equally likely, and are drawn 60 times each, give or take six standard deviations."""
    states, probability = game.initial_states()
    deals = np.unique(flat(states), axis=0)
    assert probability.dtype == np.float64 and np.allclose(probability, 1 / len(deals), atol=0)
    assert len(deals) == len(probability)
    found, count = np.unique(drawn(game, 60 * len(deals)), axis=0, return_counts=True)
    return np.array_equal(found, deals) and bool((abs(count - 60) < 6 * 60**0.5).all())
