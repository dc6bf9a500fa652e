"""The contract of an environment: a game as a JAX state machine that writes phrases and reads actions.

Shapes: A seats, N actions, C reward components, M measures, T turns, K fields of a text. A game is written for one
episode; `vmap` gives the batch. A game computes with integers. Every string stands in its fields and grammars, where a
tokenizer compiles it once. `helpers.make_view` fills in the parts of a view that a game leaves out; `extras.Extras`
lists the optional attributes of a game.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from flax import struct

from jaxmarl_llm.text.grammar import Grammar


class MessageFrom(NamedTuple):
    """A field of an observation: the free words that this seat has just said, told to the seats that hear it.

    A phrase stands before the words, and another one after them if the listening seat acts. Otherwise spaces at the
    ends of the words would begin or end a message, and some chat templates strip those. For the same reason no message
    ends with a phrase that ends with a space.
    """

    seat: int


LARGEST = 1e30
"""The largest reward. Sums of larger rewards over turns, components and groups may not be finite in float32."""

Fields = tuple[tuple[str, ...] | MessageFrom, ...]


class View(struct.PyTreeNode):
    """The referee's output before a turn."""

    phrases: jax.Array  # int32 [A, K]: the phrase of each field of `observation` that a seat is told, -1: nothing
    acting: jax.Array  # bool [A]: the seats that speak now (all: simultaneous; one: alternating; eliminated: never)
    role: jax.Array  # int32 [A]: index into `roles`
    grammar: jax.Array  # int32 [A]: index into `grammars`, the form of the seat's answer
    legal: jax.Array  # bool [A, N]: the actions that the rules allow; at least one for a seat that acts
    terminated: jax.Array  # bool: the game has ended by its rules
    truncated: jax.Array  # bool: the game was cut off
    hears: jax.Array | None = None  # bool [speaker, listener]: the listener is told the speaker's last free words
    measured: jax.Array | None = None
    """float32 [A, M]: facts about the turn just played, named in `measures`; zeros before the first turn. No seat is
    told or paid them. None if the game measures nothing."""


class Environment(Protocol):
    """A game of A seats, at most T turns.

    - *Alternating* games set `acting` for one seat at a time; a seat that does not act can still be told phrases.
    - *Eliminated seats* are never `acting`; every array keeps A as its first axis.
    - *Hidden information*: `prompt` and `phrases` are per seat. A row holds only the texts that its seat was told and
      said.
    - *Roles* (`role` [A]), grammars and legal actions can change from turn to turn.
    - *Reward components*: float32 [A, C], named in `components`, paid for the turn just played, never summed by the
      game. Credit for earlier acts is the learner's task.
    - *Measures*: facts that are not paid, e.g. a right answer in a game where only a judge pays. A game names them in
      `measures`, and `step` gives them in `View.measured`, float32 [A, M]. No estimator or loss of the package reads
      them.
    - *Illegal moves* are masked away. A policy set that plays unmasked can send action -1. Only a game with a true
      attribute `accepts_illegal` takes it (`wrappers.Illegal` makes such a game of any game).
    - *Texts* are joined without separators. A space or a line break separates texts that a seat reads in a row, even in
      two turns. It ends the first text or begins the second.
    - *Words as moves*: a grammar with a `Free` part. The `Choice` of the grammar gives the action; the rules do not
      read the free text. After each turn `hears` gives the seats that are told the text: all (broadcast), one
      (whisper), none (private thought). They read it in the field `MessageFrom(speaker)` of their observation. A seat
      never hears itself.

    `extras.Extras` lists the optional attributes and their defaults.

    States are pure values (a pytree of arrays): an episode can restart from any of them. A game does not reset itself.
    After the end the rollout leaves the state alone and writes nothing more to its rows (`play` shows the last texts).
    Exact solving requires that all randomness is in `reset`, and that the game has `initial_states()` and
    `view(state)`.
    """

    @property
    def agents(self) -> int: ...  # A

    @property
    def turns(self) -> int: ...  # T, the largest number of turns of an episode

    @property
    def actions(self) -> int: ...  # N

    @property
    def roles(self) -> tuple[str, ...]: ...

    @property
    def components(self) -> tuple[str, ...]: ...  # C names

    @property
    def rules(self) -> Fields: ...  # fields of the prompt: its phrases in order, joined as they are

    @property
    def observation(self) -> Fields: ...  # K fields of the text before a turn

    @property
    def grammars(self) -> tuple[Grammar, ...]: ...

    @property
    def scripts(self) -> Mapping[str, Callable[[Any, jax.Array, jax.Array], jax.Array]]:
        """Scripted players: (state, seat int32, key) -> action int32, legal where the seat acts."""

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[Any, View]:
        """Deals a game from `key`, which the episodes of a group share; `group` can balance a draw over a batch.

        The first `view.phrases` belongs to the prompt of a row: it depends on the deal alone. If training can arrange
        the deals of a game, `reset` takes a third argument with a default: the deal of its group (`Recipe.arrange`).
        """

    def prompt(self, state: Any) -> jax.Array:
        """int32 [A, K']: for each field of `rules` the phrase that the seat is told before the game, -1: nothing."""

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, View, jax.Array]:
        """Plays action int32 [A] (ignored for seats that do not act), chance from `key`; reward is float32 [A, C]."""


def phrases(fields: Fields) -> tuple[tuple[str, ...], ...]:
    """The phrases of every field; a `MessageFrom` field has one empty phrase. Raises ValueError for a bare text."""
    for field in fields:
        if isinstance(field, str):
            raise ValueError(f"A field is a tuple of phrases, also of one: write ({field!r},) in place of {field!r}.")
    return tuple(("",) if isinstance(field, MessageFrom) else field for field in fields)


def check_reward(environment: Environment, reward: Any, batch: int = 0) -> None:
    """Raises ValueError unless a reward is an array of real numbers, [A, C] after `batch` axes."""
    name, wanted = type(environment).__name__, (environment.agents, len(environment.components))
    if not isinstance(reward, jax.Array | np.ndarray) or np.dtype(reward.dtype).kind not in "biuf":
        what = f"an array of {reward.dtype}" if hasattr(reward, "dtype") else f"a {type(reward).__name__}"
        raise ValueError(f"{name}.step pays {what}: a reward is an array of numbers, float32 {list(wanted)}.")
    if reward.shape[batch:] != wanted:
        raise ValueError(
            f"{name}.step pays a reward of shape {reward.shape[batch:]}: {wanted} is wanted, for {wanted[0]} seats and "
            f"the components {', '.join(environment.components)}."
        )
