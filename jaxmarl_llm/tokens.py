"""Text to tokens: a hub tokenizer, a symbol tokenizer, chat markers from the model's own template, phrase tables.

A tokenizer has vocab_size, end (the token that ends an utterance, or None), token_bytes (one bytes a token, None for a
control token), encode, decode and markers. A dialogue of rules, u0, a0, u1, a1 is, as tokens,

    before_rules + rules + hear_first + u0 + speak + a0 + [end] + hear + u1 + speak + a1 + [end].
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

SENTINELS = ("RULESRULES", "HEARDHEARD", "SAIDSAID", "AGAINAGAIN")


class Markers(NamedTuple):
    """What a chat template puts around the pieces of a dialogue, as token ids."""

    before_rules: tuple[int, ...] = ()
    hear_first: tuple[int, ...] = ()
    speak: tuple[int, ...] = ()
    hear: tuple[int, ...] = ()  # follows the end token of an utterance


class Tokenizer(Protocol):
    """What the rest of the package knows of a tokenizer."""

    vocab_size: int
    end: int | None
    token_bytes: tuple[bytes | None, ...]
    markers: Markers

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class Phrases(NamedTuple):
    """Every phrase an environment can show, as tokens: phrase i of field f is row offset[f] + i."""

    tokens: np.ndarray  # int32 [n, L], right-padded with zeros
    length: np.ndarray  # int32 [n]
    offset: np.ndarray  # int32 [fields]


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): printable bytes stand for themselves, others are 256, 257, ..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class HFTokenizer:
    """The byte-level BPE tokenizer of a directory with tokenizer.json and a chat template.

    Text given to `encode` is never read as control tokens; `encode_marked` reads them. A template that takes no system
    role gets the rules at the head of the first message. `vocab_size` is the model's, where that is larger.
    Raises ValueError if the tokenizer is not byte-level BPE, or its template is missing or cannot be cut into markers.
    """

    def __init__(self, directory: str | Path, vocab_size: int | None = None):
        from transformers import PreTrainedTokenizerFast  # a second to import, and only this class needs it

        path = Path(directory) / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{directory} has no tokenizer.json, which holds a fast tokenizer.")
        self._plain, self._marked = (tokenizers.Tokenizer.from_file(str(path)) for _ in range(2))
        self._plain.encode_special_tokens = True  # spell control tokens out as text
        if not isinstance(self._plain.decoder, decoders.ByteLevel):
            raise ValueError(f"{path} is not a byte-level BPE tokenizer, the only kind whose tokens have exact bytes.")
        count = self._plain.get_vocab_size()
        self.vocab_size = count if vocab_size is None else vocab_size
        if self.vocab_size < count:
            raise ValueError(f"{path} has {count} tokens, the model only {vocab_size}: they do not belong together.")
        self.token_bytes = self._bytes()
        self._spelled = {token[0] for token in self.token_bytes if token is not None and len(token) == 1}
        self._template = PreTrainedTokenizerFast.from_pretrained(str(directory))
        if not self._template.chat_template:
            raise ValueError(f"The tokenizer in {directory} has no chat template, so it cannot hold a dialogue.")
        self.markers, self.end = self._cut()

    def _bytes(self) -> tuple[bytes | None, ...]:
        alphabet = byte_alphabet()
        added = self._plain.get_added_tokens_decoder()

        def exact(index: int) -> bytes | None:
            if index in added:
                return None if added[index].special else added[index].content.encode()
            token = self._plain.id_to_token(index)  # None for the unused tail of a model's vocabulary
            if token is None or not alphabet.keys() >= set(token):  # the latter is a control token not listed as one
                return None
            return bytes(alphabet[character] for character in token)

        return tuple(exact(index) for index in range(self.vocab_size))

    def _cut(self) -> tuple[Markers, int]:
        """Cuts a rendered dialogue of sentinels where they stand; the first token after an answer ends it."""
        from jinja2 import TemplateError

        rules, *messages = SENTINELS
        for self._system_role in (True, False):
            try:
                text = self.render(rules, messages)
            except TemplateError:
                continue
            pieces = re.fullmatch("(.*)" + "(.*)".join(SENTINELS) + "(.*)", text, re.DOTALL)
            if pieces and pieces[3] == pieces[5]:
                before_rules, hear_first, speak, after = (tuple(self.encode_marked(pieces[i])) for i in range(1, 5))
                if after and self.token_bytes[after[0]] is None:
                    return Markers(before_rules, hear_first, speak, after[1:]), after[0]
        raise ValueError(
            "The chat template cannot be cut into markers: it must show rules, messages and answers unchanged and in "
            f"order, the same text before every answer, a control token after it. It is: {self._template.chat_template}"
        )

    def render(self, rules: str, messages: Sequence[str]) -> str:
        """A dialogue in the template's own text; messages alternate, heard first. One heard last brings up `speak`."""
        messages = list(messages)
        chat = [{"role": "system", "content": rules}] if self._system_role else []
        if not self._system_role:
            messages[0] = f"{rules}\n\n{messages[0]}"
        chat += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]
        answer = len(messages) % 2 == 1
        return str(self._template.apply_chat_template(chat, tokenize=False, add_generation_prompt=answer))

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text. Raises ValueError for a byte without a token (the library drops it in silence)."""
        missing = sorted(set(text.encode()) - self._spelled)
        if missing:
            raise ValueError(f"This tokenizer has no token for byte 0x{missing[0]:02x}, which {text!r} holds.")
        return self._plain.encode(text, add_special_tokens=False).ids

    def encode_marked(self, text: str) -> list[int]:
        """Token ids of a template's text, in which control tokens count as such."""
        return self._marked.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids: control tokens by name, bytes that are not UTF-8 as U+FFFD."""
        pieces = (self.token_bytes[i] for i in ids)
        names = ((self._plain.id_to_token(int(i)) or "").encode() for i in ids)
        return b"".join(name if piece is None else piece for piece, name in zip(pieces, names, strict=True)).decode(
            errors="replace"
        )


class SymbolTokenizer:
    """One token for each phrase or action text, so that a tiny policy plays in short rows; no markers and no end."""

    def __init__(self, strings: Sequence[str]):
        self.strings = tuple(dict.fromkeys(string for string in strings if string))
        self.vocab_size = len(self.strings)
        self.end: int | None = None
        self.token_bytes: tuple[bytes | None, ...] = tuple(string.encode() for string in self.strings)
        self.markers = Markers()
        self._index = {string: index for index, string in enumerate(self.strings)}

    def encode(self, text: str) -> list[int]:
        """[index] of a known string, [] of the empty one. Raises ValueError for any other."""
        if text and text not in self._index:
            raise ValueError(f"{text!r} is none of the {self.vocab_size} symbols {', '.join(map(repr, self.strings))}.")
        return [self._index[text]] if text else []

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.strings[i] for i in ids)


def compile_phrases(tokenizer: Tokenizer, fields: Sequence[Sequence[str]]) -> Phrases:
    """Tokens of every phrase of every field (a slot of an observation and the texts it may show).

    Raises ValueError for a field without phrases.
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


def widest(phrases: Phrases) -> np.ndarray:
    """Tokens of the longest phrase of each field, int32 [fields]; their sum bounds an observation."""
    if not len(phrases.offset):
        return np.zeros(0, np.int32)
    return np.maximum.reduceat(phrases.length, phrases.offset)


def pieces_agree(tokenizer: Tokenizer, pieces: Sequence[str]) -> None:
    """Checks that the tokens of the pieces, concatenated, are the tokens of the joined text.

    A row is written piece by piece, and a model should read it as it would read the whole text; pieces cut before
    spaces do. Raises ValueError that names the first boundary at which the two differ.
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


def smollm_bpe(tokens: Sequence[str], merges: Sequence[str], control: Sequence[bool]) -> tokenizers.Tokenizer:
    """The tokenizer that a GGUF with `tokenizer.ggml.pre = smollm` describes: each digit alone, then GPT-2's splits.

    transformers' own GGUF reader leaves out the digits, which shows only where several spaces or newlines precede one.
    """
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    bpe = models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs)
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, is_control in zip(tokens, control, strict=True) if is_control]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer
