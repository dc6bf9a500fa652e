"""Messages as rows of tokens: a dialogue goes on in the row that holds its answers, else it begins one.

Tokens are never encoded again: an answer that comes back in the next request is found by its text, and its row is
extended. Any other history begins a row from the texts. A template is rendered once for each sequence of roles, with
marks in place of the texts: no text is read as a control token.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxmarl_llm.rollout.dialogue import strip_end, strip_start
from jaxmarl_llm.rollout.text_rows import kind_of
from jaxmarl_llm.serving.calls import Answer
from jaxmarl_llm.text.tokenizers import HFTokenizer, Tokenizer, speller

CALL = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
KEPT = 1_000  # rows of dialogues that belong to no episode
SHAPES, LONGEST_SHAPE = 256, 1 << 14  # sequences of roles whose pieces are kept, and the most tokens of one


class ToolCall(NamedTuple):
    """A function that an answer calls."""

    name: str
    arguments: str  # JSON


class Message(NamedTuple):
    """A message of a dialogue."""

    role: str  # "system", "user", "assistant" or "tool"
    text: str
    calls: tuple[ToolCall, ...] = ()

    @property
    def full_text(self) -> str:
        """The text as a model writes it, calls included."""
        calls = (f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}' for name, arguments in self.calls)
        return "\n".join([*[self.text] * bool(self.text), *(f"<tool_call>\n{x}\n</tool_call>" for x in calls)])


class Span(NamedTuple):
    """An answer in a row."""

    start: int  # index of its first token
    turn: int  # the number of the call
    logp: tuple[float, ...]  # its tokens', the end token's included if it was said
    budget: int  # the most tokens that it could have


@dataclass(eq=False)
class Row:
    """The tokens of a dialogue as its policy has read and said them."""

    tokens: list[int]
    policy: int
    kinds: list[int] = field(default_factory=list)  # by token: `kind_of` the message, 0 for the template's tokens
    spans: list[Span] = field(default_factory=list)  # its answers; those of a row that it branched from are not its own


class Place(NamedTuple):
    """The end of an answer: a row, and how many of its tokens lie before."""

    row: Row
    length: int


@dataclass(eq=False)
class Opened:
    """A dialogue before an answer."""

    messages: tuple[Message, ...]
    policy: int
    tools: str
    place: Place | None  # where it goes on; None: it begins a row
    tokens: list[int]  # the whole row, the call to speak included
    kinds: list[int]  # by token, as in `Row`


class Dialogues:
    """The rows of one reader: `open` a dialogue, let an engine answer its tokens, then `close` it with the answer.

    `kept` is the number of answers that are kept to go on from; None keeps all, and all `rows`, for an episode.
    """

    def __init__(self, tokenizer: Tokenizer, kept: int | None = KEPT):
        self.tokenizer, self.kept = tokenizer, kept
        self.rows: list[Row] = []
        self._places: OrderedDict[Any, Place] = OrderedDict()  # {(policy, tools, messages): where they end}
        self._encode = writer(tokenizer)

    def open(self, policy: int, messages: Sequence[Message], tools: Sequence[dict] = ()) -> Opened:
        """The row of a dialogue, found or begun. Raises ValueError for messages that the template cannot show."""
        messages, named = tuple(messages), json.dumps(list(tools))
        parts = pieces(self.tokenizer, tuple(message.role for message in messages), named)
        for last in range(len(messages) - 1, -1, -1):
            place = self._places.get((policy, named, messages[: last + 1]))
            if place is not None:
                before, kinds = place.row.tokens[: place.length], place.row.kinds[: place.length]
                rest, of_rest = self._write(parts[parts.index(last) + 1 :], messages)
                skipped = int(before[-1] == self.tokenizer.end)
                whole = [*before, *rest[skipped:]], [*kinds, *of_rest[skipped:]]
                return Opened(messages, policy, named, place, *whole)
        return Opened(messages, policy, named, None, *self._write(parts, messages))

    def close(self, opened: Opened, message: Message, answer: Answer, turn: int, budget: int) -> None:
        """Adds an answer, and the message that was made of it, to the dialogue's row.

        A second answer at the same place gets a row of its own, in which the tokens before it are not trained again.
        """
        place = opened.place
        goes_on = place is not None and len(place.row.tokens) == place.length
        row = place.row if place is not None and goes_on else Row([], opened.policy)
        row.tokens = [*opened.tokens, *answer.tokens]
        row.kinds = [*opened.kinds, *[kind_of("assistant", len(opened.messages))] * len(answer.tokens)]
        row.spans.append(Span(len(opened.tokens), turn, tuple(answer.logp), budget))
        self._places[opened.policy, opened.tools, (*opened.messages, message)] = Place(row, len(row.tokens))
        if self.kept is None:
            self.rows += [row] * (not goes_on)
        elif len(self._places) > self.kept:
            self._places.popitem(last=False)

    def begin(self, policy: int, text: str) -> Opened:
        """A plain text to continue, without a chat template. Raises ValueError for one that has no tokens."""
        tokens = self._encode(text)
        return Opened((Message("text", text),), policy, "", None, tokens, [kind_of("user", 0)] * len(tokens))

    def _write(self, parts: Sequence[Any], messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """(tokens, their kinds) of pieces."""
        tokens: list[int] = []
        kinds: list[int] = []
        for part in parts:
            written = part if isinstance(part, tuple) else self._encode(trim_text(self.tokenizer, part, messages))
            kind = 0 if isinstance(part, tuple) else kind_of(messages[part].role, part)
            tokens += written
            kinds += [kind] * len(written)
        return tokens, kinds


def writer(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """An encoder of any text, or of its symbols alone for a tokenizer without bytes."""
    try:
        return speller(tokenizer)
    except ValueError:
        return tokenizer.encode


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of an answer, without the end token; U+FFFD stands for bytes that are not UTF-8."""
    return b"".join(tokenizer.token_bytes[token] or b"" for token in tokens).decode(errors="replace")


def read_answer(text: str, tools: bool) -> Message:
    """An answer's text as a message; with `tools`, calls in Hermes' format are read."""
    calls = []
    for match in CALL.finditer(text) if tools else ():
        try:
            call = json.loads(match[1])
            calls.append(ToolCall(str(call["name"]), json.dumps(call.get("arguments", {}))))
        except (ValueError, KeyError, RecursionError):
            return Message("assistant", text)  # no call: the text as it is
    return Message("assistant", CALL.sub("", text).strip() if calls else text, tuple(calls))


def trim_text(tokenizer: Tokenizer, number: int, messages: Sequence[Message]) -> str:
    """The text of message `number`, calls included, without the edge spaces that the template strips in its role.

    `Trims.lead` stands in front if the template strips the start.
    """
    trims, message, text = tokenizer.trims, messages[number], [messages[number].full_text]
    first = not any(before.role == "user" for before in messages[:number])
    start, end = {
        "system": (trims.rules, trims.rules_end),
        "assistant": (trims.said is not None, trims.said is not None),
    }.get(message.role, (trims.first if first else trims.later, trims.heard_end))
    text = strip_start(text, trims.lead) if start else text
    return "".join(strip_end(text) if end else text)


_KNOWN: OrderedDict[Any, list[Any]] = OrderedDict()


def pieces(tokenizer: Tokenizer, roles: tuple[str, ...], tools: str = "[]") -> list[Any]:
    """A dialogue of these roles: tuples of token ids, and in between the index of the message that stands there.

    Raises ValueError if the template does not show every message once and in order, or has no place for tools.
    """
    key = tokenizer, roles, tools
    if key not in _KNOWN:
        given = json.loads(tools)
        cut = _render_pieces if isinstance(tokenizer, HFTokenizer) else _mark_pieces
        result = cut(tokenizer, roles, given)
        if sum(len(part) for part in result if isinstance(part, tuple)) > LONGEST_SHAPE:
            return result
        _KNOWN[key] = result
        if len(_KNOWN) > SHAPES:
            _KNOWN.popitem(last=False)
    _KNOWN.move_to_end(key)
    return _KNOWN[key]


def is_known(tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[dict]) -> bool:
    """True if `pieces` knows such a dialogue, so that no template is rendered for it."""
    return (tokenizer, tuple(message.role for message in messages), json.dumps(list(tools), sort_keys=True)) in _KNOWN


def _render_pieces(tokenizer: Any, roles: tuple[str, ...], tools: list[dict]) -> list[Any]:
    """The pieces of a chat template."""
    marks = [f"Text {number} & 'text'" for number in range(len(roles))]
    chat = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    if not tokenizer.system_role and roles[:2] == ("system", "user"):
        chat[:2] = [{"role": "user", "content": f"{marks[0]}\n\n{marks[1]}"}]
    try:
        text = tokenizer.render_chat(chat, True, **({"tools": tools} if tools else {}))
        without = tokenizer.render_chat(chat, True) if tools else ""
    except Exception as error:  # a template is a program
        raise ValueError(f"The model's chat template refuses these messages: {error}.") from None
    described = json.dumps(tools, ensure_ascii=False)
    if tools and tokenizer.encode_marked(described, start=False) != tokenizer.encode(described):
        raise ValueError("A description of a tool holds a control token of this model: leave it out.")
    if tools and (text == without or "<tool_call>" not in text):
        raise ValueError("The model's chat template has no place for tools: describe them in the system message.")
    places = [text.find(mark) for mark in marks]
    if any(text.count(mark) != 1 for mark in marks) or places != sorted(places):
        shown = ", ".join(roles[:20]) + ", ..." * (len(roles) > 20)
        raise ValueError(f"The model's chat template does not show messages of the roles {shown} in order.")
    edges = [0, *(at for place, mark in zip(places, marks, strict=True) for at in (place, place + len(mark))), None]
    result: list[Any] = []
    for number in range(len(roles) + 1):
        part = text[edges[2 * number] : edges[2 * number + 1]]
        said = number > 0 and roles[number - 1] == "assistant"
        result.append(tuple(tokenizer.encode_marked(part.lstrip(" ") if said else part, start=number == 0)))
        result += [number] * (number < len(roles))
    speak = tokenizer.markers.speak
    if result[-1][len(result[-1]) - len(speak) :] != speak:
        result.append(speak)
    return result


def _mark_pieces(tokenizer: Tokenizer, roles: tuple[str, ...], tools: list[dict]) -> list[Any]:
    """The pieces of a tokenizer without a template: rules, then messages and answers in turn."""
    if tools:
        raise ValueError("This policy has no chat template, so it has no place for tools.")
    asks = roles[1:] if roles[:1] == ("system",) else roles
    if any(role != ("user", "assistant")[i % 2] for i, role in enumerate(asks)) or len(asks) % 2 == 0:
        raise ValueError("This policy reads a system message, then messages of user and assistant in turn.")
    markers, first = tokenizer.markers, len(roles) - len(asks)
    result: list[Any] = [markers.before_rules, *range(first), markers.hear_first]
    for number in range(first, len(roles)):
        end = () if tokenizer.end is None else (tokenizer.end,)
        said = roles[number] == "assistant"
        result += [number, (*end, *markers.hear) if said else markers.speak]
    return result
