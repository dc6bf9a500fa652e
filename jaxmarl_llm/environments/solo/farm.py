"""A farm for one seat: harmless looks pay at once, and the outcome needs works in order and a stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, make_view, not_negative, one_deal, random_player
from jaxmarl_llm.text.grammar import Grammar

WORKS = ("plough", "sow", "water", "weed", "harvest")
FIELD = ("bare", "ploughed", "sown", "watered", "weeded", "harvested")
LOOK = 0


class FarmState(struct.PyTreeNode):
    turn: jax.Array  # int32
    works: jax.Array  # int32, done in order
    stopped: jax.Array  # bool


@dataclass(frozen=True)
class Farm:
    """One seat looks, works or stops in each of up to `turns` turns; only the next work in order has an effect.

    Components: `outcome`, paid by the stop alone, 1 / works for each work done; `steps`, `look` for each look. By
    default looking in every turn earns most, 1.8. With the works and the stop there is time for two looks, which earns
    1.6. With `undo` a seat can also undo its last work. The measure `progress` is 1 / works in the turn of each work,
    and -1 / works in a turn that undoes one. Nothing is random.
    Raises ValueError for works outside 1 to 5, for too few turns to finish, and for a negative look.
    """

    turns: int = 6
    look: float = 0.3
    works: int = 3
    undo: bool = field(default=False, metadata={"described": "if changed"})  # younger than published settings

    agents = 1
    roles = ("farmer",)
    components = ("outcome", "steps")
    measures = ("progress",)

    def __post_init__(self):
        at_least(1, works=self.works)
        if self.works > len(WORKS):
            raise ValueError(f"Farm knows {len(WORKS)} works: works={self.works} is more.")
        at_least(self.works + 1, turns=self.turns)
        not_negative(look=self.look)

    @property
    def phrases_to_say(self) -> tuple[str, ...]:
        return ("look", *WORKS[: self.works], "stop", *(("undo",) if self.undo else ()))

    @property
    def actions(self) -> int:
        return len(self.phrases_to_say)

    @property
    def rules(self) -> Fields:
        undo = " An undo takes the last work back." if self.undo else ""
        return (
            (
                f"You have {self.turns} turns on a farm. A look pays {self.look:g} points at once and changes nothing. "
                f"The field needs these works in this order: {', '.join(WORKS[: self.works])}. Another work changes "
                f"nothing.{undo} A stop ends the game and pays 1/{self.works} points for each work that is done; "
                "without a stop the works pay nothing.",
            ),
        )

    @property
    def observation(self) -> Fields:
        return (
            tuple(f"Turn {turn + 1}. " for turn in range(self.turns)),
            tuple(f"The field is {field}." for field in FIELD[: self.works + 1]),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice(self.phrases_to_say),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`correct` does the works and stops; `looking` never works."""
        return {
            "random": random_player(self.view),
            "correct": lambda state, seat, key: state.works + 1,
            "looking": lambda state, seat, key: jnp.int32(LOOK),
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[FarmState, View]:
        state = FarmState(jnp.int32(0), jnp.int32(0), jnp.bool_(False))
        return state, self.view(state)

    def initial_states(self) -> tuple[FarmState, np.ndarray]:
        return one_deal(self)

    def prompt(self, state: FarmState) -> jax.Array:
        return jnp.zeros((1, 1), jnp.int32)

    def step(self, state: FarmState, action: jax.Array, key: jax.Array) -> tuple[FarmState, View, jax.Array]:
        stops = action[0] == self.works + 1
        works = (action[0] == state.works + 1) & ~stops  # after the last work the next number is the stop's
        if self.undo:
            works = works - ((action[0] == self.works + 2) & (state.works > 0)).astype(jnp.int32)
        after = FarmState(state.turn + 1, state.works + works, stops)
        paid = [stops * state.works / self.works, self.look * (action[0] == LOOK)]
        view = self.view(after).replace(measured=(works / self.works).astype(jnp.float32)[None, None])
        return after, view, jnp.stack(paid).astype(jnp.float32)[None]

    def view(self, state: FarmState) -> View:
        ended = state.stopped | (state.turn >= self.turns)
        return make_view(self, [jnp.minimum(state.turn, self.turns - 1), state.works], True, ended)


GAMES = {"farm": Farm}
