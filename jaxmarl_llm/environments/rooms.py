"""Rooms in a row for one seat: things that lie somewhere are to be found and taken in an order, as in TextWorld."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, all_deals, at_least, choice, draw, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar

ROOMS = ("cellar", "kitchen", "hall", "study", "attic", "garden", "stable", "barn")
THINGS = ("lamp", "book", "coin", "bell", "rope", "cup")
WEST, EAST, TAKE = range(3)
MOVED, TAKEN, NOTHING = range(3)


class RoomsState(struct.PyTreeNode):
    place: jax.Array  # int32 [objects], the room in which each lies; `rooms`: taken
    order: jax.Array  # int32 [quest], what is to be taken
    at: jax.Array  # int32, room
    seen: jax.Array  # bool [rooms], been there
    taken: jax.Array  # int32, things of the quest
    turn: jax.Array  # int32
    told: jax.Array  # int32: MOVED, TAKEN or NOTHING


@dataclass(frozen=True)
class Rooms:
    """One seat looks for things in rooms in a row and takes some of them in a given order, within `budget` turns.

    It begins in the middle room, rooms // 2 counted from 0, and is told of the room that it is in and of the things
    there. It goes west or east, or takes a thing, which works where the thing lies when it is its turn in the quest;
    after anything else nothing happens, and a turn is gone. A deal draws the room of each of the `objects` things and
    the order of the `quest` of them that are wanted; the others are there to distract.
    Components: `points`, 1 for the last thing of the quest, or with `dense` 1 / quest for each; `won`, 1 for the last
    thing, so that arms with both kinds of points can be compared.
    Rooms, objects, quest and budget are the sizes of TextWorld in Meow-Tea (https://arxiv.org/abs/2510.01132).
    Raises ValueError for rooms outside 2 to 8, objects outside 1 to 6, a quest outside 1 to objects, and a budget that
    is shorter than the quest.
    """

    rooms: int = 3
    objects: int = 3
    quest: int = 2
    budget: int = 10
    dense: bool = False

    agents = 1
    roles = ("seeker",)
    components = ("points", "won")

    def __post_init__(self):
        at_least(2, rooms=self.rooms)
        at_least(1, objects=self.objects, quest=self.quest)
        at_least(self.quest, budget=self.budget)
        for name, value, most in (
            ("rooms", self.rooms, len(ROOMS)),
            ("objects", self.objects, len(THINGS)),
            ("quest", self.quest, self.objects),
        ):
            if value > most:
                raise ValueError(f"{name} must be {most} at most, got {value}.")

    @property
    def turns(self) -> int:
        return self.budget

    @property
    def actions(self) -> int:
        return TAKE + self.objects

    @property
    def orders(self) -> np.ndarray:
        """int32 [orders, quest]: all quests."""
        return np.array([*permutations(range(self.objects), self.quest)], np.int32)

    @property
    def rules(self) -> Fields:
        rooms, things = ROOMS[: self.rooms], THINGS[: self.objects]
        many = self.objects > 1
        lie = (
            f"{', '.join(f'a {thing}' for thing in things)} {'lie' if many else 'lies'} in {'them' if many else 'one'}"
        )
        pays = f"1/{self.quest} points for each" if self.dense and self.quest > 1 else "1 point for the last"
        begin = (
            f"There are {self.rooms} rooms in a row, from west to east: {', '.join(rooms)}. You begin in the "
            f"{rooms[self.rooms // 2]}; {lie}. You are to take some, in an order. A thing is taken where it lies, when "
            f"it is its turn; else nothing happens. You get {pays} of them, and have {self.budget} turns. Answer west, "
            "east or take and a thing."
        )
        first = (" Take the", *(" Then take the",) * (self.quest - 1))
        wanted = tuple(tuple(f"{words} {thing}." for thing in things) for words in first)
        return (begin,), *wanted

    @property
    def observation(self) -> Fields:
        here = tuple((f" There is a {thing}.",) for thing in THINGS[: self.objects])
        rooms = tuple(f"You are in the {room}." for room in ROOMS[: self.rooms])
        return ("", "Taken. ", "Nothing happens. "), rooms, *here

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(("west", "east", *(f"take {thing}" for thing in THINGS[: self.objects]))),)

    @property
    def facts(self) -> Fields:
        """What `Oracle` tells of the state: where each thing is."""
        rooms = ROOMS[: self.rooms]
        return tuple(
            (*(f" The {thing} is in the {room}." for room in rooms), f" You have the {thing}.")
            for thing in THINGS[: self.objects]
        )

    def told_facts(self, state: RoomsState) -> jax.Array:
        return state.place

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` knows where all is and walks no step too many. `explorer` knows what it was told: it walks to the
        wanted thing if it has seen where that lies, else to the nearest room where it has not been, west of two."""

        def correct(state: RoomsState, seat: jax.Array, key: jax.Array) -> jax.Array:
            return self._towards(state, self._wanted(state)[1])

        def explorer(state: RoomsState, seat: jax.Array, key: jax.Array) -> jax.Array:
            place = self._wanted(state)[1]
            far = jnp.abs(jnp.arange(self.rooms) - state.at) + self.rooms * state.seen
            return self._towards(state, jnp.where(state.seen[place], place, far.argmin()))

        return {"random": random_player(self.view), "correct": correct, "explorer": explorer}

    def _wanted(self, state: RoomsState) -> tuple[jax.Array, jax.Array]:
        """The thing whose turn it is, and its room; after the end, the last of the quest."""
        thing = state.order[jnp.minimum(state.taken, self.quest - 1)]
        return thing, jnp.minimum(state.place[thing], self.rooms - 1)

    def _towards(self, state: RoomsState, place: jax.Array) -> jax.Array:
        """The step to a room, or where it is this one, taking what is wanted."""
        take = TAKE + self._wanted(state)[0]
        return jnp.where(place < state.at, WEST, jnp.where(place > state.at, EAST, take)).astype(jnp.int32)

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[RoomsState, View]:
        places, order = jax.random.split(key)
        drawn = jax.random.randint(places, (self.objects,), 0, self.rooms, jnp.int32)
        state = self._start(draw(order, len(self.orders)), *drawn)
        return state, self.view(state)

    def initial_states(self) -> tuple[RoomsState, np.ndarray]:
        return all_deals(self._start, len(self.orders), *(self.rooms,) * self.objects)

    def _start(self, order: jax.Array, *place: jax.Array) -> RoomsState:
        zero, middle = jnp.int32(0), jnp.int32(self.rooms // 2)
        seen = jnp.arange(self.rooms) == middle
        return RoomsState(jnp.stack(place), jnp.asarray(self.orders)[order], middle, seen, zero, zero, jnp.int32(MOVED))

    def prompt(self, state: RoomsState) -> jax.Array:
        return jnp.concatenate([jnp.zeros(1, jnp.int32), state.order])[None]

    def step(self, state: RoomsState, action: jax.Array, key: jax.Array) -> tuple[RoomsState, View, jax.Array]:
        said, (thing, _) = action[0], self._wanted(state)
        at = jnp.clip(state.at + jnp.where(said == WEST, -1, jnp.where(said == EAST, 1, 0)), 0, self.rooms - 1)
        takes = (said == TAKE + thing) & (state.place[thing] == state.at)
        taken = state.taken + takes
        told = jnp.where(takes, TAKEN, jnp.where(at == state.at, NOTHING, MOVED))
        after = state.replace(
            place=jnp.where(takes & (jnp.arange(self.objects) == thing), self.rooms, state.place),
            at=at.astype(jnp.int32),
            seen=state.seen | (jnp.arange(self.rooms) == at),
            taken=taken,
            turn=state.turn + 1,
            told=told.astype(jnp.int32),
        )
        won = takes & (taken == self.quest)
        points = takes / self.quest if self.dense else won
        return after, self.view(after), jnp.stack([points, won]).astype(jnp.float32)[None]

    def view(self, state: RoomsState) -> View:
        here = jnp.where(state.place == state.at, 0, -1)
        ended = (state.taken >= self.quest) | (state.turn >= self.budget)
        return make_view(self, [state.told, state.at, *here], True, ended)


GAMES = {"rooms": Rooms}
