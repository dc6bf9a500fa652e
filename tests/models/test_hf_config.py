"""config.json: every family against transformers' own configuration classes, both layouts of rope, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from jaxmarl_llm.models.config import Config, Dtypes, Rope
from jaxmarl_llm.models.hf_config import canonical, config_json, read_config
from tests.support.families import FAMILIES, ODD, in_transformers

CLASSES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "mixtral": transformers.MixtralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "gemma2": transformers.Gemma2Config,
    "gemma3_text": transformers.Gemma3TextConfig,
    "phi3": transformers.Phi3Config,
    "olmo2": transformers.Olmo2Config,
    "smollm3": transformers.SmolLM3Config,
    "granite": transformers.GraniteConfig,
    "qwen3_5_text": transformers.Qwen3_5TextConfig,
    "gemma4_text": transformers.Gemma4TextConfig,
    "gemma4_unified_text": transformers.Gemma4UnifiedTextConfig,
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


GEMMA = {"num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True, "query_pre_attn_scalar": 256}
GEMMA |= {"hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096}
MISTRAL = {"num_key_value_heads": 8, "max_position_embeddings": 131072}
DEFAULTS = {  # where llama has others
    "llama": {},
    "mistral": MISTRAL | {"sliding_window": 4096, "layer_types": ("sliding_attention",) * 7},
    "mixtral": MISTRAL
    | {"rms_norm_eps": 1e-5, "rope": Rope(1e6), "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "qwen2": {"max_position_embeddings": 32768, "attention_bias": True},
    "qwen3": {"max_position_embeddings": 32768, "head_dim": 128},
    "qwen3_moe": {"max_position_embeddings": 32768, "num_key_value_heads": 4}
    | {"num_experts": 128, "num_experts_per_tok": 8},
    "gemma2": GEMMA
    | {"max_position_embeddings": 8192, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}
    | {"layer_types": ("sliding_attention", "full_attention") * 3 + ("sliding_attention",)},
    "gemma3_text": GEMMA
    | {"max_position_embeddings": 131072, "rope": Rope(1e6), "rope_sliding": Rope(1e4)}
    | {"layer_types": ("sliding_attention",) * 5 + ("full_attention", "sliding_attention")},
    "phi3": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "olmo2": {"rms_norm_eps": 1e-5},
    "smollm3": {"max_position_embeddings": 32768, "num_key_value_heads": 4, "tie_word_embeddings": True}
    | {"rope": Rope(2e6), "no_rope_layers": (1, 1, 1, 0, 1, 1, 1)},
    "granite": {"attention_multiplier": 1.0},
    "qwen3_5_text": {"max_position_embeddings": 32768, "num_key_value_heads": 4, "head_dim": 256}
    | {"rope": Rope(partial_rotary_factor=0.25), "linear_num_key_heads": 16, "linear_num_value_heads": 32}
    | {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
    | {"layer_types": ("linear_attention",) * 3 + ("full_attention",) + ("linear_attention",) * 3},
    "gemma4_text": {key: value for key, value in GEMMA.items() if key != "query_pre_attn_scalar"}
    | {"max_position_embeddings": 131072, "sliding_window": 512, "attention_multiplier": 1.0, "global_head_dim": 512}
    | {"rope": Rope(1e6, "proportional", partial_rotary_factor=0.25), "rope_sliding": Rope(1e4)}
    | {"layer_types": ("sliding_attention",) * 5 + ("full_attention",) * 2}
    | {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144},
}
DEFAULTS["gemma4_unified_text"] = {
    key: value for key, value in DEFAULTS["gemma4_text"].items() if not key.endswith("_per_layer_input")
} | {"max_position_embeddings": 262144, "sliding_window": 1024}


@pytest.mark.parametrize("family", CLASSES)
def test_what_is_left_out_is_as_in_transformers(tmp_path, family):
    CLASSES[family](**SIZES).save_pretrained(tmp_path)
    theirs = read_config(tmp_path / "config.json")
    assert read(tmp_path, model_type=family, **SIZES) == theirs
    expected = Config(
        **SIZES | {"intermediate_size": 768 if family == "qwen3_moe" else 24},
        model_type=family,
        **{"num_key_value_heads": 32, "head_dim": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
        | {"max_position_embeddings": 2048}
        | DEFAULTS[family],
    )
    assert theirs == expected


@pytest.mark.parametrize("name", FAMILIES | ODD)
def test_every_feature_is_read_and_written_for_transformers(tmp_path, name):
    pytest.importorskip("torch")
    config = (FAMILIES | ODD)[name]
    theirs = in_transformers(config).config
    theirs.save_pretrained(tmp_path)
    assert read_config(tmp_path / "config.json") == canonical(config)
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    assert read_config(tmp_path / "config.json") == canonical(config)
    again = type(theirs).from_pretrained(tmp_path)
    both = [CLASSES[config.model_type]().to_dict().keys() & settings.to_dict().keys() for settings in (theirs, again)]
    assert both[0] == both[1]
    apart = {
        "architectures",
        "dtype",
        "bos_token_id",
        "transformers_version",
        "eos_token_id",
        "pad_token_id",
        "max_window_layers",
    }
    for key in both[0] - apart:
        assert again.to_dict()[key] == theirs.to_dict()[key], key


@pytest.mark.parametrize("name", FAMILIES | ODD)
def test_what_is_written_is_read_again(tmp_path, name):
    config = canonical((FAMILIES | ODD)[name])
    (tmp_path / "config.json").write_text(json.dumps(config_json(config)))
    assert read_config(tmp_path / "config.json") == config


@pytest.mark.parametrize("family", [x for x in CLASSES if x != "phi3" and not x.startswith("gemma4")])
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
    expected = replace(Rope(5e5, kind, factor), partial_rotary_factor=0.25 if family == "qwen3_5_text" else 1.0)
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


def test_the_angles_of_phi3_stand_in_several_places(tmp_path):
    """A partial_rotary_factor stands beside rope_scaling, or in rope_parameters; what was "su" is longrope."""
    base = {"model_type": "phi3", **SIZES, "head_dim": 8, "max_position_embeddings": 8192}
    factors = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4]}
    expected = Rope(
        10000.0, "longrope", 4.0, 2048, short_factor=(1.0, 1.5), long_factor=(2.0, 4), partial_rotary_factor=0.5
    )
    own = {"original_max_position_embeddings": 2048}
    for kind in ("su", "longrope"):
        assert read(tmp_path, **base, **own, partial_rotary_factor=0.5, **scaled(type=kind, **factors)).rope == expected
    parameters = {"rope_type": "longrope", "partial_rotary_factor": 0.5, **factors}
    assert read(tmp_path, **base, **own, rope_parameters=parameters).rope == expected
    assert read(tmp_path, **base, partial_rotary_factor=0.5, **scaled(type="su", **factors)).rope == replace(
        expected, factor=2.0, original_max_position_embeddings=4096
    )
    assert read(tmp_path, **base, partial_rotary_factor=0.5).rope == Rope(partial_rotary_factor=0.5)


def test_the_text_of_a_model_of_text_and_images(tmp_path):
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 7, "sliding_window": 9}
    outer = {"model_type": "gemma3", "vision_config": {}, "mm_tokens_per_image": 4, "eos_token_id": [1, 106]}
    config = read(tmp_path, **outer, text_config=text)
    plain = text | {"vocab_size": 262208, "intermediate_size": 9216, "num_attention_heads": 8}
    assert config == read(tmp_path, **plain)
    with pytest.raises(ValueError, match="final_logit_softcapping is 30"):
        read(tmp_path, **outer, text_config=text | {"final_logit_softcapping": 30.0})
    for bad, word in (({"tie_word_embeddings": False}, "tie_word_embeddings"), ({"quantization_config": {}}, "quanti")):
        with pytest.raises(ValueError, match=word):
            read(tmp_path, **outer, **bad, text_config=text | {"tie_word_embeddings": True})


QWEN3_5 = {  # the parts of a published file of text and images that this decoder reads or knows
    "tie_word_embeddings": True,
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
    "vision_config": {"depth": 12},
    "text_config": {
        **{"model_type": "qwen3_5_text", "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True},
        **{"dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256},
        **{"hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3584, "linear_conv_kernel_dim": 4},
        **{"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6, "linear_num_value_heads": 16},
        **{"mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mlp_only_layers": []},
        **{"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "num_attention_heads": 8},
        **{"num_hidden_layers": 24, "num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 248320},
        "rope_parameters": {
            **{"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25},
            **{"rope_theta": 10000000, "rope_type": "default"},
        },
    },
}


def test_a_published_file_of_qwen3_5_is_read_as_its_text(tmp_path):
    config = read(tmp_path, model_type="qwen3_5", **QWEN3_5)
    assert (config.model_type, config.loops) == ("qwen3_5_text", ((0, 24, 4),))
    assert config.rope == Rope(1e7, partial_rotary_factor=0.25)
    assert config.layers_with("q_proj") == (3, 7, 11, 15, 19, 23) and len(config.layers_with("A_log")) == 18
    assert config.tie_word_embeddings and config.linear_widths == (6144, 2048)
    text = QWEN3_5["text_config"]
    for change, word in (
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"rope_parameters": {**text["rope_parameters"], "mrope_section": "x"}}, "mrope_section is 'x'"),
        ({"layer_types": ["linear_attention"] * 24}, "at least one must have attention"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is True, but not in text_config"),
    ):
        with pytest.raises(ValueError, match=word):
            read(tmp_path, model_type="qwen3_5", **QWEN3_5 | {"text_config": text | change})


def test_a_published_file_of_gemma4_is_read_as_its_text(tmp_path):
    """The sizes of E2B and of 31B."""
    ropes = {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    text = {"model_type": "gemma4_text", "vocab_size": 262144, "final_logit_softcapping": 30.0, "global_head_dim": 512}
    text |= {"rope_parameters": ropes, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "num_experts": None}
    text |= {"enable_moe_block": False, "top_k_experts": None, "moe_intermediate_size": None, "attention_bias": False}
    small = text | {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8}
    small |= {"num_key_value_heads": 1, "num_kv_shared_layers": 20, "hidden_size_per_layer_input": 256}
    small |= {"use_double_wide_mlp": True, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7}
    large = text | {"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32}
    large |= {"num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": True}
    large |= {"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision", "sliding_window": 1024}
    wrapper = {"model_type": "gemma4", "vision_config": {}, "audio_config": None, "boa_token_id": 256000}
    e2b, dense = (read(tmp_path, **wrapper, text_config=sizes) for sizes in (small, large))
    assert e2b.loops == ((0, 15, 5), (15, 35, 5)) and (e2b.source(33), e2b.source(34)) == (13, 14)
    assert e2b.layers_with("wide_gate_proj") == tuple(range(15, 35)) and len(e2b.with_keys) == 15
    assert dense.loops == ((0, 60, 6),) and dense.layers_with("global_v_proj") == ()
    assert (dense.heads_of("full_attention"), dense.heads_of("sliding_attention")) == ((512, 4), (256, 16))
    assert dense.final_logit_softcapping == 30.0 and dense.rope_sliding == Rope(1e4)


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
    ("llama", "long_factor of rope_type longrope is missing", scaled(type="longrope", short_factor=[1.0])),
    ("llama", "need 1 numbers each", scaled(type="longrope", short_factor=[1.0], long_factor=[1.0, 2.0])),
    ("phi3", "rope_type is 'linear' and must be longrope", scaled(type="linear", factor=2.0)),
    ("phi3", "must rotate an even part", {"head_dim": 6, "partial_rotary_factor": 0.5}),
    ("qwen3_moe", "decoder_sparse_step is 2", {"decoder_sparse_step": 2}),
    ("qwen3_moe", "mlp_only_layers is", {"mlp_only_layers": [1]}),
    ("qwen3_moe", "num_experts_per_tok must be from 1", {"num_experts": 4}),
    ("mixtral", "router_jitter_noise", {"router_jitter_noise": 0.1}),
    ("mistral", "layer_types", {"layer_types": ["full_attention"] * 7}),
    ("smollm3", "no_rope_layers names 3 of 7", {"no_rope_layers": [1, 1, 0]}),
    ("smollm3", "no_rope_layers names 0 of 7", {"no_rope_layers": []}),
    ("granite", "attention_multiplier is 0", {"attention_multiplier": 0}),
    ("qwen3_5_text", "must hold full_attention or linear_attention", {"layer_types": ["sliding_attention"] * 7}),
    ("qwen3_5_text", "layer_types names 2 of 7 layers", {"layer_types": ["full_attention"] * 2}),
    ("qwen3_5_text", "must be a multiple of linear_num_key_heads", {"linear_num_value_heads": 24}),
    ("qwen3_5_text", "linear_conv_kernel_dim is 1", {"linear_conv_kernel_dim": 1}),
    ("qwen3_5_text", "mamba_ssm_dtype is 'bfloat16'", {"mamba_ssm_dtype": "bfloat16"}),
    ("qwen3_5_text", "mtp_num_hidden_layers is 9", {"mtp_num_hidden_layers": 9}),
    ("qwen3_5_text", "at least one must have attention", {"full_attention_interval": 8}),
    (
        "gemma4_text",
        "enable_moe_block is True, but top_k_experts and moe_intermediate_size is missing",
        {"enable_moe_block": True, "num_experts": 4},
    ),
    (
        "gemma4_text",
        "num_experts_per_tok must be from 1",
        {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5, "moe_intermediate_size": 8},
    ),
    ("gemma4_text", "last layer of a gemma4_text must have full", {"layer_types": ["sliding_attention"] * 7}),
    ("gemma4_text", "use_bidirectional_attention is 'all'", {"use_bidirectional_attention": "all"}),
    ("gemma4_text", "num_kv_shared_layers must be less than 7", {"num_kv_shared_layers": 7}),
    ("gemma4_text", "need a layer with full_attention among the first 5", {"num_kv_shared_layers": 2}),
    ("gemma4_text", "vocab_size_per_layer_input .2. must be at least", {"vocab_size_per_layer_input": 2}),
    ("gemma4_text", "rope_theta", {"rope_theta": 5.0}),
    ("gemma4_text", "per_layer_config is 3, not a table", {"per_layer_config": 3}),
    ("gemma4_text", "for layer 6, unlike others of its kind", {"per_layer_config": {"5": {"head_dim": 8}}}),
    ("gemma4_text", "for layer 0, unlike others of its kind", {"per_layer_config": {"0": {"head_dim": 8}}}),
    ("gemma4_text", "for layer 5, not other sizes", {"per_layer_config": {"5": {"sliding_window": 8}}}),
    ("gemma4_text", "names '9', which is no layer", {"per_layer_config": {"9": {"head_dim": 8}}}),
    (
        "gemma4_text",
        "per_layer_config has 2 key-value heads without attention_k_eq_v",
        {"per_layer_config": {str(layer): {"num_key_value_heads": 2} for layer in (5, 6)}},
    ),
    (
        "gemma4_text",
        "rope_theta of full_attention is missing",
        {"rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25}}},
    ),
    ("llama", "attn_output_gate", {"attn_output_gate": True}),
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
    ("gemma3", "text_config is None and must be a table", {}),
    ("gemma3", "model_type of text_config is 'llama'", {"text_config": {"model_type": "llama"}}),
    (
        "mamba",
        "model_type is 'mamba' and must be one of llama, mistral, mixtral, qwen2, .*, gemma3, qwen3_5, gemma4",
        {},
    ),
    ("gemma4", "text_config is None and must be a table", {"audio_config": {}, "vision_config": {}}),
    ("gemma4", "model_type of text_config is 'gemma3_text'", {"text_config": {"model_type": "gemma3_text"}}),
    ("gemma4_unified_text", "hidden_size_per_layer_input is 8 and must be 0", {"hidden_size_per_layer_input": 8}),
    ("gemma4_unified", "model_type of text_config is 'gemma4_text'", {"text_config": {"model_type": "gemma4_text"}}),
    ("gemma4_assistant", "model_type is 'gemma4_assistant' and must be one of", {"text_config": {}}),
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
    "qwen3_moe": {"decoder_sparse_step": 1, "mlp_only_layers": [], "max_window_layers": 48, "sliding_window": None}
    | {"output_router_logits": False, "router_aux_loss_coef": 0.001, "use_sliding_window": False},
    "phi3": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "rope_scaling": None, "attention_bias": False}
    | {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False},
    "gemma2": {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"},
    "smollm3": {"max_window_layers": 28, "pretraining_tp": 2, "no_rope_layer_interval": 4, "sliding_window": None},
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
