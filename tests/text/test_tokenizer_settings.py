"""Settings of tokenizer.json: those of training are off on loading, flags of tokens and settings of the model lose no
text, and what no text survives is refused."""

import json
import re
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from jaxmarl_llm.text.gguf_tokenizer import from_gguf
from jaxmarl_llm.text.tokenizers import HFTokenizer
from tests.support.tokenizer_files import CHATML, LLAMA2, TEXTS, byte_fields, llama2, spm_fields, written

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


FLAGS = "lstrip", "rstrip", "single_word", "normalized"
THINKS = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ' <think> -\n' + m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant <think> -\n' }}{% endif %}"
)
THINKING = {
    "byte-level": (lambda: from_gguf(byte_fields(("<unk>", "<s>", "</s>"), ("<think>",), words=("Ġthe",))), THINKS),
    "SentencePiece": (lambda: from_gguf(spm_fields(user=("<think>",))), LLAMA2),
}
HOSTILE = (*TEXTS, " a <think>  a", "<think>", "a<think>b", " </s> a<s>", "<unk>", "<0x41>", "<0x0A> <0x0A>", "the the")
THOUGHTFUL: dict[str, tuple[HFTokenizer, Tokenizer]] = {}


def thinking(directory, kind: str, change: Callable[[dict], object]) -> tuple[HFTokenizer, Tokenizer]:
    """(the tokenizer of a changed file, the library's of the same file)."""
    build, template = THINKING[kind]
    file = json.loads(build().to_str())
    change(file)
    library = Tokenizer.from_str(json.dumps(file))
    return HFTokenizer(written(directory, library, template, bos_token="<s>", eos_token="</s>")), library


def unchanged(directory, kind: str) -> tuple[HFTokenizer, Tokenizer]:
    if kind not in THOUGHTFUL:
        THOUGHTFUL[kind] = thinking(directory / "unchanged", kind, lambda file: None)
    return THOUGHTFUL[kind]


def flags(names: str, special: bool) -> Callable[[dict], None]:
    def change(file: dict) -> None:
        for token in file["added_tokens"]:
            token |= dict.fromkeys(names.split(), True) if token["special"] == special else {}

    return change


def says_the_text(tokenizer: HFTokenizer, text: str) -> list[int]:
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes[i] or b"a control token" for i in ids) == text.encode()
    return ids


def prompt(tokenizer: HFTokenizer) -> tuple[str, str]:
    """A dialogue as the template renders it, and as `render` does: without the spaces that tokens take."""
    taken, tokenizer._taken = tokenizer._taken, re.compile("(?!)")
    whole = tokenizer.render("Go.", ["Hear."])
    tokenizer._taken = taken
    return whole, tokenizer.render("Go.", ["Hear."])


@pytest.mark.parametrize("flag", [*FLAGS, "rstrip single_word"])
@pytest.mark.parametrize("kind", THINKING)
def test_flags_of_plain_tokens_lose_no_text(tmp_path, kind, flag):
    """A token's spaces are tokens of their own in a text, and taken in a template, as in the library."""
    (plain, _), (changed, library) = unchanged(tmp_path, kind), thinking(tmp_path, kind, flags(flag, special=False))
    (think,) = plain.encode("<think>")
    for text in HOSTILE:
        alone = "single_word" not in flag or "a<think>b" not in text
        assert (says_the_text(changed, text) == plain.encode(text)) == alone, text
    assert (think in changed.encode("a<think>b")) == ("single_word" not in flag)
    whole, rendered = prompt(changed)
    assert changed.encode_marked(rendered) == library.encode(whole, add_special_tokens=False).ids
    assert (changed.markers == plain.markers) == ("strip" not in flag or kind == "SentencePiece")


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("kind", THINKING)
def test_flags_of_control_tokens_hide_none_in_a_template(tmp_path, kind, flag):
    """A control token of a template is read as one, also where the library would spell a word in place of it."""
    plain, _ = unchanged(tmp_path, kind)
    if (kind, flag) == ("byte-level", "lstrip"):
        with pytest.raises(ValueError, match=r"an empty message is .*tokenizer\.json take spaces.* \(lstrip, rstrip\)"):
            thinking(tmp_path, kind, flags(flag, special=True))
        return
    changed, library = thinking(tmp_path, kind, flags(flag, special=True))
    for text in HOSTILE:
        assert says_the_text(changed, text) == plain.encode(text)
    whole, rendered = prompt(changed)
    ids = changed.encode_marked(rendered)
    told = [changed.decode([i]) for i in ids if changed.token_bytes[i] is None]
    assert told == re.findall("</?s>", whole) and changed.decode([changed.end]) == "</s>"
    if flag in ("lstrip", "rstrip"):
        assert ids == library.encode(whole, add_special_tokens=False).ids
    elif (kind, flag) == ("SentencePiece", "normalized"):  # the space before a text goes before the token
        assert changed.decode(ids) == whole
    else:
        assert changed.markers == plain.markers and ids == plain.encode_marked(rendered)


@pytest.mark.parametrize("key", ["ignore_merges", "fuse_unk", "byte_fallback"])
@pytest.mark.parametrize("kind", THINKING)
def test_settings_of_the_model_lose_no_text(tmp_path, kind, key):
    """A text that is the name of a byte stays that text, where whole words of the vocabulary are single tokens."""
    plain, _ = unchanged(tmp_path, kind)
    change = lambda file: file["model"].update({key: not file["model"][key]})
    if (kind, key) == ("SentencePiece", "byte_fallback"):
        with pytest.raises(ValueError, match=r"tokenizer\.json is neither .* fall back to \(byte_fallback\)"):
            thinking(tmp_path, kind, change)
        return
    changed, library = thinking(tmp_path, kind, change)
    library.encode_special_tokens, library.normalizer = True, changed._tokenizer.normalizer
    assert (changed.markers, changed.token_bytes, changed.end) == (plain.markers, plain.token_bytes, plain.end)
    for text in HOSTILE:
        ids = says_the_text(changed, text)
        named = kind == "SentencePiece" and text in ("</s>", "<unk>", "<0x41>")
        if key == "ignore_merges" and not named:
            assert ids == library.encode(text, add_special_tokens=False).ids
        elif key != "ignore_merges":
            assert ids == plain.encode(text)
    whole_words = kind == "byte-level" and key == "ignore_merges"
    assert (changed.encode(" the") != plain.encode(" the")) == whole_words


@pytest.mark.parametrize("fused", [False, True])
def test_unknown_bytes_are_refused_and_not_fused(tmp_path, fused):
    def change(file: dict) -> None:
        file["model"]["fuse_unk"] = fused
        del file["model"]["vocab"]["<0xF0>"]

    changed, _ = thinking(tmp_path, "SentencePiece", change)
    with pytest.raises(ValueError, match=r"no token for byte 0xf0"):
        changed.encode("a 🙂🙂 b")
    assert changed.decode(changed.encode("é")) == "é"
