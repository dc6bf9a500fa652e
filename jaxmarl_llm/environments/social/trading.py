"""Simple negotiation: two seats with private values trade goods, one kind for another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.environments.helpers import Script, choice, everyone_else, make_view, random_player
from jaxmarl_llm.text.grammar import Free, Grammar

GOODS = ("wheat", "wood", "sheep", "brick", "ore")
BASE_VALUES = np.array((5, 10, 15, 25, 40))
LEAST_VALUES = np.maximum(BASE_VALUES - BASE_VALUES // 5, 5)
MOST_VALUES = np.minimum(BASE_VALUES + BASE_VALUES // 5, 40)
LEAST_GOODS, MOST_GOODS = 5, 25
ACCEPT, DENY, PASS, OFFER = range(4)  # OFFER is the first of many


class TradeState(struct.PyTreeNode):
    turn: jax.Array  # int32, turns played
    first: jax.Array  # int32, the seat that begins
    goods: jax.Array  # int32 [2, 5], number of each kind of GOODS
    values: jax.Array  # int32 [2, 5], value of one of each kind to each seat
    gain: jax.Array  # int32 [2], change in value of a seat's goods
    last: jax.Array  # int32, the action of the turn before, -1: none yet


@dataclass(frozen=True)
class SimpleNegotiation:
    """Two seats trade five kinds of goods, one kind for another; the values of goods to a seat are private.

    The deal draws the seat that begins; then the seats alternate for `turns` turns. A seat accepts or denies the
    other's offer, or passes if there is none, or offers x of one kind for y of another. An offer of its own denies the
    other's. x and y are from `quantities`, for 20 pairs of kinds. A seat can offer or give only goods that it has.

    As in TextArena's SimpleNegotiation each seat begins with 5 to 25 of each kind and does not see the other's goods.
    The kinds are worth 5, 10, 15, 25 and 40, give or take a fifth, within 5 to 40. A denied offer is gone. (In
    TextArena it can be accepted later, when the goods are no longer there.) With `talk` words may follow an answer, and
    the other seat hears them.

    Component `gain`: the change in value of a seat's goods, in the turn of the trade. Trade is not zero-sum. With
    `zero_sum` the component is TextArena's reward: at the end 1 for the larger change, -1 for the smaller, 0 if they
    are equal.
    Raises ValueError for fewer than two turns, or quantities that are not different numbers of 1 .. 25.
    """

    turns: int = 10
    quantities: tuple[int, ...] = (1, 2, 4)
    talk: bool = False
    zero_sum: bool = False

    agents = 2
    alternating = True
    roles = ("trader",)
    components = ("gain",)

    def __post_init__(self):
        if self.turns < 2:
            raise ValueError(f"turns must be at least 2, an offer and an answer, got {self.turns}.")
        amounts = set(self.quantities)
        if not amounts or len(amounts) < len(self.quantities) or min(amounts) < 1 or max(amounts) > MOST_GOODS:
            raise ValueError(f"quantities must be different numbers of 1 to {MOST_GOODS}, got {self.quantities}.")

    @property
    def seat_turns(self) -> int:
        return -(-self.turns // 2)

    @property
    def offers(self) -> list[tuple[int, int, int, int]]:
        """(x, kind given, y, kind wanted) of each offer, in the order of their actions from OFFER on."""
        kinds = [(give, want) for give, want in product(range(5), range(5)) if give != want]
        return [(x, give, y, want) for give, want in kinds for x in self.quantities for y in self.quantities]

    @property
    def _change(self) -> np.ndarray:
        """int32 [offers, 5]: the change in the offering seat's goods if the offer is accepted."""
        change = np.zeros((len(self.offers), 5), np.int32)
        for row, (x, give, y, want) in zip(change, self.offers, strict=True):
            row[give], row[want] = -x, y
        return change

    @property
    def actions(self) -> int:
        return OFFER + 20 * len(self.quantities) ** 2

    @property
    def rules(self) -> Fields:
        """The rules, then the value of each kind to the seat."""
        example = "offer {} {} for {} {}".format(*self._name_offer(self.offers[0]))
        text = (
            f"Two of you trade in turn, {self.turns} turns in all. On your turn make an offer, such as {example}: "
            "you give "
            "the first good and get the second, if they accept. After their offer you may accept (if you have what "
            "they "
            "want) or deny instead, and an offer of your own turns theirs down; without an offer of theirs there is "
            "nothing to accept or deny, and you may pass. You can offer only what you have. An offer in the last turn "
            f"cannot be answered. Amounts may be {', '.join(str(x) for x in self.quantities)}. "
            + "After the answer you may go on with words to them, on the same line. " * self.talk
            + "You see neither what they have nor what it is worth to them. "
            + (
                "Your points at the end: 1 if what you have has gained more value than theirs, -1 if less, else 0."
                if self.zero_sum
                else "Your points are the change of the value of what you have."
            )
            + " One of each is worth to you:"
        )
        worth = []
        for name, low, high, end in zip(GOODS, LEAST_VALUES, MOST_VALUES, (*",,,,", "."), strict=True):
            worth.append(tuple(f" {name} {value}{end}" for value in range(low, high + 1)))
        return ((text,), *worth)

    @property
    def observation(self) -> Fields:
        """The other seat's move and words, the seat's own goods, the question."""
        done = ("accept", "deny", "pass", *("offer {} {} for {} {}".format(*self._name_offer(o)) for o in self.offers))
        talk: Fields = ((" They say:\n",), MessageFrom(0), MessageFrom(1))
        have = []
        for kind, (name, end) in enumerate(zip(GOODS, (*",,,,", "."), strict=True)):
            begin = "\nYou have" if kind == 0 else ""
            have.append(tuple(f"{begin} {n} {name}{end}" for n in range(2 * MOST_GOODS + 1)))
        return (
            ("You begin.", *(f"They {move}." for move in done)),
            *(talk if self.talk else ()),
            *have,
            (" Your move?",),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        offers = ("offer {} {} for {} {}".format(*self._name_offer(offer)) for offer in self.offers)
        moves = choice(("accept", "deny", "pass", *offers))
        return ((*moves, Free(b"\n")),) if self.talk else (moves,)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """The scripts say nothing. `fair` and `greedy` accept an offer with a gain for themselves.

        They assume that the other seat has the base values. `fair` makes the offer with the largest minimum of both
        gains, `greedy` the offer with the largest gain for itself. `stubborn` denies all offers and makes none.
        """

        def refuse(legal):
            return jnp.where(legal[DENY], DENY, PASS).astype(jnp.int32)

        def trader(worth: Callable) -> Callable:
            def script(state, seat, key):
                legal, change = self._legal(state)[seat], jnp.asarray(self._change)
                mine = change @ state.values[seat]
                theirs = -(change @ jnp.asarray(BASE_VALUES))
                score = jnp.where(legal[OFFER:], worth(mine, theirs), -1)
                offered = jnp.maximum(state.last - OFFER, 0)
                good = legal[ACCEPT] & (-(change[offered] @ state.values[seat]) > 0)
                offer = jnp.where(score.max() > 0, OFFER + score.argmax(), refuse(legal))
                return jnp.where(good, ACCEPT, offer).astype(jnp.int32)

            return script

        return {
            "random": random_player(self._view),
            "fair": trader(jnp.minimum),
            "greedy": trader(lambda mine, theirs: mine),
            "stubborn": lambda state, seat, key: refuse(self._legal(state)[seat]),
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[TradeState, View]:
        goods, values, first = jax.random.split(key, 3)
        low, high = (jnp.broadcast_to(jnp.asarray(v, jnp.int32), (2, 5)) for v in (LEAST_VALUES, MOST_VALUES))
        state = TradeState(
            turn=jnp.int32(0),
            first=jax.random.randint(first, (), 0, 2, jnp.int32),
            goods=jax.random.randint(goods, (2, 5), LEAST_GOODS, MOST_GOODS + 1, jnp.int32),
            values=jax.random.randint(values, (2, 5), low, high + 1, jnp.int32),
            gain=jnp.zeros((2,), jnp.int32),
            last=jnp.int32(-1),
        )
        return state, self._view(state)

    def prompt(self, state: TradeState) -> jax.Array:
        worth = state.values - jnp.asarray(LEAST_VALUES, jnp.int32)[None, :]
        return jnp.concatenate([jnp.zeros((2, 1), jnp.int32), worth], 1)

    def step(self, state: TradeState, action: jax.Array, key: jax.Array) -> tuple[TradeState, View, jax.Array]:
        seat = (state.first + state.turn) % 2
        move = action[seat]
        trade = (move == ACCEPT) & self._legal(state)[seat, ACCEPT]
        change = jnp.asarray(self._change)[jnp.maximum(state.last - OFFER, 0)]
        change = jnp.where(trade, jnp.where(jnp.arange(2) == seat, -1, 1), 0)[:, None] * change[None, :]
        gained = (change * state.values).sum(1)
        state = TradeState(
            state.turn + 1, state.first, state.goods + change, state.values, state.gain + gained, jnp.int32(move)
        )
        reward = gained
        if self.zero_sum:
            reward = jnp.where(state.turn == self.turns, jnp.sign(state.gain - state.gain[::-1]), 0)
        return state, self._view(state), reward[:, None].astype(jnp.float32)

    def _name_offer(self, offer: tuple[int, int, int, int]) -> tuple[int, str, int, str]:
        x, give, y, want = offer
        return x, GOODS[give], y, GOODS[want]

    def _legal(self, state: TradeState) -> jax.Array:
        change = jnp.asarray(self._change)
        offered, pending = change[jnp.maximum(state.last - OFFER, 0)], state.last >= OFFER
        has = state.goods[:, None, :] + change[None, :, :]
        possible = ((has >= 0) | (change > 0)[None, :, :]).all(2)
        accept = pending & (state.goods - offered[None, :] >= 0).all(1)
        either = jnp.broadcast_to(jnp.stack([pending, ~pending])[None, :], (2, 2))
        return jnp.concatenate([accept[:, None], either, possible], 1)

    def _view(self, state: TradeState) -> View:
        ended = state.turn >= self.turns
        acting = ((state.first + state.turn) % 2 == jnp.arange(2)) & ~ended
        heard = state.turn > 0
        talk = [jnp.where(heard, 0, -1), -1, -1] if self.talk else []
        hears = (heard & acting)[None, :] & everyone_else(2) if self.talk else None
        told = [state.last + 1, *talk, *state.goods.T, 0]
        return make_view(self, told, acting, ended, legal=self._legal(state), hears=hears)


GAMES = {"simple_negotiation": SimpleNegotiation, "simple_negotiation_talk": partial(SimpleNegotiation, talk=True)}
