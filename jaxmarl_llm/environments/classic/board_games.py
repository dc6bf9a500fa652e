"""Tic-tac-toe and Connect Four: perfect information, two seats in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, choice, one_deal, random_player, turn_of, zero_sum
from jaxmarl_llm.text.grammar import Grammar

ROWS_OF_THREE = np.array([7, 56, 448, 73, 146, 292, 273, 84], np.int32)  # bit masks over the cells 0 to 8
CELLS = 3 ** np.arange(9)  # the number of a board is the sum of 1 (x) or 2 (o) times these
CENTRE_AND_CORNERS = np.array([1, 0, 1, 0, 2, 0, 1, 0, 1], np.float32)


class TicTacToeState(struct.PyTreeNode):
    marks: jax.Array  # int32 [2], bit c: the seat holds cell c
    turn: jax.Array  # int32
    winner: jax.Array  # int32, -1: nobody yet


@dataclass(frozen=True)
class TicTacToe:
    """Three in a row on 3 x 3 cells, numbered by row. Seat 0 is x and begins; then the seats alternate. Action c marks
    cell c.

    Component `points`, paid at the end: 1 for the winner, -1 for the loser, 0 for a draw. Rules and numbers are those
    of OpenSpiel's `tic_tac_toe`. The acting seat is shown the whole board, free cells by their numbers, so that every
    legal answer stands in the text. A mark on a taken cell changes nothing, and the turn passes.
    """

    agents = 2
    turns = 9
    seat_turns = 5
    alternating = True
    actions = 9
    roles = ("x", "o")
    components = ("points",)
    grammars: tuple[Grammar, ...] = (choice([str(cell) for cell in range(9)]),)

    @property
    def rules(self) -> Fields:
        """One field, a phrase for each seat."""
        return (
            tuple(
                f"Tic-tac-toe. You are {mark} and move {order}. Three in a row, column or diagonal win: "
                "1 point for the winner, -1 for the other, 0 for both if the board is full before. "
                "A free cell shows its number: answer with one of these numbers."
                for mark, order in (("x", "first"), ("o", "second"))
            ),
        )

    @property
    def observation(self) -> Fields:
        """A field for each cell; its phrases are the cell's number (free), 'x' and 'o'."""
        before = ("", *(" ", " ", "\n") * 2, " ", " ")
        return tuple(tuple(space + mark for mark in (str(cell), "x", "o")) for cell, space in enumerate(before))

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view), "greedy": self._greedy, "minimax": self._minimax}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[TicTacToeState, View]:
        state = TicTacToeState(jnp.zeros((2,), jnp.int32), jnp.int32(0), jnp.int32(-1))
        return state, self.view(state)

    def initial_states(self) -> tuple[TicTacToeState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64: here one."""
        return one_deal(self)

    def prompt(self, state: TicTacToeState) -> jax.Array:
        return jnp.arange(2, dtype=jnp.int32)[:, None]

    def step(self, state: TicTacToeState, action: jax.Array, key: jax.Array) -> tuple[TicTacToeState, View, jax.Array]:
        mover = state.turn % 2
        mark = jnp.left_shift(1, jnp.where(mover == 0, action[0], action[1])) & ~(state.marks[0] | state.marks[1])
        marks = jnp.where(np.arange(2) == mover, state.marks | mark, state.marks)
        won = _three(jnp.where(mover == 0, marks[0], marks[1]))
        state = TicTacToeState(marks, state.turn + 1, jnp.where(won, mover, -1))
        return state, self.view(state), zero_sum(jnp.where(won, 1 - 2 * mover, 0))

    def view(self, state: TicTacToeState) -> View:
        """The view of this state, equal to the view that `reset` and `step` return with it."""
        held = (state.marks[:, None] >> np.arange(9, dtype=np.int32)[None]) & 1
        board = held[0] + 2 * held[1]
        ended = (state.winner >= 0) | (state.turn >= 9)
        return turn_of(self, state.turn % 2, ended, board, board == 0)

    def _greedy(self, state: TicTacToeState, seat: jax.Array, key: jax.Array) -> jax.Array:
        """Wins if it can, else blocks if it must, else takes the centre, else a corner. Ties are broken at random."""
        cells = jnp.asarray(1 << np.arange(9, dtype=np.int32))
        mine, theirs = jnp.where(seat == 0, state.marks, state.marks[::-1])
        score = 8.0 * _three(mine | cells) + 4.0 * _three(theirs | cells) + CENTRE_AND_CORNERS
        return _best(key, score, self.view(state).legal[0])

    def _minimax(self, state: TicTacToeState, seat: jax.Array, key: jax.Array) -> jax.Array:
        """Perfect play, and never worse than a draw. Moves of equal value are equally likely."""
        held = (state.marks[:, None] >> np.arange(9, dtype=np.int32)[None]) & 1
        value = jnp.asarray(values_of_boards())[(held[0] + 2 * held[1]) @ CELLS + (1 + seat) * CELLS]
        return _best(key, jnp.where(seat == 0, value, -value), self.view(state).legal[0])


@cache
def values_of_boards() -> np.ndarray:
    """The points of x [3^9] from each board on if both play perfectly, by backward induction; o moves if x has more
    marks."""
    boards = np.arange(3**9)[:, None] // CELLS % 3
    x, o = ((boards == mark) @ (1 << np.arange(9)) for mark in (1, 2))
    has_line = [((marks[:, None] & ROWS_OF_THREE) == ROWS_OF_THREE).any(1) for marks in (x, o)]
    ended, marks = has_line[0] | has_line[1], (boards > 0).sum(1)
    value = has_line[0].astype(np.int8) - has_line[1].astype(np.int8)
    for count in range(8, -1, -1):
        here, mark = np.flatnonzero((marks == count) & ~ended), 1 + count % 2
        after = np.where(boards[here] == 0, here[:, None] + mark * CELLS, -1)  # [boards, cells]
        sign = 3 - 2 * mark
        value[here] = sign * np.where(after >= 0, sign * value[after], -2).max(1)
    return value


class ConnectFourState(struct.PyTreeNode):
    stones: jax.Array  # int32 [2, columns], bit r: the seat holds the cell r above the bottom of this column
    turn: jax.Array  # int32
    winner: jax.Array  # int32, -1: nobody yet


@dataclass(frozen=True)
class ConnectFour:
    """Four in a row; stones fall to the lowest free cell of a column. Seat 0 is x and begins; then the seats alternate.
    Action c drops a stone into column c, counted from the left.

    Component `points`, paid at the end: 1 for the winner, -1 for the loser, 0 for a draw. Rules and numbers are those
    of OpenSpiel's `connect_four`, board size and length of a row (`line`) included. The acting seat is shown the whole
    board, the top row first. A stone dropped into a full column is lost, and the turn passes.
    Raises ValueError for a board of more than 10 columns or 20 rows, or a board that cannot hold a line.
    """

    columns: int = 7
    rows: int = 6
    line: int = 4

    agents = 2
    alternating = True
    roles = ("x", "o")
    components = ("points",)

    def __post_init__(self):
        if not (1 <= self.columns <= 10 and 1 <= self.rows <= 20):
            raise ValueError(
                f"A board has 1 to 10 columns and 1 to 20 rows, got {self.columns} columns and {self.rows} rows."
            )
        if not 2 <= self.line <= max(self.columns, self.rows):
            raise ValueError(
                f"line must be from 2 to {max(self.columns, self.rows)}, the longest that fits, got {self.line}."
            )

    @property
    def turns(self) -> int:
        return self.columns * self.rows

    @property
    def seat_turns(self) -> int:
        return -(-self.turns // 2)

    @property
    def actions(self) -> int:
        return self.columns

    @property
    def rules(self) -> Fields:
        """One field, a phrase for each seat."""
        return (
            tuple(
                f"Connect Four on {self.columns} columns, numbered from 0 to {self.columns - 1}, and {self.rows} rows. "
                f"You are {mark} and move {order}. A stone falls to the lowest free cell of its column. "
                f"{self.line} in a row, column or diagonal win: 1 point for the winner, -1 for the other, 0 for both "
                "if "
                "the board is full before. "
                "Answer with the number of a column that is not full."
                for mark, order in (("x", "first"), ("o", "second"))
            ),
        )

    @property
    def observation(self) -> Fields:
        """A header line with the column numbers, then a field for each cell from the top row down.

        The phrases of a cell are '.' (free), 'x' and 'o', after a space or a newline.
        """
        row = tuple(tuple(space + mark for mark in ".xo") for space in ("\n", *" " * (self.columns - 1)))
        return ((" ".join(map(str, range(self.columns))),), *row * self.rows)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice([str(column) for column in range(self.columns)]),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view), "greedy": self._greedy}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[ConnectFourState, View]:
        state = ConnectFourState(jnp.zeros((2, self.columns), jnp.int32), jnp.int32(0), jnp.int32(-1))
        return state, self.view(state)

    def initial_states(self) -> tuple[ConnectFourState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64: here one."""
        return one_deal(self)

    def prompt(self, state: ConnectFourState) -> jax.Array:
        return jnp.arange(2, dtype=jnp.int32)[:, None]

    def step(
        self, state: ConnectFourState, action: jax.Array, key: jax.Array
    ) -> tuple[ConnectFourState, View, jax.Array]:
        mover = state.turn % 2
        column = jnp.where(mover == 0, action[0], action[1])
        stone = jnp.where(np.arange(self.columns) == column, self._lowest(state), 0)
        stones = state.stones | jnp.where((np.arange(2) == mover)[:, None], stone[None], 0)
        won = self._connected(jnp.where(mover == 0, stones[0], stones[1]))
        state = ConnectFourState(stones, state.turn + 1, jnp.where(won, mover, -1))
        return state, self.view(state), zero_sum(jnp.where(won, 1 - 2 * mover, 0))

    def view(self, state: ConnectFourState) -> View:
        """The view of this state, equal to the view that `reset` and `step` return with it."""
        held = (state.stones[:, None] >> np.arange(self.rows, dtype=np.int32)[None, ::-1, None]) & 1
        board = (held[0] + 2 * held[1]).reshape(-1)
        ended = (state.winner >= 0) | (state.turn >= self.turns)
        text = jnp.concatenate([jnp.zeros((1,), jnp.int32), board])
        return turn_of(self, state.turn % 2, ended, text, self._lowest(state) > 0)

    def _lowest(self, state: ConnectFourState) -> jax.Array:
        """int32 [columns], the bit of each column's lowest free cell, 0 if the column is full."""
        taken = state.stones[0] | state.stones[1]  # a column is filled from its lowest bit on
        return (taken + 1) & ((1 << self.rows) - 1)

    def _connected(self, stones: jax.Array) -> jax.Array:
        """bool [...]: stones int32 [..., columns] hold a line."""
        above = stones
        for k in range(1, self.line):
            above = above & (stones >> k)
        connected = (above != 0).any(-1)
        starts = self.columns - self.line + 1  # columns in which a line to the right can begin
        if starts > 0:
            for slope in (-1, 0, 1):
                run = stones[..., :starts]
                for k in range(1, self.line):
                    aside = stones[..., k : k + starts]
                    run = run & (aside >> k if slope > 0 else aside << k if slope < 0 else aside)
                connected = connected | (run != 0).any(-1)
        return connected

    def _greedy(self, state: ConnectFourState, seat: jax.Array, key: jax.Array) -> jax.Array:
        """Wins if it can, else blocks if it must, else plays as near to the centre as it can. Ties are broken at
        random."""
        drops = jnp.diag(self._lowest(state))  # [column, columns], the stone of each action
        mine, theirs = jnp.where(seat == 0, state.stones, state.stones[::-1])
        wins, blocks = (self._connected(stones[None] | drops) for stones in (mine, theirs))
        off_centre = np.abs(2 * np.arange(self.columns, dtype=np.float32) - (self.columns - 1))  # 0 to 9
        return _best(key, 40.0 * wins + 20.0 * blocks - off_centre, self.view(state).legal[0])


def _three(marks: jax.Array) -> jax.Array:
    """bool [...]: marks int32 [...] hold three in a row."""
    lines = ROWS_OF_THREE.reshape(-1, *(1,) * marks.ndim)
    return ((marks[None] & lines) == lines).any(0)


def _best(key: jax.Array, score: jax.Array, legal: jax.Array) -> jax.Array:
    """The legal action with the highest score; different scores differ by at least 1. Ties are broken at random."""
    drawn = score + jax.random.uniform(key, score.shape)
    return jnp.argmax(jnp.where(legal, drawn, -jnp.inf)).astype(jnp.int32)


GAMES = {"tic_tac_toe": TicTacToe, "connect_four": ConnectFour}
