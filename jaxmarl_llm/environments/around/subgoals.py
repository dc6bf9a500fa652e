"""A wrapper in which a subgoal is named before each act, and kept or switched, by the acting seat or by another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.environments.helpers import Script, choice, random_player, uniform
from jaxmarl_llm.text.grammar import Grammar

KEEP, SWITCH = range(2)
ASK, NAME, ACT = range(3)  # the decision of a turn: keep or switch, the subgoal, an answer of the game
DECISIONS = 3
SAID = ("subgoals", "right_subgoal", "pursue", "must_switch", "situation", "situations")  # attributes of the game


def by_level(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """[B, 3T, A] -> three arrays [B, T, A]: the decision to keep or switch, the subgoal, the answer."""
    switch, subgoal, answer = jnp.moveaxis(x.reshape(x.shape[0], -1, DECISIONS, *x.shape[2:]), 2, 0)
    return switch, subgoal, answer


def together(*levels: jax.Array) -> jax.Array:
    """The inverse of `by_level`."""
    return jnp.stack(levels, 2).reshape(levels[0].shape[0], -1, *levels[0].shape[2:])


class Pursued(struct.PyTreeNode):
    game: Any
    decides: jax.Array  # int32: ASK, NAME or ACT
    subgoal: jax.Array  # int32, the subgoal named last; 0 before the first
    keeps: jax.Array  # bool, the last decision was to keep
    begun: jax.Array  # bool, a subgoal was named


@dataclass(frozen=True)
class Subgoals(Around):
    """The same game of one seat, with three turns for each turn: keep or switch, a subgoal, and the answer to the game.
    With `seats=2` the first seat, the guide, names subgoals, and the second one answers.

    In the first turn only "switch" is legal. After "keep" only the subgoal named last is legal, so that the seat
    repeats it before each answer. The rules of the game do not read subgoals: a subgoal matters only as a text that the
    player reads before it acts.

    Two seats are both told the deal, and in each turn the observation. The second one hears the subgoal with it. Both
    have the rewards and measures.

    The wrapper adds a component and two measures:

    - `kept`, a component: -`penalty` for keeping a subgoal.
    - `right`, a measure: 1 for an answer under the right subgoal, as the game defines it.
    - `situation`, a measure: 2 n + r before the turn just played. Here n is the game's situation, and r is 1 if the
      subgoal of that time was right, else 0. Before a subgoal was named, the first one counts.

    The game provides:

    - `subgoals`: the texts.
    - `right_subgoal(state)`, int32: the right subgoal.
    - `pursue(state, subgoal)`, int32: the answer of a player with this subgoal.
    - `must_switch(state)`, bool: the last answer ended a pursuit.
    - `situation(state)`, int32 below the number `situations`: a summary of the state for a critic.

    Scripts of the game name the right subgoal, and switch if the present one is wrong. The script `follower` pursues
    the subgoal that it names: the right one with probability 1/2, else a uniform one. It switches with probability 3/4
    if its pursuit has ended, else 1/4. A script "follower" of the inner game is hidden.
    After HiPER (https://arxiv.org/abs/2602.16165), where a turn is one text of these three parts.
    Raises ValueError for a game of several seats, for a game without subgoals, for a penalty below 0, and for seats
    other than 1 or 2.
    """

    penalty: float = 0.0
    seats: int = field(default=1, metadata={"described": "if changed"})  # younger than published results

    def __post_init__(self):
        super().__post_init__()
        if self.penalty < 0:
            raise ValueError(f"penalty, the cost of keeping a subgoal, must be 0 or more, got {self.penalty}.")
        if self.game.agents != 1:
            raise ValueError(f"Subgoals are of a game of one seat, and this one has {self.game.agents}.")
        if self.seats not in (1, 2):
            raise ValueError(f"One seat names subgoals and answers, or 2 share it: got seats={self.seats!r}.")
        if lacks := [name for name in SAID if not hasattr(self.game, name)]:
            raise ValueError(
                f"{type(self.game).__name__} does not say what can be a subgoal ({', '.join(lacks)}): other wrappers "
                "go around this one."
            )

    @property
    def agents(self) -> int:
        return self.seats

    @property
    def roles(self) -> tuple[str, ...]:
        return (*("guide",) * (self.seats - 1), *self.game.roles)

    @property
    def alternating(self) -> bool:
        return self.seats == 2 or super().alternating

    @property
    def turns(self) -> int:
        return self.game.turns * DECISIONS

    @property
    def seat_turns(self) -> int:
        return Extras(self.game).seat_turns * (DECISIONS + 1 - self.seats)

    @property
    def actions(self) -> int:
        return max(2, len(self.game.subgoals), self.game.actions)  # type: ignore[attr-defined]

    @property
    def components(self) -> tuple[str, ...]:
        return (*self.game.components, "kept")

    @property
    def measures(self) -> tuple[str, ...]:
        return (*Extras(self.game).measures, "right", "situation")

    @property
    def rules(self) -> Fields:
        told = (
            " Before each answer you say whether you keep your subgoal or switch, then your subgoal, which stays the "
        )
        pays = f"To keep it costs {self.penalty:g} points." if self.penalty else "You are not paid for it."
        alone = f"{told}same if you keep it. {pays}"
        costs = f" To keep one costs {self.penalty:g} points." if self.penalty else ""
        shared = (
            f"{alone} Another player hears it and answers.",
            f" Before each answer another player names a subgoal.{costs}",
        )
        return (*self.game.rules, (alone,) if self.seats == 1 else shared)

    @property
    def observation(self) -> Fields:
        heard = tuple(f" The subgoal is {name}. Your answer?" for name in self.game.subgoals)  # type: ignore[attr-defined]
        answer = ("Your answer?",) if self.seats == 1 else heard
        return (*self.game.observation, (" Keep or switch?",), ("Your subgoal?", *answer))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        subgoals = self.game.subgoals  # type: ignore[attr-defined]
        return (choice(("keep", "switch")), choice(subgoals), *self.game.grammars)

    @property
    def scripts(self) -> Mapping[str, Script]:
        game: Any = self.game

        def follow_subgoals(play: Callable) -> Script:
            def script(state: Pursued, seat: jax.Array, key: jax.Array) -> jax.Array:
                right = game.right_subgoal(state.game)
                switches = ~state.begun | (right != state.subgoal)
                acts = play(state.game, jnp.zeros_like(seat), key)
                said = [switches, jnp.where(state.keeps, state.subgoal, right), acts]
                return jnp.stack([jnp.asarray(x, jnp.int32) for x in said])[state.decides]

            return script

        def follower(state: Pursued, seat: jax.Array, key: jax.Array) -> jax.Array:
            first, other = jax.random.split(key)
            named, right = uniform(first, self.view(state).legal[seat]), game.right_subgoal(state.game)
            named = jnp.where(~state.keeps & jax.random.bernoulli(other), right, named)
            switches = ~state.begun | jax.random.bernoulli(first, jnp.where(game.must_switch(state.game), 0.75, 0.25))
            said = [switches, named, game.pursue(state.game, state.subgoal)]
            return jnp.stack([jnp.asarray(x, jnp.int32) for x in said])[state.decides]

        inside = {name: follow_subgoals(play) for name, play in game.scripts.items() if name != "random"}
        return {"random": random_player(self.view), **inside, "follower": follower}

    def prompt(self, state: Pursued) -> jax.Array:
        told = jnp.repeat(self.game.prompt(state.game), self.seats, 0)
        return jnp.concatenate([told, jnp.arange(self.seats, dtype=told.dtype)[:, None]], 1)

    def reset(self, key: jax.Array, group: jax.Array, *given: Any) -> tuple[Pursued, View]:
        state = self._start(self.game.reset(key, group, *given)[0])
        return state, self.view(state)

    @property
    def initial_states(self) -> Callable[[], tuple[Pursued, np.ndarray]]:
        inside = self.game.initial_states  # type: ignore[attr-defined]  # if the inner game has them

        def states() -> tuple[Pursued, np.ndarray]:
            games, probability = inside()
            return jax.vmap(self._start)(games), probability

        return states

    def step(self, state: Pursued, action: jax.Array, key: jax.Array) -> tuple[Pursued, View, jax.Array]:
        said, decides = action[0].astype(jnp.int32), state.decides
        moved, seen, paid = self.game.step(state.game, jnp.minimum(action[-1:], self.game.actions - 1), key)
        right = self.game.right_subgoal(state.game) == state.subgoal  # type: ignore[attr-defined]
        after = Pursued(
            game=jax.tree.map(lambda old, new: jnp.where(decides == ACT, new, old), state.game, moved),
            decides=(decides + 1) % DECISIONS,
            subgoal=jnp.where(decides == NAME, said, state.subgoal),
            keeps=jnp.where(decides == ASK, said == KEEP, state.keeps),
            begun=state.begun | (decides == NAME),
        )
        kept = jnp.where((decides == ASK) & (said == KEEP), -self.penalty, 0)
        situation = 2 * self.game.situation(state.game) + right  # type: ignore[attr-defined]
        measured = jnp.stack([(decides == ACT) & right, situation])[None].astype(paid.dtype)
        if seen.measured is not None:
            measured = jnp.concatenate([jnp.where(decides == ACT, seen.measured, 0), measured], 1)
        paid = jnp.concatenate([jnp.where(decides == ACT, paid, 0), kept[None, None].astype(paid.dtype)], 1)
        paid, measured = (jnp.repeat(x, self.seats, 0) for x in (paid, measured))
        return after, self.view(after).replace(measured=measured), paid

    def view(self, state: Pursued) -> View:
        view, decides = self.game.view(state.game), state.decides  # type: ignore[attr-defined]
        beyond = self.actions - self.game.actions
        numbers = jnp.arange(self.actions)
        asked = jnp.where(state.begun, numbers <= SWITCH, numbers == SWITCH)
        named = jnp.where(state.keeps, numbers == state.subgoal, numbers < len(self.game.subgoals))  # type: ignore
        acts = jnp.pad(view.legal, ((0, 0), (0, beyond)))
        owner = jnp.where(decides == ACT, self.seats - 1, 0)
        hears = (decides == ASK) | ((decides == ACT) & (self.seats == 2))
        told = jnp.where(hears, view.phrases[0], -1)
        asks = jnp.stack([jnp.where(decides == ASK, 0, -1), self._question(state)])
        asks = jnp.where(view.acting.any(), asks, -1).astype(told.dtype)
        mine = jnp.arange(self.seats) == owner
        every = lambda x: jnp.repeat(x, self.seats, 0)
        return view.replace(
            phrases=jnp.where(mine[:, None], jnp.concatenate([told, asks]), -1),
            acting=mine & view.acting,
            role=view.role + jnp.arange(self.seats, dtype=view.role.dtype),
            grammar=every(jnp.where(decides == ACT, view.grammar + 2, decides)),
            legal=every(jnp.stack([asked[None], named[None], acts])[decides]),
            measured=jnp.zeros((self.seats, len(self.measures))),
        )

    def _question(self, state: Pursued) -> jax.Array:
        """The phrase of the last field of the observation, -1 before "keep or switch"."""
        named = state.subgoal if self.seats == 2 else 0
        return jnp.where(state.decides == ACT, 1 + named, state.decides - 1)

    def _start(self, game: Any) -> Pursued:
        return Pursued(game, jnp.int32(ASK), jnp.int32(0), jnp.bool_(False), jnp.bool_(False))
