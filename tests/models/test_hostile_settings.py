"""Settings that cannot be: token tables of a GGUF and rotary embeddings of both kinds of files. One sentence names the
file and the key."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxmarl_llm.models.config import Rope
from jaxmarl_llm.models.gguf_files import config_of
from jaxmarl_llm.models.hf_config import read_config
from jaxmarl_llm.text.gguf_tokenizer import from_gguf
from tests.support.families import weights
from tests.support.tokenizer_files import byte_fields, spm_fields

TOKENIZER = "tokenizer.ggml."
BASES = {"byte-level": byte_fields(), "SentencePiece": spm_fields(user=("<b>",))}
NAN, INFINITE = float("nan"), float("inf")
NO_TABLE = [3, -1, 2.5, NAN, True, "x", [], [1], ["x"]]
NO_ID = [-1, 2.5, NAN, True, "0", [], [0], 10**9, 2**32 - 1]
NO_WORD = [3, 2.5, NAN, True, [], ["gpt2"]]
NO_FLAG = [1, 0, 2.5, NAN, "true", [], [True]]


def alike(value: Any, base: dict) -> list:
    return [value] * len(base[f"{TOKENIZER}tokens"])


def cases() -> list[tuple[str, str, Sequence]]:
    """(kind, key, contents that do not belong there)."""
    made: list[tuple[str, str, Sequence]] = []
    for kind, base in BASES.items():
        tokens = base[f"{TOKENIZER}tokens"]
        wrong: dict[str, Sequence] = {
            "tokens": [
                *NO_TABLE,
                alike(1, base),
                alike("a", base),
                alike("", base),
                [*tokens[:-1], tokens[0]],
                tokens[1:],
            ],
            "token_type": [
                *NO_TABLE,
                *(alike(x, base) for x in (2.5, 3.0, "3", 0, 7, -1, True, NAN)),
                alike(1, base)[1:],
            ],
            "model": [*NO_WORD, "bert"],
            **{f"{name}_token_id": [*NO_ID, len(tokens)] for name in ("bos", "eos", "unknown", "padding")},
            **{name: NO_FLAG for name in ("add_bos_token", "add_space_prefix")},
        }
        if kind == "byte-level":
            wrong["merges"] = [
                *(x for x in NO_TABLE if x != []),
                ["a b", "ab"],
                ["a  b"],
                [" a"],
                ["a "],
                ["a zz"],
                ["zz a"],
            ]
            wrong["merges"] += [["a b"], ["Ġ a", 3], ["\x00 a"]]
            wrong["pre"] = [*NO_WORD, "tekken"]
        else:
            wrong["scores"] = [
                *NO_TABLE,
                *(alike(x, base) for x in ("1", True, NAN, INFINITE, -INFINITE)),
                alike(1.0, base)[1:],
            ]
        made += [(kind, f"{TOKENIZER}{key}", values) for key, values in wrong.items()]
        made.append((kind, "tokenizer.chat_template", (3, [], ["x"], True)))
    return made


@pytest.mark.parametrize(("kind", "key", "values"), cases(), ids=lambda x: x if isinstance(x, str) else "")
def test_a_table_of_another_kind_is_refused_by_its_key(kind, key, values):
    known = key if key not in (f"{TOKENIZER}model", f"{TOKENIZER}pre") else key.rpartition(".")[2]
    for value in values:
        with pytest.raises(ValueError) as error:
            from_gguf(BASES[kind] | {key: value})
        text = str(error.value)
        # A list of too few tokens makes the other tables wrong.
        assert known in text or (key.endswith("tokens") and "token" in text), (value, text)
        assert len(text) <= 400 and "\n" not in text and text.endswith("."), text


@pytest.mark.parametrize("name", ["$A", "$B:1", "x:1", "$", "a:b"])
def test_a_first_token_that_the_library_would_take_for_another_is_refused(name):
    with pytest.raises(ValueError, match=r"bos_token_id is the token .* which cannot begin a text"):
        from_gguf(spm_fields(control=(name, "</s>")))


def test_a_long_token_is_not_cut_for_hours():
    with pytest.raises(ValueError, match="a token of 2000000 characters, at most 1024 are read"):
        from_gguf(spm_fields(words=("a" * 2_000_000,)))


SIZES = {"vocab_size": 19, "hidden_size": 64, "intermediate_size": 24, "num_hidden_layers": 7, "num_attention_heads": 8}
LLAMA = {"general.architecture": "llama", "llama.embedding_length": 64, "llama.feed_forward_length": 24}
LLAMA |= {"llama.block_count": 2, "llama.attention.head_count": 8, "llama.attention.head_count_kv": 2}
LLAMA |= {"llama.context_length": 64, "llama.attention.layer_norm_rms_epsilon": 1e-5}
NO_ANGLE = ["x", "", [], [2.0], {}, NAN, INFINITE, -1, -2.5, 0, 0.0, True, 1e-40, 1e-7, 1e31, 10**400]
YARN = {"factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}
SCALINGS: dict[str, dict] = {
    "linear": {"factor": 2.0},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": YARN,
    "longrope": {
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 4,
        "long_factor": [1.0] * 4,
    },
}
ANGLES = {
    (kind, key): [
        value for value in NO_ANGLE if not (key.startswith("original") and value in (INFINITE, 1e31, 10**400))
    ]
    for kind, scaling in SCALINGS.items()
    for key in (*scaling, "rope_theta")
}
ANGLES["yarn", "rope_theta"] += [1.0, 1, 0.5]
ANGLES["llama3", "high_freq_factor"] += [1.0, 0.5]
ANGLES["longrope", "original_max_position_embeddings"] += [1]
ANGLES["longrope", "short_factor"] += [[1.0, 1.0, 1.0, 0.0], [1.0]]
ANGLES["longrope", "long_factor"] += [[1.0, "x"], [NAN] * 4]


def refusal(directory, **given) -> str:
    (directory / "config.json").write_text(json.dumps(given))
    with pytest.raises(ValueError) as error:
        read_config(directory / "config.json")
    text = str(error.value)
    assert str(directory / "config.json") in text and text.endswith(".") and "\n" not in text and len(text) <= 600
    return text


@pytest.mark.parametrize(("kind", "key"), ANGLES)
def test_a_rotary_embedding_that_cannot_be_is_refused_by_its_key(tmp_path, kind, key):
    for value in ANGLES[kind, key]:
        scaling = {"rope_type": kind, **SCALINGS[kind], key: value}
        assert key in refusal(tmp_path, model_type="llama", **SIZES, rope_parameters=scaling)
        if key != "rope_theta":
            assert key in refusal(tmp_path, model_type="llama", **SIZES, rope_scaling=scaling)
            layers = {"full_attention": {}, "sliding_attention": scaling}
            assert key in refusal(tmp_path, model_type="gemma3_text", **SIZES, head_dim=8, rope_parameters=layers)


@pytest.mark.parametrize("value", [3, 0, "", "x", [], [1], True, False, 0.0, NAN])
def test_what_is_no_table_of_a_rotary_embedding_is_refused(tmp_path, value):
    for key in ("rope_scaling", "rope_parameters"):
        assert f"{key} is" in refusal(tmp_path, model_type="llama", **SIZES, **{key: value})
    for key in ("full_attention", "sliding_attention"):
        given = {"model_type": "gemma3_text", **SIZES, "rope_parameters": {key: value}}
        assert f"{key} is" in refusal(tmp_path, **given)


@pytest.mark.parametrize("value", ["x", [], [1], NAN, INFINITE, -1, 0, 2.0, True, {}, 10**400])
def test_the_part_of_a_head_that_phi_3_rotates(tmp_path, value):
    for where in ("rope_scaling", "rope_parameters"):
        given = {where: {"partial_rotary_factor": value}}
        assert "partial_rotary_factor is" in refusal(tmp_path, model_type="phi3", **SIZES, **given)
    assert "partial_rotary_factor is" in refusal(tmp_path, model_type="phi3", **SIZES, partial_rotary_factor=value)


GGUF_ANGLES = {
    **{(kind, "rope.freq_base"): NO_ANGLE for kind in ("none", "linear")},
    ("yarn", "rope.freq_base"): [*NO_ANGLE, 1, 1.0, 0.5],
    **{(kind, "rope.scaling.factor"): NO_ANGLE for kind in ("linear", "yarn")},
    **{("yarn", f"rope.scaling.yarn_beta_{name}"): NO_ANGLE for name in ("fast", "slow")},
    ("yarn", "rope.scaling.original_context_length"): NO_ANGLE,
    ("none", "rope.scaling.type"): [3, [], ["yarn"], True, NAN, "dynamic"],
}


@pytest.mark.parametrize(("kind", "key"), GGUF_ANGLES)
def test_a_rotary_embedding_of_a_gguf_that_cannot_be_is_refused_by_its_key(kind, key):
    for value in GGUF_ANGLES[kind, key]:
        fields = LLAMA | {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 2.0, f"llama.{key}": value}
        with pytest.raises(ValueError) as error:
            config_of(fields, {"token_embd.weight": (19, 64)})
        assert f"llama.{key}" in str(error.value) and len(str(error.value)) <= 400, error.value


def test_rotary_embeddings_that_can_be_have_finite_angles():
    """As far as the least numbers that files may give: no division by zero, nothing beyond float32."""
    with np.errstate(all="raise", under="ignore"):
        for rope in (
            *(Rope(theta) for theta in (1e-6, 0.5, 1.0, 1e30)),
            *(Rope(theta, "linear", 1e-6) for theta in (1e-6, 1.0)),
            *(Rope(theta, "yarn", 1e-6, 1, beta_fast=1e-6, beta_slow=1e-6) for theta in (np.nextafter(1.0, 2), 1e30)),
            Rope(1.0, "llama3", 1e-6, 1, 1.0, float(np.nextafter(1.0, 2))),
            Rope(1e-6, "longrope", 1e30, 2, short_factor=(1e-6,) * 32, long_factor=(1e-6,) * 32),
        ):
            frequencies, scale = rope.frequencies(64)
            assert np.isfinite(frequencies * np.float32(2**31)).all() and np.isfinite(scale), rope


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.tokens", ["<|im_start|>", "<|im_end|>", *"abcdefgh", "ab", *"0123456", "a"]),
        ("tokenizer.ggml.token_type", ["3"] * 19),
        ("tokenizer.ggml.merges", ["zz y"]),
        ("tokenizer.ggml.eos_token_id", 19),
        ("tokenizer.ggml.padding_token_id", [1]),
        ("tokenizer.chat_template", 3),
        ("llama.rope.freq_base", "x"),
        ("llama.rope.scaling.type", [1]),
    ],
)
def test_the_sentence_names_the_gguf_and_nothing_is_converted(tmp_path, key, value):
    pytest.importorskip("gguf")
    from tests.models import test_gguf_files as files

    config = files.MODELS["llama"]
    tensors = files.as_llama_cpp(config, weights(config))
    path = files.write(tmp_path / "tiny.gguf", config, tensors, **{key: value})
    with pytest.raises(ValueError, match=rf"tiny\.gguf is a model that cannot be converted: .*{key}"):
        files.converted(path)
    assert not list((tmp_path / "cache").glob("*"))
