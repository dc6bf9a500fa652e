"""Common-pool harvests, from a stock that grows back if harvests are small, and gifts to strangers with known
records."""

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
    at_least,
    choice,
    everyone_else,
    introduction,
    make_view,
    not_negative,
    one_deal,
    random_player,
)
from jaxmarl_llm.environments.social.fines import fine_grammar, fine_legal, fine_phrases, fine_rules, fines
from jaxmarl_llm.text.grammar import Grammar


class HarvestState(struct.PyTreeNode):
    turn: jax.Array  # int32, turns played
    stock: jax.Array  # int32
    available: jax.Array  # int32, the units that the last harvest could take
    asked: jax.Array  # int32 [A], the units that each seat wanted
    fined: jax.Array  # int32 [A]: the seat that each seat fined last, 0: nobody, k: seat k - 1


@dataclass(frozen=True)
class Harvest:
    """A common-pool resource: in each round every seat takes h_i of 0 .. `most` units, all at once.

    stock' = max(0, stock + g - sum(h)) with logistic growth g = growth * stock * (1 - stock / capacity), rounded to
    whole units. If the seats want more than stock + g, they share it in proportion to h. The game ends when the stock
    is gone. With `monitoring` all are told each seat's wanted amount, otherwise only the sum.

    With a `fine` every round has a second turn, in which each seat may fine one other seat. A fine costs `cost`, and
    its target loses `fine`.

    Components: `harvest`, the units taken. With a fine also `fining`, minus the costs of fining, and `fined`, minus the
    fines received.
    Raises ValueError for fewer than two seats, no rounds, nothing to take, a start outside 1 .. capacity, or growth
    outside (0, 1]. Raises it also for a negative fine or cost, and for fines without monitoring.
    """

    agents: int = 3
    rounds: int = 10
    capacity: int = 60
    start: int = 60
    growth: float = 0.8
    most: int = 10
    monitoring: bool = True
    fine: float = 0.0
    cost: float = 1.0

    roles = ("player",)

    def __post_init__(self):
        at_least(2, agents=self.agents)
        at_least(1, rounds=self.rounds, most=self.most)
        if not 1 <= self.start <= self.capacity:
            raise ValueError(f"start must lie between 1 and the capacity of {self.capacity}, got {self.start}.")
        if not 0 < self.growth <= 1:
            raise ValueError(f"growth must lie above 0 and not above 1, got {self.growth}.")
        not_negative(fine=self.fine, cost=self.cost)
        if self.fine and not self.monitoring:
            raise ValueError(f"with a fine of {self.fine} all must know who took what: monitoring must be True.")

    @property
    def actions(self) -> int:
        return max(self.most, self.agents * (self.fine > 0)) + 1

    @property
    def turns(self) -> int:
        return self.rounds * self._turns

    @property
    def _turns(self) -> int:
        """Turns of a round."""
        return 1 + (self.fine > 0)

    @property
    def components(self) -> tuple[str, ...]:
        return ("harvest", "fining", "fined") if self.fine else ("harvest",)

    @property
    def rules(self) -> Fields:
        """One field, a phrase for each seat."""
        text = (
            f" You share a stock of at most {self.capacity}. In each round it grows by {self.growth:g} * stock * (1 - "
            f"stock / {self.capacity}), rounded (a half up); then each of you takes 0 to {self.most}, all at once. "
            "If you want more than there is, it is shared in proportion to what each wanted. When nothing is left, "
            "the game ends. "
            f"You are told what {'each of you wanted' if self.monitoring else 'you wanted together'}. "
            "Your points are what you get. "
            f"Answer with a number from 0 to {self.most}."
            + fine_rules(self.agents, self.cost, self.fine)
            * (self.fine > 0)
        )
        return (tuple(f"{introduction(self.rounds, self.agents, seat)}{text}" for seat in range(self.agents)),)

    @property
    def observation(self) -> Fields:
        """The result of the last round, the present round, the stock, the question. The result and the stock are told
        after the end, too."""
        n, rounds = self.agents, range(1, self.rounds + 1)
        took: Fields = (tuple(f" Together you wanted {h}." for h in range(n * self.most + 1)),)
        if self.monitoring:
            took = tuple(tuple(f" Player {k} wanted {h}." for h in range(self.most + 1)) for k in range(1, n + 1))
        return (
            tuple(f"Round {r}." for r in rounds) + tuple(f"Round {r} is over." for r in rounds),
            *took,
            tuple(f" There were only {s}, shared in proportion." for s in range(n * self.most)),
            *(fine_phrases(n) if self.fine else ()),
            tuple(f"\nRound {r}." for r in rounds),
            tuple(f" The stock is {s}." for s in range(self.capacity + 1)),
            (" How much do you take?", " Whom do you fine?"),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """Harvests; second, with fines, the seat to fine."""
        take = choice([str(h) for h in range(self.most + 1)])
        return (take, fine_grammar(self.agents)) if self.fine else (take,)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`sustainable` takes an equal share of the surplus over half the capacity, the stock with the largest growth.

        `conditional` begins like `sustainable` and then takes the mean of the others' last harvests, a half rounded up.
        `greedy` takes `most`, `abstain` takes nothing. `sanctioner` exists with fines only. It is sustainable and fines
        the seat that wanted most, if that is more than its own harvest. `random` draws harvests and fines uniformly;
        the other scripts fine nobody.
        """

        def peaceful(take: Callable) -> Callable:
            return lambda state, seat, key: jnp.where(self._fining(state), 0, take(state, seat)).astype(jnp.int32)

        def sustainable(state, seat):
            surplus = state.stock + self._growth(state.stock) - self.capacity // 2
            return jnp.clip(surplus // self.agents, 0, self.most)

        def conditional(state, seat):
            others, n = state.asked.sum() - state.asked[seat], self.agents - 1
            return jnp.where(state.turn == 0, sustainable(state, seat), (2 * others + n) // (2 * n))

        def sanctioner(state, seat, key):
            others = jnp.where(jnp.arange(self.agents) == seat, -1, state.asked)
            fined = jnp.where(others.max() > state.asked[seat], others.argmax() + 1, 0)
            return jnp.where(self._fining(state), fined, sustainable(state, seat)).astype(jnp.int32)

        scripts = {
            "random": random_player(self.view),
            "greedy": peaceful(lambda state, seat: self.most),
            "abstain": peaceful(lambda state, seat: 0),
            "sustainable": peaceful(sustainable),
            "conditional": peaceful(conditional),
        }
        return {**scripts, "sanctioner": sanctioner} if self.fine else scripts

    def initial_states(self) -> tuple[HarvestState, np.ndarray]:
        """The only initial state, with a leading axis, and its probability float64."""
        return one_deal(self)

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[HarvestState, View]:
        state = self._deal()
        return state, self.view(state)

    def prompt(self, state: HarvestState) -> jax.Array:
        return jnp.arange(self.agents, dtype=jnp.int32)[:, None]

    def step(self, state: HarvestState, action: jax.Array, key: jax.Array) -> tuple[HarvestState, View, jax.Array]:
        fining = self._fining(state)
        asked = jnp.clip(action, 0, self.most)
        available, total = state.stock + self._growth(state.stock), asked.sum()
        taken = jnp.where(total > available, asked * available / jnp.maximum(total, 1), asked)
        reward = jnp.where(fining, 0, taken)[:, None]
        fined = state.fined
        if self.fine:
            chosen, lost = fines(action, self.cost, self.fine)
            fined = jnp.where(fining, chosen, fined)
            reward = jnp.concatenate([reward, jnp.where(fining, lost, 0)], 1)
        state = HarvestState(
            turn=state.turn + 1,
            stock=jnp.where(fining, state.stock, jnp.maximum(available - total, 0)),
            available=jnp.where(fining, state.available, available),
            asked=jnp.where(fining, state.asked, asked).astype(jnp.int32),
            fined=fined,
        )
        return state, self.view(state), reward.astype(jnp.float32)

    def _deal(self) -> HarvestState:
        nothing = jnp.zeros((self.agents,), jnp.int32)
        return HarvestState(jnp.int32(0), jnp.int32(self.start), jnp.int32(0), nothing, nothing)

    @property
    def _growth_table(self) -> np.ndarray:
        """Growth int32 [capacity + 1] by stock; a half is rounded up."""
        stock = np.arange(self.capacity + 1)
        return np.floor(self.growth * stock * (1 - stock / self.capacity) + 0.5).astype(np.int32)

    def _growth(self, stock: jax.Array) -> jax.Array:
        return jnp.asarray(self._growth_table)[stock]

    def _fining(self, state: HarvestState) -> jax.Array:
        return state.turn % self._turns == 1

    def _legal(self, state: HarvestState) -> jax.Array:
        take = jnp.broadcast_to(jnp.arange(self.actions) <= self.most, (self.agents, self.actions))
        return jnp.where(self._fining(state), fine_legal(self.agents, self.actions), take)

    def view(self, state: HarvestState) -> View:
        n, round, fining = self.agents, state.turn // self._turns, self._fining(state)
        ended = (state.turn % self._turns == 0) & ((round >= self.rounds) | (state.stock == 0))
        now, later = jnp.minimum(round, self.rounds - 1), (round > 0) & ~fining
        results = fining | (later & (self.fine == 0))  # the seats are not yet told of the last harvest
        other, total = everyone_else(n), state.asked.sum()
        column = lambda phrase: jnp.broadcast_to(phrase, (n, 1))
        square = lambda phrase: jnp.broadcast_to(phrase[None, :], (n, n))
        fields = [
            column(jnp.where(later, self.rounds + round - 1, now)),
            jnp.where(results & other, square(state.asked), -1)
            if self.monitoring
            else column(jnp.where(results, total, -1)),
            column(jnp.where(results & (total > state.available), state.available, -1)),
            *([jnp.where(later & other, square(state.fined), -1)] if self.fine else []),
            column(jnp.where(later & ~ended, now, -1)),
            column(state.stock),
            column(jnp.where(ended, -1, fining)),
        ]
        return make_view(
            self, jnp.concatenate(fields, 1), True, ended, grammar=fining, legal=self._legal(state), to=True
        )


class DonorState(struct.PyTreeNode):
    round: jax.Array  # int32, rounds played
    recipient: jax.Array  # int32 [rounds, A]: the recipient of each donor, -1: the seat is no donor in this round
    coins: jax.Array  # int32 [A]
    given: jax.Array  # int32 [A, memory]: the gifts of each seat, latest first, -1: it had fewer turns as donor


@dataclass(frozen=True)
class DonorGame:
    """In each round the seats meet in random pairs of a donor and a recipient (with an odd number a seat rests).

    The donor gives x of 0 .. `most` of its coins, and the recipient gets benefit * x (Nowak and Sigmund 1998). Donors
    act at once. Components: `given`, -x to the donor; `received`, benefit * x to the recipient. In one round giving
    nothing is dominant; giving all maximises the sum of rewards if benefit > 1.

    The donor is told the recipient's number and its last `memory` gifts. No seat is told the giver of a gift. Coins are
    kept from round to round. The deal draws the pairs of all rounds.
    Raises ValueError for fewer than two seats, for rounds, most, benefit or memory below 1, or for a negative start.
    """

    agents: int = 4
    rounds: int = 10
    start: int = 10
    most: int = 5
    benefit: int = 2
    memory: int = 3

    roles = ("donor", "recipient")
    components = ("given", "received")

    def __post_init__(self):
        at_least(2, agents=self.agents)
        at_least(1, rounds=self.rounds, most=self.most, benefit=self.benefit, memory=self.memory)
        at_least(0, start=self.start)

    @property
    def actions(self) -> int:
        return self.most + 1

    @property
    def turns(self) -> int:
        return self.rounds

    @property
    def rules(self) -> Fields:
        """One field, a phrase for each seat."""
        text = (
            f" Each begins with {self.start} coins. In each round you meet in random pairs, one of the two may give 0 "
            f"to {self.most} of its coins to the other, who gets {self.benefit} times as much. Whoever may give to you "
            f"is told your last gifts, {self.memory} at most. Your points are the coins that you get less the coins "
            f"that you give. Answer with a number from 0 to {self.most}, not more "
            "than you have."
        )
        return (tuple(f"{introduction(self.rounds, self.agents, seat)}{text}" for seat in range(self.agents)),)

    @property
    def observation(self) -> Fields:
        """The round, the donor's coins, the recipient and the recipient's last gifts; only donors are told."""
        amounts = range(self.most + 1)
        return (
            tuple(f"Round {r}." for r in range(1, self.rounds + 1)),
            tuple(f" You have {c} coins." for c in range(self.start + self.rounds * self.benefit * self.most + 1)),
            tuple(f" You meet player {k}." for k in range(1, self.agents + 1)),
            (*(f" They last gave {x}." for x in amounts), " They were never asked to give."),
            *(tuple(f" Before that {x}." for x in amounts) for _ in range(self.memory - 1)),
            (" How many coins do you give?",),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice([str(x) for x in range(self.most + 1)]),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`reciprocal` gives the recipient's last gift. `discriminator` gives `most` to a recipient whose gifts have a
        mean of `most` / 2 or more, else nothing.

        Both give `most` to a recipient that was never a donor. `always_give` gives `most`, `never_give` gives nothing,
        and `random` draws a legal gift uniformly. No script gives more than its coins.
        """

        def within(wanted: Callable) -> Callable:
            def script(state, seat, key):
                given = state.given[self._recipient(state)[seat]]
                return jnp.minimum(wanted(given), state.coins[seat]).astype(jnp.int32)

            return script

        def discriminator(given):
            known = given >= 0
            good = 2 * jnp.where(known, given, 0).sum() >= self.most * known.sum()
            return jnp.where(good, self.most, 0)

        return {
            "random": random_player(self.view),
            "always_give": within(lambda given: self.most),
            "never_give": within(lambda given: 0),
            "reciprocal": within(lambda given: jnp.where(given[0] < 0, self.most, given[0])),
            "discriminator": within(discriminator),
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[DonorState, View]:
        n, pairs = self.agents, self.agents // 2
        orders = jax.vmap(lambda k: jax.random.permutation(k, n))(jax.random.split(key, self.rounds))
        donor, recipient = orders[:, : 2 * pairs : 2], orders[:, 1 : 2 * pairs : 2]
        nobody = jnp.full((self.rounds, n), -1, jnp.int32)
        state = DonorState(
            round=jnp.int32(0),
            recipient=nobody.at[jnp.arange(self.rounds)[:, None], donor].set(recipient.astype(jnp.int32)),
            coins=jnp.full((n,), self.start, jnp.int32),
            given=jnp.full((n, self.memory), -1, jnp.int32),
        )
        return state, self.view(state)

    def prompt(self, state: DonorState) -> jax.Array:
        return jnp.arange(self.agents, dtype=jnp.int32)[:, None]

    def step(self, state: DonorState, action: jax.Array, key: jax.Array) -> tuple[DonorState, View, jax.Array]:
        recipient = self._recipient(state)
        gives = recipient >= 0
        gift = jnp.where(gives, jnp.clip(action, 0, jnp.minimum(self.most, state.coins)), 0)
        got = jnp.zeros_like(gift).at[jnp.where(gives, recipient, self.agents)].add(self.benefit * gift, mode="drop")
        record = jnp.concatenate([gift[:, None], state.given[:, :-1]], 1)
        state = DonorState(
            round=state.round + 1,
            recipient=state.recipient,
            coins=state.coins - gift + got,
            given=jnp.where(gives[:, None], record, state.given),
        )
        return state, self.view(state), jnp.stack([-gift, got], 1).astype(jnp.float32)

    def _recipient(self, state: DonorState) -> jax.Array:
        """int32 [A], -1 for seats that do not give in this round."""
        now = state.recipient[jnp.minimum(state.round, self.rounds - 1)]
        return jnp.where(state.round < self.rounds, now, -1)

    def _legal(self, state: DonorState) -> jax.Array:
        return jnp.arange(self.actions)[None, :] <= state.coins[:, None]

    def view(self, state: DonorState) -> View:
        recipient = self._recipient(state)
        acting, known = recipient >= 0, state.given[recipient]
        known = known.at[:, 0].set(jnp.where(known[:, 0] < 0, self.most + 1, known[:, 0]))
        first = [jnp.broadcast_to(state.round, acting.shape), state.coins, recipient]
        text = jnp.concatenate([jnp.stack(first, 1), known, jnp.zeros_like(recipient)[:, None]], 1)
        ended = state.round >= self.rounds
        return make_view(self, text, acting, ended, role=jnp.where(acting, 0, 1), legal=self._legal(state))


GAMES = {
    "harvest": Harvest,
    "harvest_fines": partial(Harvest, fine=2.0),
    "harvest_unmonitored": partial(Harvest, monitoring=False),
    "donor_game": DonorGame,
}
