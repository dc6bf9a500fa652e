"""config.json: every family against transformers' own configuration classes, both layouts of rope, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from jaxmarl_llm.models.config import Config, Dtypes, Rope
from jaxmarl_llm.models.hf_config import canonical, config_json, read_config
from tests.support.families import FAMILIES, in_transformers

CLASSES = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma3_text": transformers.Gemma3TextConfig,
}
SIZES = {
    "vocab_size": 19,
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_hidden_layers": 7,
    "num_attention_heads": 32,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 1024}


def read(directory: Path, **given) -> Config:
    (directory / "config.json").write_text(json.dumps(given))
    return read_config(directory / "config.json")


@pytest.mark.parametrize("family", CLASSES)
def test_what_is_left_out_is_as_in_transformers(tmp_path, family):
    CLASSES[family](**SIZES).save_pretrained(tmp_path)
    theirs = read_config(tmp_path / "config.json")
    assert read(tmp_path, model_type=family, **SIZES) == theirs
    expected = Config(
        **SIZES,
        model_type=family,
        num_key_value_heads=4 if family == "gemma3_text" else 32,
        head_dim={"qwen3": 128, "gemma3_text": 256}.get(family, 2),
        max_position_embeddings={"llama": 2048, "gemma3_text": 131072}.get(family, 32768),
        rms_norm_eps=1e-6,
        tie_word_embeddings=family == "gemma3_text",
        attention_bias=family == "qwen2",
    )
    if family == "gemma3_text":
        kinds = ("sliding_attention",) * 5 + ("full_attention", "sliding_attention")
        expected = replace(
            expected, hidden_act="gelu_pytorch_tanh", query_pre_attn_scalar=256, sliding_window=4096, layer_types=kinds
        )
        expected = replace(expected, rope=Rope(1e6), rope_sliding=Rope(1e4))
    assert theirs == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_every_feature_is_read_and_written_for_transformers(tmp_path, name):
    pytest.importorskip("torch")
    config, theirs = FAMILIES[name], in_transformers(FAMILIES[name]).config
    theirs.save_pretrained(tmp_path)
    assert read_config(tmp_path / "config.json") == canonical(config)
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    assert read_config(tmp_path / "config.json") == canonical(config)
    again = type(theirs).from_pretrained(tmp_path)
    both = [CLASSES[config.model_type]().to_dict().keys() & settings.to_dict().keys() for settings in (theirs, again)]
    assert both[0] == both[1]
    apart = {"architectures", "dtype", "transformers_version", "eos_token_id", "pad_token_id", "max_window_layers"}
    for key in both[0] - apart:
        assert getattr(again, key) == getattr(theirs, key), key


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("rope", [LLAMA3, {"type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": None}])
def test_both_layouts_of_rope_are_read_alike(tmp_path, family, rope):
    rope = rope | ({"original_max_position_embeddings": 512} if rope.get("rope_type") == "yarn" else {})
    base = {"model_type": family, **SIZES, "max_position_embeddings": 2048}
    old = {"rope_theta": 5e5, "rope_scaling": rope}
    new = {"rope_parameters": {"rope_theta": 5e5, **rope}}
    if family == "gemma3_text":
        old["rope_local_base_freq"] = 77.0
        new = {"rope_parameters": {"full_attention": new["rope_parameters"], "sliding_attention": {"rope_theta": 77.0}}}
    config = read(tmp_path, **base, **old)
    assert read(tmp_path, **base, **new) == config
    kind = rope.get("rope_type", "linear")
    factor = 4.0 if kind == "yarn" else rope["factor"]  # yarn's null: how much longer the context is
    expected = Rope(5e5, kind, factor)
    if kind != "linear":
        expected = replace(expected, original_max_position_embeddings=rope["original_max_position_embeddings"])
    assert config.rope == expected
    assert config.rope_sliding == (Rope(77.0) if family == "gemma3_text" else None)
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    theirs = CLASSES[family].from_pretrained(tmp_path).rope_parameters
    if family == "gemma3_text":
        assert theirs["sliding_attention"] == {"rope_type": "default", "rope_theta": 77.0}
        theirs = theirs["full_attention"]
    assert {"rope_theta": 5e5, "rope_type": kind, "factor": factor}.items() <= theirs.items()


def test_a_scaled_rope_of_sliding_layers_needs_the_new_layout(tmp_path):
    config = replace(canonical(FAMILIES["gemma3"]), rope_sliding=Rope(100.0, "linear", 3.0))
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    assert read_config(tmp_path / "config.json") == config
    theirs = transformers.Gemma3TextConfig.from_pretrained(tmp_path).rope_parameters["sliding_attention"]
    assert theirs == {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}


def test_layers_that_slide(tmp_path):
    qwen = {"model_type": "qwen2", **SIZES, "sliding_window": 5, "max_window_layers": 2}
    assert not any(read(tmp_path, **qwen).sliding)  # use_sliding_window is false where it is left out
    config = read(tmp_path, **qwen, use_sliding_window=True)
    assert config.sliding == (False,) * 2 + (True,) * 5
    assert config.sliding_window == 5
    gemma = {"model_type": "gemma3_text", **SIZES, "sliding_window_pattern": 3}
    assert read(tmp_path, **gemma).sliding == (True, True, False, True, True, False, True)
    full = ["full_attention"] * 7
    config = read(tmp_path, **gemma, layer_types=full)
    assert not any(config.sliding)
    assert config_json(config)["layer_types"] == full


def scaled(**rope) -> dict:
    return {"rope_scaling": rope}


REFUSED = [
    ("llama", "hidden_act is 'relu'", {"hidden_act": "relu"}),
    ("llama", "softcap", {"softcap": 30}),
    ("llama", "layer_types", {"layer_types": ["full_attention"] * 7}),
    ("llama", "partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    ("llama", "quantization_config", {"quantization_config": {"bits": 4}}),
    ("llama", "hidden_size is missing", {"hidden_size": None}),
    ("llama", "num_attention_heads is '32'", {"num_attention_heads": "32"}),
    ("llama", "num_key_value_heads", {"num_key_value_heads": 5}),
    ("llama", "rope_type is 'dynamic'", scaled(rope_type="dynamic", factor=2.0)),
    ("llama", "rope_type is 'longrope'", scaled(type="longrope", short_factor=[1.0])),
    ("llama", "factor of rope_type linear is missing", scaled(type="linear")),
    ("llama", "factor .* is not known to rope_type default", scaled(type="default", factor=2.0)),
    ("llama", "mscale ", scaled(**LLAMA3, mscale=1.0)),
    ("llama", "low_freq_factor of rope_type llama3 is missing", scaled(**LLAMA3 | {"low_freq_factor": None})),
    ("llama", "truncate is False", scaled(rope_type="yarn", factor=2.0, truncate=False)),
    ("llama", "mscale_all_dim", scaled(rope_type="yarn", factor=2.0, mscale_all_dim=1.0)),
    ("llama", "partial_rotary_factor", scaled(rope_type="linear", factor=2.0, partial_rotary_factor=0.5)),
    ("llama", "full_attention", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
    ("llama", "rope_scaling and rope_parameters", {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3}),
    ("qwen2", "attention_bias", {"attention_bias": False}),
    ("qwen2", "'chunked_attention'", {"layer_types": ["chunked_attention"] * 7}),
    ("qwen2", "layer_types", {"layer_types": []}),
    ("qwen2", "sliding_window", {"layer_types": ["sliding_attention"] * 7}),
    ("gemma3_text", "use_bidirectional_attention", {"use_bidirectional_attention": True}),
    ("gemma3_text", "attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
    ("gemma3_text", "hidden_act", {"hidden_act": "silu"}),
    ("gemma3_text", "rope_theta", {"rope_parameters": {"rope_theta": 5.0}}),
    ("gemma3", "model_type is 'gemma3' and must be one of llama, qwen2, qwen3, gemma3_text", {}),
    (None, "model_type is None", {}),
]


@pytest.mark.parametrize(("family", "word", "bad"), REFUSED)
def test_what_is_not_understood_is_refused_by_name(tmp_path, family, word, bad):
    with pytest.raises(ValueError, match=f"does not compute: .*{word}"):
        read(tmp_path, **{"model_type": family, **SIZES, **bad})


PUBLISHED = {  # keys of published files that make no difference
    "llama": {"pretraining_tp": 1, "is_llama_config": True, "rope_interleaved": False, "max_sequence_length": 2048}
    | {"rope_scaling": None, "transformers.js_config": {"dtype": "q4"}, "torch_dtype": "bfloat16", "temperature": 0.6},
    "qwen2": {"use_mrope": False, "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 7, "attention_dropout": 0.0},
    "gemma3_text": {"_sliding_window_pattern": 6, "cache_implementation": "hybrid", "attn_logit_softcapping": None}
    | {"final_logit_softcapping": None, "use_bidirectional_attention": False, "rope_scaling": None},
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_what_makes_no_difference_is_accepted(tmp_path, family):
    given = {"model_type": family, **SIZES}
    assert read(tmp_path, **given, **PUBLISHED[family], eos_token_id=[1, 2]) == read(tmp_path, **given)


def test_all_that_is_wrong_is_reported_at_once(tmp_path):
    bad = {"attention_bias": True, "hidden_act": "relu", "mlp_bias": True, "softcap": 30, "rope_scaling": {"type": "x"}}
    with pytest.raises(ValueError) as error:
        read(tmp_path, model_type="llama", **SIZES, **bad, use_cache=True, bos_token_id=1, rope_theta=5.0)
    assert all(word in str(error.value) for word in ("hidden_act", "softcap", "rope_type is 'x'"))
    assert not any(key in str(error.value) for key in ("use_cache", "bos_token_id", "rope_theta", "mlp_bias"))


def test_a_file_that_is_no_configuration(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json does not exist"):
        read_config(tmp_path / "config.json")
    for text, message in (("{", r"config\.json is not valid JSON"), ("[]", "holds a list")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_config(tmp_path / "config.json")


def test_what_a_family_cannot_say_is_not_written():
    config = canonical(FAMILIES["llama2"])
    for change in ({"final_logit_softcapping": 3.0}, {"query_pre_attn_scalar": 7}, {"rope_sliding": Rope(3.0)}):
        what = next(iter(change))
        if what == "rope_sliding":
            change |= {"sliding_window": 4, "layer_types": ("sliding_attention",) * config.num_hidden_layers}
        with pytest.raises(ValueError, match=f"config.json of a llama cannot say .*{what}="):
            config_json(replace(config, **change))


def test_dtypes_are_those_asked_for(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config_json(FAMILIES["llama2"])))
    dtypes = Dtypes(parameters="bfloat16")
    assert read_config(tmp_path / "config.json", dtypes).dtypes == dtypes
