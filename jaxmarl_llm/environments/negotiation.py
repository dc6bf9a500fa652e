"""Two who bargain: coins of unequal worth are claimed, items divided, goods traded; values are private."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, MessageFrom, View
from jaxmarl_llm.environments.public_goods import uniform
from jaxmarl_llm.text.grammar import Choice, Free, Grammar

MESSAGE: Grammar = (Free(b"\n"),)
HANDS = ("rock", "paper", "scissors")  # each beats the one before it
ITEMS = ("book", "hat", "ball")
MOST_OF_AN_ITEM = 5
SPLITS = np.array(list(product(range(MOST_OF_AN_ITEM + 1), repeat=3)), np.int32)  # [216, 3], what a proposal takes
GOODS = ("wheat", "wood", "sheep", "brick", "ore")
BASE_VALUES = np.array((5, 10, 15, 25, 40))
LEAST_VALUES = np.maximum(BASE_VALUES - BASE_VALUES // 5, 5)
MOST_VALUES = np.minimum(BASE_VALUES + BASE_VALUES // 5, 40)
LEAST_GOODS, MOST_GOODS = 5, 25
ACCEPT, DENY, PASS, OFFER = range(4)  # OFFER is the first of many


class TrustState(struct.PyTreeNode):
    turn: jax.Array  # int32, turns played
    first: jax.Array  # int32, the seat that speaks first in round 0, then they alternate
    hands: jax.Array  # int32 [rounds, 2], index into HANDS
    claims: jax.Array  # int32 [rounds, 2], -1 where not yet claimed
    said: jax.Array  # int32 [2], the last signals, index into HANDS; 0 without any


@dataclass(frozen=True)
class TrustAndSplit:
    """Both hold a hand of rock-paper-scissors, never the same, and see their own only.

    A coin is worth `high` to whom has the winning hand and `low` to the other. With `talk` each says one line, who
    begins is dealt and alternates; then both claim c of the coins at once and get points
    v_i * coins * c_i / max(coins, c_0 + c_1). To claim all is dominant, to leave all to the winner is best for both
    together. After a round both are told the other's hand and claim (AdAlignLLM's Trust-and-Split).
    With `signals` the line is the name of a hand, true or not: words for policies that cannot spell.
    Raises ValueError for rounds or coins below 1, values that are not finite with high > low >= 0, signals without
    talk, or a `trust` that is no probability.
    """

    rounds: int = 1
    coins: int = 10
    high: float = 10.0
    low: float = 1.0
    talk: bool = True
    signals: bool = False
    trust: float = 1.0  # of the scripted player `trusting`: how often it acts on what was said

    agents = 2
    roles = ("player",)
    components = ("points",)

    def __post_init__(self):
        for name in ("rounds", "coins"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not (np.isfinite(self.high) and self.high > self.low >= 0):
            raise ValueError(f"a coin must be worth high > low >= 0, got high {self.high} and low {self.low}.")
        if self.signals and not self.talk:
            raise ValueError("signals are what is said: they need talk.")
        if not 0 <= self.trust <= 1:
            raise ValueError(f"trust must be from 0 to 1, got {self.trust}.")

    @property
    def actions(self) -> int:
        return max(self.coins + 1, self._lines)

    @property
    def _lines(self) -> int:
        """What the rules tell apart of what is said."""
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
        """One field with one phrase: the game is the same for both."""
        return (
            (
                f"A game of {self.rounds} round{'s' * (self.rounds > 1)} for two. In each round both of you hold rock, "
                "paper or scissors, not the same, and do not see the other's hand. There are "
                f"{self.coins} coins. Each is worth {self.high:g} points to whoever has the winning hand (rock beats "
                "scissors, scissors beat paper, paper beats rock) and "
                f"{self.low:g} to the other. "
                + f"First each of you {'names a hand' if self.signals else 'says one line'} to the other. "
                * self.talk
                + f"{'Then you' if self.talk else 'You'} both claim coins at once. If you claim more than {self.coins} "
                "in all, the coins are shared in proportion to the claims. Answer with a number from 0 to "
                f"{self.coins}.",
            ),
        )

    @property
    def observation(self) -> Fields:
        """What came of the last round, this round and the hand, what the other one says, the question."""
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
        claims: Grammar = (Choice(tuple((c, str(c)) for c in range(self.coins + 1))),)
        message: Grammar = (Choice(tuple(enumerate(HANDS))),) if self.signals else MESSAGE
        return (claims, message) if self.talk else (claims,)

    @property
    def scripts(self) -> Mapping[str, Callable]:
        """They say nothing, as signals their hand. `fair` claims half, `tit_for_tat` first half, then what the other
        one claimed last. `trusting`, with signals: nothing where it loses by what they say, else all."""
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
            "random": lambda state, seat, key: uniform(self._legal(state)[seat], key),
            "greedy": telling(lambda state, seat: self.coins),
            "fair": telling(lambda state, seat: half),
            "yielding": telling(lambda state, seat: 0),
            "tit_for_tat": telling(tit_for_tat),
            **({"trusting": trusting} if self.signals else {}),
        }

    def initial_states(self) -> tuple[TrustState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64: 6 pairs of hands in each round, who begins.

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
        one = pairs // 2
        hands = jnp.stack([one, (one + 1 + pairs % 2) % 3], 1)
        claims = jnp.full((self.rounds, 2), -1, jnp.int32)
        return TrustState(jnp.int32(0), first, hands, claims, jnp.zeros((2,), jnp.int32))

    def _second(self, state: TrustState) -> jax.Array:
        """1 for the seat that speaks second in this round, int32 [2]."""
        return (jnp.arange(2) - state.first - state.turn // self._turns) % 2

    def _talking(self, state: TrustState) -> jax.Array:
        return state.turn % self._turns < 2 * self.talk

    def _legal(self, state: TrustState) -> jax.Array:
        number = jnp.broadcast_to(jnp.arange(self.actions), (2, self.actions))
        return number < jnp.where(self._talking(state), self._lines, self.coins + 1)

    def _view(self, state: TrustState) -> View:
        round, phase, talking = state.turn // self._turns, state.turn % self._turns, self._talking(state)
        ended = round >= self.rounds
        now, past = jnp.minimum(round, self.rounds - 1), jnp.maximum(round - 1, 0)
        second = self._second(state)
        acting = (~talking | (second == phase)) & ~ended
        begins = talking | (not self.talk)  # a seat's first turn of the round
        result = state.hands[past] * (self.coins + 1) + state.claims[past]
        told = [
            jnp.where(begins & (round > 0), result[::-1], -1),
            jnp.broadcast_to(jnp.where(begins, now + self.rounds * (round > 0), -1), (2,)),
            jnp.where(begins, state.hands[now], -1),
        ]
        ask, hears = jnp.zeros((2,), jnp.int32), None
        if self.talk:
            heard = phase == 2 - second  # who spoke second hears in the turn in which it speaks, the other one then
            lines = len(HANDS) * second + state.said[::-1] if self.signals else second
            told.append(jnp.where(heard, lines, -1))
            ask = jnp.where(talking, 3 + heard, 2 - heard)
            if not self.signals:
                told += [*jnp.full((2, 2), -1)]
                hears = (heard & acting)[None, :] & ~jnp.eye(2, dtype=bool)
        text = jnp.stack([*told, ask], 1)
        return View(
            phrases=jnp.where(acting[:, None], text, -1).astype(jnp.int32),
            acting=acting,
            role=jnp.zeros((2,), jnp.int32),
            grammar=jnp.broadcast_to(talking, (2,)).astype(jnp.int32),
            legal=self._legal(state),
            terminated=ended,
            truncated=jnp.bool_(False),
            hears=hears,
        )


@cache
def scenarios() -> tuple[np.ndarray, np.ndarray]:
    """Every pool of items and pair of values: counts int32 [n, 3], values of an item to each seat int32 [n, 2, 3].

    As Lewis et al. 2017 made theirs: 5 to 7 items, one of each kind at least; to both seats all of them are worth 10;
    every kind is worth something to somebody, some kind to both.
    """
    counts, values = [], []
    for pool in SPLITS[(SPLITS.min(1) >= 1) & (SPLITS.sum(1) >= 5) & (SPLITS.sum(1) <= 7)]:
        worth = [v for v in product(range(11), repeat=3) if np.dot(v, pool) == 10]
        for mine, theirs in product(worth, worth):
            either, both = np.maximum(mine, theirs) > 0, np.minimum(mine, theirs) > 0
            if either.all() and both.any():
                counts.append(pool)
                values.append((mine, theirs))
    return np.array(counts, np.int32), np.array(values, np.int32)


class DealState(struct.PyTreeNode):
    turn: jax.Array  # int32, turns played
    first: jax.Array  # int32, the seat that speaks first
    counts: jax.Array  # int32 [3], of ITEMS
    values: jax.Array  # int32 [2, 3], of one item to each seat


@dataclass(frozen=True)
class DealOrNoDeal:
    """Books, hats and balls are divided; what one of a kind is worth to a seat only that seat knows (10 for all).

    The seats say one line each in turn, `messages` in all, who begins is dealt; then both say at once what they take.
    If these are exactly all the items, each gets the value of its own, else nobody gets anything.
    Lewis et al. 2017, "Deal or No Deal?"; the deal is one of `scenarios()`, all alike.
    Raises ValueError for a negative number of messages.
    """

    messages: int = 4

    agents = 2
    actions = len(SPLITS)
    roles = ("player",)
    components = ("points",)

    def __post_init__(self):
        if self.messages < 0:
            raise ValueError(f"messages must be at least 0, got {self.messages}.")

    @property
    def turns(self) -> int:
        return self.messages + 1

    @property
    def seat_turns(self) -> int:
        return -(-self.messages // 2) + 1

    @property
    def rules(self) -> Fields:
        """The rules, then for each item how many there are and what one is worth to the seat."""
        text = (
            "Two of you divide some items. Each item is worth points to you; to the other it may be worth something "
            "else, and neither knows the other's values. "
            + f"You say one line in turn, {self.messages} in all. "
            * (self.messages > 0)
            + f"{'Then both' if self.messages else 'Both'} of you say at once what you take. If the two of you take "
            "exactly what there is, you get the points of what you take; otherwise both get 0. "
            "Answer such as book=1 hat=0 ball=2. There are"
        )
        items: list[tuple[str, ...]] = []
        for item, end in zip(ITEMS, (",", ",", "."), strict=True):
            items.append(tuple(f" {n} {item}{'s' * (n != 1)}" for n in range(MOST_OF_AN_ITEM + 1)))
            items.append(tuple(f" (worth {v} each to you){end}" for v in range(11)))
        return ((text,), *items)

    @property
    def observation(self) -> Fields:
        ask = ("Say one line to them.", "What do you take?")
        talk: Fields = (("They say:\n",), MessageFrom(0), MessageFrom(1))
        return (*(talk if self.messages else ()), (*ask, *(f"\n{text}" for text in ask)))

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """Proposals; second, if they talk, a message."""
        names = (" ".join(f"{item}={n}" for item, n in zip(ITEMS, split, strict=True)) for split in SPLITS)
        take: Grammar = (Choice(tuple(enumerate(names))),)
        return (take, MESSAGE) if self.messages else (take,)

    @property
    def scripts(self) -> Mapping[str, Callable]:
        """They say nothing. `even` takes half of each item, seat 0 the odd one: with itself it always agrees."""

        def silent(take: Callable) -> Callable:
            def script(state, seat, key):
                index = (take(state.counts, seat) * jnp.array([36, 6, 1])).sum()
                return jnp.where(state.turn < self.messages, 0, index).astype(jnp.int32)

            return script

        return {
            "random": lambda state, seat, key: uniform(self._legal(state)[seat], key),
            "greedy": silent(lambda counts, seat: counts),
            "yielding": silent(lambda counts, seat: 0 * counts),
            "even": silent(lambda counts, seat: (counts + 1 - seat) // 2),
        }

    def initial_states(self) -> tuple[DealState, np.ndarray]:
        """All initial states, stacked, and their probabilities float64."""
        n = 2 * len(scenarios()[0])
        return jax.vmap(self._deal)(jnp.arange(n, dtype=jnp.int32)), np.full(n, 1 / n)

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[DealState, View]:
        state = self._deal(jax.random.randint(key, (), 0, 2 * len(scenarios()[0]), jnp.int32))
        return state, self._view(state)

    def prompt(self, state: DealState) -> jax.Array:
        counts = jnp.broadcast_to(state.counts[None, :], (2, 3))
        items = jnp.stack([counts, state.values], 2).reshape(2, 6)
        return jnp.concatenate([jnp.zeros((2, 1), jnp.int32), items], 1)

    def step(self, state: DealState, action: jax.Array, key: jax.Array) -> tuple[DealState, View, jax.Array]:
        take = jnp.asarray(SPLITS)[action]
        deal = (take.sum(0) == state.counts).all() & (state.turn >= self.messages)
        points = jnp.where(deal, (take * state.values).sum(1), 0)
        state = state.replace(turn=state.turn + 1)
        return state, self._view(state), points[:, None].astype(jnp.float32)

    def _deal(self, number: jax.Array) -> DealState:
        counts, values = scenarios()
        return DealState(jnp.int32(0), number % 2, jnp.asarray(counts)[number // 2], jnp.asarray(values)[number // 2])

    def _legal(self, state: DealState) -> jax.Array:
        possible = (jnp.asarray(SPLITS) <= state.counts[None, :]).all(1)
        legal = jnp.where(state.turn < self.messages, jnp.arange(self.actions) == 0, possible)
        return jnp.broadcast_to(legal[None, :], (2, self.actions))

    def _view(self, state: DealState) -> View:
        ended, talking = state.turn > self.messages, state.turn < self.messages
        speaker = (jnp.arange(2) - state.first) % 2 == state.turn % 2  # who speaks now, or would
        acting = (speaker | ~talking) & ~ended
        heard = speaker & (state.turn > 0) & ~ended & (self.messages > 0)
        ask = jnp.where(talking, 0, 1) + 2 * heard
        told = [jnp.where(heard, 0, -1), *jnp.full((2, 2), -1)] if self.messages else []
        return View(
            phrases=jnp.where(acting[:, None], jnp.stack([*told, ask], 1), -1).astype(jnp.int32),
            acting=acting,
            role=jnp.zeros((2,), jnp.int32),
            grammar=jnp.broadcast_to(talking, (2,)).astype(jnp.int32),
            legal=self._legal(state),
            terminated=ended,
            truncated=jnp.bool_(False),
            hears=heard[None, :] & ~jnp.eye(2, dtype=bool) if self.messages else None,
        )


class TradeState(struct.PyTreeNode):
    turn: jax.Array  # int32, turns played
    first: jax.Array  # int32, the seat that begins
    goods: jax.Array  # int32 [2, 5], of GOODS
    values: jax.Array  # int32 [2, 5], of one of each to each seat
    gain: jax.Array  # int32 [2], change of the value of what a seat has
    last: jax.Array  # int32, the action of the turn before, -1: none yet


@dataclass(frozen=True)
class SimpleNegotiation:
    """Five goods change hands, one kind for another; what they are worth to a seat only that seat knows.

    The seats move in turn: accept or deny the other one's offer, or offer x of one kind for y of another (which turns
    the other's offer down), or pass. x and y are of `quantities`: 20 pairs of kinds times those. Only what one has can
    be offered or given. As in TextArena's SimpleNegotiation each seat begins with 5 to 25 of each kind, worth 5, 10,
    15, 25, 40 give or take a fifth (within 5 to 40), and nobody sees what the other one has. An offer that was denied
    is gone (TextArena keeps it: it can be accepted later, when the goods are no longer there). With `talk` an answer
    goes on with words that the other one hears. The reward is the change of the value of one's goods, when it happens:
    trade is not zero-sum. With `zero_sum` it is TextArena's: at the end 1 for the larger change, -1 for the smaller.
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
        """int32 [offers, 5]: what accepting adds to the goods of the one who made the offer."""
        change = np.zeros((len(self.offers), 5), np.int32)
        for row, (x, give, y, want) in zip(change, self.offers, strict=True):
            row[give], row[want] = -x, y
        return change

    @property
    def actions(self) -> int:
        return OFFER + 20 * len(self.quantities) ** 2

    @property
    def rules(self) -> Fields:
        """The rules, then what each good is worth to the seat."""
        example = "offer {} {} for {} {}".format(*self._named(self.offers[0]))
        text = (
            f"Two of you trade in turn, {self.turns} turns in all. On your turn answer accept or deny to their offer, "
            f"or make one yourself, such as {example}, or pass where there is none. Amounts may be "
            f"{', '.join(str(x) for x in self.quantities)}. An offer of your own turns theirs down. "
            + "After the answer you may go on with words to them, on the same line. " * self.talk
            + "You see neither what they have nor what it is worth to them. "
            + (
                "Whoever has gained more value in the end wins."
                if self.zero_sum
                else "Your points are the change of the value of what you have."
            )
            + " One of each is worth to you:"
        )
        worth = []
        for name, least, most, end in zip(GOODS, LEAST_VALUES, MOST_VALUES, (*",,,,", "."), strict=True):
            worth.append(tuple(f" {name} {value}{end}" for value in range(least, most + 1)))
        return ((text,), *worth)

    @property
    def observation(self) -> Fields:
        """What the other one did and said, what one has, the question."""
        done = ("accept", "deny", "pass", *("offer {} {} for {} {}".format(*self._named(o)) for o in self.offers))
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
        offers = ("offer {} {} for {} {}".format(*self._named(offer)) for offer in self.offers)
        choice = Choice(tuple(enumerate(("accept", "deny", "pass", *offers))))
        return ((choice, Free(b"\n")),) if self.talk else ((choice,),)

    @property
    def scripts(self) -> Mapping[str, Callable]:
        """They say nothing. `fair` and `greedy` accept what gains them something.

        They take the other one's values to be the usual ones; `fair` offers what brings most to whom it brings less,
        `greedy` what brings itself most. `stubborn` denies all and offers nothing.
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
            "random": lambda state, seat, key: uniform(self._legal(state)[seat], key),
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

    def _named(self, offer: tuple[int, int, int, int]) -> tuple[int, str, int, str]:
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
        row = lambda phrase: jnp.broadcast_to(jnp.asarray(phrase), (2, 1))  # noqa: E731
        heard = state.turn > 0
        talk = [row(jnp.where(heard, 0, -1)), jnp.full((2, 2), -1)] if self.talk else []
        text = jnp.concatenate([row(state.last + 1), *talk, state.goods, row(0)], 1)
        return View(
            phrases=jnp.where(acting[:, None], text, -1).astype(jnp.int32),
            acting=acting,
            role=jnp.zeros((2,), jnp.int32),
            grammar=jnp.zeros((2,), jnp.int32),
            legal=self._legal(state),
            terminated=ended,
            truncated=jnp.bool_(False),
            hears=(heard & acting)[None, :] & ~jnp.eye(2, dtype=bool) if self.talk else None,
        )
