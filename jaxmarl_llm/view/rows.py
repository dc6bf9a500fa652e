"""Rows of tokens as dialogues: messages, answers, and the numbers of each sampled token."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from jaxmarl_llm.rollout.layout import RowLayout
from jaxmarl_llm.rollout.policy import NEVER
from jaxmarl_llm.rollout.text_rows import TextRowLayout, role_of
from jaxmarl_llm.text.grammar import UNREACHABLE, TokenTables
from jaxmarl_llm.text.tokenizers import Tokenizer
from jaxmarl_llm.training.examine import Examined, Look

Record = dict[str, Any]
Layout = RowLayout | TextRowLayout


def read(layout: Layout, examined: Examined, name: str, row: int) -> Record:
    """The messages, turns and answers of a row, as `records` describes them."""
    rows, tokenizer = examined.trajectory.rows[name], layout.policy_set.tokenizer
    prompt, seat, episode = rows.prompt[row], rows.seat[row], rows.episode[row]
    before, length = int(rows.prompts.length[prompt]), int(rows.length[row])
    tokens = np.concatenate([rows.prompts.tokens[prompt, :before], rows.tokens[row, :length]])
    turn = np.concatenate([np.zeros(before, int), rows.turn[row, :length]])
    look, episodes = examined.looks[name], examined.trajectory.episodes
    number = {int(before + at): i for i, at in enumerate(look.sampled.at[row]) if rows.loss_mask[row, at]}
    heard = _Heard(layout, examined, name, row, tokens)
    messages: list[Record] = []
    turns: list[int] = []
    answers: list[Record] = []

    def hear(first: int, until: int, now: int) -> None:
        texts = heard.read(first, until)
        messages.extend(texts)
        turns.extend([0 if heard.opens(first) and message is texts[0] else now for message in texts])

    at = 0
    for t in heard.turns(turn, number, np.flatnonzero(episodes.acted[episode, :, seat])):
        first, end = np.searchsorted(turn, [t, t + 1]).tolist()
        action, legal = int(episodes.action[episode, t, seat]), np.asarray(episodes.legal[episode, t, seat])
        states = {place: int(look.sampled.grammar_state[row, i]) for place, i in number.items() if first <= place < end}
        start = answer_start(layout.tables, tokens, first, end, action, states)
        hear(at, start, t)
        answer: Record = {"turn": t, "message": len(messages), "action": action, "reward": 0.0}
        said = tokens[start : end - (tokens[end - 1] == tokenizer.end)]
        messages.append({"role": "assistant", "content": text(tokenizer, said)})
        turns.append(t)
        if states:
            left = int(look.sampled.tokens_left[row, number[min(states)]])
            sampled = {place - start: state for place, state in states.items()}
            answer |= {"cut": budget} if (budget := cut_at(layout, tokens[start:end], sampled, left, legal)) else {}
        answer["tokens"] = [{"text": piece} for piece in texts(tokenizer, tokens[start:end])]
        for place, token in enumerate(answer["tokens"], start):
            token |= {"end": True} if tokens[place] == tokenizer.end else {}
            if place in number:
                token |= token_numbers(tokenizer, look, row, number[place])
                if name in examined.advantage:
                    token["advantage"] = plain(examined.advantage[name][row, number[place]])
        answers.append(answer)
        at = end
    hear(at, len(tokens), int(turn[-1]))
    return {"messages": messages, "turns": turns, "answers": answers}


class _Heard:
    """The messages of a row that its seat was told: rules, then observations, or the messages of a program."""

    def __init__(self, layout: Layout, examined: Examined, name: str, row: int, tokens: np.ndarray):
        self.tokenizer, self.tokens = layout.policy_set.tokenizer, tokens
        self.told = int(examined.rules[name][examined.trajectory.rows[name].prompt[row]])
        self.kinds: np.ndarray | None = None
        if examined.trajectory.kinds is not None:
            self.kinds = np.zeros(len(tokens), int)
            known = examined.trajectory.kinds[name][row][: len(tokens)]
            self.kinds[: len(known)] = known

    def opens(self, first: int) -> bool:
        """True for the place of the rules."""
        return first == 0 and self.kinds is None

    def turns(self, turn: np.ndarray, number: Mapping[int, int], acted: np.ndarray) -> list[int]:
        """The turns of the row's answers; a program can hold several dialogues in one seat."""
        return acted.tolist() if self.kinds is None else sorted({int(turn[place]) for place in number})

    def read(self, first: int, until: int) -> list[Record]:
        """The messages between two answers."""
        if self.kinds is not None:
            edges = np.flatnonzero(np.diff(self.kinds[first:until], prepend=0, append=0)) + first
            spans = [(a, b) for a, b in pairwise(edges.tolist()) if self.kinds[a]]
            return [self._message(role_of(self.kinds[a].item()), a, b) for a, b in spans]
        markers, messages = self.tokenizer.markers, []
        at, marker, speak = first, markers.hear, len(markers.speak) if until < len(self.tokens) else 0
        if not first:
            at = len(markers.before_rules) + self.told
            messages.append(self._message("system", len(markers.before_rules), at))
            marker = markers.hear_first
        if at < until - speak:
            messages.append(self._message("user", at + len(marker), until - speak))
        return messages

    def _message(self, role: str, first: int, until: int) -> Record:
        return {"role": role, "content": text(self.tokenizer, self.tokens[first:until])}


def answer_start(
    tables: TokenTables, tokens: np.ndarray, first: int, end: int, action: int, states: Mapping[int, int]
) -> int:
    """The place of the answer's first token among the tokens [first, end) of a turn, which hold the texts told to the
    seat, then its answer.

    `states` are the grammar states of the sampled tokens {place: state}. The answer begins at the last place from which
    the grammar leads to the first sampled token. An answer that was forced as a whole leads to its end, with `action`,
    instead; `action` is read for such an answer only.
    """
    goal = min(states, default=end)
    starts = np.unique(tables.start).tolist()
    for begin in range(goal, first - 1, -1):
        for state in starts:
            for token in tokens[begin:goal].tolist():
                state = int(tables.next[state, tables.token_class[token]])
            if state == states[goal] if states else tables.ended[state] and tables.action[state] == action:
                return begin
    return goal


def cut_at(layout: Layout, tokens: np.ndarray, states: Mapping[int, int], left: int, legal: np.ndarray) -> int:
    """The budget of an answer, in tokens with the end, if it ran out; else 0.

    `states` are the grammar states of the sampled tokens by place, `left` the tokens left at the first one. The budget
    ran out if it chose a token where the grammar and the legal actions (bool [N]) allow several, or left no end token.
    A budget of 2 never counts: only the end can follow its one token, after a whole answer too.
    """
    tables, end = layout.tables, layout.policy_set.tokenizer.end
    first = min(states)
    budget, state = first + left, states[first]
    if budget <= 2:
        return 0
    if end is not None and tokens[-1] != end:
        return budget * (len(tokens) + 1 >= budget)
    if not layout.policy_set.masked:
        return budget * (end is not None and len(tokens) - 1 not in states)
    for place in range(first, len(tokens)):
        if place not in states and _several(tables, state, legal):
            return budget
        state = int(tables.next[states.get(place, state), tables.token_class[tokens[place]]])
    return 0


def _several(tables: TokenTables, state: int, legal: np.ndarray) -> bool:
    """True if several tokens can follow in an utterance of a legal action."""
    after = tables.next[state]
    possible = (tables.distance[after][:, np.flatnonzero(legal)] < UNREACHABLE).any(1) & (after < len(tables.next) - 1)
    return int(np.isin(tables.token_class, np.flatnonzero(possible)).sum()) > 1


def token_numbers(tokenizer: Tokenizer, look: Look, row: int, i: int) -> Record:
    """The numbers of sampled token i of a row."""
    top = [
        [text(tokenizer, [token]), float(f"{np.exp(logp):.5g}")]
        for token, logp in zip(look.token[row, i].tolist(), look.logp[row, i], strict=True)
        if logp > NEVER / 2
    ]
    return {"logp": plain(look.sampled.behaviour_logp[row, i]), "entropy": plain(look.entropy[row, i]), "top": top}


def plain(x: Any) -> float | None:
    """A float32 as the shortest decimal number that is read back as the same float32; None if it is not finite."""
    return float(str(np.float32(x))) if np.isfinite(x) else None


def texts(tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray) -> Iterator[str]:
    """The text of each token: control tokens by name, bytes that are not UTF-8 as U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for at, token in enumerate(ids, 1):
        data = tokenizer.token_bytes[token]
        final = data is None or at == len(ids)
        name = tokenizer.decode([int(token)]) if data is None else ""
        yield decoder.decode(data or b"", final) + name


def text(tokenizer: Tokenizer, ids: Sequence[int] | np.ndarray) -> str:
    return "".join(texts(tokenizer, ids))
