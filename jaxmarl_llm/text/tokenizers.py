"""Text to tokens: hub tokenizers, a symbol tokenizer, markers cut from chat templates, phrase tables.

`Tokenizer` is the interface: `end` is the token that ends an utterance, or None; `token_bytes` holds the bytes of every
token, None for control tokens. As tokens, a dialogue of rules, u0, a0, u1, a1 is

    before_rules + rules + hear_first + u0 + speak + a0 + [end] + hear + u1 + speak + a1 + [end].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from jaxmarl_llm.text.refusals import quote
from jaxmarl_llm.text.templates import OPTIONS, TooSlow, Trims, chat_template, cut_at, render_chat, spaces_taken, trims

MOST_TOKENS = 1 << 22
SENTINELS = ("Rules <a> Rules", "Heard & heard", "Said 'so' Said", "Again, Again")  # a filter would change one
PROBE = " xx x "  # a tokenizer that adds, drops or marks spaces changes this text


class Markers(NamedTuple):
    """The text that a chat template puts around the pieces of a dialogue, as token ids."""

    before_rules: tuple[int, ...] = ()
    hear_first: tuple[int, ...] = ()
    speak: tuple[int, ...] = ()
    hear: tuple[int, ...] = ()  # follows the end token of an utterance


class Tokenizer(Protocol):
    """The interface of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def end(self) -> int | None: ...

    @property
    def token_bytes(self) -> tuple[bytes | None, ...]: ...

    @property
    def markers(self) -> Markers: ...

    @property
    def trims(self) -> Trims: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Phrases(NamedTuple):
    """The tokens of all phrases of an environment: phrase i of field f is row offset[f] + i."""

    tokens: np.ndarray  # int32 [n, L], right-padded with zeros
    length: np.ndarray  # int32 [n]
    offset: np.ndarray  # int32 [fields]


def byte_alphabet() -> dict[str, int]:
    """{character: byte} of GPT-2's byte-level BPE: printable bytes stand for themselves, others are 256, 257, ..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class HFTokenizer:
    """The tokenizer of a directory with tokenizer.json and a chat template: byte-level BPE or SentencePiece's BPE.

    `encode` never reads text as control tokens; `encode_marked` does. `encode` omits the space that Llama 2 puts before
    a text, because a piece of a row does not start one. SentencePiece writes a space as U+2581 and cannot tell the two
    apart. `vocab_size` may be the model's, if it is larger.

    `template` replaces the directory's template; a base model has none. `options`, such as enable_thinking=False, are
    passed to it. If a template refuses the system role, the rules begin the first message.

    Rows keep every token that the model saw, while templates rewrite the history. Llama 2's adds a space after an
    answer (rows have none), Qwen3's deletes empty thoughts, Llama 3's and Gemma's strip answers. In rows, Llama 2's
    space before a message is a separate token. Qwen's line break before a message is not merged with a line break that
    begins the message. `trims` lists the spaces that the template strips: rows omit them.

    Raises ValueError if tokens have no exact bytes, if there is no template, or if it cannot be cut into markers.
    """

    def __init__(
        self,
        directory: str | Path,
        vocab_size: int | None = None,
        template: str | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        path = Path(directory) / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{directory} has no tokenizer.json, which holds a fast tokenizer.")
        self._template, self._options = chat_template(Path(directory), template), {**OPTIONS, **(options or {})}
        self._tokenizer = read_tokenizer(path)
        known = self._tokenizer.get_vocab()
        self._taken = spaces_taken(self._tokenizer)
        named = [token for token in self._template.all_special_tokens if token in known]
        self._tokenizer.add_special_tokens(named)  # tokenizer_config.json may name more of them
        for t in self._tokenizer.get_added_tokens_decoder().values():
            if not t.special and (t.lstrip or t.rstrip):  # texts of the game keep the spaces beside it
                kept = tokenizers.AddedToken(t.content, single_word=t.single_word, normalized=t.normalized)
                self._tokenizer.add_tokens([kept])
        names = {index: name for name, index in known.items()}
        count = max(names, default=-1) + 1
        self.vocab_size = count if vocab_size is None else vocab_size
        if count > MOST_TOKENS:
            raise ValueError(f"{path} has a token of the number {count - 1}: at most {MOST_TOKENS} tokens are read.")
        if self.vocab_size < count:
            raise ValueError(f"{path} has {count} tokens, the model only {vocab_size}: they do not belong together.")
        self._names = [names.get(index, "") for index in range(self.vocab_size)]  # "": an unused id
        self.token_bytes = exact_bytes(path, self._tokenizer, self._names)
        self._spelled = {token[0] for token in self.token_bytes if token is not None and len(token) == 1}
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {token.content: index for index, token in added.items() if token.special}
        longest_first = map(re.escape, sorted(self._control, key=len, reverse=True))
        self._control_pattern = re.compile(f"({'|'.join(longest_first)})" if self._control else "(?!)()")
        self._prefix_text(path)
        self.markers, self.end, self.trims = self._cut(directory)

    def _prefix_text(self, path: Path) -> None:
        """Removes the tokenizer's space prefix, and remembers it for the start of a text and after control tokens.

        Raises ValueError if the tokens of a plain text then spell another text.
        """
        tokenizer, control = self._tokenizer, next(iter(self._control), "")  # no letter follows: single_word

        def read(text: str) -> str:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            return b"".join(self.token_bytes[index] or b"" for index in ids).decode(errors="replace")

        self._at_start, self._after_control = (read(f"{before}-").removesuffix("-") for before in ("", control))
        tokenizer.encode_special_tokens = True  # spell control tokens out as text
        if isinstance(tokenizer.normalizer, normalizers.Sequence):
            parts = [tokenizer.normalizer[i] for i in range(len(tokenizer.normalizer))]
            kept = [part for part in parts if not isinstance(part, normalizers.Prepend)]
            tokenizer.normalizer = normalizers.Sequence(kept)
        if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.Metaspace):
            tokenizer.pre_tokenizer.prepend_scheme = "never"
        if (other := read(PROBE)) != PROBE:
            raise ValueError(f"{path} reads {PROBE!r} as {quote(other)}, and rows must hold the texts of the game.")

    def _cut(self, directory: str | Path) -> tuple[Markers, int, Trims]:
        """Renders a dialogue of sentinels and cuts it at them. The first token after an answer is the end token.

        `speak` is the template's generation prompt. In the history an answer may follow a longer or shorter text.
        """
        (rules, *messages), raised = SENTINELS, ""
        for self.system_role in (True, False):
            try:
                text, begun = self.render(rules, messages), self.render(rules, messages[:1])
                pieces = cut_at(text, SENTINELS)
                if pieces is None:
                    continue
                before_rules, hear_first, answered, after, speak = pieces
                alike = answered.startswith(speak) or speak.startswith(answered)
                if not alike or not begun.endswith(messages[0] + speak):
                    continue
                if answered[len(speak) :].strip():
                    speak = answered  # the template has no generation prompt
                start = tuple(self.encode_marked(before_rules))
                marked = (self.encode_marked(text, False) for text in (hear_first, speak, after.lstrip(" ")))
                first, said, ended = map(tuple, marked)
                if not ended or self.token_bytes[ended[0]] is not None:
                    continue
                bare = {
                    self._control_pattern.split(text)[-1] == "" for text in (before_rules, hear_first, speak, after)
                }
                around = before_rules, hear_first, answered[len(speak) :], begun.rpartition(messages[0])[2]
                stripped = trims(self.render, partial(self.encode_marked, start=False), SENTINELS, around)
                if self._after_control and True in bare:
                    if False in bare or not (stripped.rules and stripped.first and stripped.later):
                        raise ValueError(f"some texts follow a control token, and {self._after_control!r} goes before")
                    stripped = stripped._replace(lead=self._after_control)
                return Markers(start, first, said, ended[1:]), ended[0], stripped
            except Exception as error:  # a template is a program
                raised = f" It raises {type(error).__name__}: {quote(str(error))}."
                if isinstance(error, TooSlow | RecursionError | MemoryError):
                    break  # cut in another way, rows would depend on the machine and the caller
        if self._taken.pattern != "(?!)":
            raised += " Tokens of its tokenizer.json take spaces beside them (lstrip, rstrip)."
        raise ValueError(
            f"The chat template of {directory} cannot be cut into markers: it must show rules, messages and answers "
            f"unchanged and in order, the same text before every answer, a control token after it.{raised}"
        )

    def render(self, rules: str, messages: Sequence[str]) -> str:
        """A dialogue as the template renders it, without the spaces that control tokens absorb.

        Messages alternate between user and model. If the user's is last, the text ends with the generation prompt.
        """
        messages = list(messages)
        chat = [{"role": "system", "content": rules}] if self.system_role else []
        if not self.system_role:
            messages[0] = f"{rules}\n\n{messages[0]}"
        chat += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]
        return self.render_chat(chat, len(messages) % 2 == 1)

    def render_chat(self, chat: list[dict[str, str]], answer: bool, **options: Any) -> str:
        """Messages with roles as the template renders them, likewise; with `answer` the generation prompt follows."""
        text = render_chat(self._template, chat, answer, {**self._options, **options})
        return self._taken.sub(lambda match: match[0].strip(), text)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text. Raises ValueError for a byte without a token, which the library would drop."""
        missing = sorted(set(text.encode()) - self._spelled)
        if missing:
            raise ValueError(f"This tokenizer has no token for byte 0x{missing[0]:02x}, which {text!r} holds.")
        ids, pieces = list[int](), [text]
        while pieces:
            piece = pieces.pop()
            encoding = self._tokenizer.encode(piece, add_special_tokens=False)
            at = zip(encoding.ids, encoding.offsets, strict=True)
            spelled = [span for index, span in at if span[1] - span[0] > len(self.token_bytes[index] or "")]
            if not spelled:
                ids += encoding.ids
            elif len(piece) == 1:
                raise ValueError(f"This tokenizer reads {piece!r} as a control token, and has no other for it.")
            else:  # letters merged into control tokens, or a byte's name into it: cut these after their first letter
                cuts = {start + 1 for start, _ in spelled} | {start for start, end in spelled if end - start < 2}
                ends = sorted({0, len(piece), *cuts})
                pieces += [piece[start:end] for start, end in pairwise(ends)][::-1]
        return ids

    def encode_marked(self, text: str, start: bool = True) -> list[int]:
        """Token ids of a template's text, from its `start` on; control tokens in it are read as such."""
        ids, prefix = [], self._at_start if start else ""
        for number, part in enumerate(self._control_pattern.split(text)):
            if number % 2:
                ids.append(self._control[part])
            elif part:
                ids += self.encode((self._after_control if number else prefix) + part)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, with control tokens by name and U+FFFD for bytes that are not UTF-8."""
        pieces = ((self.token_bytes[i], self._names[i].encode()) for i in ids)
        return b"".join(name if piece is None else piece for piece, name in pieces).decode(errors="replace")


def exact_bytes(path: Path, tokenizer: tokenizers.Tokenizer, names: Sequence[str]) -> tuple[bytes | None, ...]:
    """The bytes of every token of a tokenizer, None for control tokens and unused ids.

    Byte-level BPE spells bytes in an alphabet. SentencePiece's BPE writes text, with U+2581 for a space and <0x0A> for
    a byte. Added tokens that are not special, such as <think>, stand for their content. Raises ValueError, which names
    `path`, for other kinds of tokenizers.
    """
    alphabet = byte_alphabet()
    added, bpe = tokenizer.get_added_tokens_decoder(), isinstance(tokenizer.model, models.BPE)
    byte_level = isinstance(tokenizer.decoder, decoders.ByteLevel)
    sentencepiece = bpe and tokenizer.model.byte_fallback and not byte_level
    if not bpe or not (sentencepiece or byte_level):
        raise ValueError(
            f"{path} is neither byte-level BPE nor SentencePiece's BPE with bytes to fall back to (byte_fallback), the "
            "two kinds whose tokens have exact bytes."
        )

    def exact(index: int, name: str) -> bytes | None:
        if not name or (index in added and added[index].special):
            return None
        if sentencepiece:
            if index not in added and len(name) == 6 and (byte := re.fullmatch("<0x([0-9A-F]{2})>", name)):
                return bytes.fromhex(byte[1])
            return name.replace("\u2581", " ").encode()
        if index in added:
            return name.encode()
        try:
            return bytes([alphabet[character] for character in name])
        except KeyError:  # a control token that is not listed as one
            return None

    return tuple(exact(index, name) for index, name in enumerate(names))


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a file without truncation, padding, post-processing and BPE dropout.

    Raises ValueError for a file that the library cannot read.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no tokenizer.json, which holds a fast tokenizer.")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:  # a panic of the library is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise ValueError(f"{path} is no tokenizer that can be read ({quote(str(error))[1:-1]}).") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None  # it may add tokens or trim their spans
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    return tokenizer


class SymbolTokenizer:
    """One token for each of these strings, so that a tiny policy plays in short rows; it has no markers.

    Strings in `heard` are only read: free text cannot hold them. With `ends` a further token ends every utterance,
    which free text needs.
    """

    def __init__(self, strings: Sequence[str], heard: Sequence[str] = (), ends: bool = False):
        self.strings = tuple(dict.fromkeys(string for string in strings if string))
        self.heard = tuple(string for string in self.strings if string in heard)
        self.vocab_size = len(self.strings) + ends
        self.end: int | None = len(self.strings) if ends else None
        said = [None if string in self.heard else string.encode() for string in self.strings]
        self.token_bytes: tuple[bytes | None, ...] = (*said, *[None] * ends)
        self.markers, self.trims = Markers(), Trims()
        self._index = {string: index for index, string in enumerate(self.strings)}

    def encode(self, text: str) -> list[int]:
        """The symbols of the text, always the longest that fits. Raises ValueError if none fits."""
        ids, rest = [], text
        while rest:
            symbol = max((s for s in self.strings if rest.startswith(s)), key=len, default="")
            if not symbol:
                known = ", ".join(map(repr, self.strings))
                raise ValueError(f"{rest!r} is none of the {len(self.strings)} symbols {known}, nor made of them.")
            ids.append(self._index[symbol])
            rest = rest[len(symbol) :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join("<end>" if i == self.end else self.strings[i] for i in ids)


def compile_phrases(tokenizer: Tokenizer, fields: Sequence[Sequence[str]]) -> Phrases:
    """Token ids int32 [n, L] of the n phrases of all fields, in order, with their lengths and each field's offset.

    `fields` lists the phrases of each field. Raises ValueError for a field without phrases, and what `encode` raises.
    """
    for number, field in enumerate(fields):
        if not field:
            raise ValueError(f"Field {number} of {len(fields)} has no phrases; give it at least an empty one.")
    rows = [tokenizer.encode(phrase) for field in fields for phrase in field]
    length = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), max(length, default=0)), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    offset = np.cumsum([0, *(len(field) for field in fields)])[:-1].astype(np.int32)
    return Phrases(tokens, length, offset)


def widest(phrases: Phrases, fields: int | None = None) -> np.ndarray:
    """Tokens of the longest phrase of each field, int32 [fields]; their sum bounds the tokens of an observation.

    With `fields`, field f + fields holds other phrases of field f, and the result covers both.
    """
    if not len(phrases.offset):
        return np.zeros(0, np.int32)
    longest = np.maximum.reduceat(phrases.length, phrases.offset)
    return longest if fields is None else longest.reshape(-1, fields).max(0)


def pieces_agree(tokenizer: Tokenizer, pieces: Sequence[str]) -> None:
    """Raises ValueError unless the pieces' tokens, concatenated, are the tokens of the joined text.

    A model should read rows as the whole text. Pieces that are cut before spaces agree. The error names the first cut.
    """
    parts = [tokenizer.encode(piece) for piece in pieces]
    whole = tokenizer.encode("".join(pieces))
    apart = [token for part in parts for token in part]
    if apart == whole:
        return
    same = next((i for i, (a, b) in enumerate(zip(apart, whole, strict=False)) if a != b), min(len(apart), len(whole)))
    ends = np.cumsum([len(part) for part in parts[:-1]])
    cut = min(int(np.searchsorted(ends, same, side="right")), len(parts) - 2)
    raise ValueError(
        f"Between {pieces[cut]!r} and {pieces[cut + 1]!r} the tokens of the pieces differ from those of the joined "
        "text: cut before a space."
    )


def speller(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """An encoder of any text, with "?" for each character that the tokenizer cannot write.

    Raises ValueError if the tokenizer cannot write "?", such as a symbol tokenizer.
    """
    spelled = {token[0] for token in tokenizer.token_bytes if token is not None and len(token) == 1}
    if ord("?") not in spelled:
        raise ValueError("Any text can be told only in tokens for single bytes: give the tokenizer '?'.")

    def encode(text: str) -> list[int]:
        whole = text.encode(errors="replace").decode()  # half a surrogate pair has no bytes
        return tokenizer.encode("".join(c if spelled.issuperset(c.encode()) else "?" for c in whole))

    return encode
