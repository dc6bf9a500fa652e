"""A sequential public good with four payoff terms: cost of giving, synergy with earlier gifts, a share, a common
penalty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import (
    Script,
    at_least,
    choice,
    everyone_else,
    introduction,
    make_view,
    not_negative,
    one_deal,
    random_player,
)
from jaxmarl_llm.text.grammar import Grammar


class Terms(NamedTuple):
    """The parameters of a game, which may be traced: the payoff's numbers, and a flag for a partial view."""

    cost: Any = 1.0
    synergy: Any = 0.25
    share: Any = 1.2
    penalty: Any = 2.0
    threshold: Any = 5.0
    partial: Any = False  # True or 1: a seat is told the gift just before its own, and no earlier one


TERMS = Terms()


class State(struct.PyTreeNode):
    turn: jax.Array  # int32, seats that have given
    gifts: jax.Array  # int32 [A], 0 before a gift
    terms: Terms  # float32
    arranged: jax.Array  # bool: training has arranged the terms, and no seat is told them


def gifts_of(action: jax.Array) -> jax.Array:
    """The gift of each seat, int32 [..., A], from the actions of all turns [..., A turns, A]: its action in its own
    turn."""
    return jnp.diagonal(action, axis1=-2, axis2=-1)


@dataclass(frozen=True)
class Contributions:
    """Each seat gives c_i of 0 to `most` units once, in order. It knows all earlier gifts, or with `partial` only the
    last one.

    With Q = sum(c), the payoff u_i has four terms, the components of the reward:

        u_i = - cost c_i^2 / 2 + synergy c_i (c_1 + ... + c_{i-1}) + share Q / agents - penalty [Q < threshold]

    The terms `cost` and `synergy` are paid when a seat gives, `share` and `penalty` after the last gift. Training can
    arrange `Terms` as a deal, in place of the game's own. They may be traced, and no seat is told them. After MAC-SPGG,
    Everyone Contributes! (2025), https://arxiv.org/abs/2508.02076, which allows any convex cost; its normalisers were
    not read.
    Raises ValueError for fewer than two seats, nothing to give, or terms that are negative or not finite.
    """

    agents: int = 3
    most: int = 3
    terms: Terms = TERMS

    roles = ("player",)
    components = ("cost", "synergy", "share", "penalty")
    alternating = True
    seat_turns = 2  # a seat gives, and is told the end

    def __post_init__(self):
        at_least(2, agents=self.agents)
        at_least(1, most=self.most)
        not_negative(**self.terms._asdict())

    @property
    def actions(self) -> int:
        return self.most + 1

    @property
    def turns(self) -> int:
        return self.agents

    @property
    def rules(self) -> Fields:
        """One field, three phrases for each seat: with the game's own terms, and without them for either view."""
        n, high, terms = self.agents, self.most, self.terms
        text = (
            " You give one after another, from player 1 to player {n}, each of you once, 0 to {most} units, and are "
            "told what {who} gave. Your points have four terms. A cost: {} times the square of what you give. A "
            "synergy: {} times what you give, times what was given before you in all. A share: {} times what is given "
            "in all. A penalty for each of you: {}, if less than {} is given in all."
        )
        numbers = (terms.cost / 2, terms.synergy, terms.share / n, terms.penalty, terms.threshold)
        secret = ("a number", "a number", "a number", "a number", "a threshold")
        who = "each player before you", "the player just before you"
        cases = ((who[bool(terms.partial)], [f"{x:g}" for x in numbers]), (who[0], secret), (who[1], secret))
        texts = [text.format(*told, n=n, most=high, who=whom) for whom, told in cases]
        answer = f" Answer with a number from 0 to {high}."
        return (tuple(introduction(1, n, seat) + it + answer for seat in range(n) for it in texts),)

    @property
    def observation(self) -> Fields:
        """The gift of every other player, and the question; after the end the gifts that a seat has not been told
        before."""
        gave = tuple(tuple(f"Player {k} gave {c}.\n" for c in range(self.most + 1)) for k in range(1, self.agents + 1))
        return (*gave, ("How many units do you give?", "All have given."))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice([str(c) for c in range(self.most + 1)]),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {
            "random": random_player(self.view),
            "always_give": lambda state, seat, key: jnp.int32(self.most),
            "never_give": lambda state, seat, key: jnp.int32(0),
        }

    def initial_states(self) -> tuple[State, np.ndarray]:
        """The single initial state, with the game's own terms, and its probability float64."""
        return one_deal(self)

    def reset(self, key: jax.Array, group: jax.Array, terms: Terms | None = None) -> tuple[State, View]:
        numbers = Terms(*(jnp.asarray(x, jnp.float32) for x in (self.terms if terms is None else terms)))
        state = State(jnp.int32(0), jnp.zeros(self.agents, jnp.int32), numbers, jnp.bool_(terms is not None))
        return state, self.view(state)

    def prompt(self, state: State) -> jax.Array:
        case = jnp.where(state.arranged, 1 + (state.terms.partial > 0), 0)
        return (3 * jnp.arange(self.agents, dtype=jnp.int32) + case.astype(jnp.int32))[:, None]

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, View, jax.Array]:
        seats, last = jnp.arange(self.agents), state.turn == self.agents - 1
        gives = seats == state.turn
        gifts = jnp.where(gives, jnp.clip(action, 0, self.most), state.gifts)
        paid = self.payoff(gifts, state.terms)
        reward = jnp.where(jnp.stack([gives, gives, *[jnp.broadcast_to(last, seats.shape)] * 2], 1), paid, 0)
        state = State(state.turn + 1, gifts, state.terms, state.arranged)
        return state, self.view(state), reward

    def payoff(self, gifts: jax.Array, terms: Terms) -> jax.Array:
        """The four terms [..., A, 4] of gifts int32 [..., A]."""
        given, total = gifts.astype(jnp.float32), gifts.sum(-1, keepdims=True).astype(jnp.float32)
        before = jnp.cumsum(given, -1) - given
        parts = (
            -terms.cost * given**2 / 2,
            terms.synergy * given * before,
            jnp.broadcast_to(terms.share * total / self.agents, given.shape),
            jnp.broadcast_to(-terms.penalty * (total < terms.threshold), given.shape),
        )
        return jnp.stack(parts, -1)

    def payoffs(self, terms: Terms) -> jax.Array:
        """The normal form of the game: every seat's payoff for all gifts, [most + 1, ..., most + 1, A]."""
        gifts = jnp.stack(jnp.meshgrid(*[jnp.arange(self.most + 1)] * self.agents, indexing="ij"), -1)
        return self.payoff(gifts, terms).sum(-1)

    def view(self, state: State) -> View:
        seats, ended = jnp.arange(self.agents), state.turn >= self.agents
        acting = seats == state.turn
        ahead = seats[:, None] - seats[None, :]
        before = jnp.where(state.terms.partial > 0, ahead == 1, ahead > 0)
        known = jnp.where(ended, everyone_else(self.agents) & ~before, before)
        gifts = jnp.where(known, state.gifts[None, :], -1)
        ask = jnp.broadcast_to(jnp.where(ended, 1, 0), (self.agents, 1))
        return make_view(self, jnp.concatenate([gifts, ask], 1), acting, ended, to=acting | ended)


GAMES = {"contributions": Contributions, "contributions_partial": partial(Contributions, terms=Terms(partial=True))}
