"""A wrapper that gives a seat advice in the first turns of a game, in phrases that can be exchanged for silence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.environments.around.wrappers import Around
from jaxmarl_llm.environments.base import Fields, MessageFrom, View, phrases
from jaxmarl_llm.environments.helpers import Script, uniform
from jaxmarl_llm.text.grammar import options_of


class Guidance(NamedTuple):
    """The deal of a `Guided` game, arranged by training (`Recipe.arrange`)."""

    turns: Any = 0  # int32: the guide speaks in so many first turns
    right: Any = True  # bool: it names the answers of the script; else a random one, or none, anew in each turn
    deal: Any = None  # the deal of the inner game
    answers: Any = None  # int32 [situations]: the advice of a guide that recalls, `actions` for silence


class GuidedState(struct.PyTreeNode):
    game: Any
    turn: jax.Array  # int32
    advice: jax.Array  # int32 [A]: the advised action, or the number of actions for silence
    legal: jax.Array  # bool [A, N]
    guidance: Guidance
    situation: jax.Array  # int32 [A]: the number of the last observation, 0 for a guide that does not recall


@dataclass(frozen=True)
class Guided(Around):
    """The same game; before each answer a seat hears a guide's advice, or that the guide is silent.

    The advice is the answer of the script `script`. The deal says in how many first turns it is told (`Guidance`);
    without a deal the guide is silent. `texts` holds its texts, the silent one last, and all can stand for each other
    in a row (`trajectory.exchange_told`). The script `follower` gives the advised answer, or without advice a random
    one. A policy that imitates it where advice is random follows advice and knows nothing else.

    A guide that `recalls` reads its advice from a table of answers, which training keeps and gives with the deal. The
    entry is that of the observation before the answer. The last measure, `situation`, is the number of that
    observation, below `situations`. All seats share the table.

    Raises ValueError for a script that the game lacks, and for a game of several grammars. Raises it also for a guide
    that recalls in a game where seats hear each other.
    """

    script: str = "correct"
    recalls: bool = field(default=False, metadata={"described": "if changed"})

    def __post_init__(self):
        super().__post_init__()
        if self.recalls and any(isinstance(x, MessageFrom) for x in self.game.observation):
            raise ValueError(f"A guide recalls by phrases, and seats of {type(self.game).__name__} hear free words.")
        if self.script not in self.game.scripts:
            known = ", ".join(self.game.scripts)
            raise ValueError(f"{type(self.game).__name__} has no script {self.script!r}: its scripts are {known}.")
        if len(self.game.grammars) != 1 or len(options_of(self.game.grammars[0])) != self.actions:
            raise ValueError(
                f"A guide names one of the actions, and {type(self.game).__name__} asks for other answers."
            )

    @property
    def situations(self) -> int:
        return math.prod(len(texts) + 1 for texts in phrases(self.game.observation))

    @property
    def measures(self) -> tuple[str, ...]:
        return (*super().measures, *("situation",) * self.recalls)

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the guide: one for each action, then silence."""
        options = options_of(self.game.grammars[0])
        return (*(f" A guide would answer {options[n]}." for n in range(self.actions)), " The guide is silent.")

    @property
    def observation(self) -> Fields:
        return (*self.game.observation, self.texts)

    @property
    def scripts(self) -> Mapping[str, Script]:
        def follow(state: GuidedState, seat: jax.Array, key: jax.Array) -> jax.Array:
            advice = state.advice[seat]
            return jnp.where(advice < self.actions, advice, uniform(key, state.legal[seat])).astype(jnp.int32)

        return {**super().scripts, "follower": follow}

    def inside(self, state: GuidedState) -> Any:
        return state.game

    def reset(self, key: jax.Array, group: jax.Array, given: Guidance | None = None) -> tuple[GuidedState, View]:
        guidance = Guidance() if given is None else given
        inner = () if guidance.deal is None else (guidance.deal,)
        game, view = self.game.reset(key, group, *inner)
        return self._advise(game, view, jnp.int32(0), guidance, jax.random.fold_in(key, 1))

    def step(self, state: GuidedState, action: jax.Array, key: jax.Array) -> tuple[GuidedState, View, jax.Array]:
        game, view, reward = self.game.step(state.game, action, key)
        after, view = self._advise(game, view, state.turn + 1, state.guidance, jax.random.fold_in(key, 1))
        if self.recalls:
            assert view.measured is not None
            view = view.replace(measured=view.measured.at[:, -1].set(state.situation.astype(jnp.float32)))
        return after, view, reward

    def _advise(
        self, game: Any, view: View, turn: jax.Array, guidance: Guidance, key: jax.Array
    ) -> tuple[GuidedState, View]:
        guidance = guidance._replace(turns=jnp.int32(guidance.turns), right=jnp.bool_(guidance.right))
        situation = jnp.zeros(self.agents, jnp.int32)
        if self.recalls:
            situation = jnp.where(view.acting, self._number(view), 0)
            silent = jnp.full(self.agents, self.actions, jnp.int32)
            knows = silent if guidance.answers is None else guidance.answers[situation].astype(jnp.int32)
            before = jnp.zeros((self.agents, 0)) if view.measured is None else view.measured
            view = view.replace(measured=jnp.pad(before, ((0, 0), (0, 1))))
        else:
            seats = jnp.arange(self.agents, dtype=jnp.int32)
            script = self.game.scripts[self.script]
            knows = jnp.stack([script(game, seat, jax.random.key(0)) for seat in seats]).astype(jnp.int32)
        silence = jnp.ones((self.agents, 1), bool)
        random = jax.vmap(uniform)(jax.random.split(key, self.agents), jnp.concatenate([view.legal, silence], 1))
        advice = jnp.where(turn < guidance.turns, jnp.where(guidance.right, knows, random), self.actions)
        told = jnp.where(view.acting, advice, -1).astype(view.phrases.dtype)
        view = view.replace(phrases=jnp.concatenate([view.phrases, told[:, None]], 1))
        return GuidedState(game, turn, advice, view.legal, guidance, situation), view

    def _number(self, view: View) -> jax.Array:
        """The number int32 [A] of each seat's observation, below `situations`; 0 without a phrase."""
        number = jnp.zeros(self.agents, jnp.int32)
        for i, texts in enumerate(phrases(self.game.observation)):
            number = number * (len(texts) + 1) + view.phrases[:, i] + 1
        return number
