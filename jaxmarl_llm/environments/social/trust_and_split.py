"""Trust-and-Split: two seats hold hidden hands, talk, and claim coins of unequal worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.environments.helpers import MESSAGE, Script, at_least, choice, everyone_else, make_view, random_player
from jaxmarl_llm.text.grammar import Grammar

HANDS = ("rock", "paper", "scissors")  # each beats the one before it


class TrustState(struct.PyTreeNode):
    turn: jax.Array  # int32, turns played
    first: jax.Array  # int32, the seat that speaks first in round 0; the order alternates from round to round
    hands: jax.Array  # int32 [rounds, 2], index into HANDS
    claims: jax.Array  # int32 [rounds, 2], -1 before a claim
    said: jax.Array  # int32 [2], the last signals, index into HANDS; 0 without any


@dataclass(frozen=True)
class TrustAndSplit:
    """Two seats hold different hands of rock-paper-scissors; each sees its own hand only.

    A coin is worth `high` to the seat with the winning hand and `low` to the other. With `talk` each seat says one line
    before the claims. The deal draws the seat that speaks first, and the order alternates from round to round. Then
    both claim c of the coins at once. After a round both are told the other's hand and claim (Trust-and-Split of
    AdAlignLLM).

    Component `points`: v_i * coins * c_i / max(coins, c_0 + c_1), with v_i the worth of a coin to seat i. Claiming all
    is dominant; leaving all to the winner maximises the sum of points.

    With `signals` the line is the name of a hand, true or not: words for policies that cannot spell.
    Raises ValueError for rounds or coins below 1, or values that are not finite with high > low >= 0. Raises it also
    for signals without talk, and a `trust` that is no probability.
    """

    rounds: int = 1
    coins: int = 10
    high: float = 10.0
    low: float = 1.0
    talk: bool = True
    signals: bool = False
    trust: float = 1.0  # probability that the script `trusting` yields to a signal that beats its own hand

    agents = 2
    roles = ("player",)
    components = ("points",)

    def __post_init__(self):
        at_least(1, rounds=self.rounds, coins=self.coins)
        if not (np.isfinite(self.high) and self.high > self.low >= 0):
            raise ValueError(f"a coin must be worth high > low >= 0, got high {self.high} and low {self.low}.")
        if self.signals and not self.talk:
            raise ValueError("signals are messages: they need talk.")
        if not 0 <= self.trust <= 1:
            raise ValueError(f"trust must be from 0 to 1, got {self.trust}.")

    @property
    def actions(self) -> int:
        return max(self.coins + 1, self._lines)

    @property
    def _lines(self) -> int:
        """The number of messages that the rules tell apart."""
        return len(HANDS) if self.signals else 1

    @property
    def turns(self) -> int:
        return self.rounds * self._turns

    @property
    def seat_turns(self) -> int:
        return self.rounds * (1 + self.talk)

    @property
    def _turns(self) -> int:
        """Turns of a round."""
        return 1 + 2 * self.talk

    @property
    def rules(self) -> Fields:
        """One field with one phrase: the game is the same for both seats."""
        return (
            (
                f"A game of {self.rounds} round{'s' * (self.rounds > 1)} for two. In each round both of you hold rock, "
                "paper or scissors, not the same, dealt anew, and do not see the other's hand. There are "
                f"{self.coins} coins. Each is worth {self.high:g} points to whoever has the winning hand (rock beats "
                "scissors, scissors beat paper, paper beats rock) and "
                f"{self.low:g} to the other. "
                + f"First each of you {'names a hand' if self.signals else 'says one line'} to the other. "
                * self.talk
                + f"{'Then you' if self.talk else 'You'} both claim coins at once. If you claim more than {self.coins} "
                "in all, the coins are shared in proportion to the claims; coins that nobody claims are lost. "
                "After the round you are told the other's hand and claim. Answer with a number from 0 to "
                f"{self.coins}.",
            ),
        )

    @property
    def observation(self) -> Fields:
        """The result of the last round, this round and the hand, the other seat's message, the question."""
        rounds, claims = range(1, self.rounds + 1), range(self.coins + 1)
        ask, say = "How many coins do you claim?", "Name a hand to them." if self.signals else "Say one line to them."
        talk: Fields = (("They say:\n", "\nThey say:\n"), MessageFrom(0), MessageFrom(1))
        if self.signals:
            talk = (tuple(f"{line}They say: {hand}." for line in ("", "\n") for hand in HANDS),)
        return (
            tuple(f"They had {hand} and claimed {c}." for hand in HANDS for c in claims),
            tuple(f"{line}Round {r}." for line in ("", "\n") for r in rounds),
            tuple(f" You have {hand}." for hand in HANDS),
            *(talk if self.talk else ()),
            (f" {ask}", f"\n{ask}", ask, f" {say}", f"\n{say}"),
        )

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """Claims; second, with talk, a message."""
        claims = choice([str(c) for c in range(self.coins + 1)])
        return (claims, choice(HANDS) if self.signals else MESSAGE) if self.talk else (claims,)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """The scripts say nothing, or with signals name their hand. `fair` claims half. `tit_for_tat` claims half at
        first, then the other's last claim. `trusting`, with signals, claims nothing if it loses against the hand that
        the other named, else all."""
        half = self.coins // 2

        def telling(claim: Callable) -> Callable:
            def script(state, seat, key):
                line = state.hands[state.turn // self._turns, seat] * self.signals
                return jnp.where(self._talking(state), line, claim(state, seat)).astype(jnp.int32)

            return script

        def tit_for_tat(state, seat):
            round = state.turn // self._turns
            return jnp.where(round == 0, half, state.claims[jnp.maximum(round - 1, 0), 1 - seat])

        def trusting(state, seat, key):
            loses = (state.said[1 - seat] - state.hands[state.turn // self._turns, seat]) % 3 == 1
            yields = loses & (jax.random.uniform(key) < self.trust)
            return telling(lambda *_: jnp.where(yields, 0, self.coins))(state, seat, key)

        return {
            "random": random_player(self._view),
            "greedy": telling(lambda state, seat: self.coins),
            "fair": telling(lambda state, seat: half),
            "yielding": telling(lambda state, seat: 0),
            "tit_for_tat": telling(tit_for_tat),
            **({"trusting": trusting} if self.signals else {}),
        }

    def initial_states(self) -> tuple[TrustState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64: 6 pairs of hands in each round, two speaking
        orders.

        Raises ValueError for more than five rounds (15,552 deals).
        """
        if self.rounds > 5:
            raise ValueError(
                f"{self.rounds} rounds have 2 * 6^{self.rounds} deals, too many to list; at most 5 rounds."
            )
        pairs = np.array(list(product(range(6), repeat=self.rounds)), np.int32)
        first = np.repeat(np.arange(2, dtype=np.int32), len(pairs))
        states = jax.vmap(self._deal)(jnp.asarray(np.concatenate([pairs, pairs])), jnp.asarray(first))
        return states, np.full(len(first), 1 / len(first))

    def rounds_played(self, reward: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
        """(points, claims, wins, known) of whole games, all [B, rounds, 2], from points and actions [B, turns, 2].
        `wins`: the seat has the winning hand. `known`: the points tell this; they do not if nobody claims anything."""
        points, claim = reward[:, self._turns - 1 :: self._turns], action[:, self._turns - 1 :: self._turns]
        share = self.coins * claim / jnp.maximum(claim.sum(2, keepdims=True), self.coins)
        likely = points > share * (self.high + self.low) / 2  # wins, if it claimed anything; else by the other's points
        wins = jnp.where(claim > 0, likely, (claim > 0)[..., ::-1] & ~likely[..., ::-1])
        return points, claim, wins, jnp.broadcast_to((claim > 0).any(2, keepdims=True), wins.shape)

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[TrustState, View]:
        hands, first = jax.random.split(key)
        pairs = jax.random.randint(hands, (self.rounds,), 0, 6, jnp.int32)
        state = self._deal(pairs, jax.random.randint(first, (), 0, 2, jnp.int32))
        return state, self._view(state)

    def prompt(self, state: TrustState) -> jax.Array:
        return jnp.zeros((2, 1), jnp.int32)

    def step(self, state: TrustState, action: jax.Array, key: jax.Array) -> tuple[TrustState, View, jax.Array]:
        talking, round = self._talking(state), state.turn // self._turns
        claim, hand = jnp.clip(action, 0, self.coins), state.hands[round]
        value = jnp.where((hand - hand[::-1]) % 3 == 1, self.high, self.low)
        points = value * self.coins * claim / jnp.maximum(claim.sum(), self.coins)
        claims = state.claims.at[round].set(jnp.where(talking, -1, claim).astype(jnp.int32))
        speaks = talking & (self._second(state) == state.turn % self._turns)
        said = jnp.where(speaks, jnp.clip(action, 0, self._lines - 1), state.said).astype(jnp.int32)
        state = TrustState(state.turn + 1, state.first, state.hands, claims, said)
        return state, self._view(state), jnp.where(talking, 0, points)[:, None].astype(jnp.float32)

    def _deal(self, pairs: jax.Array, first: jax.Array) -> TrustState:
        """Hands from numbers 0 .. 5 int32 [rounds]."""
        hand = pairs // 2
        hands = jnp.stack([hand, (hand + 1 + pairs % 2) % 3], 1)
        claims = jnp.full((self.rounds, 2), -1, jnp.int32)
        return TrustState(jnp.int32(0), first, hands, claims, jnp.zeros((2,), jnp.int32))

    def _second(self, state: TrustState) -> jax.Array:
        """1 for the seat that speaks second in this round, int32 [2]."""
        return (jnp.arange(2) - state.first - state.turn // self._turns) % 2

    def _talking(self, state: TrustState) -> jax.Array:
        return state.turn % self._turns < 2 * self.talk

    def _view(self, state: TrustState) -> View:
        round, phase, talking = state.turn // self._turns, state.turn % self._turns, self._talking(state)
        ended = round >= self.rounds
        now, past = jnp.minimum(round, self.rounds - 1), jnp.maximum(round - 1, 0)
        second = self._second(state)
        acting = (~talking | (second == phase)) & ~ended
        begins = talking | (not self.talk)  # a seat's first turn of the round
        result = state.hands[past] * (self.coins + 1) + state.claims[past]
        told = [
            jnp.where(ended | (begins & (round > 0)), result[::-1], -1),
            jnp.broadcast_to(jnp.where(begins & ~ended, now + self.rounds * (round > 0), -1), (2,)),
            jnp.where(begins & ~ended, state.hands[now], -1),
        ]
        ask, hears = jnp.zeros((2,), jnp.int32), None
        if self.talk:
            # the second speaker hears before it speaks, the first one before it claims
            heard = phase == 2 - second
            lines = len(HANDS) * second + state.said[::-1] if self.signals else second
            told.append(jnp.where(heard & ~ended, lines, -1))
            ask = jnp.where(talking, 3 + heard, 2 - heard)
            if not self.signals:
                told += [*jnp.full((2, 2), -1)]
                hears = (heard & acting)[None, :] & everyone_else(2)
        told.append(jnp.where(ended, -1, ask))
        to = acting | ended  # both are told the last round
        return make_view(self, told, acting, ended, grammar=talking, to=to, hears=hears)


GAMES = {"trust_and_split": TrustAndSplit}
