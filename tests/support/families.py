"""Small configurations of every family with every feature on: ours, and the settings that transformers wants for it."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config, Rope

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
}


def random(tree: Any, seed: int) -> Any:
    """Normal numbers in the shapes of the tree, from NumPy: to compile jax.random for every shape takes longer."""
    generator = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(0.3 * generator.normal(size=x.shape), jnp.float32), tree)


def weights(config: Config) -> dict:
    """Random weights with norms and biases that matter."""
    return random(jax.eval_shape(lambda: decoder.init(config, jax.random.key(0))), 0)


def in_transformers(config: Config) -> Any:
    """transformers' own model of the configuration."""
    import transformers

    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3_text": "Gemma3Text"}[config.model_type]
    rope = {key: value for key, value in vars(config.rope).items() if value is not None}
    own = {"default": (), "linear": ("factor",), "llama3": ("factor", "original_max_position_embeddings")}
    own["llama3"] += ("low_freq_factor", "high_freq_factor")
    own["yarn"] = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")
    rope = {key: rope[key] for key in ("rope_theta", "rope_type", *own[config.rope.rope_type])}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
             "attention_bias")  # fmt: skip
    settings = {name: getattr(config, name) for name in names}
    if config.model_type == "gemma3_text":
        assert config.rope_sliding is not None
        local = {"rope_theta": config.rope_sliding.rope_theta, "rope_type": "default"}
        rope = {"full_attention": rope, "sliding_attention": local}
        names = ("query_pre_attn_scalar", "final_logit_softcapping", "sliding_window")
        settings |= {"hidden_activation": config.hidden_act, **{name: getattr(config, name) for name in names}}
    else:
        settings["hidden_act"] = config.hidden_act
    if config.model_type == "llama":
        settings["mlp_bias"] = config.mlp_bias
    if config.model_type == "qwen2":
        del settings["attention_bias"], settings["head_dim"]
        settings |= {"use_sliding_window": True, "sliding_window": config.sliding_window, "max_window_layers": 1}
    if config.layer_types:
        settings["layer_types"] = list(config.layer_types)
    theirs = getattr(transformers, f"{kind}Config")(
        **settings, rope_parameters=rope, eos_token_id=None, pad_token_id=None
    )
    head = "Gemma3" if kind == "Gemma3Text" else kind
    return getattr(transformers, f"{head}ForCausalLM")._from_config(theirs, attn_implementation="eager").eval()


def by_their_name(tree: dict) -> dict[str, np.ndarray]:
    """The canonical tree with transformers' parameter names."""
    named = {f"model.{name}.weight": tree[name] for name in ("embed_tokens", "norm")}
    for name, stack in tree["layers"].items():
        owner = (
            "" if name.endswith("layernorm") else "mlp." if name.startswith(("gate", "up", "down")) else "self_attn."
        )
        what = f"{name.removesuffix('_bias')}.{'bias' if name.endswith('_bias') else 'weight'}"
        named |= {f"model.layers.{i}.{owner}{what}": leaf for i, leaf in enumerate(stack)}
    if "lm_head" in tree:
        named["lm_head.weight"] = tree["lm_head"]
    return {name: np.asarray(leaf) for name, leaf in named.items()}


def close(actual, expected, tolerance: float = 1e-5) -> None:
    """Every leaf agrees, relative to the largest number of its leaf."""
    for (path, a), b in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()), err_msg=str(path))
