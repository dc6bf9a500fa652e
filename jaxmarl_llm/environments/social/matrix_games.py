"""Repeated 2x2 games of two seats that move at once; the iterated prisoner's dilemma by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.environments.helpers import MESSAGE, Script, choice, everyone_else, make_view
from jaxmarl_llm.text.grammar import Grammar

COOPERATE, DEFECT = 0, 1
# Points [seat 0's action][seat 1's action][seat]. With R, S in the first row and T, P in the second of seat 0's points:
PRISONERS_DILEMMA = (((3.0, 3.0), (0.0, 5.0)), ((5.0, 0.0), (1.0, 1.0)))  # T > R > P > S and 2R > T + S
STAG_HUNT = (((4.0, 4.0), (0.0, 3.0)), ((3.0, 0.0), (2.0, 2.0)))  # R > T >= P > S
CHICKEN = (((3.0, 3.0), (1.0, 4.0)), ((4.0, 1.0), (0.0, 0.0)))  # T > R > S > P
BATTLE_OF_THE_SEXES = (((3.0, 2.0), (0.0, 0.0)), ((0.0, 0.0), (2.0, 3.0)))
MATCHING_PENNIES = (((1.0, -1.0), (-1.0, 1.0)), ((-1.0, 1.0), (1.0, -1.0)))
COORDINATION = (((1.0, 1.0), (0.0, 0.0)), ((0.0, 0.0), (1.0, 1.0)))
# Settings by name: MatrixGame(**SETTINGS["chicken"]). Action 0 is the move of `always_cooperate`.
SETTINGS: dict[str, dict[str, Any]] = {
    "prisoners_dilemma": {"payoff": PRISONERS_DILEMMA, "moves": ("cooperate", "defect")},
    "stag_hunt": {"payoff": STAG_HUNT, "moves": ("stag", "hare")},
    "chicken": {"payoff": CHICKEN, "moves": ("swerve", "straight")},
    "battle_of_the_sexes": {"payoff": BATTLE_OF_THE_SEXES, "moves": ("opera", "football")},
    "matching_pennies": {"payoff": MATCHING_PENNIES, "moves": ("heads", "tails")},
    "coordination": {"payoff": COORDINATION, "moves": ("left", "right")},
}


class State(struct.PyTreeNode):
    round: jax.Array  # int32, rounds played
    talking: jax.Array  # bool: messages come next, not moves
    swapped: jax.Array  # bool: action 0 has the second label
    moves: jax.Array  # int32 [rounds, 2], -1 before a move


@dataclass(frozen=True)
class MatrixGame:
    """A repeated 2x2 game: payoff[a][b] = (seat 0's points, seat 1's points) if seat 0 plays a and seat 1 plays b.

    Both seats move at once in each of `rounds` rounds and are then told the other's move, also after the last round.
    Component `points`: the payoff of the round.

    The texts name the two actions by `labels`. Even groups have one labeling and odd groups the other if `exchange` is
    on. A language model prefers some letters; without the exchange this preference would look like a tendency to
    cooperate.

    With `talk` a round has two turns: both seats say one line of free text at once, each hears the other's line, then
    they move.
    Raises ValueError for a payoff that is not [2, 2, 2], rounds < 1, or labels that are not two different texts.
    """

    payoff: tuple = PRISONERS_DILEMMA
    rounds: int = 5
    labels: tuple[str, str] = ("A", "B")
    exchange: bool = True
    cooperation: float = 0.5  # probability that the scripted player `random` cooperates
    moves: tuple[str, str] = ("cooperate", "defect")  # names of actions 0 and 1 in the rules
    talk: bool = False

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
        return self.rounds * (1 + self.talk)

    @property
    def rules(self) -> Fields:
        """One field, a phrase for each seat and labeling: index 2 * seat + swapped."""
        payoff, (first, second) = np.array(self.payoff), sorted(self.labels)
        phrases = []
        for seat in range(2):
            points = payoff[:, :, 0] if seat == 0 else payoff[:, :, 1].T  # [my action, theirs]
            cases = ", ".join(
                f"you play {mine} and they play {theirs}: {points[i, j]:g}"
                for i, mine in enumerate(self.moves)
                for j, theirs in enumerate(self.moves)
            )
            for labels in (self.labels, self.labels[::-1]):
                meaning = dict(zip(labels, self.moves, strict=True))
                phrases.append(
                    f"A game of {self.rounds} round{'s' * (self.rounds > 1)} for two. Your points in a round: {cases}. "
                    f"{first} means {meaning[first]}, {second} means {meaning[second]}. Answer {first} or {second}."
                    + " Before each answer you both say one line to each other."
                    * self.talk
                )
        return (tuple(phrases),)

    @property
    def observation(self) -> Fields:
        if not self.talk:
            return (("Choose.", *(f"They chose {label}." for label in self.labels)),)
        ask = "Say one line to them."
        before = (ask, *(f"They chose {label}. {ask}" for label in self.labels), "They say:\n")
        return (before, MessageFrom(0), MessageFrom(1), ("\nChoose.",))

    def note(self, state: State) -> str:
        """The labels of this deal."""
        labels = self.labels[::-1] if state.swapped else self.labels
        return ", ".join(f"{label} means {move}" for label, move in zip(labels, self.moves, strict=True)) + "."

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """Moves under either labeling; third, with talk, a message."""
        moves = choice(self.labels), choice(self.labels[::-1])
        return (*moves, MESSAGE) if self.talk else moves

    @property
    def group_period(self) -> int:
        return 2 if self.exchange else 1

    @property
    def scripts(self) -> Mapping[str, Script]:
        """Players with scripted moves; they say nothing."""
        return {name: partial(_silent, move) for name, move in self._scripts.items()}

    @property
    def _scripts(self) -> Mapping[str, Script]:
        return {
            "always_cooperate": lambda state, seat, key: jnp.int32(COOPERATE),
            "always_defect": lambda state, seat, key: jnp.int32(DEFECT),
            "tit_for_tat": lambda state, seat, key: jnp.where(_last(state, 1 - seat) == DEFECT, DEFECT, COOPERATE),
            "grim": lambda state, seat, key: jnp.where((state.moves[:, 1 - seat] == DEFECT).any(), DEFECT, COOPERATE),
            # repeats after more than the mean of its four payoffs (3 or 5 points in the dilemma); opens with action 0
            "win_stay_lose_shift": lambda state, seat, key: jnp.where(
                state.round == 0,
                COOPERATE,
                jnp.where(self._beat_its_mean(state, seat), _last(state, seat), 1 - _last(state, seat)),
            ),
            "random": lambda state, seat, key: jnp.where(jax.random.uniform(key) < self.cooperation, COOPERATE, DEFECT),
        }

    def _beat_its_mean(self, state: State, seat: jax.Array) -> jax.Array:
        """True if the seat earned more than the mean of its payoffs in the round before."""
        points = jnp.asarray(self.payoff, jnp.float32)[:, :, seat]
        return points[_last(state, 0), _last(state, 1)] > points.mean()

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[State, View]:
        swapped = (group % 2 == 1) & self.exchange
        state = State(jnp.int32(0), jnp.bool_(self.talk), swapped, jnp.full((self.rounds, 2), -1, jnp.int32))
        return state, self._view(state, jnp.zeros((2,), jnp.int32))

    def prompt(self, state: State) -> jax.Array:
        return (2 * jnp.arange(2, dtype=jnp.int32) + state.swapped)[:, None]

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, View, jax.Array]:
        reward = jnp.where(state.talking, 0, jnp.asarray(self.payoff, jnp.float32)[action[0], action[1]])
        label = jnp.where(state.swapped, 1 - action[::-1], action[::-1])  # the label of the other seat's action
        told = jnp.where(state.talking, 3, 1 + label)
        moves = state.moves.at[state.round].set(jnp.where(state.talking, -1, action))
        played = jnp.where(state.talking, 0, 1)
        state = State(state.round + played, ~state.talking & self.talk, state.swapped, moves)
        return state, self._view(state, told), reward[:, None]

    def _view(self, state: State, told: jax.Array) -> View:
        ended = state.round >= self.rounds
        text, hears = told[:, None], None
        if self.talk:
            heard = ~state.talking & ~ended  # the messages come between two turns of a round
            text = jnp.stack([told, *jnp.full((2, 2), -1), jnp.where(heard, jnp.zeros(2, int), -1)], 1)
            hears = heard & everyone_else(2)
        grammar = jnp.where(state.talking, 2, state.swapped)
        return make_view(self, text, True, ended, grammar=grammar, to=True, hears=hears)  # the last moves are told too


def _silent(move: Callable, state: State, seat: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.where(state.talking, 0, move(state, seat, key))


def _last(state: State, seat: jax.Array | int) -> jax.Array:
    """The seat's move in the round before, -1 in the first."""
    return jnp.where(state.round > 0, state.moves[state.round - 1, seat], -1)


GAMES = {name: partial(MatrixGame, **settings) for name, settings in SETTINGS.items()}
GAMES["prisoners_dilemma_talk"] = partial(MatrixGame, talk=True)
