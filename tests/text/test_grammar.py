"""The automaton against `re`, the token tables against the automaton, and both against searches written out here."""

import re
from functools import cache

import numpy as np
import pytest

from jaxmarl_llm.text.grammar import (
    UNREACHABLE,
    Automaton,
    Choice,
    Free,
    Grammar,
    Literal,
    TokenTables,
    automaton,
    lift,
    pattern,
    utterances,
)

LETTERS = Choice(((0, "<A>"), (1, "<B>")))
MESSAGE = (Literal("<message>"), Free(b"<"), Literal("</message>"))
GRAMMARS: dict[str, Grammar] = {
    "letters": (LETTERS,),
    "prefix": (Choice(((1, "a"), (0, "ab"))),),
    "bets": (Literal("I "), Choice(((0, "bet"), (3, "bet 10"), (2, "bet é"))), Literal(".")),
    "message": (*MESSAGE, LETTERS),
    "thought": (Free(b"\n"), Literal("\n"), LETTERS, Free(b"<\n")),
    "overlap": (Free(), Literal("aab"), Choice(((0, "a"), (1, "b"))), Literal("!")),
    "special": (Literal("a.*[\n"), Choice(((0, "^-]"), (1, "\\"))), Free(b"]^-\\\n")),
    "no choice": (Literal("é"), Free(b"x")),
    "silence": (Choice(((0, ""), (1, "pass"))),),
}
ALL = list(GRAMMARS.values())
END = 0  # token 0 of the vocabularies below ends the utterance


def parse(grammar: Grammar, data: bytes) -> int | None:
    """Action according to `re`."""
    match = re.fullmatch(pattern(grammar), data)
    if match is None:
        return None
    numbers = [int(name[1:]) for name, text in match.groupdict().items() if text is not None]
    return numbers[0] if numbers else 0


@cache
def automaton_of(which: int) -> Automaton:
    return automaton(ALL[which])


def options_of(grammar: Grammar) -> dict[int, str]:
    return next((dict(part.options) for part in grammar if isinstance(part, Choice)), {0: ""})


def read(machine: Automaton, data: bytes, state: int = 0) -> int:
    """State after some bytes, -1: none."""
    for byte in data:
        state = machine.next[state, byte] if state >= 0 else -1
    return int(state)


def random_utterance(rng: np.random.Generator, grammar: Grammar) -> bytes:
    """Any member of the language."""
    pieces = []
    for part in grammar:
        if isinstance(part, Literal):
            pieces.append(part.text.encode())
        elif isinstance(part, Choice):
            pieces.append(part.options[rng.integers(len(part.options))][1].encode())
        else:
            letters = bytes(set(range(256) if rng.random() < 0.5 else b"aAb<>/\n\xc3\xa9") - set(part.without))
            pieces.append(bytes(rng.choice(list(letters), rng.integers(6)).tolist()))
    return b"".join(pieces)


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    """The same bytes with up to three changed, dropped, repeated or swapped for others that matter."""
    out = list(data)
    for _ in range(rng.integers(4)):
        at, kind = int(rng.integers(len(out) + 1)), rng.integers(4)
        byte = int(rng.choice(list(b"<>/aAbB\n.!^-]\xc3\xa9"))) if rng.random() < 0.7 else int(rng.integers(256))
        if kind == 0:
            out.insert(at, byte)
        elif kind == 1:
            out[at : at + 1] = [byte]
        elif kind == 2:
            del out[at : at + 1 + int(rng.integers(3))]
        else:
            out[at:at] = out[max(0, at - 3) : at]
    return bytes(out)


def random_vocabulary(rng: np.random.Generator) -> list[bytes | None]:
    """End, a control token, an empty one, all bytes, and pieces of utterances that span parts."""
    pieces: set[bytes] = set()
    while len(pieces) < 300:
        data = random_utterance(rng, ALL[rng.integers(len(ALL))])
        at = int(rng.integers(len(data) + 1))
        pieces.add(data[at : at + int(rng.integers(2, 9))])
    return [None, None, b"", *(bytes([byte]) for byte in range(256)), *sorted(p for p in pieces if len(p) > 1)]


@pytest.fixture(scope="module")
def vocabulary() -> list[bytes | None]:
    return random_vocabulary(np.random.default_rng(5))


@pytest.fixture(scope="module")
def tables(vocabulary: list[bytes | None]) -> TokenTables:
    return lift(ALL, vocabulary, END)


def columns(tables: TokenTables) -> np.ndarray:
    """State after every token, [states, V]."""
    return tables.next[:, tables.token_class]


def test_agrees_with_re_on_random_bytes() -> None:
    rng = np.random.default_rng(0)
    verdicts: dict[int | None, int] = {}
    broken = 0
    for i in range(20_000):
        which = i % len(ALL)
        data = mutated(rng, random_utterance(rng, ALL[which]))
        if i % 20 == 0:
            data = rng.bytes(int(rng.integers(12)))
        broken += data.decode(errors="replace").encode() != data
        machine, action = automaton_of(which), parse(ALL[which], data)
        state = read(machine, data)
        assert (machine.accepts[state] if state >= 0 else -1) == (-1 if action is None else action), data
        verdicts[action] = verdicts.get(action, 0) + 1
    assert set(verdicts) == {None, 0, 1, 2, 3} and min(verdicts.values()) > 100
    assert 5_000 < verdicts[None] < 15_000 and broken > 1_000  # both verdicts and invalid UTF-8 are well covered


def test_mask_is_what_some_continuation_in_the_language_allows() -> None:
    """A prefix of an utterance lives, its action stays in reach, and a byte with no continuation is dead."""
    rng = np.random.default_rng(1)
    for name in ("letters", "bets", "message"):
        grammar = GRAMMARS[name]
        machine = automaton(grammar)
        for _ in range(300):
            data = random_utterance(rng, grammar)
            action = parse(grammar, data)
            for cut in range(len(data) + 1):
                state = read(machine, data[:cut])
                assert state >= 0 and machine.reach[state, action]
                assert machine.action[state] in (-1, action)
    words = {b"I bet.", b"I bet 10.", "I bet é.".encode()}
    machine = automaton(GRAMMARS["bets"])
    for prefix in {word[:cut] for word in words for cut in range(len(word) + 1)}:
        allowed = np.flatnonzero(machine.next[read(machine, prefix)] >= 0).tolist()
        assert allowed == sorted({w[len(prefix)] for w in words if w.startswith(prefix) and len(w) > len(prefix)})


def test_both_of_a_text_and_its_prefix_are_accepted() -> None:
    machine = automaton(GRAMMARS["prefix"])
    assert machine.accepts[read(machine, b"a")] == 1 and machine.action[read(machine, b"a")] == -1
    assert machine.accepts[read(machine, b"ab")] == 0 and machine.action[read(machine, b"ab")] == 0
    machine = automaton((Choice(((0, "bet"), (1, "bet 10"))),))
    assert [machine.accepts[read(machine, data)] for data in (b"bet", b"bet ", b"bet 10")] == [0, -1, 1]


def test_parts_are_those_not_finished() -> None:
    machine = automaton(GRAMMARS["message"])
    prefixes = {
        b"": 0,
        b"<message": 0,
        b"<message>": 1,
        b"<message>hi": 1,
        b"<message>hi<": 2,
        b"<message></message>": 3,
    }
    prefixes |= {b"<message></message><": 3, b"<message></message><A>": 4}
    assert {prefix: machine.part[read(machine, prefix)] for prefix in prefixes} == prefixes


def test_a_split_character_passes_free_text() -> None:
    letter = "é".encode()
    tables = lift([(Free(b"<"), Literal("<"))], [None, letter[:1], letter[1:], b"<"], 0)
    state = tables.start[0]
    for token in (1, 2, 3, 0):
        state = columns(tables)[state, token]
    assert tables.ended[state] and tables.action[state] == 0


def crosses(which: int, state: int, text: bytes) -> bool:
    """Whether some bytes of a token, read from a state on, are free text and some are not."""
    machine, kinds = automaton_of(which), set()
    for byte in text:
        after = int(machine.next[state, byte])
        if after < 0:
            break
        part, state = machine.part[state], after
        kinds.add(part == machine.part[state] and isinstance(ALL[which][part], Free))
    return len(kinds) > 1


def test_tokens_agree_with_bytes(tables: TokenTables, vocabulary: list[bytes | None]) -> None:
    """Any segmentation of any bytes ends in the action that `re` finds, or dies; so does one that crosses free text."""
    rng = np.random.default_rng(2)
    move, dead = columns(tables), len(tables.next) - 1
    tokens_of = {text: token for token, text in enumerate(vocabulary) if text}
    spans = accepted = crossings = 0
    for i in range(9_000):  # the walks that cross a border end early
        which = i % len(ALL)
        data = mutated(rng, random_utterance(rng, ALL[which]))
        machine, state, at = automaton_of(which), tables.start[which], 0
        while at < len(data):
            fits = [data[at : at + n] for n in range(1, 10) if data[at : at + n] in tokens_of and at + n <= len(data)]
            text = fits[rng.integers(len(fits))]
            crossed = crosses(which, read(machine, data[:at]), text)
            before, state, at = state, move[state, tokens_of[text]], at + len(text)
            assert (state == dead) == (read(machine, data[:at]) < 0 or crossed)
            if crossed:
                crossings += read(machine, data[:at]) >= 0
                break
            if state != dead:
                assert tables.part[state] == machine.part[read(machine, data[:at])]
                assert tables.action[state] == machine.action[read(machine, data[:at])]
                spans += tables.part[state] > tables.part[before] + 1
        if crossed:
            continue
        assert not tables.ended[state]
        state, action = move[state, END], parse(ALL[which], data)
        assert tables.ended[state] == (action is not None)
        if action is not None:
            accepted += 1
            assert tables.action[state] == action and tables.part[state] == len(ALL[which])
            assert (move[state] == dead).all()
    assert spans > 10 and accepted > 1_000 and crossings > 100


def test_distances_are_those_of_a_search(tables: TokenTables) -> None:
    """Forward breadth-first search from every state, one token at a time; from the start, exactly the legal actions."""
    move, states = columns(tables), len(tables.next)
    neighbours = [set(row.tolist()) for row in tables.next]
    for state in range(states):
        expected = np.full(tables.distance.shape[1], UNREACHABLE)
        seen, level, steps = {state}, {state}, 0
        while level:
            for ended in level:
                if tables.ended[ended]:
                    expected[tables.action[ended]] = min(expected[tables.action[ended]], steps)
            level = set().union(*(neighbours[s] for s in level)) - seen
            seen |= level
            steps += 1
        assert (tables.distance[state] == expected).all()
        possible = np.flatnonzero(expected < UNREACHABLE)
        assert tables.action[state] == (possible[0] if len(possible) == 1 else -1)
        assert len(possible) or state == states - 1  # no trap but the dead state
    for grammar, start in zip(ALL, tables.start, strict=True):
        assert set(np.flatnonzero(tables.distance[start] < UNREACHABLE)) == set(options_of(grammar))
    assert (move[-1] == states - 1).all() and tables.part[-1] == -1 and not tables.ended[-1]


def test_shortest_distance_by_hand() -> None:
    tables = lift(
        [(Literal("say "), Choice(((0, "yes"), (2, "no"))))], [None, *split("say yno"), b"say ", b"yes", b"es"], 0
    )
    assert tables.distance[tables.start[0]].tolist() == [3, UNREACHABLE, 4]


def split(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def test_forced_tokens_are_the_only_continuation(tables: TokenTables) -> None:
    move, dead = columns(tables), len(tables.next) - 1
    for state in range(dead + 1):
        at = state
        for token in tables.forced[state, : tables.forced_length[state]]:
            assert np.flatnonzero(move[at] != dead).tolist() == [token]
            at = move[at, token]
        assert tables.forced_state[state] == at
        assert (move[at] != dead).sum() != 1
        assert (tables.forced[state, tables.forced_length[state] :] == 0).all()
    tokens: list[bytes | None] = [None, *split("say no"), b"yes"]
    tables = lift([(Literal("say "), Choice(((0, "yes"), (1, "no"))))], tokens, 0)
    start = tables.start[0]
    assert tables.forced[start, : tables.forced_length[start]].tolist() == [1, 2, 3, 4]
    after = tables.next[tables.forced_state[start], tables.token_class[7]]
    assert tables.forced[after, : tables.forced_length[after]].tolist() == [0] and tables.forced_length[after] == 1
    assert tables.ended[tables.forced_state[after]]


def test_classes_are_tokens_that_do_the_same(tables: TokenTables, vocabulary: list[bytes | None]) -> None:
    """Two tokens share a class exactly if they lead every byte automaton from every state to the same state."""
    class_of: dict[tuple[int, ...], int] = {}
    for token in range(3, len(vocabulary)):
        text, machines = vocabulary[token] or b"", [automaton_of(which) for which in range(len(ALL))]
        does = tuple(
            -1 if crosses(which, state, text) else read(machine, text, state)
            for which, machine in enumerate(machines)
            for state in range(len(machine.next))
        )
        assert class_of.setdefault(does, int(tables.token_class[token])) == tables.token_class[token]
    end, control, empty = tables.token_class[:3]
    assert control == empty  # never allowed, unlike all the others: free text takes any byte
    assert len({end, control, *class_of.values()}) == len(class_of) + 2 == tables.next.shape[1] < len(vocabulary) - 50


def test_control_and_empty_tokens_are_never_allowed(tables: TokenTables) -> None:
    assert (columns(tables)[:, 1:3] == len(tables.next) - 1).all()
    tables = lift([(Literal("y"), Free())], [b"x", b"y", b"y"], 1)  # the token that ends never writes its own bytes
    move, start = columns(tables), tables.start[0]
    assert (move[start, :2] == len(move) - 1).all() and not tables.ended[move[start, 2]]
    assert tables.ended[move[move[start, 2], 1]] and not tables.ended[move[move[start, 2], 2]]


def test_ended_states_belong_to_one_action(tables: TokenTables) -> None:
    ended = np.flatnonzero(tables.ended)
    assert len(ended) == sum(len(options_of(grammar)) for grammar in ALL)
    for state in ended:
        assert ((tables.distance[state] < UNREACHABLE).sum(), tables.distance[state, tables.action[state]]) == (1, 0)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ((Choice(((0, "C"), (1, "D"))), LETTERS), ["at most one Choice"]),
        ((Choice(((0, "C"), (4, "C"))),), ["action 0 ('C')", "action 4 ('C')"]),
        ((Choice(((0, "a"), (1, "ab"))), Free()), ["action 0 ('a')", "action 1 ('ab')"]),
        ((Free(), Choice(((2, "x"), (1, "yx")))), ["action 2 ('x')", "action 1 ('yx')"]),
        ((Choice(((1, "C"), (1, "D"))),), ["different numbers"]),
        ((Choice(()),), ["options"]),
        (("C", "D"), ["a tuple of Literal, Choice and Free parts", "('C', 'D')"]),
    ],
)
def test_ambiguity_is_an_error(grammar: Grammar, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        automaton(grammar)
    assert all(word in str(error.value) for word in words)


def test_what_cannot_be_written_is_named() -> None:
    grammar = (Literal("I "), Choice(((0, "go"), (1, "blé"))))
    with pytest.raises(ValueError, match=r"action 1 \('I blé'\).*'é' after 'I bl'"):
        lift([grammar], [None, *split("I gobl"), b"\xc3"], 0)
    with pytest.raises(ValueError, match=r"action 0 .*'g' after 'I '"):
        lift([grammar], [None, *split("I oblé"), b"gone"], 0)
    lift([grammar], [None, *split("I goblé")], 0)


def test_too_many_states_are_an_error() -> None:
    with pytest.raises(ValueError, match="states"):
        lift([(Literal("a" * 33_000),)], [None, b"a"], 0)


def test_symbols_need_no_end() -> None:
    """One token a phrase: a text that is a prefix of another is over when no token can go on."""
    grammar = (Literal("say "), Choice(((0, "1"), (1, "10"))))
    tables = lift([grammar], [b"say ", b"1", b"10", b"say 10"], None)
    move, dead = columns(tables), len(tables.next) - 1
    after = move[tables.start[0], 0]
    assert len(tables.next) == 5  # start, "say ", two ends, dead: bytes inside a symbol are no states
    assert [tables.action[move[after, token]] for token in (1, 2)] == [0, 1]
    assert tables.ended[[move[after, 1], move[after, 2], move[tables.start[0], 3]]].all()
    assert (
        tables.distance[tables.start[0]].tolist() == [2, 1] and not tables.ended[[tables.start[0], after, dead]].any()
    )
    with pytest.raises(ValueError, match="'say 1' could stop or go on"):
        lift([grammar], [b"say ", b"1", b"10", b"0"], None)
    with pytest.raises(ValueError, match="could stop or go on"):
        lift([(Literal("x"), Free())], [b"x"], None)


def test_states_that_cannot_end_are_dead() -> None:
    tables = lift([(Choice(((0, "ab"), (1, "cd"))), Literal("e"))], [None, b"ab", b"e", b"cde", b"c"], 0)
    assert columns(tables)[tables.start[0], 4] == len(tables.next) - 1


def test_utterances_mean_their_actions(tables: TokenTables, vocabulary: list[bytes | None]) -> None:
    """With the encoder's own tokens where they are allowed, and a shortest path where they are not."""
    byte_token = {text: token for token, text in enumerate(vocabulary) if text and len(text) == 1}

    def by_byte(text: str) -> list[int]:
        return [byte_token[bytes([byte])] for byte in text.encode()]

    def useless(text: str) -> list[int]:
        return [1]

    for encode in (by_byte, useless):
        tokens, length = utterances(ALL, tables, encode, END)
        assert tokens.dtype == length.dtype == np.int32 and tokens.shape == (len(ALL), 4, length.max())
        for g, grammar in enumerate(ALL):
            for action in range(4):
                known = tables.distance[tables.start[g], action] < UNREACHABLE
                assert (length[g, action] > 0) == known
                if not known:
                    continue
                said = tokens[g, action, : length[g, action]].tolist()
                data = b"".join(vocabulary[token] or b"" for token in said)
                assert said[-1] == END and parse(grammar, data) == action
                if encode is useless:
                    assert length[g, action] == tables.distance[tables.start[g], action]
                else:
                    assert said[:-1] == by_byte(data.decode())
    silent = utterances(ALL, tables, by_byte, END)[0][ALL.index(GRAMMARS["message"]), 1]
    assert b"".join(vocabulary[token] or b"" for token in silent) == b"<message></message><B>"
