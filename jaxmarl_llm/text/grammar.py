"""Grammars of utterances: a tuple of parts -> an automaton over bytes -> tables over tokens.

The automaton reads bytes, and its states remember the chosen action. `lift` turns automata into tables over tokens: the
next states, the actions still possible and the fewest tokens to each. All alternatives are followed at once, so
`(bet|bet 10)` accepts both. N is one more than the largest action.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

UNREACHABLE = 10_000  # more tokens than any utterance has


@dataclass(frozen=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True)
class Choice:
    """One of several texts, as pairs (action, text)."""

    options: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Free:
    """Any bytes, possibly none, except those in `without`; not necessarily valid UTF-8.

    `private` text is a thought: no other seat hears it.
    """

    without: bytes = b""
    private: bool = False


Part = Literal | Choice | Free
Grammar = tuple[Part, ...]


class Automaton(NamedTuple):
    """Deterministic automaton over bytes that starts in state 0.

    A state may lie in several parts at once: in free text, or in the literal after it. `part` is then the first
    unfinished part, and the number of parts after the last one.
    """

    next: np.ndarray  # int32 [states, 256], -1: no utterance continues so
    accepts: np.ndarray  # int32 [states], the action if the utterance may end here, else -1
    action: np.ndarray  # int32 [states], the only action still possible; -1: several are
    part: np.ndarray  # int32 [states]
    reach: np.ndarray  # bool [states, N], the actions still possible


class TokenTables(NamedTuple):
    """Automata of several grammars over tokens. The last state is dead: no token leaves it.

    From every other state an utterance can still end. An ended state has no successor, and belongs to one action of one
    grammar.
    """

    start: np.ndarray  # int32 [grammars]
    token_class: np.ndarray  # int32 [V]; from any state, tokens of a class lead to the same state
    next: np.ndarray  # int16 [states, classes]
    ended: np.ndarray  # bool [states], the utterance is over
    action: np.ndarray  # int16 [states], the only action still possible, -1: several, or dead
    part: np.ndarray  # int16 [states], as in Automaton; -1: dead
    free: np.ndarray  # bool [states]: the part is Free and not private, so its tokens belong to a message
    distance: np.ndarray  # int16 [states, N], fewest tokens until the end with this action, end token included
    forced: np.ndarray  # int32 [states, F], the tokens that follow while only one is possible; padded with 0
    forced_length: np.ndarray  # int16 [states]
    forced_state: np.ndarray  # int16 [states], the state after the forced tokens


def options_of(grammar: Grammar) -> dict[int, str]:
    """{action: text}, {0: ""} without a Choice. Raises ValueError for a grammar that is malformed."""
    if isinstance(grammar, str) or not all(isinstance(part, Part) for part in grammar):
        raise ValueError(f"a grammar is a tuple of Literal, Choice and Free parts, given {grammar!r}")
    choices = [part for part in grammar if isinstance(part, Choice)]
    if len(choices) > 1:
        raise ValueError(f"a grammar has at most one Choice, this one has {len(choices)}: {choices}")
    pairs = choices[0].options if choices else ((0, ""),)
    numbers = [number for number, _ in pairs]
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise ValueError(f"a Choice needs options with different numbers from 0 on, given {numbers}")
    return dict(pairs)


def _plain(grammar: Grammar, option: str) -> str:
    """The utterance of an option with empty free parts."""
    return "".join(option if isinstance(p, Choice) else p.text if isinstance(p, Literal) else "" for p in grammar)


def pattern(grammar: Grammar) -> bytes:
    """A regular expression of the same language, for `re.fullmatch` over bytes; its group `a<number>` is the action."""
    options = "|".join(f"(?P<a{number}>{re.escape(text)})" for number, text in options_of(grammar).items()).encode()
    pieces = []
    for part in grammar:
        if isinstance(part, Literal):
            pieces.append(re.escape(part.text.encode()))
        elif isinstance(part, Choice):
            pieces.append(b"(?:" + options + b")")
        else:
            pieces.append(b"[^" + re.escape(part.without) + b"]*" if part.without else rb"[\x00-\xff]*")
    return b"".join(pieces)


def automaton(grammar: Grammar) -> Automaton:
    """The automaton of a grammar, by subset construction over places (action, index into the bytes of its text).

    No two actions share a place, so they never share a final state. Raises ValueError for two Choices, and if the same
    bytes can mean two actions.
    """
    options = options_of(grammar)
    script: dict[int, list[tuple[int, bytes, bool]]] = {}  # (part, bytes that fit, any number of them) in reading order
    for action, option in options.items():
        script[action] = []
        for i, part in enumerate(grammar):
            if isinstance(part, Free):
                script[action].append((i, bytes(set(range(256)) - set(part.without)), True))
            else:
                text = part.text if isinstance(part, Literal) else option
                script[action] += [(i, bytes([byte]), False) for byte in text.encode()]
        script[action].append((len(grammar), b"", False))

    def expand(places: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """The places and those after free parts, which may be empty."""
        closed = set(places)
        for action, at in places:
            while script[action][at][2]:
                at += 1
                closed.add((action, at))
        return frozenset(closed)

    states = [expand([(action, 0) for action in options])]
    number_of = {states[0]: 0}
    rows, accepts, parts, reach = [], [], [], []
    for places in states:  # grows while it is read
        moves: dict[int, set[tuple[int, int]]] = {}
        for action, at in places:
            _, fits, repeats = script[action][at]
            for byte in fits:
                moves.setdefault(byte, set()).add((action, at if repeats else at + 1))
        row = np.full(256, -1, np.int32)
        target_of: dict[frozenset[tuple[int, int]], int] = {}  # nearly all bytes of free text share one entry
        for byte, reached in moves.items():
            key = frozenset(reached)
            if key not in target_of:
                closed = expand(key)
                target_of[key] = number_of.setdefault(closed, len(states))
                if target_of[key] == len(states):
                    states.append(closed)
            row[byte] = target_of[key]
        rows.append(row)
        parts.append(min(script[action][at][0] for action, at in places))
        reach.append(np.isin(np.arange(1 + max(options)), [action for action, _ in places]))
        final = sorted(action for action, at in places if at == len(script[action]) - 1)
        if len(final) > 1:
            a, b = final[:2]
            raise ValueError(f"the same bytes can mean action {a} ({options[a]!r}) and action {b} ({options[b]!r})")
        accepts.append(final[0] if final else -1)
    possible = np.stack(reach)
    only = np.where(possible.sum(1) == 1, possible.argmax(1), -1).astype(np.int32)
    return Automaton(np.stack(rows), np.array(accepts, np.int32), only, np.array(parts, np.int32), possible)


def lift(grammars: Sequence[Grammar], token_bytes: Sequence[bytes | None], end: int | None) -> TokenTables:
    """Tables over the tokens of a vocabulary, all grammars in one table of states.

    `token_bytes` holds the bytes of every token, None for control tokens. An utterance ends with the token `end`; if
    `end` is None, it ends as soon as no token can follow. Control tokens and empty tokens are never allowed, and `end`
    only ends. No token crosses the edge of a Free part: a message is whole tokens, which another seat reads unchanged.

    Raises ValueError if these tokens cannot write an action, or if there are more states than int16 counts. Without
    `end` it also raises it if an utterance could both stop and continue. Long because all steps share the states.
    """
    automata = [automaton(grammar) for grammar in grammars]
    options = [options_of(grammar) for grammar in grammars]
    sizes = [len(a.next) for a in automata]
    start = np.cumsum([0, *sizes[:-1]])
    stops = [] if end is None else [(g, number) for g, texts in enumerate(options) for number in texts]
    total = sum(sizes)
    stop_of = {stop: total + i for i, stop in enumerate(stops)}
    dead = total + len(stops)
    if dead > np.iinfo(np.int16).max:
        raise ValueError(f"the grammars need {dead + 1} states, at most {np.iinfo(np.int16).max + 1} are possible")
    owner = np.repeat(np.arange(len(grammars)), sizes)
    accepts = np.concatenate([a.accepts for a in automata])
    part = np.concatenate([*(a.part for a in automata), [len(grammars[g]) for g, _ in stops], [-1]])
    byte_next = np.full((dead + 1, 256), dead, np.int16)
    for offset, a in zip(start, automata, strict=True):
        byte_next[offset : offset + len(a.next)] = np.where(a.next < 0, dead, a.next + offset)
    kinds = np.array([isinstance(p, Free) for grammar in grammars for p in (*grammar, None)])  # None: all finished
    first_part = np.cumsum([0, *(1 + len(grammar) for grammar in grammars)])[:-1]
    free = np.zeros(dead + 1, bool)
    free[: len(owner)] = kinds[first_part[owner] + part[: len(owner)].astype(int)]
    private = np.array([getattr(p, "private", False) for grammar in grammars for p in (*grammar, None)])
    thought = np.zeros(dead + 1, bool)
    thought[: len(owner)] = private[first_part[owner] + part[: len(owner)].astype(int)]
    in_message = free[:, None] & (part[byte_next] == part[:, None])  # [states, 256], of a byte read in a state

    written = [b"" if text is None or token == end else text for token, text in enumerate(token_bytes)]
    length = np.array([len(text) for text in written])
    widest = max(1, length.max())
    letters = np.frombuffer(b"".join(text.ljust(widest, b"\0") for text in written), np.uint8)
    letters = np.ascontiguousarray(letters.reshape(len(written), widest).T)  # [widest, V]

    def walk(state: int) -> np.ndarray:
        """The state after each token, [V]; only tokens that are neither dead nor read to their end are followed."""
        row = np.where(length > 0, byte_next[state, letters[0]], np.int16(dead))
        inside = in_message[state, letters[0]]
        live, read = np.flatnonzero((row != dead) & (length > 1)), 1
        while live.size:
            crosses = in_message[row[live], letters[read, live]] != inside[live]
            row[live] = np.where(crosses, np.int16(dead), byte_next[row[live], letters[read, live]])
            read += 1
            live = live[(row[live] != dead) & (length[live] > read)]
        if end is not None and state < total and accepts[state] >= 0:
            row[end] = stop_of[owner[state], accepts[state]]
        return row

    reached = np.zeros(dead + 1, bool)  # with symbols for tokens, most byte states never occur
    reached[start] = True
    todo = start.tolist()
    rows, edges = {}, []
    for state in todo:  # grows while it is read
        rows[state] = walk(state)
        targets = np.zeros(dead + 1, bool)
        targets[rows[state]] = True
        targets[dead] = False
        edges += [(state, target) for target in np.flatnonzero(targets)]
        todo += np.flatnonzero(targets & ~reached).tolist()
        reached |= targets

    distance = np.full((dead + 1, 1 + max(max(texts) for texts in options)), UNREACHABLE, np.int16)
    finals = [(stop_of[stop], stop[1]) for stop in stops] or [(s, accepts[s]) for s in range(total) if accepts[s] >= 0]
    for state, number in finals:
        distance[state, number] = 0
    if edges:
        source, target = np.array(sorted(edges)).T
        sources, first = np.unique(source, return_index=True)
        while True:
            through = np.minimum.reduceat(distance[target] + 1, first, axis=0)
            if (through >= distance[sources]).all():
                break
            distance[sources] = np.minimum(distance[sources], through)
        if end is None:
            stuck = source[(accepts[source] >= 0) & (distance[target].min(1) < UNREACHABLE)]
            if stuck.size:
                state = stuck[0]
                text = _plain(grammars[owner[state]], options[owner[state]][accepts[state]])
                raise ValueError(f"{text!r} could stop or go on, and there is no token that ends an utterance")
    for g, texts in enumerate(options):
        for number, text in texts.items():
            if distance[start[g], number] == UNREACHABLE:
                raise ValueError(_unwritable(number, _plain(grammars[g], text), {text for text in written if text}))

    kept = np.array([s for s in sorted(rows) if distance[s].min() < UNREACHABLE] + [dead])
    renumber = np.full(dead + 1, len(kept) - 1, np.int16)
    renumber[kept] = np.arange(len(kept))
    columns = renumber[np.stack([rows.get(s, np.full(len(written), dead)) for s in kept])]  # [states, V]
    classes: dict[bytes, int] = {}
    token_class = np.array([classes.setdefault(column.tobytes(), len(classes)) for column in columns.T], np.int32)
    first_token = np.unique(token_class, return_index=True)[1]
    distance = distance[kept]
    possible = distance < UNREACHABLE
    forced, forced_length, forced_state = _force_tokens(columns, free[kept])
    return TokenTables(
        start=renumber[start].astype(np.int32),
        token_class=token_class,
        next=columns[:, first_token],
        ended=np.isin(np.arange(len(kept)), renumber[[state for state, _ in finals]]) & possible.any(1),
        action=np.where(possible.sum(1) == 1, possible.argmax(1), -1).astype(np.int16),
        part=part[kept].astype(np.int16),
        free=(free & ~thought)[kept],
        distance=distance,
        forced=forced,
        forced_length=forced_length,
        forced_state=forced_state,
    )


def _force_tokens(columns: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(tokens [states, F], their number, the state after them) that follow while only one token can.

    `columns` [states, V] is the next state. Nothing is forced in a Free part, where every token is sampled as a part of
    the message.
    """
    alive = columns != len(columns) - 1
    only = np.where((alive.sum(1) == 1) & ~free, alive.argmax(1), -1)
    state = np.arange(len(columns))
    length = np.zeros(len(columns), np.int16)
    chain = []
    while (go := only[state] >= 0).any():  # ends, because every state but the dead one can
        chain.append(np.where(go, only[state], 0))
        length += go
        state = np.where(go, columns[state, only[state]], state)
    tokens = np.stack(chain, 1) if chain else np.zeros((len(columns), 1))
    return tokens.astype(np.int32), length, state.astype(np.int16)


def _unwritable(number: int, text: str, tokens: set[bytes]) -> str:
    """The sentence that says at which place no token can write the text of action `number`."""
    data = text.encode()
    places = {0}
    for at in range(len(data)):
        if at in places:
            places |= {at + len(token) for token in tokens if data.startswith(token, at)}
    before = data[: max(places)].decode(errors="ignore")
    return f"action {number} ({text!r}) cannot be written: no token writes {text[len(before)]!r} after {before!r}"


def utterances(
    grammars: Sequence[Grammar], tables: TokenTables, encode: Callable[[str], Sequence[int]], end: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """An utterance for each action of each grammar, as (tokens int32 [grammars, N, L], length int32 [grammars, N]).

    Its end token counts; actions that a grammar lacks have length 0. The tokens are `encode` of the text with empty
    free parts if the tables accept them, else a shortest utterance.
    """
    first_token = np.unique(tables.token_class, return_index=True)[1]
    tokens_of: dict[tuple[int, int], list[int]] = {}
    for g, grammar in enumerate(grammars):
        for number, text in options_of(grammar).items():
            tokens = [*encode(_plain(grammar, text)), *([] if end is None else [end])]
            state = tables.start[g]
            for token in tokens:
                state = tables.next[state, tables.token_class[token]]
            if not (tables.ended[state] and tables.action[state] == number):
                tokens, state = [], tables.start[g]
                while not tables.ended[state]:
                    ahead = tables.distance[tables.next[state], number]
                    tokens.append(int(first_token[ahead.argmin()]))
                    state = tables.next[state, ahead.argmin()]
            tokens_of[g, number] = tokens
    widest = max(len(tokens) for tokens in tokens_of.values())
    result = np.zeros((len(grammars), tables.distance.shape[1], widest), np.int32)
    length = np.zeros(result.shape[:2], np.int32)
    for (g, number), tokens in tokens_of.items():
        result[g, number, : len(tokens)] = tokens
        length[g, number] = len(tokens)
    return result, length
