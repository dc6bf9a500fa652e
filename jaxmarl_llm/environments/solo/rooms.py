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
    size: jax.Array  # int32, index into `Rooms.sizes`
    place: jax.Array  # int32 [objects], the room in which each lies; `rooms`: taken; -1: not in a game of this size
    order: jax.Array  # int32 [quest], what is to be taken; -1 beyond the quest of this size
    at: jax.Array  # int32, room
    seen: jax.Array  # bool [rooms], been there, or not in a game of this size
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
    The component `points` is 1 for the last thing of the quest, or with `dense` 1 / quest for each. The measure `won`
    is 1 for the last thing, so that arms with both kinds of points can be compared.
    Rooms, objects, quest and budget are the sizes of TextWorld in Meow-Tea (https://arxiv.org/abs/2510.01132).
    With `reminds` it is told before each turn which thing is wanted next, and need not remember the quest.
    With `smaller` games are of several sizes, this one's and those: the third argument of `reset` is the index of one
    in `sizes`, which is drawn uniformly without it.
    Raises ValueError for rooms outside 2 to 8, objects outside 1 to 6, a quest outside 1 to objects, a budget that is
    shorter than the quest, and for a smaller game that is larger, pays otherwise or has smaller ones of its own.
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
        for name, value, most in (
            ("rooms", self.rooms, len(ROOMS)),
            ("objects", self.objects, len(THINGS)),
            ("quest", self.quest, self.objects),
        ):
            if value > most:
                raise ValueError(f"{name} must be {most} at most, got {value}.")
        for game in self.smaller:
            within = all(x <= most for x, most in zip(game.size, self.size, strict=True))
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
            thing, place = self._next_goal(state)
            return self._towards(state, place, thing)

        def explorer(state: RoomsState, seat: jax.Array, key: jax.Array) -> jax.Array:
            thing, place = self._next_goal(state)
            return self._towards(state, self._search(state, place), thing)

        return {"random": random_player(self.view), "correct": correct, "explorer": explorer}

    @property
    def subgoals(self) -> tuple[str, ...]:
        """What `Subgoals` can name: the thing that is to be taken next."""
        return THINGS[: self.objects]

    def right_subgoal(self, state: RoomsState) -> jax.Array:
        return self._next_goal(state)[0]

    def pursue(self, state: RoomsState, thing: jax.Array) -> jax.Array:
        """The answer of a player that goes for a thing as `explorer` would, wanted or not; it takes again what it has,
        or what is in no room of this size."""
        place = state.place[thing]
        somewhere = (place >= 0) & (place < self.rooms)
        to = jnp.where(somewhere, self._search(state, jnp.clip(place, 0, self.rooms - 1)), state.at)
        return self._towards(state, to, thing)

    def must_switch(self, state: RoomsState) -> jax.Array:
        """Whether the last turn took something, or was in vain."""
        return state.told != MOVED

    @property
    def situations(self) -> int:
        return self.quest * self.rooms * (self.rooms + 1)

    def situation(self, state: RoomsState) -> jax.Array:
        """How many things were taken, the room, and where the next thing is, `rooms` if that was not seen, as one
        number below `situations`: that and the turns left are what a player who was told all can go by, but for the
        rooms that it knows to be empty."""
        place = self._next_goal(state)[1]
        known = jnp.where(state.seen[place], place, self.rooms)
        taken = jnp.minimum(state.taken, self.quest - 1)
        return ((taken * self.rooms + state.at) * (self.rooms + 1) + known).astype(jnp.int32)

    def _search(self, state: RoomsState, place: jax.Array) -> jax.Array:
        """The room to go to for what lies in `place`: this one if it was seen, else the nearest that was not."""
        far = jnp.abs(jnp.arange(self.rooms) - state.at) + self.rooms * state.seen
        return jnp.where(state.seen[place], place, far.argmin())

    def _limits(self, size: jax.Array) -> jax.Array:
        """int32 [4]: rooms, objects, quest and budget of a size."""
        return jnp.array([game.size for game in self.sizes], jnp.int32)[size]

    def _next_goal(self, state: RoomsState) -> tuple[jax.Array, jax.Array]:
        """The thing whose turn it is, and its room; after the end, the last of the quest."""
        rooms, _, quest, _ = self._limits(state.size)
        thing = state.order[jnp.minimum(state.taken, quest - 1)]
        return thing, jnp.minimum(state.place[thing], rooms - 1)

    def _towards(self, state: RoomsState, place: jax.Array, thing: jax.Array) -> jax.Array:
        """The step to a room, or where it is this one, taking a thing."""
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
        each = []
        for i, game in enumerate(self.sizes):
            beyond = (1,) * (self.objects - game.objects)  # what lies in no room of this size
            start = lambda *deal, i=i: self._start(jnp.int32(i), *deal)
            each.append(all_deals(start, len(game.orders), *(game.rooms,) * game.objects, *beyond))
        states = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *(states for states, _ in each))
        return states, np.concatenate([chance / len(each) for _, chance in each])

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
