"""Tables of the config.json of every model_type: keys with defaults and kinds, and the layers that slide.

The default of a key is that of the family's configuration class in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxmarl_llm.models.config import FULL, SLIDING
from jaxmarl_llm.text.refusals import FLAG, WORD, WORDS, Kind, either, list_of, number, whole

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
LLAMA = {  # keys beside SIZES that change numbers, with their defaults
    "max_position_embeddings": 2048,
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
BIASES = {"attention_bias": False, "mlp_bias": False}
MISTRAL = LLAMA | {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096}
QWEN = LLAMA | {
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
GEMMA = LLAMA | {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": None,
}
GEMMA = {key: value for key, value in GEMMA.items() if key != "hidden_act"} | {"hidden_activation": "gelu_pytorch_tanh"}
GEMMA4_TEXT = {key: value for key, value in GEMMA.items() if key not in ("query_pre_attn_scalar", "rope_theta")}
GEMMA4_TEXT |= {"global_head_dim": 512, "num_global_key_value_heads": None, "attention_k_eq_v": False}
GEMMA4_TEXT |= {"num_kv_shared_layers": 0, "use_double_wide_mlp": False}
FAMILIES: dict[str, dict[str, Any]] = {  # {model_type: {key: default}}
    "llama": LLAMA | BIASES,
    "mistral": MISTRAL,
    "mixtral": MISTRAL
    | {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None}
    | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2": QWEN,  # always with biases of q, k and v
    "qwen3": QWEN | {"head_dim": 128, "attention_bias": False},
    "qwen3_moe": {key: value for key, value in QWEN.items() if key != "layer_types"}
    | {"num_key_value_heads": 4, "attention_bias": False, "moe_intermediate_size": 768}
    | {"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": False},
    "gemma2": GEMMA
    | {"max_position_embeddings": 8192, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    "gemma3_text": GEMMA
    | {"max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    | {"sliding_window_pattern": 6},
    "phi3": LLAMA
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "sliding_window": None}
    | {"original_max_position_embeddings": 4096, "partial_rotary_factor": 1.0, "attention_bias": False},
    "olmo2": LLAMA | {"rms_norm_eps": 1e-5, "attention_bias": False},
    "smollm3": LLAMA
    | BIASES
    | {"max_position_embeddings": 32768, "num_key_value_heads": 4, "tie_word_embeddings": True, "rope_theta": 2e6}
    | {"use_sliding_window": False, "sliding_window": None, "max_window_layers": None, "layer_types": None}
    | {"no_rope_layers": None, "no_rope_layer_interval": 4},
    "granite": LLAMA
    | BIASES
    | {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0, "logits_scaling": 1.0},
    "qwen3_5_text": LLAMA
    | {"max_position_embeddings": 32768, "num_key_value_heads": 4, "head_dim": 256, "attention_bias": False}
    | {"partial_rotary_factor": 0.25, "layer_types": None, "full_attention_interval": 4}
    | {"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4}
    | {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "gemma4_unified_text": GEMMA4_TEXT | {"max_position_embeddings": 262144, "sliding_window": 1024},
    "gemma4_text": GEMMA4_TEXT
    | {"max_position_embeddings": 131072, "sliding_window": 512}
    | {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144}
    | {"enable_moe_block": False, "num_experts": None, "top_k_experts": None, "moe_intermediate_size": None},
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified_text": "Gemma4UnifiedForCausalLM",
}
ALWAYS: dict[str, dict[str, Any]] = {  # facts without a key
    "qwen2": {"attention_bias": True},
    "mixtral": {"norm_topk_prob": True},
    "gemma4_text": {"attention_multiplier": 1.0, "norm_topk_prob": True},
    "gemma4_unified_text": {"attention_multiplier": 1.0},
}
OWN_NAMES = {  # {a family's key: field of Config}
    "num_local_experts": "num_experts",
    "top_k_experts": "num_experts_per_tok",
}
EXPERTS = ("num_local_experts", "num_experts")
WRAPPED = {  # {model_type of a model of text and images: (the text's model_type, its default sizes, tied by default)}
    "gemma3": ("gemma3_text", dict(zip(SIZES, (262208, 2304, 9216, 26, 8), strict=True)), True),
    "qwen3_5": ("qwen3_5_text", dict(zip(SIZES, (248320, 4096, 12288, 32, 16), strict=True)), False),
    "gemma4": ("gemma4_text", dict(zip(SIZES, (262144, 2304, 9216, 30, 8), strict=True)), True),
    "gemma4_unified": ("gemma4_unified_text", dict(zip(SIZES, (262144, 2304, 9216, 30, 8), strict=True)), True),
}
UNBOUNDED = {"gemma3"}  # models of text and images in which transformers ignores final_logit_softcapping
WRAPPER_KEYS = {"text_config", "vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index"}
WRAPPER_KEYS |= {"image_token_index", "tie_word_embeddings", "image_token_id", "boi_token_id", "eoi_token_id"}
WRAPPER_KEYS |= {"video_token_id", "vision_start_token_id", "vision_end_token_id", "language_model_only"}
WRAPPER_KEYS |= {"audio_config", "boa_token_id", "eoa_token_index", "eoa_token_id", "audio_token_id"}
WRAPPER_KEYS |= {"vision_soft_tokens_per_image"}
COUNT, WIDTH, POSITIONS = whole(1, 1 << 16), whole(1, 1 << 22), whole(1, 1 << 31)
ANGLE = number(least=1e-6)  # divisors of frequencies; this keeps the angles of all positions finite
KEYS: dict[str, Kind] = {  # kinds of the values; null is allowed too
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim", "no_rope_layer_interval"), COUNT),
    **dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok", "top_k_experts"), whole(1, 4096)),
    "no_rope_layers": list_of(whole(0, 1), "a list of 0 and 1"),
    **{"num_hidden_layers": whole(1, 1024), "max_window_layers": whole(0, 1024), "sliding_window_pattern": COUNT},
    **dict.fromkeys(("max_position_embeddings", "sliding_window", "original_max_position_embeddings"), POSITIONS),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"), FLAG),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "full_attention_interval"), COUNT),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), COUNT),
    **dict.fromkeys(("global_head_dim", "num_global_key_value_heads"), COUNT),
    **dict.fromkeys(("attention_k_eq_v", "use_double_wide_mlp", "enable_moe_block"), FLAG),
    **{"num_kv_shared_layers": whole(0, 1024), "hidden_size_per_layer_input": whole(0, 1 << 16)},
    "vocab_size_per_layer_input": WIDTH,
    **{"linear_conv_kernel_dim": whole(2, 64), "norm_topk_prob": FLAG, "partial_rotary_factor": number(1.0)},
    **dict.fromkeys(("rope_theta", "rope_local_base_freq"), ANGLE),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping"), number()),
    **dict.fromkeys(("query_pre_attn_scalar", "logits_scaling"), number()),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier"), number()),
    **{"rms_norm_eps": number(1.0), "hidden_act": WORD, "hidden_activation": WORD, "layer_types": WORDS},
    **{"model_type": WORD, "eos_token_id": either(whole(0, 1 << 31), list_of(whole(0, 1 << 31), "a list of them"))},
}
ROPE: dict[str, Kind] = {  # kinds of the values in rope_scaling and rope_parameters
    **dict.fromkeys(("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"), ANGLE),
    **dict.fromkeys(("short_factor", "long_factor"), list_of(ANGLE, f"a list of numbers, each {ANGLE.what}")),
    "attention_factor": number(),
    "partial_rotary_factor": number(1.0),
    "original_max_position_embeddings": POSITIONS,
    **{"mrope_section": list_of(whole(0, 1 << 16), "a list of whole numbers"), "mrope_interleaved": FLAG},
}
# They matter for images alone: all axes of a text have the same positions.
IMAGE_ANGLES = {"mrope_section", "mrope_interleaved"}
NULL = {  # keys for which null is a value, not the default
    "num_key_value_heads",
    "head_dim",
    "sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
}
ONLY: dict[str, tuple] = {  # keys that may change numbers, with the values that do not
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "partial_rotary_factor": (1.0, None),
    "pretraining_tp": (0, 1, 2, None),  # SmolLM 3 says 2, which transformers does not read
    "hidden_act": ("gelu_pytorch_tanh",),  # Gemma has it beside hidden_activation
    "mlp_bias": (False, None),
    "lm_head_bias": (False,),
    **dict.fromkeys(("full_attn_mod", "interpolate_factor"), (1,)),
    "quantization_config": (None,),
    "use_bidirectional_attention": (False, None),
    "attn_logit_softcapping": (None,),
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "truncate": (True, None),
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    **dict.fromkeys(("router_jitter_noise", "resid_pdrop", "embd_pdrop"), (0.0, None)),
}
OWN_ONLY: dict[str, dict[str, tuple]] = {  # {model_type: such keys of its own}
    "qwen3_5_text": {
        "attn_output_gate": (True,),
        "mamba_ssm_dtype": ("float32",),
        "mtp_num_hidden_layers": (0, 1, None),  # a head that predicts the token after the next; it is not read
        "mtp_use_dedicated_embeddings": (False, True, None),
    },
    "gemma4_text": {"use_bidirectional_attention": ("vision", None)},  # among the tokens of an image
    "gemma4_unified_text": {
        "use_bidirectional_attention": ("vision", None),
        "hidden_size_per_layer_input": (0, None),
        "enable_moe_block": (False, None),
        **dict.fromkeys(("num_experts", "top_k_experts", "moe_intermediate_size"), (None,)),
    },
}
IDS = "bos_token_id", "eos_token_id", "pad_token_id"  # the defaults are those of a family's large vocabulary
WITHOUT_NUMBERS = (
    {"architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "auto_map", "tokenizer_class"}
    | {"name_or_path", "_name_or_path", "_model_name_or_path", "_commit_hash", "is_llama_config"}
    | {"transformers.js_config", "unsloth_fixed", "unsloth_version", "task_specific_params", "finetuning_task"}
    | {"output_router_logits", "router_aux_loss_coef"}
    | {"initializer_range", "attention_dropout", "max_sequence_length", "_sliding_window_pattern"}
    | {"_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "chunk_size_feed_forward"}
    | {"output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate"}
    | {"id2label", "label2id", "problem_type", "torchscript", "use_cache", "cache_implementation", "prefix"}
    | {*IDS, "unk_token_id", "sep_token_id", "decoder_start_token_id"}
    | {"do_sample", "early_stopping", "max_length", "min_length", "num_beams", "num_return_sequences", "bad_words_ids"}
    | {"temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"}
)
ROPE_KEYS = {  # {rope_type: its keys, required ones first}
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
    "longrope": ("short_factor", "long_factor", "factor", "original_max_position_embeddings", "attention_factor"),
    "proportional": ("partial_rotary_factor",),
}
ROPES: dict[str, dict[str, dict[str, Any]]] = {  # {model_type: default rope_parameters by kind of layer}
    name: {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    }
    for name in ("gemma4_text", "gemma4_unified_text")
}
ROPE_REQUIRED = {"factor", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor"}
# (values, layer) -> the layer is of the family's other kind, not FULL, if layer_types is absent
OTHERS: dict[str, Callable[[Mapping[str, Any], int], bool]] = {
    "qwen3_5_text": lambda values, layer: (layer + 1) % values["full_attention_interval"] != 0,
    **dict.fromkeys(("mistral", "mixtral", "phi3", "qwen3_moe"), lambda values, layer: True),
    **dict.fromkeys(("qwen2", "qwen3"), lambda values, layer: layer >= values["max_window_layers"]),
    "gemma2": lambda values, layer: layer % 2 == 0,
    "gemma3_text": lambda values, layer: (layer + 1) % values["sliding_window_pattern"] != 0,
    **dict.fromkeys(
        ("gemma4_text", "gemma4_unified_text"),
        lambda values, layer: (layer + 1) % 6 != 0 and layer < values["num_hidden_layers"] - 1,
    ),
    "smollm3": lambda values, layer: not values["no_rope_layers"][layer],
}
QWEN3 = {  # common to all sizes, from their config.json
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
}
KNOWN: dict[str, dict[str, Any]] = {  # {short name: keys of config.json}, for plans without files
    name: QWEN3 | dict(zip(SIZES[1:], sizes, strict=True)) | more
    for name, sizes, more in (
        ("qwen3-0.6b", (1024, 3072, 28, 16), {}),
        ("qwen3-1.7b", (2048, 6144, 28, 16), {}),
        ("qwen3-4b", (2560, 9728, 36, 32), {}),
        ("qwen3-8b", (4096, 12288, 36, 32), {"tie_word_embeddings": False}),
        ("qwen3-14b", (5120, 17408, 40, 40), {"tie_word_embeddings": False}),
        ("qwen3-32b", (5120, 25600, 64, 64), {"tie_word_embeddings": False}),
    )
}
QWEN3_5 = {  # the text models; common to all sizes, from copies of their config.json
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "head_dim": 256,
    "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
    "linear_num_key_heads": 16,
}
KNOWN |= {
    name: QWEN3_5
    | dict(zip(SIZES[1:], sizes, strict=True))
    | {"num_key_value_heads": heads, "linear_num_value_heads": values, "tie_word_embeddings": tied}
    for name, sizes, heads, values, tied in (
        ("qwen3.5-0.8b", (1024, 3584, 24, 8), 2, 16, True),
        ("qwen3.5-2b", (2048, 6144, 24, 8), 2, 16, True),
        ("qwen3.5-4b", (2560, 9216, 32, 16), 4, 32, True),
        ("qwen3.5-9b", (4096, 12288, 32, 16), 4, 32, False),
        ("qwen3.5-27b", (5120, 17408, 64, 24), 4, 48, False),
    )
}
HUB_IDS = {name: f"Qwen/Qwen{name.removeprefix('qwen').upper()}" for name in KNOWN}  # {short name: id on the hub}
GEMMA4 = {  # the text models; sizes from Google's own code, github.com/google-deepmind/gemma, gm/nn/gemma4/_gemma4.py
    "model_type": "gemma4_text",
    "vocab_size": 262144,
    "head_dim": 256,
    "global_head_dim": 512,
    "final_logit_softcapping": 30.0,
}
LARGE = {"attention_k_eq_v": True, "sliding_window": 1024, "max_position_embeddings": 262144}
LARGE |= {"hidden_size_per_layer_input": 0}
KNOWN |= {
    name: GEMMA4 | dict(zip(SIZES[1:], sizes, strict=True)) | {"num_key_value_heads": heads} | more
    for name, sizes, heads, more in (
        (
            "gemma4-e2b",
            (1536, 6144, 35, 8),
            1,
            {"num_kv_shared_layers": 20, "use_double_wide_mlp": True} | {"layer_types": [*[SLIDING] * 4, FULL] * 7},
        ),
        ("gemma4-e4b", (2560, 10240, 42, 8), 2, {"num_kv_shared_layers": 18}),
        (
            "gemma4-26b-a4b",
            (2816, 2112, 30, 16),
            8,
            LARGE
            | {"num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 128}
            | {"top_k_experts": 8, "moe_intermediate_size": 704},
        ),
        ("gemma4-31b", (5376, 21504, 60, 32), 16, LARGE | {"num_global_key_value_heads": 4}),
    )
}
HUB_IDS |= {f"gemma4-{size.lower()}": f"google/gemma-4-{size}-it" for size in ("E2B", "E4B", "26B-A4B", "31B")}
