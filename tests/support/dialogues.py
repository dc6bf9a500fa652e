"""The dialogue of every row, written again by a Python loop.

Texts come from the game, utterances are read byte by byte; no automaton, no tables.
"""

import math
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jaxmarl_llm.environments.base import MessageFrom
from jaxmarl_llm.rollout.trajectory import Trajectory
from jaxmarl_llm.text.grammar import Choice, Free, Literal
from tests.support.rollout_cases import SEED, Case, case, played, seen


def options_of(grammar) -> dict[int, str]:
    return dict(next((part.options for part in grammar if isinstance(part, Choice)), ((0, ""),)))


def texts_of(grammar) -> dict[int, bytes]:
    """Each action's whole utterance with nothing in its free parts."""
    written = lambda part, option: option if isinstance(part, Choice) else getattr(part, "text", "")
    return {
        number: "".join(written(part, option) for part in grammar).encode()
        for number, option in options_of(grammar).items()
    }


def words_of(grammar, tokenizer, said: list[int]) -> list[int]:
    """The tokens of an utterance that lie in free text; none lies there partly."""
    pieces = []
    for part in grammar:
        if isinstance(part, Free):
            pieces.append(b"([^" + re.escape(part.without) + b"]*)")
        else:
            texts = [text for _, text in part.options] if isinstance(part, Choice) else [part.text]
            pieces.append(b"(?:" + b"|".join(re.escape(text.encode()) for text in texts) + b")")
    spelled = [tokenizer.token_bytes[token] for token in said if token != tokenizer.end]
    match = re.fullmatch(b"".join(pieces), b"".join(spelled), re.DOTALL)
    assert match is not None
    free = {at for first, end in match.regs[1:] for at in range(first, end)}
    words, at = [], 0
    for token, text in zip(said, spelled, strict=False):
        (inside,) = {place in free for place in range(at, at + len(text))}
        words += [token] if inside else []
        at += len(text)
    return words


def carried(words: list[int], speaker, listener) -> list[int]:
    """A message in the listener's tokens: as it is if they are the speaker's too, else as text."""
    if speaker.token_bytes == listener.token_bytes:
        return words
    text = b"".join(speaker.token_bytes[token] for token in words).decode(errors="replace")
    known = set(listener.token_bytes)
    return listener.encode("".join(c if all(bytes([b]) in known for b in c.encode()) else "?" for c in text))


class Speller:
    """The tokens that may be said next, by brute force over texts and tokens: no automaton, no tables."""

    def __init__(self, tokenizer):
        self.end = tokenizer.end
        self.texts = [None if t == self.end or b is None else b for t, b in enumerate(tokenizer.token_bytes)]
        self.shortest = cache(self._shortest)

    def _shortest(self, rest: bytes) -> float:
        """Fewest tokens that spell `rest`."""
        if not rest:
            return 0
        return 1 + min(
            (self.shortest(rest[len(t) :]) for t in self.texts if t and rest.startswith(t)), default=math.inf
        )

    @staticmethod
    def _reads(grammar, option: str, said: bytes) -> tuple[bytes, list[bool]] | None:
        """If `said` can begin this option: the shortest rest, and which of its bytes are free text."""
        where = next((i for i, part in enumerate(grammar) if isinstance(part, Free)), len(grammar))
        texts = [option if isinstance(part, Choice) else getattr(part, "text", "") for part in grammar]
        before, after = "".join(texts[:where]).encode(), "".join(texts[where + 1 :]).encode()
        if len(said) <= len(before):
            return (before[len(said) :] + after, [False] * len(said)) if before.startswith(said) else None
        tail = said[len(before) :]
        closing = grammar[where].without if where < len(grammar) else tail
        assert (
            where == len(grammar) or not after or after[0] in closing
        )  # or it would not be clear where free text ends
        free = next((i for i, byte in enumerate(tail) if byte in closing), len(tail))
        if not said.startswith(before) or not after.startswith(tail[free:]):
            return None
        return after[len(tail) - free :], [False] * len(before) + [True] * free + [False] * (len(tail) - free)

    def _completions(self, grammar, said: bytes, legal, last: int = 0) -> list[bytes]:
        """For each legal action that is still possible, the shortest rest of the utterance.

        An option is skipped if the `last` bytes, the bytes of one token, lie partly in free text.
        """
        found = [self._reads(grammar, option, said) for number, option in options_of(grammar).items() if legal[number]]
        return [reads[0] for reads in found if reads and len(set(reads[1][len(said) - last :])) <= 1]

    def continuations(self, grammar, said: bytes, legal, left: float) -> list[int]:
        """Tokens after which a legal utterance can be ended in time, `left` tokens from here."""
        end = 0 if self.end is None else 1
        found = []
        for token, text in enumerate(self.texts):
            if not text:
                continue
            rests = self._completions(grammar, said + text, legal, len(text))
            if 1 + end + min((self.shortest(rest) for rest in rests), default=math.inf) <= left:
                found.append(token)
        if self.end is not None and b"" in self._completions(grammar, said, legal) and left >= 1:
            found.append(self.end)
        return found


@cache
def spellers(name: str) -> dict[str, Speller]:
    return {policy_set: Speller(setting.tokenizer) for policy_set, setting in case(name).policy_sets.items()}


@dataclass
class Reading:
    """One row, written again by hand: its tokens, the turn of each, which were said, and each utterance and message."""

    tokens: list[int]
    turns: list[int] = field(default_factory=list)
    prompt: int | None = None
    utterances: list[tuple[int, int, int]] = field(default_factory=list)  # (turn, first position, end) in `tokens`
    heard: list[tuple[int, int, int, int]] = field(default_factory=list)  # (turn, speaker, first position, end)
    cut: int = 0  # tokens of messages that did not fit
    before: str = "rules"


def read(setting: Case, trajectory: Trajectory, world) -> dict[str, list[Reading]]:
    """Writes the dialogue of every row: texts from the game, utterances copied until they end, messages from them."""
    environment, told_at_most = setting.environment, setting.rollout.messages.max_told
    rows_of = [
        (rows, r, setting.policy_sets[policy_set].tokenizer, policy_set)
        for policy_set, rows in trajectory.rows.items()
        for r in range(len(rows.length))
    ]
    readings: dict[str, list[Reading]] = {policy_set: [] for policy_set in trajectory.rows}
    for rows, r, tokenizer, policy_set in rows_of:
        tokens = list(tokenizer.markers.before_rules)
        for texts, phrase in zip(environment.rules, world.prompt[rows.episode[r], rows.seat[r]], strict=True):
            tokens += tokenizer.encode(texts[phrase]) if phrase >= 0 else []
        readings[policy_set].append(Reading(tokens))
    said: dict[tuple[int, int], tuple[Any, list[int]]] = {}  # by episode and seat, when it last acted
    for t, view in enumerate(world.views[:-1]):
        now = {}
        for rows, r, tokenizer, policy_set in rows_of:
            reading, markers = readings[policy_set][r], tokenizer.markers
            episode, seat, o = int(rows.episode[r]), int(rows.seat[r]), int(rows.prompt[r])
            prompt = rows.prompts.tokens[o, : rows.prompts.length[o]].tolist()
            recorded = [*prompt, *rows.tokens[r, : rows.length[r]].tolist()]
            acting, tokens = view.acting[episode, seat], reading.tokens
            pieces, speakers = [], []
            for texts, phrase in zip(environment.observation, view.phrases[episode, seat], strict=True):
                piece, speaker = tokenizer.encode(texts[phrase]) if phrase >= 0 and texts[phrase:] else [], None
                if isinstance(texts, MessageFrom) and view.hears[episode, texts.seat, seat] and texts.seat != seat:
                    speaker, (voice, words) = texts.seat, said.get((episode, texts.seat), (tokenizer, []))
                    piece = whole = carried(words, voice, tokenizer)
                    if voice.token_bytes != tokenizer.token_bytes:
                        piece = whole[:told_at_most]
                    reading.cut += 0 if world.over[t, episode] else len(whole) - len(piece)
                pieces.append(piece)
                speakers.append(speaker)
            if not world.over[t, episode]:
                if acting or any(pieces):
                    tokens += {"rules": markers.hear_first, "spoke": markers.hear, "heard": ()}[reading.before]
                    reading.before = "heard"
                for piece, speaker in zip(pieces, speakers, strict=True):
                    tokens += piece
                    if speaker is not None:
                        reading.heard.append((t, speaker, len(tokens) - len(piece), len(tokens)))
                if acting:
                    tokens += markers.speak
                    first = len(tokens)
                    while True:  # a symbol is an utterance; bytes go on to the end token
                        tokens.append(recorded[len(tokens)])
                        if tokens[-1] == tokenizer.end or (tokenizer.end is None):
                            break
                    reading.utterances.append((t, first, len(tokens)))
                    reading.before = "spoke"
                    grammar = environment.grammars[view.grammar[episode, seat]]
                    now[episode, seat] = tokenizer, words_of(grammar, tokenizer, tokens[first:])
            if reading.prompt is None:  # what is forced or heard before anybody spoke belongs to the prompt
                forced = 0
                if reading.utterances:
                    grammar = environment.grammars[view.grammar[episode, seat]]
                    forced = len(tokenizer.encode(grammar[0].text)) if isinstance(grammar[0], Literal) else 0
                reading.prompt = reading.utterances[0][1] + forced if reading.utterances else len(tokens)
            reading.turns += [t] * (len(tokens) - len(reading.turns))
        said |= now
    return readings


@cache
def readings(name: str, seed: int = SEED) -> dict[str, list[Reading]]:
    return read(case(name), played(name, seed), seen(name, seed))


def speeches(name: str, seed: int = SEED):
    """(policy set, row, turn, grammar, legal, tokens of the utterance, its place in the row's `tokens`) of each."""
    trajectory, world = played(name, seed), seen(name, seed)
    for policy_set, rows in trajectory.rows.items():
        for r, reading in enumerate(readings(name, seed)[policy_set]):
            for turn, first, end in reading.utterances:
                view, where = world.views[turn], (int(rows.episode[r]), int(rows.seat[r]))
                grammar = case(name).environment.grammars[view.grammar[where]]
                yield policy_set, r, turn, grammar, view.legal[where], reading.tokens[first:end], first - reading.prompt


def rows_agree(trajectory: Trajectory, read_again: dict[str, list[Reading]]) -> None:
    for policy_set, rows in trajectory.rows.items():
        assert trajectory.truncated_message_tokens[policy_set] == sum(reading.cut for reading in read_again[policy_set])
        for r, reading in enumerate(read_again[policy_set]):
            o = rows.prompt[r]
            assert rows.prompts.length[o] == reading.prompt
            assert rows.prompts.tokens[o, : reading.prompt].tolist() == reading.tokens[: reading.prompt]
            n = len(reading.tokens) - reading.prompt
            assert rows.length[r] == n
            assert rows.tokens[r, :n].tolist() == reading.tokens[reading.prompt :]
            assert rows.turn[r, :n].tolist() == reading.turns[reading.prompt :]
            assert not rows.loss_mask[r, n:].any() and not rows.tokens[r, n:].any()
