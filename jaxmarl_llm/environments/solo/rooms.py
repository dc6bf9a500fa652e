"""Rooms in a row for one seat, which must find things and take them in a given order, as in TextWorld."""

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
    size: jax.Array  # int32, index into `Rooms.sizes`
    place: jax.Array  # int32 [objects], the room of each thing; `rooms`: taken; -1: not in a game of this size
    order: jax.Array  # int32 [quest], the things of the quest; -1 beyond the quest of this size
    at: jax.Array  # int32, the seat's room
    seen: jax.Array  # bool [rooms], the seat was there, or the room is not in a game of this size
    taken: jax.Array  # int32, things of the quest
    turn: jax.Array  # int32
    told: jax.Array  # int32: MOVED, TAKEN or NOTHING


@dataclass(frozen=True)
class Rooms:
    """One seat finds things in a row of rooms and takes some of them in a given order, within `budget` turns.

    It begins in the middle room, rooms // 2 counted from 0. It is told its room and the things there. In each turn it
    goes west or east, or takes a thing. It can take a thing only in that thing's room, and only if this thing is the
    next one of the quest. Any other take, or a step beyond the last room, changes nothing and uses up the turn. A deal
    draws the room of each of the `objects` things and the order of the `quest` wanted things; the others are
    distractors.

    Component `points`: 1 for the last thing of the quest, or with `dense` 1 / quest for each. The measure `won` is 1
    for the last thing, so that both kinds of rewards can be compared. Rooms, objects, quest and budget are the sizes of
    TextWorld in Meow-Tea (https://arxiv.org/abs/2510.01132).

    With `reminds` the seat is told the next thing before each turn and need not remember the quest. With `smaller`
    there are games of several sizes, this one and the smaller ones. The third argument of `reset` is the index of a
    size in `sizes`; without it the size is drawn uniformly.
    Raises ValueError for rooms outside 2 to 8, objects outside 1 to 6, a quest outside 1 to objects, or a budget below
    the quest. Raises it also for a smaller game that is larger, has other rewards or reminders, or has smaller games of
    its own.
    """

    rooms: int = 3
    objects: int = 3
    quest: int = 2
    budget: int = 10
    dense: bool = False
    reminds: bool = False
    smaller: tuple[Rooms, ...] = ()

    agents = 1
    roles = ("seeker",)
    components = ("points",)
    measures = ("won",)

    def __post_init__(self):
        at_least(2, rooms=self.rooms)
        at_least(1, objects=self.objects, quest=self.quest)
        at_least(self.quest, budget=self.budget)
        for name, value, limit in (
            ("rooms", self.rooms, len(ROOMS)),
            ("objects", self.objects, len(THINGS)),
            ("quest", self.quest, self.objects),
        ):
            if value > limit:
                raise ValueError(f"{name} must be {limit} at most, got {value}.")
        for game in self.smaller:
            within = all(x <= limit for x, limit in zip(game.size, self.size, strict=True))
            alike = (game.dense, game.reminds) == (self.dense, self.reminds)
            if not within or game.smaller or not alike:
                raise ValueError(f"{game} is no smaller game of {self.size}, with points and reminders like its.")

    @property
    def size(self) -> tuple[int, int, int, int]:
        return self.rooms, self.objects, self.quest, self.budget

    @property
    def sizes(self) -> tuple[Rooms, ...]:
        return (self, *self.smaller)

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
        first = (" Take the", *(" Then take the",) * (self.quest - 1))
        wanted = tuple(tuple(f"{words} {thing}." for thing in THINGS[: self.objects]) for words in first)
        return tuple(game._beginning for game in self.sizes), *wanted

    @property
    def _beginning(self) -> str:
        rooms, things = ROOMS[: self.rooms], THINGS[: self.objects]
        many = self.objects > 1
        lie = (
            f"{', '.join(f'a {thing}' for thing in things)} {'lie' if many else 'lies'} in {'them' if many else 'one'}"
        )
        pays = f"1/{self.quest} points for each" if self.dense and self.quest > 1 else "1 point for the last"
        return (
            f"There are {self.rooms} rooms in a row, from west to east: {', '.join(rooms)}. You begin in the "
            f"{rooms[self.rooms // 2]}; {lie}. You are to take some, in an order. A thing is taken where it lies, when "
            f"it is its turn; else nothing happens. You get {pays} of them, and have {self.budget} turns. Answer west, "
            "east or take and a thing."
        )

    @property
    def observation(self) -> Fields:
        here = tuple((f" There is a {thing}.",) for thing in THINGS[: self.objects])
        rooms = tuple(f"You are in the {room}." for room in ROOMS[: self.rooms])
        wanted = (tuple(f" Take the {thing}." for thing in THINGS[: self.objects]),) * self.reminds
        return ("", "Taken. ", "Nothing happens. "), rooms, *here, *wanted

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(("west", "east", *(f"take {thing}" for thing in THINGS[: self.objects]))),)

    @property
    def facts(self) -> Fields:
        """The facts about the state that `Oracle` tells: the room of each thing."""
        rooms = ROOMS[: self.rooms]
        return tuple(
            (*(f" The {thing} is in the {room}." for room in rooms), f" You have the {thing}.")
            for thing in THINGS[: self.objects]
        )

    def told_facts(self, state: RoomsState) -> jax.Array:
        return state.place

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` knows all rooms and takes a shortest way. `explorer` knows its observations. It walks to the wanted
        thing if it has seen its room, else to the nearest unseen room, of two equally near ones the western."""

        def correct(state: RoomsState, seat: jax.Array, key: jax.Array) -> jax.Array:
            thing, place = self._next_goal(state)
            return self._towards(state, place, thing)

        def explorer(state: RoomsState, seat: jax.Array, key: jax.Array) -> jax.Array:
            thing, place = self._next_goal(state)
            return self._towards(state, self._search(state, place), thing)

        return {"random": random_player(self.view), "correct": correct, "explorer": explorer}

    @property
    def subgoals(self) -> tuple[str, ...]:
        """The names of subgoals for `Subgoals`: the thing to be taken next."""
        return THINGS[: self.objects]

    def right_subgoal(self, state: RoomsState) -> jax.Array:
        return self._next_goal(state)[0]

    def pursue(self, state: RoomsState, thing: jax.Array) -> jax.Array:
        """The answer of a player that pursues a thing as `explorer` would, wanted or not. If it has the thing, or no
        room of this size holds it, it tries to take it."""
        place = state.place[thing]
        somewhere = (place >= 0) & (place < self.rooms)
        to = jnp.where(somewhere, self._search(state, jnp.clip(place, 0, self.rooms - 1)), state.at)
        return self._towards(state, to, thing)

    def must_switch(self, state: RoomsState) -> jax.Array:
        """bool: the last turn took a thing, or changed nothing."""
        return state.told != MOVED

    @property
    def situations(self) -> int:
        return self.quest * self.rooms * (self.rooms + 1)

    def situation(self, state: RoomsState) -> jax.Array:
        """A summary of the state as a number below `situations`: things taken, room, and the next thing's room (`rooms`
        if unseen). With the turns left this is all that a player needs, except for the rooms that it knows to be
        empty."""
        place = self._next_goal(state)[1]
        known = jnp.where(state.seen[place], place, self.rooms)
        taken = jnp.minimum(state.taken, self.quest - 1)
        return ((taken * self.rooms + state.at) * (self.rooms + 1) + known).astype(jnp.int32)

    def _search(self, state: RoomsState, place: jax.Array) -> jax.Array:
        """The room to go to for a thing in `place`: this room if it was seen, else the nearest unseen room."""
        far = jnp.abs(jnp.arange(self.rooms) - state.at) + self.rooms * state.seen
        return jnp.where(state.seen[place], place, far.argmin())

    def _limits(self, size: jax.Array) -> jax.Array:
        """int32 [4]: rooms, objects, quest and budget of a size."""
        return jnp.array([game.size for game in self.sizes], jnp.int32)[size]

    def _next_goal(self, state: RoomsState) -> tuple[jax.Array, jax.Array]:
        """(the next thing of the quest, the room of this thing); after the end, the last thing."""
        rooms, _, quest, _ = self._limits(state.size)
        thing = state.order[jnp.minimum(state.taken, quest - 1)]
        return thing, jnp.minimum(state.place[thing], rooms - 1)

    def _towards(self, state: RoomsState, place: jax.Array, thing: jax.Array) -> jax.Array:
        """The step towards a room, or in this room the taking of a thing."""
        take = TAKE + thing
        return jnp.where(place < state.at, WEST, jnp.where(place > state.at, EAST, take)).astype(jnp.int32)

    def reset(self, key: jax.Array, group: jax.Array, size: jax.Array | None = None) -> tuple[RoomsState, View]:
        places, order = jax.random.split(key)
        drawn = draw(jax.random.fold_in(key, 2), len(self.sizes)) if size is None else size
        size = jnp.clip(drawn, 0, len(self.smaller)).astype(jnp.int32)
        place = jax.random.randint(places, (self.objects,), 0, self._limits(size)[0], jnp.int32)
        orders = jnp.array([len(game.orders) for game in self.sizes])[size]
        state = self._start(size, jax.random.randint(order, (), 0, orders, jnp.int32), *place)
        return state, self.view(state)

    def initial_states(self) -> tuple[RoomsState, np.ndarray]:
        deals = []
        for i, game in enumerate(self.sizes):
            beyond = (1,) * (self.objects - game.objects)  # things in no room of this size
            start = lambda *deal, i=i: self._start(jnp.int32(i), *deal)
            deals.append(all_deals(start, len(game.orders), *(game.rooms,) * game.objects, *beyond))
        states = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(states for states, _ in deals))
        return states, np.concatenate([chance / len(deals) for _, chance in deals])

    def _start(self, size: jax.Array, order: jax.Array, *place: jax.Array) -> RoomsState:
        table = np.full((len(self.sizes), len(self.orders), self.quest), -1, np.int32)
        for i, game in enumerate(self.sizes):
            table[i, : len(game.orders), : game.quest] = game.orders
        rooms, objects, _, _ = self._limits(size)
        zero, middle, numbers = jnp.int32(0), rooms // 2, jnp.arange(self.rooms)
        return RoomsState(
            size=size,
            place=jnp.where(jnp.arange(self.objects) < objects, jnp.stack(place), -1),
            order=jnp.asarray(table)[size, order],
            at=middle,
            seen=(numbers == middle) | (numbers >= rooms),
            taken=zero,
            turn=zero,
            told=jnp.int32(MOVED),
        )

    def prompt(self, state: RoomsState) -> jax.Array:
        return jnp.concatenate([state.size[None], state.order])[None]

    def step(self, state: RoomsState, action: jax.Array, key: jax.Array) -> tuple[RoomsState, View, jax.Array]:
        said, (thing, _), (rooms, _, quest, _) = action[0], self._next_goal(state), self._limits(state.size)
        at = jnp.clip(state.at + jnp.where(said == WEST, -1, jnp.where(said == EAST, 1, 0)), 0, rooms - 1)
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
        won = takes & (taken == quest)
        points = takes / quest if self.dense else won
        paid, measured = (x.astype(jnp.float32)[None, None] for x in (points, won))
        return after, self.view(after).replace(measured=measured), paid

    def view(self, state: RoomsState) -> View:
        here = jnp.where(state.place == state.at, 0, -1)
        _, _, quest, budget = self._limits(state.size)
        ended = (state.taken >= quest) | (state.turn >= budget)
        wanted = [self._next_goal(state)[0]] * self.reminds
        return make_view(self, [state.told, state.at, *here, *wanted], True, ended)


GAMES = {"rooms": Rooms}
