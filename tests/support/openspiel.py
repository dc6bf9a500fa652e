"""Plays a game of OpenSpiel beside ours and holds every state of the two against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np


class Compared(NamedTuple):
    states: int  # that were compared, initial and final ones included
    ended: int  # of which the game had ended
    information_states: int  # different ones at which a seat acted, 0 if they were not compared


def compare(
    environment: Any,
    game: Any,
    state: Any,
    view: Any,
    chance: Sequence[Sequence[int]],
    rng: np.random.Generator | None = None,
    merge: Callable[[Any], Any] | None = None,
    information: Callable[[Any, int], str] | None = None,
    width: int = 4096,
) -> Compared:
    """Asserts that ours and pyspiel.Game `game` agree wherever they get from initial states.

    state and view are ours, stacked on a leading axis of n; chance[i] are the outcomes that OpenSpiel's chance nodes
    take in the i-th game, in their order. Every legal move of every state is tried or, with rng, one that is drawn.
    With `merge` states of OpenSpiel with the same value are followed once. Ours runs in batches of `width`.

    The same: ends, returns so far, who acts, legal actions. With information(state of OpenSpiel, seat): what a seat was
    told and did (all that ours lets it know) tells apart the same histories, where it acts, as this text does.
    """
    seats = np.arange(environment.agents)
    prompt, view, state = jax.device_get((jax.vmap(environment.prompt)(state), view, state))
    step = _in_batches(jax.jit(jax.vmap(environment.step, (0, 0, None))), width)
    theirs = [_settle(game.new_initial_state(), tuple(outcomes)) for outcomes in chance]
    points = np.zeros((len(theirs), environment.agents))
    known: dict[tuple, int] = {}  # all that a seat was told and did -> its number
    name_of: dict[int, str] = {}
    number_of: dict[tuple[int, str], int] = {}

    def learn(before: np.ndarray, did: np.ndarray, told: np.ndarray) -> np.ndarray:
        """Numbers [n, A] of what the seats know after what they did, -1: nothing, and were told int32 [n, A, K]."""
        news = (did >= 0) | (told >= 0).any(-1)
        knows = before.copy()
        for i, seat in zip(*np.nonzero(news), strict=True):
            key = (before[i, seat], did[i, seat], told[i, seat].tobytes())
            knows[i, seat] = known.setdefault(key, len(known))
        return knows

    nothing = np.full((len(theirs), environment.agents), -1)
    knows = learn(learn(np.stack([-2 - seats] * len(theirs)), nothing, prompt), nothing, view.phrases)
    states = ended = 0
    while theirs:
        states += len(theirs)
        over = np.array([s.is_terminal() for s, _ in theirs])
        np.testing.assert_array_equal(view.terminated | view.truncated, over)
        np.testing.assert_array_equal(points, np.array([s.returns() for s, _ in theirs]))
        assert not view.acting[over].any()
        ended += int(over.sum())
        live = np.flatnonzero(~over)
        if not live.size:
            break
        actor = np.array([theirs[i][0].current_player() for i in live])
        np.testing.assert_array_equal(view.acting[live], actor[:, None] == seats[None])
        legal = np.array([theirs[i][0].legal_actions_mask() for i in live], bool)
        np.testing.assert_array_equal(view.legal[live, actor], legal)
        if information is not None:
            for i, seat in zip(live, actor, strict=True):
                number, name = int(knows[i, seat]), information(theirs[i][0], int(seat))
                assert name_of.setdefault(number, name) == name, "we do not tell apart what OpenSpiel does"
                assert number_of.setdefault((int(seat), name), number) == number, f"we tell more than {name!r}"

        if rng is None:
            row, move = np.nonzero(legal)
        else:
            row, move = np.arange(len(live)), np.where(legal, rng.random(legal.shape), -1).argmax(1)
        source, by = live[row], actor[row]
        after = [_settle(theirs[i][0].child(int(a)), theirs[i][1]) for i, a in zip(source, move, strict=True)]
        action = np.where(by[:, None] == seats[None], move[:, None], 0).astype(np.int32)
        state, view, reward = step(_rows(state, source), action)
        points = points[source] + reward.sum(-1)
        did = np.where(by[:, None] == seats[None], move[:, None], -1)
        knows = learn(knows[source], did, view.phrases) if information is not None else knows[source]
        theirs = after
        if merge is not None:
            np.testing.assert_array_equal(points, np.array([s.returns() for s, _ in theirs]))
            first = np.unique([str(merge(s)) for s, _ in theirs], return_index=True)[1]
            state, view = _rows((state, view), first)
            theirs, points, knows = [theirs[i] for i in first], points[first], knows[first]
    return Compared(states, ended, len(name_of))


def _rows(tree: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _settle(state: Any, left: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """OpenSpiel's state after its chance nodes, and the outcomes that were not needed."""
    while state.is_chance_node():
        state.apply_action(left[0])
        left = left[1:]
    return state, left


def _in_batches(step: Callable, width: int) -> Callable:
    """A step of n states and actions [n, A], on the host, by one program for `width` of them."""
    key = jax.random.key(0)

    def run(state: Any, action: np.ndarray) -> Any:
        n, parts = len(action), []
        for at in range(0, n, width):
            rows = np.minimum(np.arange(at, at + width), n - 1)
            parts.append(jax.device_get(step(*_rows((state, action), rows), key)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:n], *parts)

    return run
