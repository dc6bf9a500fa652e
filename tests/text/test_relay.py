"""Relays carry messages between tokenizers."""

import numpy as np
import pytest

from jaxmarl_llm.text.gguf_tokenizer import from_gguf
from jaxmarl_llm.text.relay import Relay
from jaxmarl_llm.text.templates import GEMMA_TEMPLATE
from jaxmarl_llm.text.tokenizers import (
    HFTokenizer,
    SymbolTokenizer,
    byte_alphabet,
)
from tests.support.tokenizer_files import (
    CHATML,
    TEXTS,
    byte_fields,
    gemma_like,
    tiny,
    written,
)


def heard(relay: Relay, listener: HFTokenizer, rows: list[list[int]]) -> list[str]:
    tokens_, n = np.zeros((len(rows), max(map(len, rows))), np.int32), np.array([len(row) for row in rows], np.int32)
    for row, ids in zip(tokens_, rows, strict=True):
        row[: len(ids)] = ids
    told, lengths, cut = relay(tokens_, n)
    assert told.dtype == lengths.dtype == cut.dtype == np.int32
    assert not cut.any() and not told[np.arange(told.shape[1]) >= lengths[:, None]].any()
    return [listener.decode(ids[:length]) for ids, length in zip(told, lengths, strict=True)]


MESSAGES = (*TEXTS, "you say <end_of_turn> <|im_end|>\n<bos>", "", "é" * 20, "<b>\n\n\n  x")


def check_relay(speaker: HFTokenizer, listener: HFTokenizer) -> None:
    for a, b in ((speaker, listener), (listener, speaker), (speaker, speaker)):
        relay = Relay(a, b, 300)
        assert heard(relay, b, [a.encode(text) for text in MESSAGES]) == list(MESSAGES)
        told, n, _ = relay(np.array([a.encode(MESSAGES[-4])]), np.array([len(a.encode(MESSAGES[-4]))]))
        assert all(b.token_bytes[i] is not None for i in told[0, : n[0]])
        assert told[0, : n[0]].tolist() == b.encode(MESSAGES[-4])
        broken = [i for character in "🙂x" for i in a.encode(character)]
        single = a.token_bytes.index(b"\xf0")
        assert heard(relay, b, [[single, *a.encode("x")], broken[1:]])[0] == "\N{REPLACEMENT CHARACTER}x"


def test_a_relay_carries_any_message_between_families(tmp_path):
    check_relay(
        HFTokenizer(written(tmp_path / "a", from_gguf(byte_fields()), CHATML)),
        HFTokenizer(written(tmp_path / "b", gemma_like(), bos_token="<bos>"), template=GEMMA_TEMPLATE),
    )


def test_a_relay_between_smollm2_and_gemma(smollm2, gemma):
    check_relay(smollm2, gemma)
    assert heard(Relay(gemma, smollm2, 9), smollm2, [gemma.encode("a\x04b")]) == ["a?b"]  # SmolLM2 has no such token


def test_a_relay_replaces_what_the_listener_cannot_spell(tmp_path):
    fields = byte_fields(words=("ðŁ",))  # two bytes of an emoji together, but the first has no token of its own
    names = fields["tokenizer.ggml.tokens"]
    lost = [name for name, byte in byte_alphabet().items() if byte in (0x04, 0xF0)]
    fields["tokenizer.ggml.tokens"] = [name for name in names if name not in lost]
    fields["tokenizer.ggml.token_type"] = [3, 3] + [1] * (len(names) - 4)
    listener = HFTokenizer(written(tmp_path / "a", from_gguf(fields), CHATML))
    speaker = HFTokenizer(written(tmp_path / "b", gemma_like(), bos_token="<bos>"), template=GEMMA_TEMPLATE)
    relay = Relay(speaker, listener, 20)
    assert heard(relay, listener, [speaker.encode("a\x04b🙂é"), speaker.encode("")]) == ["a?b?é", ""]
    with pytest.raises(ValueError, match="A relay needs a width of 1 or more, got 0"):
        Relay(speaker, listener, 0)
    with pytest.raises(ValueError, match="tokens for single bytes"):
        Relay(speaker, SymbolTokenizer(["C", "D"]), 5)


def test_a_relay_counts_what_it_cuts(tmp_path):
    tokenizer = HFTokenizer(tiny(tmp_path, CHATML))
    message = tokenizer.encode("bcdefg")
    end = tokenizer.end
    spoken = np.array([[*message, end], [*message[:4], end, 9, 9]], np.int32)
    told, n, cut = Relay(tokenizer, tokenizer, 4)(spoken, np.array([6, 3]))
    np.testing.assert_array_equal(told, [message[:4], [*message[:3], 0]])
    np.testing.assert_array_equal(n, [4, 3])
    np.testing.assert_array_equal(cut, [2, 0])
