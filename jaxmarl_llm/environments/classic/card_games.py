"""Kuhn poker, Leduc poker and liar's dice: two seats in turn, with private cards or dice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import factorial, prod

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, choice, random_player, turn_of, zero_sum
from jaxmarl_llm.text.grammar import Choice, Grammar

PASS, BET = 0, 1
FOLD, CALL, RAISE = 0, 1, 2
RANKS = ("J", "Q", "K")


def kuhn_equilibrium(alpha: float) -> np.ndarray:
    """P(bet or call), float64 [4, 3], in an equilibrium of Kuhn poker: situation x card (J, Q, K).

    The situations: seat 0 opens; seat 1 after a check; seat 1 after a bet; seat 0 after a check and a bet. Alpha is
    seat 0's probability of a bet with J, and every alpha from 0 to 1/3 is an equilibrium. Seat 0 loses 1/18 a game
    (Kuhn 1950).
    """
    return np.array([[alpha, 0, 3 * alpha], [1 / 3, 0, 1], [0, 1 / 3, 1], [0, alpha + 1 / 3, 1]])


class KuhnState(struct.PyTreeNode):
    cards: jax.Array  # int32 [2], index into RANKS
    history: jax.Array  # int32, node of a binary tree: 0, then 2h + 1 after a pass, 2h + 2 after a bet


@dataclass(frozen=True)
class KuhnPoker:
    """Poker with three cards, J < Q < K, one for each seat (Kuhn 1950). Both seats pay 1 point; seat 0 begins, then
    they alternate. Action 0 passes (check, or fold after a bet); action 1 bets one more point (or calls). After two
    passes or a call the higher card wins.

    Component `points`: seat 0's gain from seat 1, and its negative for seat 1, paid at the end. It is 1 after two
    passes or a fold, 2 after a called bet. (TextArena and SPIRAL never charge a bet. A fold then costs as much as a
    called loss, and bluffs are worthless.) Rules and numbers are those of OpenSpiel's `kuhn_poker`.

    `alpha` is the probability that the scripted `equilibrium` player opens with a bet when it holds J. Raises
    ValueError unless 0 <= alpha <= 1/3.
    """

    alpha: float = 1 / 3

    agents = 2
    turns = 3
    seat_turns = 2
    alternating = True
    actions = 2
    roles = ("first", "second")
    components = ("points",)
    observation: Fields = (("Check or bet?", "They checked. Check or bet?", "They bet. Fold or call?"),)
    grammars: tuple[Grammar, ...] = (
        choice(("check", "bet")),
        choice(("fold", "call")),
    )

    def __post_init__(self):
        if not 0 <= self.alpha <= 1 / 3:
            raise ValueError(f"alpha must be from 0 to 1/3, or it is no equilibrium, got {self.alpha}.")

    @property
    def rules(self) -> Fields:
        """Two fields: a phrase for each seat; its card."""
        texts = tuple(
            "Kuhn poker with three cards, J below Q below K: each of you holds one. Both have paid 1 point. "
            "Answer check or bet; a bet costs 1 point more. If both check, the higher card wins all that was paid. "
            "After "
            "a bet answer fold or call: a fold leaves all that was paid to the other, a call costs 1 point more and "
            "the "
            f"higher card wins all. Your points are what you win less what you paid. You act {order}."
            for order in self.roles
        )
        return (texts, tuple(f" Your card is {card}." for card in RANKS))

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {
            "random": random_player(self.view),
            "equilibrium": self._equilibrium,
            "always_bet": lambda state, seat, key: jnp.int32(BET),
            "honest": lambda state, seat, key: jnp.where(state.cards[seat] == 2, jnp.int32(BET), PASS),  # with K alone
        }

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[KuhnState, View]:
        state = self._deal(_number(key, 6))
        return state, self.view(state)

    def initial_states(self) -> tuple[KuhnState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64 [6]."""
        return jax.vmap(self._deal)(jnp.arange(6, dtype=jnp.int32)), np.full(6, 1 / 6)

    def _deal(self, number: jax.Array) -> KuhnState:
        first = number // 2
        return KuhnState(jnp.stack([first, (first + 1 + number % 2) % 3]), jnp.int32(0))

    def prompt(self, state: KuhnState) -> jax.Array:
        return jnp.stack([jnp.arange(2, dtype=jnp.int32), state.cards], 1)

    def step(self, state: KuhnState, action: jax.Array, key: jax.Array) -> tuple[KuhnState, View, jax.Array]:
        move = jnp.where(self._actor(state) == 0, action[0], action[1])
        node = 2 * state.history + 1 + (move == BET)  # the end: 3 pp, 5 bp, 6 bb, 9 pbp, 10 pbb
        higher = jnp.where(state.cards[0] > state.cards[1], 1, -1)
        called = jnp.where(node == 3, higher, jnp.where((node == 6) | (node == 10), 2 * higher, 0))
        points = jnp.where(node == 5, 1, jnp.where(node == 9, -1, called))
        state = KuhnState(state.cards, node)
        return state, self.view(state), zero_sum(points)

    def view(self, state: KuhnState) -> View:
        """The view of this state, equal to the view that `reset` and `step` return with it."""
        node = state.history
        bet = (node == 2) | (node == 4)
        told = jnp.where(bet, 2, node)[None]
        return turn_of(self, self._actor(state), (node >= 3) & (node != 4), told, np.ones(2, bool), bet)

    def _actor(self, state: KuhnState) -> jax.Array:
        return ((state.history == 1) | (state.history == 2)).astype(jnp.int32)

    def _equilibrium(self, state: KuhnState, seat: jax.Array, key: jax.Array) -> jax.Array:
        situation = jnp.clip(state.history, 0, 3)
        chance = jnp.asarray(kuhn_equilibrium(self.alpha), jnp.float32)[situation, state.cards[seat]]
        return jnp.where(jax.random.uniform(key) < chance, jnp.int32(BET), PASS)


class LeducState(struct.PyTreeNode):
    cards: jax.Array  # int32 [3]: seat 0's, seat 1's, the public one; card // 2 is the index into RANKS
    round: jax.Array  # int32, 0 or 1
    moves: jax.Array  # int32, moves in this round
    raises: jax.Array  # int32, raises in this round
    raised: jax.Array  # int32, raises in the round before
    closer: jax.Array  # int32, the seat whose check or call ended the round before
    ended: jax.Array  # bool


@dataclass(frozen=True)
class LeducPoker:
    """Poker with six cards, J, Q, K in two suits, one for each seat (Southey et al. 2005). Both seats pay 1 point. Seat
    0 begins both rounds, and a public card is turned up before the second. Action 0 folds (only after a raise), action
    1 checks or calls. Action 2 raises, by 2 points in the first round and 4 in the second, at most twice a round. A
    pair with the public card wins, else the higher rank; equal ranks divide the pot.

    Component `points`: seat 0's gain from seat 1, and its negative for seat 1, paid at the end. Rules and numbers are
    those of OpenSpiel's `leduc_poker` with distinct suits. An illegal action counts as check or call.
    """

    agents = 2
    turns = 8
    seat_turns = 4
    actions = 3
    roles = ("first", "second")
    components = ("points",)
    observation: Fields = (
        (
            "Round 1.",
            "They checked.",
            "They called.",
            "They raised by 2.",
            "They raised by 4.",
            "You checked.",
            "You called.",
        ),
        tuple(f" Round 2. The public card is {rank} of {suit}." for rank in RANKS for suit in ("hearts", "spades")),
        (" They checked.", " They raised by 4."),
        (" Check or raise?", " Fold, call or raise?", " Fold or call?"),
    )
    grammars: tuple[Grammar, ...] = (
        (Choice(((CALL, "check"), (RAISE, "raise"))),),
        (Choice(((FOLD, "fold"), (CALL, "call"), (RAISE, "raise"))),),
    )

    @property
    def rules(self) -> Fields:
        """Two fields: a phrase for each seat; its card."""
        texts = tuple(
            "Leduc poker with six cards, J below Q below K, each of hearts and of spades: each of you holds one. Both "
            "have paid 1 point. There are two rounds of bets, and a public card comes before the second. Answer check "
            "or raise; after a raise fold, call or raise. A call pays as much as the other has paid, a raise pays that "
            "and 2 points more in round 1, 4 more in round 2; at most two raises in a round. A check or call ends a "
            "round, but not as its first answer. A fold leaves all that was paid to the other. At the end a pair with "
            "the public card wins all that was paid, else the higher card; equal ranks divide it. Your points are what "
            f"you win less what you paid. You act {order} in both rounds."
            for order in self.roles
        )
        cards = tuple(f" Your card is {rank} of {suit}." for rank in RANKS for suit in ("hearts", "spades"))
        return (texts, cards)

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view), "honest": self._honest}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[LeducState, View]:
        state = self._deal(_number(key, 120))
        return state, self.view(state)

    def initial_states(self) -> tuple[LeducState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64 [120]; the public card is part of a deal."""
        return jax.vmap(self._deal)(jnp.arange(120, dtype=jnp.int32)), np.full(120, 1 / 120)

    def _deal(self, number: jax.Array) -> LeducState:
        first, second, public = number // 20, number // 4 % 5, number % 4  # each among the cards that are left
        second = second + (second >= first)
        public = public + (public >= jnp.minimum(first, second))
        public = public + (public >= jnp.maximum(first, second))
        zero = jnp.int32(0)
        return LeducState(jnp.stack([first, second, public]), zero, zero, zero, zero, zero, jnp.bool_(False))

    def prompt(self, state: LeducState) -> jax.Array:
        return jnp.stack([jnp.arange(2, dtype=jnp.int32), state.cards[:2]], 1)

    def step(self, state: LeducState, action: jax.Array, key: jax.Array) -> tuple[LeducState, View, jax.Array]:
        actor, second = state.moves % 2, state.round == 1
        move = jnp.where(actor == 0, action[0], action[1])
        raises = (move == RAISE) & (state.raises < 2)
        folds = (move == FOLD) & (state.raises > 0)
        closes = ~raises & ~folds & (state.moves > 0)
        shows = closes & second
        stake = 1 + 2 * (state.raised + jnp.where(second, 0, state.raises)) + 4 * jnp.where(second, state.raises, 0)
        strength = jnp.where(state.cards[:2] // 2 == state.cards[2] // 2, 3, state.cards[:2] // 2)
        shown = jnp.sign(strength[0] - strength[1]) * stake
        folded = (2 * actor - 1) * (stake - jnp.where(second, 4, 2))  # a seat that folds has not paid the last raise
        on = closes & ~second  # to the second round
        state = LeducState(
            cards=state.cards,
            round=jnp.where(on, 1, state.round),
            moves=jnp.where(on, 0, state.moves + 1),
            raises=jnp.where(on, 0, state.raises + raises),
            raised=jnp.where(on, state.raises, state.raised),
            closer=jnp.where(on, actor, state.closer),
            ended=folds | shows,
        )
        return state, self.view(state), zero_sum(jnp.where(folds, folded, jnp.where(shows, shown, 0)))

    def view(self, state: LeducState) -> View:
        """The view of this state, equal to the view that `reset` and `step` return with it."""
        actor, second, raised = state.moves % 2, state.round == 1, state.raises > 0
        turned = second & (state.moves < 2)  # the actor has not seen the public card
        reply = jnp.where(raised, jnp.where(second, 4, 3), jnp.where(state.moves > 0, 1, 0))
        closing = jnp.where(state.closer == actor, 5, 1) + (state.raised > 0)
        text = [
            jnp.where(turned, closing, reply),
            jnp.where(turned, state.cards[2], -1),
            jnp.where(turned & (state.moves == 1), raised.astype(jnp.int32), -1),
            jnp.minimum(state.raises, 2),
        ]
        return turn_of(self, actor, state.ended, text, self._legal(state), raised)

    def _legal(self, state: LeducState) -> jax.Array:
        return jnp.stack([state.raises > 0, jnp.bool_(True), state.raises < 2])

    def _honest(self, state: LeducState, seat: jax.Array, key: jax.Array) -> jax.Array:
        """Raises with the best possible hand (K, later a pair), calls with the next (Q, later K), else never pays."""
        rank = state.cards[seat] // 2
        later = jnp.where(rank == state.cards[2] // 2, 2, jnp.where(rank == 2, 1, 0))
        worth = jnp.where(state.round == 0, rank, later)
        weak = jnp.where(state.raises > 0, FOLD, CALL)
        strong = jnp.where(state.raises < 2, RAISE, CALL)
        return jnp.where(worth == 2, strong, jnp.where(worth == 1, CALL, weak)).astype(jnp.int32)


class LiarsDiceState(struct.PyTreeNode):
    dice: jax.Array  # int32 [2, dice], sorted; 0 is the face 1
    bid: jax.Array  # int32, the highest so far, -1: none
    turn: jax.Array  # int32
    ended: jax.Array  # bool


@dataclass(frozen=True)
class LiarsDice:
    """Two seats see their own dice and bid in turn; seat 0 begins. A bid says that at least q of all dice show face f,
    and the highest face counts as every face. A bid is higher if its q is, or its f at equal q.

    Action (q - 1) * sides + (f - 1) bids q dice of face f. The last action calls the other seat a liar, which ends the
    game.

    Component `points`: if the last bid holds, the bidder gets 1 and the caller -1; otherwise the reverse. Rules and
    numbers are those of OpenSpiel's `liars_dice`. A bid that is too low counts as the lowest higher bid, and a call
    before any bid counts as the highest bid. Raises ValueError for dice < 1 or sides < 2.
    """

    dice: int = 1  # dice of each seat
    sides: int = 6

    agents = 2
    alternating = True
    roles = ("first", "second")
    components = ("points",)

    def __post_init__(self):
        if self.dice < 1 or self.sides < 2:
            raise ValueError(
                f"Each seat needs at least 1 die, with at least 2 sides, got {self.dice} with {self.sides} sides."
            )

    @property
    def turns(self) -> int:
        return self.actions

    @property
    def seat_turns(self) -> int:
        return -(-self.turns // 2)

    @property
    def actions(self) -> int:
        return 2 * self.dice * self.sides + 1

    @property
    def _bids(self) -> tuple[str, ...]:
        return tuple(f"{q}-{f}" for q in range(1, 2 * self.dice + 1) for f in range(1, self.sides + 1))

    @property
    def rules(self) -> Fields:
        """A field with a phrase for each seat, then a field for each die of the seat."""
        texts = tuple(
            f"Liar's dice. Each of you has rolled {self.dice} {'die' if self.dice == 1 else 'dice'} with {self.sides} "
            f"sides and sees only its own. A bid 2-1 claims that at least 2 of all {2 * self.dice} dice show 1; "
            f"{self.sides} counts as every face. Answer with a bid of more dice, or of as many with a higher face, or "
            "answer liar: then the last bidder gets 1 point and the other -1 if the bid holds, else the reverse. "
            f"You bid {order}. Your {'die' if self.dice == 1 else 'dice'}:"
            for order in self.roles
        )
        return (texts, *(tuple(f" {face}" for face in range(1, self.sides + 1)),) * self.dice)

    @property
    def observation(self) -> Fields:
        *bids, highest = (f"They bid {bid}." for bid in self._bids)
        return (("Make a bid.", *(f"{bid} Bid higher or answer liar." for bid in bids), f"{highest} Answer liar."),)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        return (choice((*self._bids, "liar")),)

    @property
    def scripts(self) -> Mapping[str, Script]:
        return {"random": random_player(self.view), "honest": self._honest}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[LiarsDiceState, View]:
        rolled = jax.random.randint(key, (2, self.dice), 0, self.sides, jnp.int32)
        state = self._deal(jnp.sort(rolled, axis=1) if self.dice > 1 else rolled)
        return state, self.view(state)

    def initial_states(self) -> tuple[LiarsDiceState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64; rolls in another order are the same deal."""
        hands = list(combinations_with_replacement(range(self.sides), self.dice))
        orders = [factorial(self.dice) // prod(map(factorial, Counter(hand).values())) for hand in hands]
        chance = np.array(orders) / self.sides**self.dice
        pairs = jnp.asarray(list(product(hands, hands)), jnp.int32)
        return jax.vmap(self._deal)(pairs), np.outer(chance, chance).ravel()

    def _deal(self, dice: jax.Array) -> LiarsDiceState:
        return LiarsDiceState(dice, jnp.int32(-1), jnp.int32(0), jnp.bool_(False))

    def prompt(self, state: LiarsDiceState) -> jax.Array:
        return jnp.concatenate([jnp.arange(2, dtype=jnp.int32)[:, None], state.dice], 1)

    def step(self, state: LiarsDiceState, action: jax.Array, key: jax.Array) -> tuple[LiarsDiceState, View, jax.Array]:
        liar, actor = self.actions - 1, state.turn % 2
        said = jnp.where(actor == 0, action[0], action[1])
        said = jnp.clip(said, state.bid + 1, jnp.where(state.bid < 0, liar - 1, liar))
        calls = said == liar
        shown = (state.dice == state.bid % self.sides) | (state.dice == self.sides - 1)
        holds = shown.sum() > state.bid // self.sides
        points = jnp.where(holds == (actor == 1), 1, -1)  # seat 0's: it bid last if seat 1 calls
        state = LiarsDiceState(state.dice, jnp.where(calls, state.bid, said), state.turn + 1, calls)
        return state, self.view(state), zero_sum(jnp.where(calls, points, 0))

    def view(self, state: LiarsDiceState) -> View:
        """The view of this state, equal to the view that `reset` and `step` return with it."""
        told = (state.bid + 1)[None]
        return turn_of(self, state.turn % 2, state.ended, told, self._legal(state))

    def _legal(self, state: LiarsDiceState) -> jax.Array:
        number = np.arange(self.actions)
        return jnp.asarray(number > state.bid) & ((number < self.actions - 1) | (state.bid >= 0))

    def _honest(self, state: LiarsDiceState, seat: jax.Array, key: jax.Array) -> jax.Array:
        """Bids the lowest legal bid that the seat's own dice make true, else calls."""
        number = np.arange(self.actions - 1)
        held = state.dice[seat][:, None]
        shown = ((held == (number % self.sides)[None]) | (held == self.sides - 1)).sum(0)
        true = (shown > number // self.sides) & (number > state.bid)
        return jnp.where(true.any(), jnp.argmax(true), self.actions - 1).astype(jnp.int32)


def _number(key: jax.Array, n: int) -> jax.Array:
    """A number from 0 to n - 1, int32; each has probability 1/n to within 2^-32."""
    return (jax.random.bits(key) % n).astype(jnp.int32)


GAMES = {"kuhn_poker": KuhnPoker, "leduc_poker": LeducPoker, "liars_dice": LiarsDice}
