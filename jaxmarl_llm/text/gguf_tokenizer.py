"""Conversion of the tokenizer in a GGUF file to one of the `tokenizers` library, which saves it as tokenizer.json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from jaxmarl_llm.text.refusals import FLAG, WORD, WORDS, Kind, join_problems, list_of, misfits, quote, whole

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = range(1, 6)  # tokenizer.ggml.token_type; 6 is a byte

# Words within which Llama 3 and Qwen2.5 merge bytes; %s is the number of digits in a group, their only difference.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {  # tokenizer.ggml.pre: the splits before GPT-2's alphabet of bytes
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
    "llama-bpe": [
        pre_tokenizers.Split(Regex(SPLIT % "{1,3}"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "qwen2": [
        pre_tokenizers.Split(Regex(SPLIT % ""), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


KEY = "tokenizer.ggml."
IDS = "bos", "eos", "unknown", "padding"
FINITE = Kind("a finite number", lambda x: isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x))
KINDS = {
    **{f"{KEY}{name}": WORD for name in ("model", "pre")},
    **{f"{KEY}{name}": WORDS for name in ("tokens", "merges")},
    **{f"{KEY}{name}": FLAG for name in ("add_bos_token", "add_space_prefix")},
    f"{KEY}token_type": list_of(whole(1, 6), "a list of numbers from 1 to 6"),
    f"{KEY}scores": list_of(FINITE, "a list of finite numbers"),
    "tokenizer.chat_template": WORD,
}
MOST_LETTERS = 1 << 10  # in a token: every cut of it is tried


def check(fields: Mapping[str, Any]) -> None:
    """Raises ValueError that lists all problems of a GGUF's tokenizer metadata, {key: value}."""
    if wrong := misfits(fields, KINDS):
        raise ValueError(f"{join_problems(wrong)}.")
    kind, pre = fields.get(f"{KEY}model"), fields.get(f"{KEY}pre", "default")
    tables = {"gpt2": ("tokens", "token_type", "merges"), "llama": ("tokens", "token_type", "scores")}
    missing = [name for name in tables.get(str(kind), ()) if f"{KEY}{name}" not in fields]
    if kind not in tables or (kind == "gpt2" and pre not in BYTE_LEVEL) or missing:
        raise ValueError(
            f"The GGUF describes a tokenizer of model {kind!r}, pre {pre!r}{', without ' if missing else ''}"
            f"{', '.join(missing)}; possible are llama, and gpt2 with pre {', '.join(BYTE_LEVEL)}."
        )
    tokens = fields[f"{KEY}tokens"]
    count, known = len(tokens), set(tokens)
    if not tokens:
        raise ValueError(f"{KEY}tokens holds no token.")
    problems = misfits(fields, {f"{KEY}{name}_token_id": whole(0, count - 1) for name in IDS})
    problems += [
        f"{KEY}{name} holds {len(fields[KEY + name])} values for {count} tokens"
        for name in ("token_type", "scores")
        if name in tables[kind] and len(fields[KEY + name]) != count
    ]
    if kind == "llama" and (longest := max(tokens, key=len, default=""))[MOST_LETTERS:]:
        problems.append(f"{KEY}tokens holds a token of {len(longest)} characters, at most {MOST_LETTERS} are read")
    for merge in fields[f"{KEY}merges"] if kind == "gpt2" else ():
        left, _, right = merge.partition(" ")
        if not (left and right and {left, right, left + right} <= known):
            problems.append(f"{KEY}merges holds {quote(merge)}, which joins no two tokens to a third")
    bos = fields.get(f"{KEY}bos_token_id")
    if not problems and bos is not None and (tokens[bos].startswith("$") or ":" in tokens[bos]):
        problems.append(f"{KEY}bos_token_id is the token {quote(tokens[bos])}, which cannot begin a text")
    if problems:
        raise ValueError(f"{join_problems(problems)}.")


def from_gguf(fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer that a GGUF's metadata, {key: value}, describes: byte-level BPE or SentencePiece's BPE.

    Raises ValueError for another kind of tokenizer, and for values that do not fit; it names the keys.
    """
    check(fields)
    kind, pre = fields[f"{KEY}model"], fields.get(f"{KEY}pre", "default")
    tokens, types = fields[f"{KEY}tokens"], fields[f"{KEY}token_type"]
    prefix = fields.get(f"{KEY}add_space_prefix", True)
    if kind == "gpt2":
        tokenizer = byte_level(tokens, fields[f"{KEY}merges"], pre)
    else:
        merges = merges_by_score(tokens, types, fields[f"{KEY}scores"])
        # llama.cpp writes a run of spaces as spaces, older files with U+2581.
        tokens = [
            t.replace("\u2581", " ") if type_ == USER_DEFINED else t for t, type_ in zip(tokens, types, strict=True)
        ]
        tokenizer = sentencepiece(tokens, merges, tokens[fields.get(f"{KEY}unknown_token_id", 0)], prefix)
    # SentencePiece matches user-defined tokens once spaces are U+2581; a prefix would be put before them too.
    normalized = kind == "llama" and not prefix
    special = {UNKNOWN, CONTROL, UNUSED}
    by_type = list(zip(tokens, types, strict=True))
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, type_ in by_type if type_ in special]
    )
    tokenizer.add_tokens([AddedToken(t, normalized=normalized) for t, type_ in by_type if type_ == USER_DEFINED])
    bos = fields.get(f"{KEY}bos_token_id")
    if bos is not None and fields.get(f"{KEY}add_bos_token", kind == "llama" or pre == "llama-bpe"):  # as llama.cpp
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], pair=[tokens[bos], "$A", "$B"], special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer


def ids_of(tokens: Sequence[str]) -> dict[str, int]:
    """{token: id}. Raises ValueError if two tokens have the same text."""
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise ValueError(f"{KEY}tokens holds {quote(Counter(tokens).most_common(1)[0][0])} twice.")
    return ids


def byte_level(tokens: Sequence[str], merges: Sequence[str], pre: str) -> tokenizers.Tokenizer:
    """Byte-level BPE. In Llama 3's, a word that is a token stays one token, even if the merges give another split.

    transformers' GGUF reader lacks SmolLM2's split at digits. The results differ only if several spaces or newlines
    precede a digit.
    """
    vocabulary = ids_of(tokens)
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(BYTE_LEVEL[pre])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece(
    tokens: Sequence[str], merges: list[tuple[str, str]], unknown: str, prefix: bool
) -> tokenizers.Tokenizer:
    """SentencePiece's BPE as Hugging Face stores it. `prefix` puts a space before every text, as in Llama 2."""
    vocabulary = ids_of(tokens)
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def merges_by_score(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges (left, right) of a SentencePiece BPE, which stores scores only: all splits of a token into two tokens.

    Tokens come by falling score, the splits of a token by falling length of the left part, as in transformers. Only
    normal tokens are merged: text must not yield control tokens, and user-defined tokens are matched before any merge.
    """
    normal = {token: score for token, type_, score in zip(tokens, types, scores, strict=True) if type_ == NORMAL}
    best_first = sorted(normal, key=normal.__getitem__, reverse=True)
    return [
        (token[:cut], token[cut:])
        for token in best_first
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in normal and token[cut:] in normal
    ]
