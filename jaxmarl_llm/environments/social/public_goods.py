"""Public goods: gifts to a project that pays all seats alike, at once or one after another, with or without fines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import (
    Script,
    all_deals,
    at_least,
    choice,
    draw,
    everyone_else,
    introduction,
    make_view,
    not_negative,
    random_player,
)
from jaxmarl_llm.environments.social.fines import fine_grammar, fine_legal, fine_phrases, fine_rules, fines
from jaxmarl_llm.text.grammar import Grammar


class State(struct.PyTreeNode):
    turn: jax.Array  # int32, turns played
    first: jax.Array  # int32, the seat that begins the first round of a sequential game
    gifts: jax.Array  # int32 [rounds, A], 0 before a gift
    fined: jax.Array  # int32 [A]: the seat that each seat fined last, 0: nobody, k: seat k - 1


@dataclass(frozen=True)
class PublicGoods:
    """In each round every seat has `endowment` coins, gives c_i of them to a project and keeps the rest.

    Component `payoff` of a round, in coins: endowment - c_i + multiplier * sum(c) / agents. The project pays nothing if
    the sum is below `threshold`. With threshold 0, giving nothing is dominant if multiplier < agents, and giving all
    maximises the sum of payoffs if multiplier > 1.

    By default all seats give at once and are then told all gifts. In a `sequential` game they give one after another,
    and each knows all earlier gifts of the round. With `partial` it knows only the gift just before its own, and after
    the round the project's payment alone. The deal draws the seat that begins; the next seat begins the next round.

    With a `fine` every round ends with a turn in which each seat may fine one other seat. A fine costs `cost` coins,
    its target loses `fine` coins, and all are told (costly punishment, Fehr & Gaechter 2000). The components `fining`
    and `fined` are minus these amounts.
    Raises ValueError for fewer than two seats, no rounds or coins, or numbers that are negative or not finite. Raises
    it also for `partial` without `sequential`, and for `partial` with fines, as seats must know the gifts that they
    fine.
    """

    agents: int = 3
    multiplier: float = 1.6
    rounds: int = 5
    endowment: int = 10
    threshold: int = 0
    sequential: bool = False
    partial: bool = False
    fine: float = 0.0
    cost: float = 1.0

    roles = ("player",)

    def __post_init__(self):
        at_least(2, agents=self.agents)
        at_least(1, rounds=self.rounds, endowment=self.endowment)
        at_least(0, threshold=self.threshold)
        not_negative(multiplier=self.multiplier, fine=self.fine, cost=self.cost)
        if self.partial and not self.sequential:
            raise ValueError("partial is for sequential games: where all give at once nobody gives before another.")
        if self.partial and self.fine:
            raise ValueError(f"with a fine of {self.fine} all must know who gave what: partial must be False.")

    @property
    def actions(self) -> int:
        return max(self.endowment, self.agents * (self.fine > 0)) + 1

    @property
    def turns(self) -> int:
        return self.rounds * self._turns

    @property
    def _gives(self) -> int:
        """Turns of a round in which coins are given."""
        return self.agents if self.sequential else 1

    @property
    def alternating(self) -> bool:
        return self.sequential and not self.fine

    @property
    def seat_turns(self) -> int:
        return self.rounds * (1 + (self.fine > 0))

    @property
    def _turns(self) -> int:
        """Turns of a round."""
        return self._gives + (self.fine > 0)

    @property
    def components(self) -> tuple[str, ...]:
        return ("payoff", "fining", "fined") if self.fine else ("payoff",)

    @property
    def rules(self) -> Fields:
        """One field, a phrase for each seat."""
        n, high = self.agents, self.endowment
        told = f"After player {n} comes player 1, and whoever begins a round comes last in the next."
        if not self.sequential:
            order = "You all give at once, and are then told what each of you gave."
        elif self.partial:
            order = (
                "You give one after another, and are told what the player just before you gave; after the round you "
                f"are told what the project paid, not who gave what. {told}"
            )
        else:
            order = f"You give one after another, and are told what each player gave. {told}"
        text = (
            f" In each round each of you has {high} coins and gives 0 to {high} of them to a common project; what you "
            f"do not give you keep. All that is given is multiplied by {self.multiplier:g} and shared equally among "
            f"all {n} players. "
            + f"If less than {self.threshold} is given in all, the project pays nothing. " * (self.threshold > 0)
            + order
            + " Your points are the coins that you keep and the coins that the project pays you."
            + f" Answer with a number from 0 to {high}."
            + fine_rules(n, self.cost, self.fine) * (self.fine > 0)
        )
        return (tuple(f"{introduction(self.rounds, n, seat)}{text}" for seat in range(n)),)

    @property
    def observation(self) -> Fields:
        """The result of the last round, the present round, the earlier gifts of this round, the question.

        A seat is told all of it when it acts, and the result of the last round after the end.
        """
        n, rounds = self.agents, range(1, self.rounds + 1)
        gave = tuple(tuple(f" Player {k} gave {c}." for c in range(self.endowment + 1)) for k in range(1, n + 1))
        share = tuple(f" The project pays {round(self._share(c), 2):g} to each of you." for c in self._totals)
        ask: tuple[str, ...] = (" How many coins do you give?",)
        if self.sequential:
            ask = tuple(f" You are number {k} of {n} to give: how many coins do you give?" for k in range(1, n + 1))
        return (
            tuple(f"Round {r}." for r in rounds) + tuple(f"Round {r} is over." for r in rounds),
            share,
            *gave,
            *(fine_phrases(n) if self.fine else ()),
            tuple(f"\nRound {r}." for r in rounds),
            *(gave if self.sequential else ()),
            (*ask, " Whom do you fine?"),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """Gifts; second, with fines, the seat to fine."""
        gifts = choice([str(c) for c in range(self.endowment + 1)])
        return (gifts, fine_grammar(self.agents)) if self.fine else (gifts,)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`conditional` gives the mean of the others' gifts that it knows of this round, or else of the last round.

        It begins with all its coins. `punisher` gives all and fines the seat that gave least, if that is less than its
        own gift. The other scripts fine nobody.
        """

        def silent(gift: Callable) -> Callable:
            return lambda state, seat, key: jnp.where(self._fining(state), 0, gift(state, seat)).astype(jnp.int32)

        def conditional(state, seat):
            round, other = self._round(state), jnp.arange(self.agents) != seat
            before = self._before(state)[seat]
            now, last = state.gifts[round], state.gifts[jnp.maximum(round - 1, 0)]
            mean = jnp.where(before.any(), _mean(now, before), _mean(last, other))
            return jnp.where((round == 0) & ~before.any(), self.endowment, mean)

        def punisher(state, seat, key):
            gifts = state.gifts[self._round(state)]
            others = jnp.where(jnp.arange(self.agents) == seat, self.endowment + 1, gifts)
            fined = jnp.where(others.min() < gifts[seat], others.argmin() + 1, 0)
            return jnp.where(self._fining(state), fined, self.endowment).astype(jnp.int32)

        scripts = {
            "random": random_player(self.view),
            "always_give": silent(lambda state, seat: self.endowment),
            "never_give": silent(lambda state, seat: 0),
            "conditional": silent(conditional),
        }
        return {**scripts, "punisher": punisher} if self.fine else scripts

    def initial_states(self) -> tuple[State, np.ndarray]:
        """All initial states, stacked, and their probabilities float64: one for each seat that may begin."""
        return all_deals(self._deal, self._gives)

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[State, View]:
        state = self._deal(draw(key, self._gives))
        return state, self.view(state)

    def prompt(self, state: State) -> jax.Array:
        return jnp.arange(self.agents, dtype=jnp.int32)[:, None]

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, View, jax.Array]:
        round, fining = self._round(state), self._fining(state)
        given = jnp.where(self._acting(state) & ~fining, jnp.clip(action, 0, self.endowment), state.gifts[round])
        complete = state.turn % self._turns == self._gives - 1
        share = jnp.asarray([self._share(c) for c in self._totals], jnp.float32)[given.sum()]
        reward = jnp.where(complete, self.endowment - given + share, 0)[:, None]
        fined = state.fined
        if self.fine:
            chosen, lost = fines(action, self.cost, self.fine)
            fined = jnp.where(fining, chosen, fined)
            reward = jnp.concatenate([reward, jnp.where(fining, lost, 0)], 1)
        state = State(state.turn + 1, state.first, state.gifts.at[round].set(given), fined)
        return state, self.view(state), reward.astype(jnp.float32)

    def _deal(self, first: jax.Array) -> State:
        nothing = jnp.zeros((self.rounds + 1, self.agents), jnp.int32)
        return State(jnp.int32(0), first, nothing[1:], nothing[0])

    @property
    def _totals(self) -> range:
        return range(self.agents * self.endowment + 1)

    def _share(self, total: int) -> float:
        """The coins that the project pays each seat."""
        return self.multiplier * total / self.agents * (total >= self.threshold)

    def _round(self, state: State) -> jax.Array:
        return state.turn // self._turns

    def _fining(self, state: State) -> jax.Array:
        return state.turn % self._turns == self._gives

    def _position(self, state: State, round: jax.Array) -> jax.Array:
        """The number of seats that give before each seat, int32 [A]; all 0 if all give at once."""
        return (jnp.arange(self.agents) - state.first - round) % self.agents * self.sequential

    def _before(self, state: State) -> jax.Array:
        """bool [A, A]: before it gives, a seat is told the gift of the other seat in this round."""
        position = self._position(state, self._round(state))
        ahead = position[:, None] - position[None, :]
        return ahead == 1 if self.partial else ahead > 0

    def _acting(self, state: State) -> jax.Array:
        turn = self._position(state, self._round(state)) == state.turn % self._turns
        return (turn | self._fining(state)) & (state.turn < self.turns)

    def _legal(self, state: State) -> jax.Array:
        gift = jnp.broadcast_to(jnp.arange(self.actions) <= self.endowment, (self.agents, self.actions))
        return jnp.where(self._fining(state), fine_legal(self.agents, self.actions), gift)

    def view(self, state: State) -> View:
        n, round, fining = self.agents, self._round(state), self._fining(state)
        acting, position = self._acting(state), self._position(state, round)
        ended = state.turn >= self.turns
        now = jnp.minimum(round, self.rounds - 1)
        later = (round > 0) & ~fining
        # a seat is told the outcome of this round before it fines, else that of the last round, unless it was told
        past = jnp.where(fining, now, jnp.maximum(round - 1, 0))
        results = fining | (later & (self.fine == 0))
        order = self._position(state, past)
        other = everyone_else(n)
        unknown = order[None, :] > order[:, None] if self.sequential else other
        column = lambda phrase: jnp.broadcast_to(phrase, (n, 1))
        square = lambda phrase: jnp.broadcast_to(phrase[None, :], (n, n))
        ask = jnp.where(fining, self._gives, position)
        fields = [
            column(jnp.where(later, self.rounds + round - 1, now)),
            column(jnp.where(results, state.gifts[past].sum(), -1)),
            jnp.where(results & unknown & (not self.partial), square(state.gifts[past]), -1),
            *([jnp.where(later & other, square(state.fined), -1)] if self.fine else []),
            column(jnp.where(later & ~ended, now, -1)),
            *(
                [jnp.where(self._before(state) & ~fining & ~ended, square(state.gifts[now]), -1)]
                if self.sequential
                else []
            ),
            jnp.where(ended, -1, ask)[:, None],
        ]
        return make_view(
            self,
            jnp.concatenate(fields, 1),
            acting,
            ended,
            grammar=fining & (self.fine > 0),
            legal=self._legal(state),
            to=acting | ended,  # all are told the last round
        )


def _mean(values: jax.Array, where: jax.Array) -> jax.Array:
    """Mean of integers, a half rounded up; 0 without any."""
    n = jnp.maximum(where.sum(), 1)
    return (2 * jnp.where(where, values, 0).sum() + n) // (2 * n)


GAMES = {
    "public_goods": PublicGoods,
    "public_goods_fines": partial(PublicGoods, fine=3.0),
    "public_goods_sequential": partial(PublicGoods, sequential=True),
    "public_goods_partial": partial(PublicGoods, sequential=True, partial=True),
}
