"""Tokenizers of GGUF files against plain algorithms; Gemma 3 where its package is installed.

The long case reads Gemma's vocabulary of 262,144 tokens.
"""

import json
import random
import re
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from jaxmarl_llm.text.gguf_tokenizer import from_gguf
from jaxmarl_llm.text.templates import GEMMA_TEMPLATE
from jaxmarl_llm.text.tokenizers import (
    HFTokenizer,
    byte_alphabet,
)
from tests.support.tokenizer_files import (
    CHATML,
    GOLDEN,
    LLAMA2,
    LLAMA2_STYLES,
    LLAMA3_CONTROL,
    QWEN3,
    TEXTS,
    byte_fields,
    gemma_like,
    llama2,
    qwen,
    spm_fields,
    written,
)


def test_sentencepiece_tokens_hold_the_exact_bytes(tmp_path):
    chatml = CHATML.replace("|im_end|", "/s")
    hub = gemma_like()
    hub.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")  # as transformers writes it: splits nothing
    hub.add_tokens(["▁▁▁▁"])
    kinds = {
        "gemma": (gemma_like(), GEMMA_TEMPLATE),
        "hub": (hub, GEMMA_TEMPLATE),
        **{style: (llama2(style), chatml) for style in LLAMA2_STYLES},
    }
    for name, (built, template) in kinds.items():
        tokenizer = HFTokenizer(written(tmp_path / name, built), template=template)
        control = {i for i, token in enumerate(tokenizer.token_bytes) if token is None}
        names = "".join(tokenizer.decode([i]) for i in sorted(control))
        assert "<unk>" in names
        for text in (*TEXTS, names, "<0x0A><0x41>", "the thing\x00\x04", " the", "  the", "<b>\n\n\n   x", "a</s>"):
            ids = tokenizer.encode(text)
            assert b"".join(tokenizer.token_bytes[i] for i in ids) == text.encode()
            assert tokenizer.decode(ids) == text
            assert not control & set(ids)
        assert set(range(256)) == {token[0] for token in tokenizer.token_bytes if token and len(token) == 1}


def test_user_defined_tokens_are_read_in_plain_text(tmp_path):
    tokenizer = HFTokenizer(written(tmp_path, gemma_like(), bos_token="<bos>"), template=GEMMA_TEMPLATE)
    read = [tokenizer.decode([i]) for i in tokenizer.encode("a\n\n\nb     the<b>")]
    assert read == ["a", "\n\n", "\n", "b", "   ", "  ", "th", "e", "<b>"]
    qwen3 = HFTokenizer(written(tmp_path, qwen(), QWEN3))
    assert [qwen3.decode([i]) for i in qwen3.encode("<think><tool_call></think>")] == [
        "<think>",
        "<tool_call>",
        "</think>",
    ]


def test_a_control_token_that_merges_would_spell_is_not_encoded(tmp_path):
    """Merges of some published files can make </s> of its letters."""
    file = json.loads(from_gguf(spm_fields(prefix=False)).to_str())
    file["model"]["merges"].append(["</", "s>"])
    tokenizer = HFTokenizer(
        written(tmp_path, tokenizers.Tokenizer.from_str(json.dumps(file)), LLAMA2, bos_token="<s>", eos_token="</s>")
    )
    tokenizer._tokenizer.encode_special_tokens = True
    assert tokenizer.end in tokenizer._tokenizer.encode("the </s>x").ids
    for text in ("the </s>x", "</s>", "</s></s> </s", "<s></s>🙂</s>", "</s>" * 20_000):  # all cut in one pass
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(tokenizer.token_bytes[i] is not None for i in ids)


def sentencepiece_ids(text: str, ids: dict[str, int], rank: dict[str, float], user: list[str]) -> list[int]:
    """SentencePiece's algorithm: cut out user-defined pieces, then merge the best-ranked neighbours, leftmost first."""
    found = []
    cut = "|".join(re.escape(piece) for piece in sorted(user, key=len, reverse=True)) or "(?!)"
    for number, part in enumerate(re.split(f"({cut})", text.replace(" ", "▁"))):
        if number % 2:
            found.append(ids[part])
            continue
        symbols = list(part)
        while True:
            pairs = [(rank[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in rank]
            if not pairs:
                break
            i = min(pairs)[1]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        for symbol in symbols:
            found += [ids[symbol]] if symbol in rank else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


def strange_texts(count: int, seed: int = 0) -> list[str]:
    """Random texts of this file's characters and runs, of words, of code, of several scripts."""
    draw = random.Random(seed)
    source = Path(__file__).read_text() + " ".join(TEXTS)
    odd = [
        *"aabA -=.#_'<>/\n\t 0123",
        *TEXTS[2],
        "  ",
        "the",
        " the",
        "\n\n",
        "<b>",
        "</s>",
        "ing",
        "▁",
        "\x00",
        "\u2003",
    ]
    texts = ["".join(draw.choices(odd, k=draw.randint(1, 50))) for _ in range(count)]
    starts = [draw.randrange(len(source) - 200) for _ in range(count)]
    texts += [source[start : start + draw.randint(1, 150)] for start in starts]
    return texts + [character * size for character in "a-= \n\t_0▁" for size in (2, 3, 4, 5, 7, 9, 15, 31, 32, 33, 64)]


@pytest.mark.long
def test_gemma_tokens_are_those_of_sentencepiece(gemma):
    added = gemma._tokenizer.get_added_tokens_decoder()
    names = [name.replace(" ", "▁") for name in gemma._names]
    ids = {name: i for i, name in enumerate(names)}
    # The scores of its normal tokens fall with the id.
    rank = {name: i for name, i in ids.items() if i not in added and not re.fullmatch("<0x..>", name)}
    user = [names[i] for i, token in added.items() if not token.special]
    assert (len(ids), len(rank), len(user)) == (262144, 255474, 165)
    for text in strange_texts(300):
        assert gemma.encode(text) == sentencepiece_ids(text, ids, rank, user), text


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_merges_follow_the_scores(tmp_path, prefix):
    """With a vocabulary of all pieces of some text, scored at random, so that one token can be made in many ways."""
    draw = random.Random(3)
    source = "the thing thinks that these things sing:\n3 - 2 = 1, 1 + 1 = 2; ---- ==== aaaa".replace(" ", "▁")
    pieces = sorted({source[i : i + size] for i in range(len(source)) for size in (1, 2, 3, 4)} - {""})
    draw.shuffle(pieces)
    fields = spm_fields(("<s>", "</s>"), ("<b>", "▁▁"), tuple(pieces), prefix)
    tokenizer = HFTokenizer(written(tmp_path, from_gguf(fields)), template=CHATML.replace("|im_end|", "/s"))
    names, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    ids = {name: i for i, name in enumerate(names)}
    rank = {
        name: -score for name, score, of in zip(names, fields["tokenizer.ggml.scores"], types, strict=True) if of == 1
    }
    words = source.replace("▁", " ").split(" ")
    for text in [*(" ".join(draw.choices(words, k=12)) for _ in range(200)), *strange_texts(100)]:
        if not prefix or "▁" not in text:  # a user-defined ▁▁ is matched before spaces are replaced, behind a prefix
            assert tokenizer.encode(text) == sentencepiece_ids(text, ids, rank, ["<b>", "▁▁"]), text


def test_parity_of_gemma_tokens(gemma):
    golden = json.loads((GOLDEN / "tokens_gemma3.json").read_text())
    assert len(golden) > 100
    for text, ids in golden.items():
        assert gemma.encode(text) == ids, text
    assert gemma.vocab_size == 262144
    assert [gemma.decode(marker) for marker in gemma.markers] == [
        "<bos><start_of_turn>user\n",
        "\n\n",
        "<end_of_turn>\n<start_of_turn>model\n",
        "\n<start_of_turn>user\n",
    ]


def byte_bpe(text: str, split: list[str], vocabulary: dict[str, int], ranks: dict[tuple[str, str], int]) -> list[int]:
    """Byte-level BPE in plain Python: cut by one pattern after the other, then merge the pair of lowest rank."""
    regex = pytest.importorskip("regex")
    words = [text]
    for pattern in split:
        words = [part for word in words for part in regex.findall(pattern, word)]
    assert "".join(words) == text
    spell = {byte: character for character, byte in byte_alphabet().items()}
    found = []
    for word in words:
        symbols = [spell[byte] for byte in word.encode()]
        while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks]:
            i = min(pairs)[1]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        found += [vocabulary[symbol] for symbol in symbols]
    return found


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2"])
def test_byte_level_tokenizers_of_a_gguf(tmp_path, pre):
    """Against plain Python, with merges learnt across words, digits and newlines, so that the splits show."""
    pytest.importorskip("transformers")
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    trainer.max_token_length = 6
    learner.train_from_iterator(strange_texts(300, seed=1), trainer)
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    fields = byte_fields(merges=[" ".join(pair) for pair in merges], pre=pre)
    tokenizer = HFTokenizer(written(tmp_path, from_gguf(fields)), template=CHATML)
    vocabulary = {name: i for i, name in enumerate(fields["tokenizer.ggml.tokens"])}
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    split = {
        "smollm": [r"\p{N}|\P{N}+", gpt2],
        "llama-bpe": [PRETOKENIZE_REGEX.replace(r"\p{N}|", r"\p{N}{1,3}|")],
        "qwen2": [PRETOKENIZE_REGEX],
    }[pre]
    ranks = {pair: i for i, pair in enumerate(merges)}
    differs = 0
    for text in strange_texts(150, seed=2):
        read = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert tokenizer.encode(text) == byte_bpe(read, split, vocabulary, ranks), text
        assert tokenizer.decode(tokenizer.encode(text)) == read
        differs += tokenizer.encode(text) != byte_bpe(read, [r"(?s).+"], vocabulary, ranks)
    assert differs > 50


def test_llama_3_takes_a_word_that_is_a_token_as_it_is():
    for pre, whole in (("llama-bpe", True), ("qwen2", False)):
        tokenizer = from_gguf(byte_fields(pre=pre, words=("Ġxyz",)))
        assert (tokenizer.encode(" xyz", add_special_tokens=False).tokens == ["Ġxyz"]) == whole


def test_a_ggufs_tokenizer_begins_texts_as_the_model_learnt_to():
    assert from_gguf(spm_fields()).encode("the").tokens == ["<s>", "▁the"]
    assert from_gguf(spm_fields() | {"tokenizer.ggml.add_bos_token": False}).encode("the").tokens == ["▁the"]
    assert from_gguf(byte_fields(LLAMA3_CONTROL, pre="llama-bpe")).encode("h").tokens == ["<|begin_of_text|>", "h"]
    assert from_gguf(byte_fields()).encode("h").tokens == ["h"]


def test_gguf_tokenizers_that_are_not_known_are_refused():
    for wrong in ({"tokenizer.ggml.model": "bert"}, {"tokenizer.ggml.pre": "tekken"}):
        with pytest.raises(
            ValueError, match=r"model '.*', pre '.*'; possible are llama, and gpt2 with pre smollm, llama-"
        ):
            from_gguf(byte_fields() | wrong)
    with pytest.raises(ValueError, match="without merges"):
        from_gguf({key: value for key, value in byte_fields().items() if not key.endswith("merges")})
    with pytest.raises(ValueError, match="of model None"):
        from_gguf({})


def test_unused_tokens_are_never_said(tmp_path):
    fields = byte_fields(words=("[PAD1]",))
    fields["tokenizer.ggml.token_type"][-1] = 5
    tokenizer = HFTokenizer(written(tmp_path, from_gguf(fields), CHATML), vocab_size=300)
    assert tokenizer.token_bytes[fields["tokenizer.ggml.tokens"].index("[PAD1]")] is None
    assert set(tokenizer.token_bytes[len(fields["tokenizer.ggml.tokens"]) :]) == {None}


def write_golden(gguf_file: str) -> None:
    """Token ids of texts that transformers reads from Gemma's GGUF. It differs from SentencePiece, and is wrong, where
    32 spaces or more follow each other."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(Path(gguf_file).parent), gguf_file=Path(gguf_file).name)
    texts = [text for text in dict.fromkeys((*TEXTS, *strange_texts(60))) if " " * 32 not in text.replace("▁", " ")]
    ids = {text: theirs.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts}
    lines = (f"{json.dumps(text)}: {json.dumps(found, separators=(',', ':'))}" for text, found in ids.items())
    (GOLDEN / "tokens_gemma3.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    import sys

    write_golden(sys.argv[1])
