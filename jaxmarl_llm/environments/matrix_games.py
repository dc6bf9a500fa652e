"""Repeated 2x2 games, two seats that move at once; the iterated prisoner's dilemma by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environment import Fields, View
from jaxmarl_llm.grammar import Choice, Grammar

COOPERATE, DEFECT = 0, 1
PRISONERS_DILEMMA = (((3.0, 3.0), (0.0, 5.0)), ((5.0, 0.0), (1.0, 1.0)))


class State(struct.PyTreeNode):
    round: jax.Array  # int32, rounds played
    swapped: jax.Array  # bool: action 0 is called by the second label
    moves: jax.Array  # int32 [rounds, 2], -1 where not yet played


@dataclass(frozen=True)
class MatrixGame:
    """payoff[a][b] = (seat 0's points, seat 1's points) when seat 0 plays a and seat 1 plays b.

    Which label an action bears is drawn with the deal (balanced over a batch where `exchange` is on), as a language
    model likes some letters better than others: without the exchange that liking is read as character.
    Raises ValueError for a payoff that is not [2, 2, 2], rounds < 1, or labels that are not two different texts.
    """

    payoff: tuple = PRISONERS_DILEMMA
    rounds: int = 5
    labels: tuple[str, str] = ("A", "B")
    exchange: bool = True
    cooperation: float = 0.5  # of the scripted player `random`
    moves: tuple[str, str] = ("cooperate", "defect")  # what the rules call actions 0 and 1

    agents = 2
    actions = 2
    roles = ("player",)
    components = ("points",)

    def __post_init__(self):
        shape = np.shape(np.array(self.payoff, dtype=object))
        if shape != (2, 2, 2):
            raise ValueError(
                f"payoff must have the shape (2, 2, 2): [seat 0's action][seat 1's action][seat], got {shape}."
            )
        if not np.isfinite(np.array(self.payoff, float)).all():
            raise ValueError(f"payoff must hold finite numbers, got {self.payoff}.")
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}.")
        if len(self.labels) != 2 or len(set(self.labels)) != 2 or not all(self.labels):
            raise ValueError(f"labels must be two different texts, got {self.labels!r}.")

    @property
    def turns(self) -> int:
        return self.rounds

    @property
    def rules(self) -> Fields:
        """One field, a phrase for each seat and labeling: index 2 * seat + swapped."""
        payoff, (first, second) = np.array(self.payoff), sorted(self.labels)
        phrases = []
        for seat in range(2):
            own = payoff[:, :, 0] if seat == 0 else payoff[:, :, 1].T  # [my action, theirs]
            cases = ", ".join(
                f"you {mine} and they {theirs}: {own[i, j]:g}"
                for i, mine in enumerate(self.moves)
                for j, theirs in enumerate(self.moves)
            )
            for labels in (self.labels, self.labels[::-1]):
                meaning = dict(zip(labels, self.moves, strict=True))
                phrases.append(
                    f"A game of {self.rounds} rounds for two. Your points in a round: {cases}. "
                    f"{first} means {meaning[first]}, {second} means {meaning[second]}. Answer {first} or {second}."
                )
        return (tuple(phrases),)

    @property
    def observation(self) -> Fields:
        return (("Choose.", *(f"They chose {label}." for label in self.labels)),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return tuple((Choice(tuple(enumerate(labels))),) for labels in (self.labels, self.labels[::-1]))

    @property
    def scripts(self) -> Mapping[str, Callable]:
        return {
            "always_cooperate": lambda state, seat, key: jnp.int32(COOPERATE),
            "always_defect": lambda state, seat, key: jnp.int32(DEFECT),
            "tit_for_tat": lambda state, seat, key: jnp.where(_last(state, 1 - seat) == DEFECT, DEFECT, COOPERATE),
            "grim": lambda state, seat, key: jnp.where((state.moves[:, 1 - seat] == DEFECT).any(), DEFECT, COOPERATE),
            # repeats after 3 or 5 points (the other cooperated), changes after 0 or 1; opens with cooperation
            "win_stay_lose_shift": lambda state, seat, key: jnp.where(
                state.round == 0,
                COOPERATE,
                jnp.where(_last(state, 1 - seat) == COOPERATE, _last(state, seat), 1 - _last(state, seat)),
            ),
            "random": lambda state, seat, key: jnp.where(jax.random.uniform(key) < self.cooperation, COOPERATE, DEFECT),
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[State, View]:
        swapped = (group % 2 == 1) & self.exchange
        state = State(jnp.int32(0), swapped, jnp.full((self.rounds, 2), -1, jnp.int32))
        return state, self._view(state, jnp.zeros((2, 1), jnp.int32))

    def opening(self, state: State) -> jax.Array:
        return (2 * jnp.arange(2, dtype=jnp.int32) + state.swapped)[:, None]

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, View, jax.Array]:
        reward = jnp.asarray(self.payoff, jnp.float32)[action[0], action[1]]
        state = State(state.round + 1, state.swapped, state.moves.at[state.round].set(action))
        label = jnp.where(state.swapped, 1 - action[::-1], action[::-1])  # what the other one's action is called
        return state, self._view(state, 1 + label[:, None]), reward[:, None]

    def _view(self, state: State, text: jax.Array) -> View:
        ended = state.round >= self.rounds
        return View(
            text=text.astype(jnp.int32),
            acting=jnp.broadcast_to(~ended, (2,)),
            role=jnp.zeros((2,), jnp.int32),
            grammar=jnp.broadcast_to(state.swapped.astype(jnp.int32), (2,)),
            legal=jnp.ones((2, 2), bool),
            terminated=ended,
            truncated=jnp.bool_(False),
        )


def _last(state: State, seat: jax.Array) -> jax.Array:
    """The seat's move in the round before, -1 in the first."""
    return jnp.where(state.round > 0, state.moves[state.round - 1, seat], -1)
