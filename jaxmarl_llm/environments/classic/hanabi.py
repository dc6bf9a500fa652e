"""Hanabi of any size: each seat sees all hands except its own and learns about its own from hints alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.environments.base import Fields, View
from jaxmarl_llm.environments.helpers import Script, at_least, choice, make_view, uniform
from jaxmarl_llm.text.grammar import Grammar

COLOURS = ("red", "yellow", "green", "white", "blue")  # written R, Y, G, W, B
DISCARD, PLAY, COLOUR, RANK = range(4)

SIZES: Mapping[str, Mapping[str, int]] = {  # Hanabi(**SIZES["mini"]); the first two as in MARS
    "mini": {"colours": 2, "ranks": 2, "hand_size": 3, "information_tokens": 3, "life_tokens": 3},
    "simple": {"colours": 3, "ranks": 2, "hand_size": 5, "information_tokens": 8, "life_tokens": 3},
    "full": {"colours": 5, "ranks": 5, "hand_size": 5, "information_tokens": 8, "life_tokens": 3},
}


class State(struct.PyTreeNode):
    """A card is the number colour * ranks + rank, both from 0.

    The holder's knowledge of a card's colour is the set of excluded colours, as bits. After a hint that the colour is
    c, it is 2**colours + c. The knowledge of the rank has the same form.
    """

    deck: jax.Array  # int32 [cards], in the order in which they are drawn: the deal
    drawn: jax.Array  # int32, cards of the deck that were drawn
    hands: jax.Array  # int32 [A, H], the oldest card first, -1: none
    told_colour: jax.Array  # int32 [A, H]
    told_rank: jax.Array  # int32 [A, H]
    stacks: jax.Array  # int32 [colours], cards on each
    discards: jax.Array  # int32 [colours * ranks], number of each card
    information: jax.Array  # int32, hints left
    lives: jax.Array  # int32
    left: jax.Array  # int32, turns left once the deck is empty
    turn: jax.Array  # int32, turns played


@dataclass(frozen=True)
class Hanabi:
    """The seats build one stack for each colour, from 1 upwards. Each colour has three 1s, one card of the highest rank
    and two of each other rank.

    The seats move in turn. A move is one of three:

    - Discard a card. The team gets a hint back, up to `information_tokens`.
    - Play a card. A card that is not the next one of its stack is discarded, and a life is lost. The last card of a
      stack brings a hint back.
    - Tell another seat all its cards of one colour or one rank. This takes a hint.

    Cards are replaced while the deck lasts; the new card is the last of the hand. The game ends when all stacks are
    complete or no life is left. It also ends when the deck is empty and every seat had one more turn.

    Rules and action numbers are those of OpenSpiel's `hanabi` (the Hanabi Learning Environment, Bard et al. 2020). The
    order is discards, plays, hints of colours (to the next seat, the seat after it, ...), hints of ranks.

    Component `score`, the same for every seat: the change of the score in this turn, +1 for a card that fits. Without a
    life the score is 0, so the turn that loses the last life pays minus the sum of earlier rewards. The sum over a game
    is its score.

    A seat is told every move with its result. When it acts it is told OpenSpiel's observation, with the hints that
    other seats had about their cards. The answers are words. An action that the rules forbid counts as the first legal
    one (MARS' prompt names an illegal move). In the official game four or five players have `hand_size` 4.
    Raises ValueError for settings out of range or hands that need more cards than there are.
    """

    players: int = 2
    colours: int = 5
    ranks: int = 5
    hand_size: int = 5
    information_tokens: int = 8  # at the start and at most
    life_tokens: int = 3

    roles = ("player",)
    alternating = True
    components = ("score",)

    def __post_init__(self):
        for name, low, high in (("players", 2, 5), ("colours", 1, 5), ("ranks", 1, 5)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be from {low} to {high}, got {getattr(self, name)}.")
        at_least(1, hand_size=self.hand_size)
        at_least(1, information_tokens=self.information_tokens, life_tokens=self.life_tokens)
        if self.players * self.hand_size > len(self._cards):
            raise ValueError(
                f"{self.players} hands of {self.hand_size} cards need more than the {len(self._cards)} cards that "
                f"{self.colours} colours of {self.ranks} ranks have."
            )

    @property
    def agents(self) -> int:
        return self.players

    @property
    def actions(self) -> int:
        return len(self._moves)

    @property
    def turns(self) -> int:
        """An upper bound: every hint is given, every card is discarded for one more hint, then a last round."""
        spare = len(self._cards) - self.players * self.hand_size
        return self.players + (self.information_tokens + 2 * spare - 1 if spare else 0)

    @property
    def rules(self) -> Fields:
        letters = ", ".join(f"{word[0].upper()} {word}" for word in COLOURS[: self.colours])
        counts = ", ".join(f"{count} of rank {rank + 1}" for rank, count in enumerate(self._counts))
        whom = "" if self.players == 2 else " to player 1"
        shared = (
            f"Hanabi for {self.players} players who work together. Colours: {letters}. Cards of each colour: {counts}. "
            "You see the cards of the others, not your own. Build a stack of each colour, from rank 1 up to rank "
            f"{self.ranks}. Answer like this: play 1 (your card 1 goes on its stack if it is the next one; else it is "
            "discarded and a life is lost), discard 1 (brings a hint back; not while there are "
            f"{self.information_tokens}), tell {COLOURS[0]}{whom} or tell 1{whom} (takes a hint and shows which cards "
            "are of this colour or rank; there must be one). After play and discard you draw a new last card. A "
            "complete stack brings a hint back. The game ends when all stacks are complete, when no life is left, or "
            "when the deck is empty and everyone had one more turn. Your score together: the cards on the stacks, 0 if "
            "no life is left. Behind a card stands what its holder was told about it."
        )
        return ((shared,), tuple(f" You are player {seat + 1}." for seat in range(self.players)))

    @property
    def observation(self) -> Fields:
        """All seats are told the last move: seat, action and result. The acting seat is told the table, the other hands
        and its own.

        No line ends with a punctuation mark, because some tokenizers have one token for a mark and the line break
        behind it.
        """
        seats, places = range(1, self.players + 1), range(1, self.hand_size + 1)
        letters = [word[0].upper() for word in COLOURS[: self.colours]]
        ranks = [str(rank + 1) for rank in range(self.ranks)]
        cards = [letter + rank for letter in letters for rank in ranks]
        counts = np.tile(self._counts, self.colours)
        about = (_about(letters), _about(ranks))
        event: Fields = (
            ("You", *(f"{line}Player {seat}" for line in ("", "\n") for seat in seats)),
            (
                *(f" {done} card {place}:" for done in ("discarded", "played") for place in places),
                *(f" told {whom}" for whom in ("you", *(f"player {seat}" for seat in seats))),
            ),
            (*(f" {colour}:" for colour in COLOURS[: self.colours]), *(f" rank {rank}:" for rank in ranks)),
            tuple(f" {card}{result}" for result in ("", " fits", " does not fit") for card in cards),
            *((f" card {place}",) for place in places),
        )
        table: Fields = (
            tuple(f"{line}Lives {n}," for line in ("", "\n") for n in range(self.life_tokens + 1)),
            tuple(f" hints {n}," for n in range(self.information_tokens + 1)),
            tuple(f" deck {n}" for n in range(len(self._cards) + 1)),
            *(
                tuple(f"{start} {letter}{n}" for n in range(self.ranks + 1))
                for start, letter in zip(("\nStacks:", *[""] * (self.colours - 1)), letters, strict=True)
            ),
            ("\nDiscarded:", "\nDiscarded: none"),
            *(tuple(f" {card}" * n for n in range(1, count + 1)) for card, count in zip(cards, counts, strict=True)),
        )
        between = ["", *[" |"] * (self.hand_size - 1)]
        other: Fields = (
            tuple(f"\nPlayer {seat} holds" for seat in seats),
            *(field for start in between for field in (tuple(f"{start} {card}" for card in cards), *about)),
        )
        hand: Fields = (
            ("\nYou hold",),
            *(
                field
                for start, place in zip(between, places, strict=True)
                for field in ((f"{start} card {place}",), *about)
            ),
        )
        return (*event, *table, *other * (self.players - 1), *hand)

    @property
    def grammars(self) -> tuple[Grammar, ...]:
        """A grammar for each seat, which names the others; with two players one grammar for both."""

        def words(seat: int, kind: int, place: int, offset: int, value: int) -> str:
            if kind in (DISCARD, PLAY):
                return f"{'play' if kind == PLAY else 'discard'} {place + 1}"
            whom = "" if self.players == 2 else f" to player {(seat + offset) % self.players + 1}"
            return f"tell {COLOURS[value] if kind == COLOUR else value + 1}{whom}"

        seats = range(1 if self.players == 2 else self.players)
        moves = self._moves.tolist()
        return tuple(choice([words(seat, *move) for move in moves]) for seat in seats)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """`random` draws a legal action uniformly. `cautious` plays a card if its hints prove it playable. Otherwise it
        hints at a playable card (its rank before its colour), else it discards its oldest card. While no discard is
        legal, it gives the first legal hint instead."""
        return {"random": self._random, "cautious": self._cautious}

    def reset(self, key: jax.Array, group: jax.Array) -> tuple[State, View]:
        return self.deal(jax.random.permutation(key, jnp.asarray(self._cards)))

    def deal(self, deck: jax.Array) -> tuple[State, View]:
        """A game with this deck int32 [cards], drawn from the front: first all of seat 0's hand, then seat 1's."""
        dealt = self.players * self.hand_size
        hands = deck[:dealt].reshape(self.players, self.hand_size)
        none = jnp.zeros_like(hands)
        state = State(
            deck=deck,
            drawn=jnp.int32(dealt),
            hands=hands,
            told_colour=none,
            told_rank=none,
            stacks=jnp.zeros((self.colours,), jnp.int32),
            discards=jnp.zeros((self.colours * self.ranks,), jnp.int32),
            information=jnp.int32(self.information_tokens),
            lives=jnp.int32(self.life_tokens),
            left=jnp.int32(self.players),
            turn=jnp.int32(0),
        )
        return state, self._view(state, jnp.full((self.players, 4 + self.hand_size), -1, jnp.int32))

    def prompt(self, state: State) -> jax.Array:
        seats = _numbers(self.players)
        return jnp.stack([jnp.zeros_like(seats), seats], 1)

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, View, jax.Array]:
        seats, places = _numbers(self.players), _numbers(self.hand_size)
        seat, legal = state.turn % self.players, self._legal(state)
        chosen = legal & (_numbers(self.actions) == action[seat])
        move = jnp.argmax(jnp.where(chosen.any(), chosen, legal))
        kind, place, offset, value = jnp.asarray(self._moves)[move]
        tells, holder = kind >= COLOUR, (seat + offset) % self.players

        card = state.hands[seat, place]
        colour, rank = card // self.ranks, card % self.ranks
        fits = (kind == PLAY) & (state.stacks[colour] == rank)
        fails = (kind == PLAY) & ~fits
        last = len(self._cards) - 1
        new = jnp.where(state.drawn <= last, state.deck[jnp.minimum(state.drawn, last)], -1)
        moved = (~tells & (seats == seat))[:, None] & (places >= place)[None]

        def replace_card(hands, new):  # the cards behind the one that left move up
            return jnp.where(moved, jnp.concatenate([hands[:, 1:], jnp.full_like(hands[:, :1], new)], 1), hands)

        held = (seats == holder)[:, None] & (state.hands >= 0)
        is_it = jnp.where(kind == COLOUR, state.hands // self.ranks, state.hands % self.ranks) == value
        after = State(
            deck=state.deck,
            drawn=jnp.where(tells, state.drawn, jnp.minimum(state.drawn + 1, last + 1)),
            hands=replace_card(state.hands, new),
            told_colour=replace_card(_hint(state.told_colour, held & (kind == COLOUR), is_it, value, self.colours), 0),
            told_rank=replace_card(_hint(state.told_rank, held & (kind == RANK), is_it, value, self.ranks), 0),
            stacks=state.stacks + (fits & (_numbers(self.colours) == colour)),
            discards=state.discards + ((kind == DISCARD) | fails) * (_numbers(self.colours * self.ranks) == card),
            information=jnp.minimum(
                state.information + ((kind == DISCARD) | (fits & (rank == self.ranks - 1))), self.information_tokens
            )
            - tells,
            lives=state.lives - fails,
            left=state.left - (state.drawn > last),
            turn=state.turn + 1,
        )

        who = jnp.where(seats == seat, 0, 1 + seat + self.players * (state.turn > 0))  # a new line after the first turn
        told = 2 * self.hand_size + jnp.where(seats == holder, 0, 1 + holder)
        done = jnp.where(tells, told, place + self.hand_size * (kind == PLAY))
        hinted = jnp.where(tells, value + self.colours * (kind == RANK), -1)
        result = jnp.where(tells, -1, card + self.colours * self.ranks * (fits + 2 * fails))
        shown = jnp.where(tells & (held & is_it).any(0), 0, -1)
        same = jnp.broadcast_to(jnp.concatenate([jnp.stack([hinted, result]), shown]), (self.players, 2 + len(shown)))
        reward = jnp.broadcast_to(self._score(after) - self._score(state), (self.players, 1)).astype(jnp.float32)
        return after, self._view(after, jnp.concatenate([jnp.stack([who, done], 1), same], 1)), reward

    @property
    def _counts(self) -> list[int]:
        """Cards of each rank in a colour."""
        return [3, *[2] * (self.ranks - 2), 1][: self.ranks]

    @property
    def _cards(self) -> np.ndarray:
        """int32 [cards], the sorted deck."""
        return np.repeat(np.arange(self.colours * self.ranks, dtype=np.int32), np.tile(self._counts, self.colours))

    @property
    def _moves(self) -> np.ndarray:
        """int32 [N, 4]: for each action its kind, the place of its card, the distance to the seat that it tells, the
        value told."""
        cards = [(kind, place, 0, 0) for kind in (DISCARD, PLAY) for place in range(self.hand_size)]
        hints = [
            (kind, 0, offset, value)
            for kind, values in ((COLOUR, self.colours), (RANK, self.ranks))
            for offset in range(1, self.players)
            for value in range(values)
        ]
        return np.array(cards + hints, np.int32)

    def _score(self, state: State) -> jax.Array:
        return jnp.where(state.lives < 1, 0, state.stacks.sum())

    def _others(self, state: State, seat: jax.Array) -> jax.Array:
        """int32 [A - 1]: the other seats, in the order of turns after `seat`."""
        return (seat + 1 + _numbers(self.players - 1)) % self.players

    def _values(self, hands: jax.Array) -> tuple[jax.Array, jax.Array]:
        """bool [..., colours] and [..., ranks], one-hot; all False for no card (-1)."""
        ranks = jnp.where(hands < 0, -1, hands % self.ranks)
        return (
            jax.nn.one_hot(hands // self.ranks, self.colours, dtype=bool),
            jax.nn.one_hot(ranks, self.ranks, dtype=bool),
        )

    def _legal(self, state: State) -> jax.Array:
        """bool [N], for the acting seat."""
        seat = state.turn % self.players
        held, others = state.hands[seat] >= 0, state.hands[self._others(state, seat)]
        colours, ranks = (values.any(1).ravel() for values in self._values(others))
        hints = (state.information > 0) & jnp.concatenate([colours, ranks])
        return jnp.concatenate([held & (state.information < self.information_tokens), held, hints])

    def _view(self, state: State, event: jax.Array) -> View:
        """The view of a state; `event` int32 [A, 4 + H] holds the phrases about the last move for each seat."""
        full = state.stacks.sum() == self.colours * self.ranks
        ended = (state.lives < 1) | full | (state.left < 1)
        seats, seat = _numbers(self.players), state.turn % self.players
        acting = (seats == seat) & ~ended

        order = (seat + 1 + seats) % self.players  # the acting seat last
        hands = state.hands[order]
        hands = hands.at[-1].set(jnp.minimum(hands[-1], 0))  # its own cards are hidden, except their number
        cards = jnp.stack([hands, state.told_colour[order] - 1, state.told_rank[order] - 1], -1)
        names = order.at[-1].set(0)[:, None]
        table = (
            jnp.stack(
                [
                    state.lives + (self.life_tokens + 1) * (state.turn > 0),
                    state.information,
                    len(self._cards) - state.drawn,
                ]
            ),
            state.stacks,
            (state.discards.sum(keepdims=True) == 0),
            state.discards - 1,
            jnp.concatenate([names, cards.reshape(self.players, -1)], 1).ravel(),
        )
        board = jnp.where(acting[:, None], jnp.concatenate(table)[None], -1)
        first = _numbers(self.actions) == 0  # for seats that do not act
        legal = jnp.where(acting[:, None], self._legal(state)[None], first[None])
        told, grammar = jnp.concatenate([event, board], 1), seats * (self.players > 2)
        return make_view(self, told, acting, ended, grammar=grammar, legal=legal, to=~ended)

    def _random(self, state: State, seat: jax.Array, key: jax.Array) -> jax.Array:
        return uniform(key, self._legal(state))

    def _cautious(self, state: State, seat: jax.Array, key: jax.Array) -> jax.Array:
        colours = _possible(state.told_colour, self.colours)[..., :, None]
        ranks = _possible(state.told_rank, self.ranks)[..., None, :]
        next_card = jax.nn.one_hot(state.stacks, self.ranks, dtype=bool)  # [colours, ranks]
        known = (~(colours & ranks) | next_card[None, None]).all((-2, -1))  # [A, H]: every possible value fits

        others = self._others(state, seat)
        fits = jnp.append(next_card.ravel(), False)[state.hands[others]]
        rank_known = state.told_rank[others] >= 2**self.ranks
        of_colour, of_rank = self._values(state.hands[others])
        tell_colour = ((fits & ~known[others] & rank_known)[..., None] & of_colour).any(1)
        tell_rank = ((fits & ~known[others] & ~rank_known)[..., None] & of_rank).any(1)
        tell = jnp.concatenate([tell_colour.ravel(), tell_rank.ravel()])
        wish = jnp.concatenate([2 * (_numbers(self.hand_size) == 0), 4 * known[seat], 1 + 2 * tell])
        return jnp.argmax(jnp.where(self._legal(state), wish, -1)).astype(jnp.int32)


def _numbers(n: int) -> jax.Array:
    return jnp.arange(n, dtype=jnp.int32)


def _about(values: list[str]) -> tuple[str, ...]:
    """Phrases for all knowledge of a card's colour or rank, numbered from 1 as in State (0: nothing)."""
    sets = [[value for bit, value in enumerate(values) if number >> bit & 1] for number in range(1, 2 ** len(values))]
    return (*(f" not {','.join(excluded)}" for excluded in sets), *(f" told {value}" for value in values))


def _hint(told: jax.Array, asked: jax.Array, is_it: jax.Array, value: jax.Array, values: int) -> jax.Array:
    """The knowledge of cards after a hint to the holder of the cards `asked`, all [A, H]: they have this value, or have
    not."""
    excluded = jnp.where(told < 2**values, told | (1 << value), told)
    return jnp.where(asked, jnp.where(is_it, 2**values + value, excluded), told)


def _possible(told: jax.Array, values: int) -> jax.Array:
    """bool [..., values]: the possible values of a card, given the hints `told`."""
    excluded = jnp.stack([told >> value & 1 == 1 for value in range(values)], -1)
    return jnp.where((told >= 2**values)[..., None], jax.nn.one_hot(told - 2**values, values, dtype=bool), ~excluded)


GAMES = {f"{name}_hanabi": partial(Hanabi, **size) for name, size in SIZES.items()}
