"""A maze in text for one seat, fully or partially observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import (
    Script,
    all_deals,
    at_least,
    choice,
    draw,
    make_view,
    not_negative,
    random_player,
    uniform,
)
from jaxmarl_llm.text.grammar import Grammar

WAYS = ("north", "east", "south", "west")
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1))
MAP = (".#...", ".#.#.", "...#G", "##.##", ".....")
OUTER, INNER, SIDE = "G...#...G", ".........", "....#...."
FOUR_ROOMS = (OUTER, SIDE, SIDE, INNER, "###...###", INNER, SIDE, SIDE, OUTER)
"""Four rooms of 16 cells, each with a goal in its outer corner, which meet in a passage of three cells."""


class MazeState(struct.PyTreeNode):
    cell: jax.Array  # int32, number of the open cell; the goals have the last numbers
    turn: jax.Array  # int32
    bumped: jax.Array  # bool, walked into a wall


@dataclass(frozen=True)
class Maze:
    """One seat walks through a maze to a goal, from a uniform open cell, within `turns` turns; each turn is a step.

    `map` holds the rows from north to south: '.' is open, '#' wall, 'G' a goal. The seat is told the open ways, and
    with `sees="place"` also its row and column. The map is not told: it is to be learnt. A step into a wall does not
    move the seat. Components: `goal`, 1 on reaching a goal, which ends the game; `cost`, -cost for each step.

    In a maze of several goals all pay the same. The measure `reached` is the goal's number in the turn that reaches it,
    from 1 in the order of reading. `reset` may be given (first, count): a game then starts in one of `count`
    open cells from number `first` on, in the order of reading. The first cell follows the last one.

    Fully and partially observed mazes are tasks for language agents in LMRL Gym (https://arxiv.org/abs/2311.18232).
    Raises ValueError for turns < 1, a negative cost, and a `sees` other than place or walls. Raises it also for a map
    that is no rectangle, has other signs, no goal, or no other open cell. Every open cell needs a way to a goal.
    """

    map: tuple[str, ...] = MAP
    turns: int = 16
    cost: float = 0.02
    sees: Literal["place", "walls"] = "place"

    agents = 1
    actions = len(WAYS)
    roles = ("walker",)
    components = ("goal", "cost")

    def __post_init__(self):
        at_least(1, turns=self.turns)
        not_negative(cost=self.cost)
        if self.sees not in ("place", "walls"):
            raise ValueError(f"sees must be place or walls, got {self.sees!r}.")
        signs = "".join(self.map)
        if len({len(row) for row in self.map}) != 1 or set(signs) - set(".#G"):
            raise ValueError("A map has rows of one length, of the signs . # and G.")
        if "G" not in signs or "." not in signs:
            raise ValueError("A map needs a goal, G, and an open cell beside it.")
        if (self.distance < 0).any():
            raise ValueError("From every open cell of a map there must be a way to a goal.")

    @property
    def measures(self) -> tuple[str, ...]:
        return ("reached",) if self.goals > 1 else ()

    @cached_property
    def goals(self) -> int:
        return "".join(self.map).count("G")

    @cached_property
    def starts(self) -> int:
        """The number of open cells that are no goal."""
        return len(self.cells) - self.goals

    @cached_property
    def cells(self) -> tuple[tuple[int, int], ...]:
        """Row and column of each open cell, the goals' last."""
        where = lambda sign: [(r, c) for r, row in enumerate(self.map) for c, x in enumerate(row) if x == sign]
        return (*where("."), *where("G"))

    @cached_property
    def after(self) -> np.ndarray:
        """int32 [cells, ways]: the cell that a step leads to."""
        number = {cell: i for i, cell in enumerate(self.cells)}
        return np.array(
            [[number.get((r + dr, c + dc), i) for dr, dc in STEPS] for (r, c), i in number.items()], np.int32
        )

    @cached_property
    def distance(self) -> np.ndarray:
        """int32 [cells]: fewest steps to a goal, -1 if there is no way."""
        far = np.where(np.arange(len(self.cells)) >= self.starts, 0, -1)
        for steps in range(1, len(self.cells)):
            near = (far[self.after] == steps - 1).any(1)
            far = np.where((far < 0) & near, steps, far)
        return far.astype(np.int32)

    @property
    def rules(self) -> Fields:
        places = [f"row {row + 1}, column {column + 1}" for row, column in self.cells[self.starts :]]
        goal = (
            f"The goal is in {places[0]}: to reach it" if self.goals == 1 else f"Goals are in {'; '.join(places)}: one"
        )
        return (
            (
                f"You are in a maze of {len(self.map)} rows and {len(self.map[0])} columns, counted from the north and "
                f"from the west. {goal} gets 1 point. Each "
                f"step costs {self.cost:g} points, also one into a wall, which does not move you. You have "
                f"{self.turns} steps. Answer north, east, south or west.",
            ),
        )

    @property
    def observation(self) -> Fields:
        opens = tuple(
            f"Open: {', '.join(way for way, there in zip(WAYS, open_, strict=True) if there) or 'nothing'}."
            for open_ in product((False, True), repeat=len(WAYS))
        )
        place = ((*self.facts[0],),) if self.sees == "place" else ()
        return ("", "A wall. "), opens, *place

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(WAYS),)

    @property
    def facts(self) -> Fields:
        """The facts about the state that `Oracle` tells: the place."""
        return (tuple(f" You are in row {r + 1}, column {c + 1}." for r, c in self.cells),)

    def told_facts(self, state: MazeState) -> jax.Array:
        return state.cell[None]

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` takes a shortest way, the first of equal ones; `shortest` takes any of them."""
        left = self.distance[self.after]
        best, equal = jnp.asarray(left.argmin(1), jnp.int32), jnp.asarray(left == left.min(1, keepdims=True))
        return {
            "random": random_player(self.view),
            "correct": lambda state, seat, key: best[state.cell],
            "shortest": lambda state, seat, key: uniform(key, equal[state.cell]),
        }

    def reset(
        self, key: jax.Array, group: jax.Array, given: tuple[jax.Array, jax.Array] | None = None
    ) -> tuple[MazeState, View]:
        first, count = (0, self.starts) if given is None else given
        state = self._start((first + draw(key, count)) % self.starts)
        return state, self.view(state)

    def initial_states(self) -> tuple[MazeState, np.ndarray]:
        return all_deals(self._start, self.starts)

    def _start(self, cell: jax.Array) -> MazeState:
        return MazeState(cell, jnp.int32(0), jnp.bool_(False))

    def prompt(self, state: MazeState) -> jax.Array:
        return jnp.zeros((1, 1), jnp.int32)

    def step(self, state: MazeState, action: jax.Array, key: jax.Array) -> tuple[MazeState, View, jax.Array]:
        cell = jnp.asarray(self.after)[state.cell, jnp.clip(action[0], 0, self.actions - 1)]
        after = MazeState(cell, state.turn + 1, cell == state.cell)
        reached = jnp.maximum(cell - self.starts + 1, 0)
        paid = [reached > 0, jnp.float32(-self.cost)]
        view = self.view(after)
        if self.goals > 1:
            view = view.replace(measured=reached.astype(jnp.float32).reshape(1, 1))
        return after, view, jnp.stack(paid).astype(jnp.float32)[None]

    def view(self, state: MazeState) -> View:
        open_ = jnp.asarray(self.after)[state.cell] != state.cell
        number = (open_ * 2 ** jnp.arange(len(WAYS))[::-1]).sum().astype(jnp.int32)
        place = [state.cell] if self.sees == "place" else []
        ended = (state.cell >= self.starts) | (state.turn >= self.turns)
        return make_view(self, [state.bumped.astype(jnp.int32), number, *place], True, ended)


GAMES = {"maze": Maze}
