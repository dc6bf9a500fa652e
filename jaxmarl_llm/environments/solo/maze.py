"""A maze in text for one seat, fully or partially observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import (
    Script,
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
NEW = {"described": "if changed"}  # younger than published results
Map = tuple[str, ...]
Cell = tuple[int, int]


class MazeState(struct.PyTreeNode):
    cell: jax.Array  # int32, number of the open cell; the goals have the last numbers
    turn: jax.Array  # int32
    bumped: jax.Array  # bool, walked into a wall
    map: jax.Array  # int32, number of the map


class Plan(NamedTuple):
    """A map as arrays."""

    cells: tuple[Cell, ...]  # row and column of each open cell, the goals' last
    starts: int  # number of open cells that are no goal
    after: np.ndarray  # int32 [cells, ways]: the cell that a step leads to
    distance: np.ndarray  # int32 [cells]: fewest steps to a goal, -1 if there is no way


def read_map(rows: Map) -> Plan:
    """The arrays of a map: the cells after each step, and fewest steps to a goal by breadth-first search."""
    where = lambda sign: [(r, c) for r, row in enumerate(rows) for c, x in enumerate(row) if x == sign]
    cells, starts = (*where("."), *where("G")), len(where("."))
    number = {cell: i for i, cell in enumerate(cells)}
    after = np.array([[number.get((r + dr, c + dc), i) for dr, dc in STEPS] for (r, c), i in number.items()], np.int32)
    far = np.where(np.arange(len(cells)) >= starts, 0, -1)
    for steps in range(1, len(cells)):
        near = (far[after] == steps - 1).any(1)
        far = np.where((far < 0) & near, steps, far)
    return Plan(cells, starts, after, far.astype(np.int32))


def draw_map(path: Sequence[Cell]) -> Map:
    """The smallest map from row 0 and column 0 on whose open cells are these, the last one the goal."""
    rows, columns = (max(cell[axis] for cell in path) + 1 for axis in (0, 1))
    sign = lambda cell: "G" if cell == path[-1] else "." if cell in path else "#"
    return tuple("".join(sign((row, column)) for column in range(columns)) for row in range(rows))


def wind(rng: np.random.Generator, steps: int, size: int) -> list[Cell]:
    """A random path of so many steps in a square of `size` cells a side. A cell touches no earlier one but the one
    before it, so that no way is shorter. Raises ValueError for more than size^2 / 2 steps, which may not fit."""
    if not 0 < steps <= size**2 / 2:
        raise ValueError(f"A path of 1 to {size**2 // 2} steps winds in a square of {size} cells a side, not {steps}.")
    beside = lambda cell: [(cell[0] + row, cell[1] + column) for row, column in STEPS]
    path: list[Cell] = []
    while len(path) <= steps:
        free = [x for x in beside(path[-1]) if min(x) >= 0 and max(x) < size] if path else []
        free = [x for x in free if x not in path and sum(y in path for y in beside(x)) == 1]
        if free:
            path.append(free[rng.integers(len(free))])
        else:
            path = [(int(rng.integers(size)), int(rng.integers(size)))]
    return path


@dataclass(frozen=True)
class Maze:
    """One seat walks through a maze to a goal, from a uniform open cell, within `turns` turns; each turn is a step.

    `map` holds the rows from north to south: '.' is open, '#' wall, 'G' a goal. The seat is told the open ways, and
    with `sees="place"` also its row and column. The map is not told: it is to be learnt. A step into a wall does not
    move the seat. Components: `goal`, 1 on reaching a goal, which ends the game; `cost`, -cost for each step.

    In a maze of several goals all pay the same. The measure `reached` is the goal's number in the turn that reaches it,
    from 1 in the order of reading. `reset` may be given (first, count): a game then starts in one of `count`
    open cells from number `first` on, in the order of reading. The first cell follows the last one.

    With `more`, further maps, a game has one of the maps, which is drawn uniformly, and nobody is told which. The goal
    is not told either. `reset` may then be given (first, count, map), with the number of the map. Equal places of two
    maps are told in the same words. With `bumps=False` nobody is told of a step into a wall.

    Fully and partially observed mazes are tasks for language agents in LMRL Gym (https://arxiv.org/abs/2311.18232).
    Raises ValueError for turns < 1, a negative cost, and a `sees` other than place or walls. Raises it also for a map
    that is no rectangle, has other signs, no goal, or no other open cell. Every open cell needs a way to a goal. All
    maps need the same number of goals.
    """

    map: Map = MAP
    turns: int = 16
    cost: float = 0.02
    sees: Literal["place", "walls"] = "place"
    more: tuple[Map, ...] = field(default=(), metadata=NEW)
    bumps: bool = field(default=True, metadata=NEW)

    agents = 1
    actions = len(WAYS)
    roles = ("walker",)
    components = ("goal", "cost")

    def __post_init__(self):
        at_least(1, turns=self.turns)
        not_negative(cost=self.cost)
        if self.sees not in ("place", "walls"):
            raise ValueError(f"sees must be place or walls, got {self.sees!r}.")
        for rows in self.maps:
            signs = "".join(rows)
            if len({len(row) for row in rows}) != 1 or set(signs) - set(".#G"):
                raise ValueError("A map has rows of one length, of the signs . # and G.")
            if "G" not in signs or "." not in signs:
                raise ValueError("A map needs a goal, G, and an open cell beside it.")
            if signs.count("G") != self.goals:
                raise ValueError(f"All maps have the same number of goals: here {self.goals} and {signs.count('G')}.")
        if any((plan.distance < 0).any() for plan in self.plans):
            raise ValueError("From every open cell of a map there must be a way to a goal.")

    @property
    def maps(self) -> tuple[Map, ...]:
        return (self.map, *self.more)

    @property
    def measures(self) -> tuple[str, ...]:
        return ("reached",) if self.goals > 1 else ()

    @cached_property
    def goals(self) -> int:
        return "".join(self.map).count("G")

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(map(read_map, self.maps))

    @property
    def starts(self) -> int:
        """The number of open cells of the first map that are no goal."""
        return self.plans[0].starts

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Row and column of each open cell of the first map, the goals' last."""
        return self.plans[0].cells

    @property
    def distance(self) -> np.ndarray:
        """int32 [cells]: fewest steps to a goal of the first map."""
        return self.plans[0].distance

    @cached_property
    def places(self) -> tuple[Cell, ...]:
        """The open cells of all maps by row and column, those of the first map first."""
        return tuple(dict.fromkeys(cell for plan in self.plans for cell in plan.cells))

    @cached_property
    def tables(self) -> tuple[np.ndarray, ...]:
        """Arrays int32 of all maps, padded: the cell after a step [maps, cells, ways], the number in `places`
        [maps, cells], `Plan.distance` [maps, cells], `Plan.starts` [maps]."""
        size, number = max(len(plan.cells) for plan in self.plans), {cell: i for i, cell in enumerate(self.places)}
        pad = lambda x: np.pad(x, ((0, size - len(x)), *((0, 0),) * (x.ndim - 1)))
        after, distance = (
            np.stack([pad(getattr(plan, name)) for plan in self.plans]) for name in ("after", "distance")
        )
        place = np.stack([pad(np.array([number[cell] for cell in plan.cells], np.int32)) for plan in self.plans])
        return after, place, distance, np.array([plan.starts for plan in self.plans], np.int32)

    @property
    def rules(self) -> Fields:
        steps = (
            f"Each step costs {self.cost:g} points, also one into a wall, which does not move you. You have "
            f"{self.turns} steps. Answer north, east, south or west."
        )
        if self.more:
            return ((f"You are in a maze. To reach its goal gets 1 point. {steps}",),)
        places = [f"row {row + 1}, column {column + 1}" for row, column in self.cells[self.starts :]]
        goal = (
            f"The goal is in {places[0]}: to reach it" if self.goals == 1 else f"Goals are in {'; '.join(places)}: one"
        )
        return (
            (
                f"You are in a maze of {len(self.map)} rows and {len(self.map[0])} columns, counted from the north and "
                f"from the west. {goal} gets 1 point. {steps}",
            ),
        )

    @property
    def observation(self) -> Fields:
        opens = tuple(
            f"Open: {', '.join(way for way, there in zip(WAYS, open_, strict=True) if there) or 'nothing'}."
            for open_ in product((False, True), repeat=len(WAYS))
        )
        place = ((*self.facts[0],),) if self.sees == "place" else ()
        bump = (("", "A wall. "),) if self.bumps else ()
        return *bump, opens, *place

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(WAYS),)

    @property
    def facts(self) -> Fields:
        """The facts about the state that `Oracle` tells: the place."""
        return (tuple(f" You are in row {r + 1}, column {c + 1}." for r, c in self.places),)

    def told_facts(self, state: MazeState) -> jax.Array:
        return jnp.asarray(self.tables[1])[state.map, state.cell][None]

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` takes a shortest way, the first of equal ones; `shortest` takes any of them."""
        after, _, distance, _ = self.tables
        left = np.take_along_axis(distance[..., None], after, 1)  # [maps, cells, ways]
        best, equal = jnp.asarray(left.argmin(2), jnp.int32), jnp.asarray(left == left.min(2, keepdims=True))
        return {
            "random": random_player(self.view),
            "correct": lambda state, seat, key: best[state.map, state.cell],
            "shortest": lambda state, seat, key: uniform(key, equal[state.map, state.cell]),
        }

    def reset(
        self, key: jax.Array, group: jax.Array, given: tuple[jax.Array, ...] | None = None
    ) -> tuple[MazeState, View]:
        if given is not None and len(given) == 3:
            number = given[2]
        else:
            number = draw(jax.random.fold_in(key, 1), len(self.maps)) if self.more else jnp.int32(0)
        starts = jnp.asarray(self.tables[3])[number]
        first, count = (0, starts) if given is None else given[:2]
        state = self._start((first + draw(key, count)) % starts, number)
        return state, self.view(state)

    def initial_states(self) -> tuple[MazeState, np.ndarray]:
        every = [(cell, number) for number, plan in enumerate(self.plans) for cell in range(plan.starts)]
        chance = [1 / len(self.plans) / self.plans[number].starts for _, number in every]
        return jax.vmap(self._start)(*jnp.asarray(every, jnp.int32).T), np.array(chance)

    def _start(self, cell: jax.Array, number: jax.Array) -> MazeState:
        return MazeState(cell, jnp.int32(0), jnp.bool_(False), number)

    def prompt(self, state: MazeState) -> jax.Array:
        return jnp.zeros((1, 1), jnp.int32)

    def step(self, state: MazeState, action: jax.Array, key: jax.Array) -> tuple[MazeState, View, jax.Array]:
        cell = jnp.asarray(self.tables[0])[state.map, state.cell, jnp.clip(action[0], 0, self.actions - 1)]
        after = MazeState(cell, state.turn + 1, cell == state.cell, state.map)
        reached = jnp.maximum(cell - jnp.asarray(self.tables[3])[state.map] + 1, 0)
        paid = [reached > 0, jnp.float32(-self.cost)]
        view = self.view(after)
        if self.goals > 1:
            view = view.replace(measured=reached.astype(jnp.float32).reshape(1, 1))
        return after, view, jnp.stack(paid).astype(jnp.float32)[None]

    def view(self, state: MazeState) -> View:
        after, place, _, starts = map(jnp.asarray, self.tables)
        open_ = after[state.map, state.cell] != state.cell
        number = (open_ * 2 ** jnp.arange(len(WAYS))[::-1]).sum().astype(jnp.int32)
        bump = [state.bumped.astype(jnp.int32)] if self.bumps else []
        told = [place[state.map, state.cell]] if self.sees == "place" else []
        ended = (state.cell >= starts[state.map]) | (state.turn >= self.turns)
        return make_view(self, [*bump, number, *told], True, ended)


GAMES = {"maze": Maze}
