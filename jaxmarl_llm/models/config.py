"""A decoder's sizes, settings and dtypes, in the words of Hugging Face's config.json."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import jax
import numpy as np

from jaxmarl_llm.models.attention import attention

Remat = Literal["none", "dots", "full"]


REMAT: dict[str, Callable] = {  # the part of a layer that the backward pass computes again
    "none": lambda layer: layer,
    "dots": partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("linear")),  # all but these
    "full": jax.checkpoint,
}


@dataclass(frozen=True)
class Dtypes:
    """Dtypes of stored weights, of products, of keys and values. Logits are always float32.

    With `attention` "fused", chunks of more than one token use `jax.nn.dot_product_attention`; on a GPU this is cuDNN's
    flash kernel, which needs bfloat16 and a head_dim of at most 128, a multiple of 8. Shared prompts are then copied
    for every row.
    """

    parameters: str = "float32"
    compute: str = "float32"
    cache: str = "float32"
    attention: Literal["plain", "fused"] = "plain"


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of one kind of layer, in the words of config.json's rope_parameters.

    Linear scaling: https://arxiv.org/abs/2306.15595, YaRN: https://arxiv.org/abs/2309.00071, llama3: its release.
    """

    rope_theta: float = 10000.0
    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0  # linear, llama3, yarn: how many times longer the context is than in pretraining
    original_max_position_embeddings: int = 8192  # llama3, yarn: the context of pretraining
    low_freq_factor: float = 1.0  # llama3: wavelengths above original / low are stretched whole,
    high_freq_factor: float = 4.0  # those below original / high not at all
    beta_fast: float = 32.0  # yarn: turns within the original context above which a frequency is kept,
    beta_slow: float = 1.0  # and below which it is stretched whole
    attention_factor: float | None = None  # yarn: scale of cosine and sine; None: 0.1 ln(factor) + 1

    def __post_init__(self):
        numbers = {name: value for name, value in vars(self).items() if name != "rope_type" and value is not None}
        wrong = [f"{name} {value!r}" for name, value in numbers.items() if not _positive(value)]
        if wrong:
            raise ValueError(f"Rotary embeddings need positive numbers, got {', '.join(wrong)}.")

    def frequencies(self, head_dim: int) -> tuple[np.ndarray, float]:
        """Radians per position float32 [head_dim / 2], and the scale of cosine and sine (1 except for yarn)."""
        half = head_dim // 2
        plain = 1.0 / self.rope_theta ** (np.arange(half) / half)
        if self.rope_type == "default":
            return plain.astype(np.float32), 1.0
        if self.rope_type == "linear":
            return (plain / self.factor).astype(np.float32), 1.0
        original = self.original_max_position_embeddings
        if self.rope_type == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            keep = np.clip((original * plain / (2 * np.pi) - low) / (high - low), 0, 1)  # turns in the original context
            return ((1 - keep) * plain / self.factor + keep * plain).astype(np.float32), 1.0

        def dimension(turns: float) -> float:
            return half * math.log(original / (turns * 2 * math.pi)) / math.log(self.rope_theta)

        first = max(math.floor(dimension(self.beta_fast)), 0)
        last = min(math.ceil(dimension(self.beta_slow)), head_dim - 1)
        stretched = np.clip((np.arange(half) - first) / max(last - first, 0.001), 0, 1)
        frequencies = stretched * plain / self.factor + (1 - stretched) * plain
        scale = self.attention_factor
        if scale is None:
            scale = 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0
        return frequencies.astype(np.float32), scale


ModelType = Literal["llama", "qwen2", "qwen3", "gemma3_text"]


ACTIVATIONS: dict[str, Callable] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
}


@dataclass(frozen=True)
class Config:
    """A decoder of a known family (`model_type`), in the words of Hugging Face's config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope: Rope = Rope()
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    model_type: ModelType = "llama"
    hidden_act: str = "silu"
    attention_bias: bool = False  # on q, k, v, and on o except in qwen2
    mlp_bias: bool = False
    query_pre_attn_scalar: float | None = None  # scores are divided by its root; None: head_dim
    sliding_window: int | None = None  # positions that a sliding layer sees, its own included
    layer_types: tuple[str, ...] = ()  # full_attention or sliding_attention for each layer; (): all full
    rope_sliding: Rope | None = None  # of sliding layers; None: the same as `rope`
    final_logit_softcapping: float | None = None
    dtypes: Dtypes = field(default_factory=Dtypes)

    def __post_init__(self):
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        for name in (*sizes, "num_key_value_heads", "head_dim", "max_position_embeddings"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a positive whole number, got {getattr(self, name)!r}.")
        if not _positive(self.rms_norm_eps) or not isinstance(self.tie_word_embeddings, bool):
            raise ValueError(
                f"rms_norm_eps must be a positive number and tie_word_embeddings a bool, got {self.rms_norm_eps!r} and "
                f"{self.tie_word_embeddings!r}."
            )
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of num_key_value_heads "
                f"({self.num_key_value_heads}) and head_dim ({self.head_dim}) even."
            )
        for name, given, possible in (
            ("model_type", self.model_type, get_args(ModelType)),
            ("hidden_act", self.hidden_act, tuple(ACTIVATIONS)),
            ("attention", self.dtypes.attention, ("plain", "fused")),
        ):
            if given not in possible:
                raise ValueError(f"{name} must be one of {', '.join(possible)}, got {given!r}.")
        if self.layer_types and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types names {len(self.layer_types)} of {self.num_hidden_layers} layers.")
        if any(self.sliding) and not self.sliding_window:
            raise ValueError("Layers with sliding_attention need a sliding_window.")

    @property
    def gemma(self) -> bool:
        """True for Gemma: norms around attention and MLP, norm weights stored minus 1, embeddings times sqrt(width)."""
        return self.model_type == "gemma3_text"

    @property
    def qk_norm(self) -> bool:
        return self.model_type in ("qwen3", "gemma3_text")

    @property
    def attention(self) -> Callable:
        """`attention` with the scale and the kernel of this model."""
        scale = (self.query_pre_attn_scalar or self.head_dim) ** -0.5
        return partial(attention, scale=scale, fused=self.dtypes.attention == "fused")

    @property
    def sliding(self) -> tuple[bool, ...]:
        """True for each layer that sees only the window."""
        return tuple(kind == "sliding_attention" for kind in self.layer_types) or (False,) * self.num_hidden_layers

    @property
    def biased(self) -> tuple[str, ...]:
        """The linear maps with a bias."""
        attention = ("q_proj", "k_proj", "v_proj") + (() if self.model_type == "qwen2" else ("o_proj",))
        return attention * self.attention_bias + ("gate_proj", "up_proj", "down_proj") * self.mlp_bias
