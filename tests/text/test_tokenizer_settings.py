"""Settings of training in tokenizer.json: off on loading, whatever the file says; what no text survives is refused."""

import json
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from jaxmarl_llm.text.gguf_tokenizer import from_gguf
from jaxmarl_llm.text.tokenizers import HFTokenizer
from tests.support.tokenizer_files import CHATML, LLAMA2, TEXTS, byte_fields, llama2, written

ENDS = ("<s>", 1), ("</s>", 2)
KINDS = {
    "byte-level": (lambda: from_gguf(byte_fields(("<unk>", "<s>", "</s>"))), CHATML.replace("|im_end|", "/s")),
    "SentencePiece": (lambda: llama2("first"), LLAMA2),
}


def drop(share: float) -> Callable[[Tokenizer], None]:
    return lambda tokenizer: setattr(tokenizer.model, "dropout", share)


def process(processor) -> Callable[[Tokenizer], None]:
    return lambda tokenizer: setattr(tokenizer, "post_processor", processor)


SETTINGS: dict[str, Callable[[Tokenizer], None]] = {
    "truncation": lambda tokenizer: tokenizer.enable_truncation(4),
    "truncation to nothing": lambda tokenizer: tokenizer.enable_truncation(0),
    "truncation with a stride": lambda tokenizer: tokenizer.enable_truncation(6, stride=2, direction="left"),
    "padding": lambda tokenizer: tokenizer.enable_padding(length=64),
    "padding on the left": lambda tokenizer: tokenizer.enable_padding(direction="left", pad_id=2, length=64),
    "padding to a multiple": lambda tokenizer: tokenizer.enable_padding(pad_to_multiple_of=8),
    "padding and truncation": lambda tokenizer: (tokenizer.enable_padding(length=9), tokenizer.enable_truncation(9)),
    "dropout of half": drop(0.5),
    "dropout of all": drop(1.0),
    "a template": process(processors.TemplateProcessing("<s> $A </s>", "$A $B", ENDS)),
    "BERT's ends": process(processors.BertProcessing(*ENDS)),
    "RoBERTa's ends and spans": process(processors.RobertaProcessing(*ENDS)),
    "trimmed spans": process(processors.ByteLevel(trim_offsets=True)),
    "processors in turn": process(
        processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing("<s> $A", "$A $B", ENDS)])
    ),
}
PLAIN: dict[str, HFTokenizer] = {}


def loaded(directory, kind: str, change: Callable[[Tokenizer], object] = lambda tokenizer: None) -> HFTokenizer:
    build, template = KINDS[kind]
    tokenizer = build()
    change(tokenizer)
    return HFTokenizer(written(directory, tokenizer, template, bos_token="<s>", eos_token="</s>"))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_training_are_off_on_loading(tmp_path, kind, setting):
    plain = PLAIN.get(kind) or PLAIN.setdefault(kind, loaded(tmp_path / "plain", kind))
    changed = loaded(tmp_path / "changed", kind, SETTINGS[setting])
    for text in (*TEXTS, " a the thing" * 20, "</s> in a text, <s></s>", " a </s> a"):
        for _ in range(4 if "dropout" in setting else 1):
            assert changed.encode(text) == plain.encode(text), text
        assert changed.encode_marked(f"<s>{text}</s>") == plain.encode_marked(f"<s>{text}</s>")
    same = "markers", "end", "token_bytes", "trims", "vocab_size"
    assert all(getattr(changed, name) == getattr(plain, name) for name in same)


def test_the_library_has_no_settings_but_those_seen_here():
    """A setting that a later version of `tokenizers` adds has to be looked at."""
    file = json.loads(from_gguf(byte_fields()).to_str())
    assert file.keys() == {
        *("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer"),
        *("post_processor", "decoder", "model"),
    }
    assert file["model"].keys() == {
        *("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk"),
        *("byte_fallback", "ignore_merges", "vocab", "merges"),
    }


def edited(change: Callable[[dict], object]) -> Tokenizer:
    file = json.loads(from_gguf(byte_fields()).to_str())
    change(file)
    return Tokenizer.from_str(json.dumps(file))


def unigram() -> Tokenizer:
    """Unigram with sampling (alpha, nbest_size)."""
    pieces = [("<unk>", -9.0), ("<|im_start|>", -9.0), ("<|im_end|>", -9.0)]
    pieces += [(character, -1.0) for character in pre_tokenizers.ByteLevel.alphabet()]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("xx", -1.5)], 0, False, alpha=0.5, nbest_size=4))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return tokenizer


def replace(name: str, part) -> Callable[[], Tokenizer]:
    def build() -> Tokenizer:
        tokenizer = from_gguf(byte_fields())
        before = {"normalizer": normalizers, "pre_tokenizer": pre_tokenizers}[name]
        kept = getattr(tokenizer, name)
        setattr(tokenizer, name, before.Sequence([part, kept] if kept else [part]))
        return tokenizer

    return build


def spell(tokenizer: dict, **settings: str) -> None:
    """BPE marks where words begin or end: the tokens have other bytes than the text."""
    tokenizer["model"] |= settings
    vocabulary = tokenizer["model"]["vocab"]
    before, behind = (settings.get(name, "") for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    for name in list(vocabulary):
        vocabulary.setdefault(f"{before}{name}{behind}", len(vocabulary))


CHANGING = {
    "Unigram sampling": (unigram, "neither byte-level BPE nor"),
    "an end of words": (lambda: edited(lambda file: spell(file, end_of_word_suffix="</w>")), "reads ' xx x '"),
    "a mark within words": (lambda: edited(lambda file: spell(file, continuing_subword_prefix="#")), "reads ' xx x '"),
    "a first space": (replace("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)), "reads ' xx x '"),
    "stripped texts": (replace("normalizer", normalizers.Strip()), "reads ' xx x ' as 'xx x'"),
    "dropped spaces": (replace("pre_tokenizer", pre_tokenizers.WhitespaceSplit()), "reads ' xx x ' as 'xxx'"),
    "dropped characters": (replace("normalizer", normalizers.Replace("xx", "x")), "reads ' xx x ' as ' x x '"),
}


@pytest.mark.parametrize("setting", CHANGING)
def test_tokens_that_hold_another_text_are_refused(tmp_path, setting):
    build, reason = CHANGING[setting]
    with pytest.raises(ValueError, match=rf"tokenizer\.json .*{reason}"):
        HFTokenizer(written(tmp_path, build(), CHATML))
