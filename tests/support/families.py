"""Small configurations of every family with every feature on: ours, and the settings that transformers wants for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.models import decoder, kinds
from jaxmarl_llm.models.config import Config, Rope, plain
from jaxmarl_llm.models.hf_config import local_rope

CONFIG = Config(
    vocab_size=19,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
SLIDING = ("full_attention", "sliding_attention", "sliding_attention")
LINEAR = "linear_attention"

FAMILIES = {
    "llama2": replace(CONFIG, num_key_value_heads=4, rms_norm_eps=1e-4),
    "llama3.1": replace(
        CONFIG,
        rope=Rope(500.0, "llama3", factor=8.0, original_max_position_embeddings=8, high_freq_factor=3.0),
        attention_bias=True,
        mlp_bias=True,
    ),
    "llama_linear": replace(CONFIG, rope=Rope(100.0, "linear", factor=3.0), hidden_act="gelu"),
    "smollm2": replace(CONFIG, tie_word_embeddings=True, rope=Rope(100000.0)),
    "qwen2": replace(
        CONFIG,
        model_type="qwen2",
        attention_bias=True,
        head_dim=4,  # transformers' qwen2 has hidden_size / num_attention_heads
        rope=Rope(1000.0, "yarn", factor=4.0, original_max_position_embeddings=16),
        num_hidden_layers=3,
        sliding_window=4,
        layer_types=SLIDING,
    ),
    "qwen3": replace(CONFIG, model_type="qwen3", attention_bias=True, head_dim=10, rope=Rope(1e6)),
    "gemma3": replace(
        CONFIG,
        model_type="gemma3_text",
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        rope=Rope(1e4, "linear", factor=8.0),
        rope_sliding=Rope(100.0),
        query_pre_attn_scalar=10,
        num_hidden_layers=3,
        sliding_window=4,
        layer_types=SLIDING,
        final_logit_softcapping=3.0,
        attention_bias=True,
    ),
    "mistral": replace(
        CONFIG,
        model_type="mistral",
        num_hidden_layers=3,
        head_dim=10,
        sliding_window=5,
        layer_types=SLIDING[1:2] * 3,
        rope=Rope(1000.0),
    ),
    "mixtral": replace(CONFIG, model_type="mixtral", num_experts=5, num_experts_per_tok=2, norm_topk_prob=True),
    "qwen3_moe": replace(
        CONFIG,
        model_type="qwen3_moe",
        attention_bias=True,
        head_dim=10,
        num_experts=6,
        num_experts_per_tok=3,
        intermediate_size=12,
        sliding_window=4,
        layer_types=SLIDING[1:2] * 2,
        tie_word_embeddings=True,
    ),
    "gemma2": replace(
        CONFIG,
        model_type="gemma2",
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        query_pre_attn_scalar=10,
        num_hidden_layers=3,
        sliding_window=4,
        layer_types=(SLIDING[1], SLIDING[0], SLIDING[1]),
        final_logit_softcapping=3.0,
        attn_logit_softcapping=2.0,
    ),
    "phi3": replace(
        CONFIG,
        model_type="phi3",
        head_dim=8,
        hidden_size=32,
        rope=Rope(
            100.0,
            "longrope",
            factor=2.0,
            original_max_position_embeddings=32,
            partial_rotary_factor=0.75,
            short_factor=(1.0, 1.5, 2.0),
            long_factor=(2.0, 3.0, 4.0),
        ),
        sliding_window=6,
        layer_types=SLIDING[1:2] * 2,
    ),
    "olmo2": replace(CONFIG, model_type="olmo2", attention_bias=True, head_dim=4, rope=Rope(500.0)),
    "smollm3": replace(
        CONFIG,
        model_type="smollm3",
        num_hidden_layers=3,
        head_dim=4,
        tie_word_embeddings=True,
        mlp_bias=True,
        no_rope_layers=(1, 0, 1),
        sliding_window=4,
        layer_types=(SLIDING[0], SLIDING[1], SLIDING[0]),
    ),
    "granite": replace(
        CONFIG,
        model_type="granite",
        head_dim=4,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        attention_bias=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        attention_multiplier=0.4,
        logits_scaling=2.0,
    ),
    "qwen3_5": replace(
        CONFIG,
        model_type="qwen3_5_text",
        num_hidden_layers=3,
        layer_types=(LINEAR, LINEAR, SLIDING[0]),
        head_dim=8,
        rope=Rope(1000.0, partial_rotary_factor=0.5),
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=6,
        linear_value_head_dim=5,
        linear_conv_kernel_dim=4,
    ),
    "gemma4": replace(
        GEMMA4 := replace(
            CONFIG,
            model_type="gemma4_text",
            tie_word_embeddings=True,
            hidden_act="gelu_pytorch_tanh",
            num_hidden_layers=3,
            layer_types=(*SLIDING[1:], SLIDING[0]),
            sliding_window=4,
            rope=Rope(1000.0, "proportional", partial_rotary_factor=0.25),
            rope_sliding=Rope(100.0),
            global_head_dim=16,
            attention_multiplier=1.0,
            final_logit_softcapping=3.0,
        ),
        attention_bias=True,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
    ),
    "gemma4_shared": replace(  # two periods of layers with keys and values, one without
        GEMMA4,
        num_hidden_layers=7,
        layer_types=SLIDING[1::-1] * 2 + (*SLIDING[1:], SLIDING[0]),
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        hidden_size_per_layer_input=4,
        vocab_size_per_layer_input=21,
    ),
}
FAMILIES["gemma4_moe"] = replace(
    FAMILIES["gemma4"], attention_bias=False, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True,
    moe_intermediate_size=12,
)  # fmt: skip
ODD = {  # other settings of the new families, read and written as well
    "mistral_full": replace(CONFIG, model_type="mistral", head_dim=4, num_key_value_heads=1, tie_word_embeddings=True),
    "mixtral_sliding": replace(
        FAMILIES["mixtral"], num_key_value_heads=4, head_dim=10, sliding_window=3, layer_types=SLIDING[1:2] * 2
    ),
    "qwen3_moe_all": replace(
        FAMILIES["qwen3_moe"],
        num_experts_per_tok=6,
        norm_topk_prob=True,
        attention_bias=False,
        tie_word_embeddings=False,
        sliding_window=None,
        layer_types=(),
    ),
    "gemma2_unbounded": replace(
        FAMILIES["gemma2"], final_logit_softcapping=None, attn_logit_softcapping=None, attention_bias=True
    ),
    "phi3_plain": replace(CONFIG, model_type="phi3", head_dim=4, num_key_value_heads=4, rope=Rope(100.0)),
    "phi3_part": replace(CONFIG, model_type="phi3", head_dim=4, rope=Rope(100.0, partial_rotary_factor=0.5)),
    "olmo2_shared": replace(CONFIG, model_type="olmo2", head_dim=4, num_key_value_heads=1, tie_word_embeddings=True),
    "smollm3_turned": replace(CONFIG, model_type="smollm3", head_dim=4, attention_bias=True),
    "granite_plain": replace(CONFIG, model_type="granite", head_dim=4, attention_multiplier=1.0, mlp_bias=True),
    "llama_longrope": replace(
        CONFIG,
        rope=Rope(
            100.0,
            "longrope",
            factor=3.0,
            original_max_position_embeddings=32,
            short_factor=(1.0, 1.5, 2.0),
            long_factor=(2.0, 3.0, 4.0),
        ),
    ),
    "qwen3_5_periods": replace(  # two periods and a part of a third
        FAMILIES["qwen3_5"],
        num_hidden_layers=5,
        layer_types=(LINEAR, SLIDING[0]) * 2 + (LINEAR,),
        tie_word_embeddings=True,
        attention_bias=True,
        rope=Rope(100.0, "yarn", factor=4.0, original_max_position_embeddings=16, partial_rotary_factor=0.5),
        linear_num_key_heads=1,
        linear_num_value_heads=3,
        linear_conv_kernel_dim=3,
    ),
    "qwen3_5_first": replace(
        FAMILIES["qwen3_5"],
        num_hidden_layers=2,
        layer_types=(SLIDING[0], LINEAR),
        head_dim=16,
        num_key_value_heads=1,
        rope=Rope(100.0, partial_rotary_factor=0.25),
        hidden_act="gelu",
        linear_num_key_heads=3,
        linear_num_value_heads=3,
    ),
    "qwen3_5_least": replace(  # the least sizes of everything that is linear, and every number of a head rotated
        FAMILIES["qwen3_5"],
        num_hidden_layers=2,
        layer_types=(LINEAR, SLIDING[0]),
        head_dim=2,
        rope=Rope(1000.0),
        linear_num_key_heads=1,
        linear_num_value_heads=1,
        linear_key_head_dim=1,
        linear_value_head_dim=1,
        linear_conv_kernel_dim=2,
    ),
    "gemma4_plain": replace(  # two periods and a part of a third
        GEMMA4,
        num_hidden_layers=5,
        layer_types=SLIDING[::-2] * 2 + SLIDING[:1],
        tie_word_embeddings=False,
        final_logit_softcapping=None,
        num_kv_shared_layers=1,
        hidden_size_per_layer_input=3,
        vocab_size_per_layer_input=19,
        rope=Rope(100.0, "linear", factor=2.0),
    ),
    "gemma4_narrow": replace(  # full layers have the narrower heads, sliding ones see two tokens
        FAMILIES["gemma4_shared"],
        num_hidden_layers=4,
        layer_types=SLIDING[1::-1] * 2,
        num_kv_shared_layers=2,
        sliding_window=2,
        head_dim=10,
        global_head_dim=4,
        rope=Rope(100.0, "yarn", factor=4.0, original_max_position_embeddings=16),
        hidden_size_per_layer_input=1,
        hidden_act="silu",
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    "gemma4_unified": replace(
        FAMILIES["gemma4"],
        model_type="gemma4_unified_text",
        attention_bias=False,
        num_hidden_layers=4,
        layer_types=SLIDING[::-2] * 2,
        num_kv_shared_layers=1,
    ),
    "gemma4_moe_shared": replace(
        FAMILIES["gemma4_shared"], num_experts=4, num_experts_per_tok=4, norm_topk_prob=True, moe_intermediate_size=8
    ),
}


def recurrent(vocab_size: int, context: int = 512) -> Config:
    """A small model with linear_attention."""
    return replace(FAMILIES["qwen3_5"], vocab_size=vocab_size, max_position_embeddings=context)


def sharing(vocab_size: int, context: int = 512) -> Config:
    """A small Gemma 4 with everything on: windows, two head widths, shared keys and values, inputs of each layer."""
    return replace(
        FAMILIES["gemma4_shared"],
        vocab_size=vocab_size,
        vocab_size_per_layer_input=vocab_size,
        max_position_embeddings=context,
    )


def random(tree: Any, seed: int) -> Any:
    """Normal numbers in the shapes of the tree, from NumPy: to compile jax.random for every shape takes longer."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(0.3 * generator.normal(size=x.shape), jnp.float32), tree)


def weights(config: Config) -> dict:
    """Random weights with norms and biases that matter."""
    tree = random(jax.eval_shape(lambda: decoder.init(config, jax.random.key(0))), 0)
    for name in {"layer_scalar", "router_scale", "expert_scale"} & tree["layers"].keys():
        tree["layers"][name] = 1 + tree["layers"][name]
    return tree


NAMES = {"llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
NAMES |= {"qwen3_moe": "Qwen3Moe", "gemma2": "Gemma2", "gemma3_text": "Gemma3Text", "phi3": "Phi3", "olmo2": "Olmo2"}
NAMES |= {"smollm3": "SmolLM3", "granite": "Granite", "qwen3_5_text": "Qwen3_5Text", "gemma4_text": "Gemma4Text"}
NAMES |= {"gemma4_unified_text": "Gemma4UnifiedText"}
LINEAR_SIZES = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
OWN = {  # settings of a family, beside those that all have
    "llama": ("attention_bias", "mlp_bias"),
    "mistral": ("sliding_window",),
    "mixtral": ("sliding_window", "num_experts_per_tok"),
    "qwen2": ("sliding_window",),
    "qwen3": ("attention_bias",),
    "qwen3_moe": ("attention_bias", "sliding_window", "num_experts", "num_experts_per_tok", "norm_topk_prob"),
    "gemma2": (
        "attention_bias",
        "query_pre_attn_scalar",
        "sliding_window",
        "final_logit_softcapping",
        "attn_logit_softcapping",
    ),
    "gemma3_text": ("attention_bias", "query_pre_attn_scalar", "sliding_window", "final_logit_softcapping"),
    "phi3": ("sliding_window",),
    "olmo2": ("attention_bias",),
    "smollm3": ("attention_bias", "mlp_bias", "sliding_window"),
    "granite": (
        "attention_bias",
        "mlp_bias",
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
    ),
    "qwen3_5_text": ("attention_bias", *LINEAR_SIZES, "linear_conv_kernel_dim"),
    "gemma4_unified_text": (
        "attention_bias",
        "sliding_window",
        "final_logit_softcapping",
        "global_head_dim",
        "num_global_key_value_heads",
        "attention_k_eq_v",
        "num_kv_shared_layers",
        "use_double_wide_mlp",
    ),
}
OWN["gemma4_text"] = (*OWN["gemma4_unified_text"], "hidden_size_per_layer_input", "vocab_size_per_layer_input")


def in_transformers(config: Config) -> Any:
    """transformers' own model of the configuration."""
    import transformers

    kind, family = NAMES[config.model_type], config.model_type
    rope = {key: list(x) if isinstance(x, tuple) else x for key, x in vars(config.rope).items() if x is not None}
    own = {"default": (), "linear": ("factor",), "llama3": ("factor", "original_max_position_embeddings")}
    own["llama3"] += ("low_freq_factor", "high_freq_factor")
    own["yarn"] = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
    own["proportional"] = ("partial_rotary_factor",)
    own["longrope"] = ("factor", "original_max_position_embeddings", "short_factor", "long_factor")
    rope = {key: rope[key] for key in ("rope_theta", "rope_type", *own[config.rope.rope_type])}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
             *OWN[family])  # fmt: skip
    settings = {name: getattr(config, name) for name in names}
    settings["hidden_activation" if config.family.scaled_embeddings else "hidden_act"] = config.hidden_act
    if local_rope(config):
        assert config.rope_sliding is not None
        local = {"rope_theta": config.rope_sliding.rope_theta, "rope_type": "default"}
        rope = {"full_attention": rope, "sliding_attention": local}
    if family == "qwen2":
        del settings["head_dim"]
        settings |= {"use_sliding_window": True, "max_window_layers": 1}
    if family == "gemma4_text":
        settings["vocab_size_per_layer_input"] = config.vocab_size_per_layer_input or config.vocab_size
        if config.num_experts:
            settings |= {"enable_moe_block": True, "num_experts": config.num_experts}
            settings |= {"top_k_experts": config.num_experts_per_tok}
            settings |= {"moe_intermediate_size": config.moe_intermediate_size}
    if family == "mixtral":
        settings["num_local_experts"] = config.num_experts
    if family == "qwen3_moe":
        settings |= {"use_sliding_window": any(config.sliding), "moe_intermediate_size": config.intermediate_size}
    if family == "phi3":
        rope["partial_rotary_factor"] = config.rope.partial_rotary_factor
        settings["original_max_position_embeddings"] = config.rope.original_max_position_embeddings
        settings |= {"bos_token_id": None}
    if family == "qwen3_5_text":
        rope["partial_rotary_factor"] = config.rope.partial_rotary_factor
    if family == "smollm3":
        settings |= {"use_sliding_window": any(config.sliding)}
        settings |= {"no_rope_layers": list(config.no_rope_layers or (1,) * config.num_hidden_layers)}
    if config.layer_types and family not in ("mistral", "mixtral", "qwen3_moe", "phi3"):
        settings["layer_types"] = list(config.layer_types)
    theirs = getattr(transformers, f"{kind}Config")(
        **settings, rope_parameters=rope, eos_token_id=None, pad_token_id=None
    )
    head = kind.removesuffix("Text")
    return getattr(transformers, f"{head}ForCausalLM")._from_config(theirs, attn_implementation="eager").eval()


OF_LINEAR = {name: f"{name}.weight" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")}
OF_LINEAR |= {"conv1d": "conv1d.weight", "linear_norm": "norm.weight", "A_log": "A_log", "dt": "dt_bias"}


def by_their_name(config: Config, tree: dict) -> dict[str, np.ndarray]:
    """The canonical tree with the names and shapes that transformers' parameters have in memory."""
    named = {f"model.{name}.weight": leaf for name, leaf in tree.items() if name not in ("layers", "lm_head")}
    for i in range(config.num_hidden_layers):
        layer = {name: np.asarray(leaf) for name, leaf in kinds.one_layer(config, tree["layers"], i).items()}
        if config.moe_intermediate_size:
            both = [layer.pop("experts_gate"), layer.pop("experts_up")]
            named[f"model.layers.{i}.experts.gate_up_proj"] = np.concatenate(both, 1)
            named[f"model.layers.{i}.experts.down_proj"] = layer.pop("experts_down")
            named[f"model.layers.{i}.router.proj.weight"] = layer.pop("router")
            named[f"model.layers.{i}.router.scale"] = layer.pop("router_scale")
            named[f"model.layers.{i}.router.per_expert_scale"] = layer.pop("expert_scale")
        elif config.num_experts:
            both = [layer.pop("experts_gate"), layer.pop("experts_up")]
            named[f"model.layers.{i}.mlp.experts.gate_up_proj"] = np.concatenate(both, 1)
            named[f"model.layers.{i}.mlp.experts.down_proj"] = layer.pop("experts_down")
            named[f"model.layers.{i}.mlp.gate.weight"] = layer.pop("router")
        if config.model_type == "phi3":
            layer["qkv_proj"] = np.concatenate([layer.pop(f"{name}_proj") for name in "qkv"])
            layer["gate_up_proj"] = np.concatenate([layer.pop("gate_proj"), layer.pop("up_proj")])
        for name, leaf in ((plain(name), leaf) for name, leaf in layer.items()):
            owner = "mlp." if name.startswith(("gate", "up", "down")) else "self_attn."
            owner = "" if "layernorm" in name or "per_layer" in name else owner
            if name == "layer_scalar":
                named[f"model.layers.{i}.{name}"] = leaf
                continue
            if name in OF_LINEAR:
                named[f"model.layers.{i}.linear_attn.{OF_LINEAR[name]}"] = leaf
                continue
            what = f"{name.removesuffix('_bias')}.{'bias' if name.endswith('_bias') else 'weight'}"
            named[f"model.layers.{i}.{owner}{what}"] = leaf
    if "lm_head" in tree:
        named["lm_head.weight"] = tree["lm_head"]
    return {name: np.asarray(leaf) for name, leaf in named.items()}


def close(actual, expected, tolerance: float = 1e-5) -> None:
    """Every leaf agrees, relative to the largest number of its leaf."""
    for (path, a), b in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()), err_msg=str(path))


def read_golden(file: Path, part: str) -> dict[str, np.ndarray]:
    """The arrays of a file whose names begin with `part`/, without it."""
    with np.load(file) as stored:
        return {name.partition("/")[2]: stored[name] for name in stored.files if name.partition("/")[0] == part}
