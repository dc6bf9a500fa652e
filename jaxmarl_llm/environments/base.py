"""The contract of an environment: a game as a JAX state machine that speaks in phrases and is answered in actions.

Shapes: A seats, N actions, C reward components, T turns, K fields of a text. A game is written for one episode; `vmap`
gives the batch. Rules are integers; every string stands in the environment's fields and grammars, where a tokenizer
compiles it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
from flax import struct

from jaxmarl_llm.text.grammar import Grammar


class MessageFrom(NamedTuple):
    """A field of an observation that holds no phrases but what a seat has just said freely, for those who hear it."""

    seat: int


Fields = tuple[tuple[str, ...] | MessageFrom, ...]


class View(struct.PyTreeNode):
    """What the referee says before a turn."""

    phrases: (
        jax.Array
    )  # int32 [A, K]: for each field of `observation` the phrase that the seat is told now, -1: nothing
    acting: jax.Array  # bool [A]: who speaks now (all: simultaneous; one: alternating or routed; eliminated: never)
    role: jax.Array  # int32 [A]: index into `roles`
    grammar: jax.Array  # int32 [A]: index into `grammars`, what the seat may say
    legal: jax.Array  # bool [A, N]: the actions that the rules allow; at least one where acting
    terminated: jax.Array  # bool: the game has ended by its rules
    truncated: jax.Array  # bool: the game was cut off
    hears: jax.Array | None = None  # bool [A, A]: who [speaker, listener] is told now what the speaker last said freely


class Environment(Protocol):
    """A game of A seats, at most T turns.

    - *Alternating* games set `acting` for one seat at a time; a seat that does not act still hears its `text`.
    - *More than two seats*: every array has A as its first axis; who is out is not `acting`.
    - *Hidden information*: `prompt` and `phrases` are per seat. A row holds what its seat was told and said, no more.
    - *Roles* change from turn to turn (`role` [A]); the grammar and the legal actions may change with them.
    - *Several reward components*: reward float32 [A, C], named in `components`, never summed by the game. It is paid
      for the turn just played; credit to earlier acts is the learner's business.
    - *Illegal moves* are constrained away, unless a family plays unmasked: then an action can be -1, and only a game
      with a true attribute `accepts_illegal` takes that (environments/wrappers.py makes one of any game).
    - *Moves that are words*: a grammar with a `Free` part. The action is what its `Choice` says; the free part is text
      that the rules do not read. `hears` says after each turn who is told it, in the field `MessageFrom(speaker)` of
      their observation: everyone (broadcast), one (whisper), nobody (private thought). A seat never hears itself.

    A game may say two things of itself so that less is computed: `seat_turns`, the most turns in which one seat acts or
    is told something (otherwise all), and `alternating`, true where one seat acts at a time and, whatever is answered,
    the same in all episodes of a group that still go on. They are trusted: tokens past what they allow are lost.

    States are pure values (a pytree of arrays): an episode restarts from any of them. Nothing resets by itself; after
    the end the rollout leaves a state alone.
    """

    @property
    def agents(self) -> int: ...  # A

    @property
    def turns(self) -> int: ...  # T, the most turns an episode can take

    @property
    def actions(self) -> int: ...  # N

    @property
    def roles(self) -> tuple[str, ...]: ...

    @property
    def components(self) -> tuple[str, ...]: ...  # C names

    @property
    def rules(self) -> Fields: ...  # fields of the text that opens a row: its phrases in order, joined as they are

    @property
    def observation(self) -> Fields: ...  # K fields of what is told before a turn

    @property
    def grammars(self) -> tuple[Grammar, ...]: ...

    @property
    def scripts(self) -> Mapping[str, Callable[[Any, jax.Array, jax.Array], jax.Array]]:
        """Scripted players: (state, seat int32, key) -> action int32, legal where the seat acts."""
        ...

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[Any, View]:
        """Deals a game from `key`, which the episodes of a group share; `group` lets a draw be balanced over a batch.

        The first `view.phrases` belongs to the opening of a row: it depends on the deal alone.
        """
        ...

    def prompt(self, state: Any) -> jax.Array:
        """int32 [A, K']: for each field of `rules` the phrase that the seat is told before the game, -1: nothing."""
        ...

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, View, jax.Array]:
        """Plays action int32 [A] (ignored where a seat does not act), chance from `key`; reward is float32 [A, C]."""
        ...


def seat_turns(environment: Environment) -> int:
    """The most turns in which one seat acts or is told something."""
    return getattr(environment, "seat_turns", environment.turns)


def phrases(fields: Fields) -> tuple[tuple[str, ...], ...]:
    """The phrases of every field; a field of words heard has one, the empty one."""
    return tuple(("",) if isinstance(field, MessageFrom) else field for field in fields)
