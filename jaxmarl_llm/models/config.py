"""Configuration of a decoder: sizes, settings and dtypes, with the names of Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import jax

from jaxmarl_llm.models.attention import attention
from jaxmarl_llm.models.rope import Rope, positive

Remat = Literal["none", "dots", "full"]


REMAT: dict[str, Callable] = {  # wrappers of a layer: the backward pass recomputes a part of it
    "none": lambda layer: layer,
    "dots": partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("linear")),  # all else
    "full": jax.checkpoint,
}


@dataclass(frozen=True)
class Dtypes:
    """Dtypes of stored weights, of products, and of cached keys and values. Logits are always float32.

    With `attention` "fused", updates and scoring use `jax.nn.dot_product_attention`. On a GPU this is cuDNN's flash
    kernel, which needs bfloat16 and a head_dim of at most 128, a multiple of 8. It copies shared prompts for every row.
    A rollout does not use it: it would also copy the caches, which costs more than the kernel saves.
    """

    parameters: str = "float32"
    compute: str = "float32"
    cache: str = "float32"
    attention: Literal["plain", "fused"] = "plain"

    @property
    def half(self) -> bool:
        """True if products, or cached keys and values, have fewer bits than float32."""
        return {self.compute, self.cache} != {"float32"}


LLAMA_NORMS = ("input_layernorm", None, "post_attention_layernorm", None)
GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


# Kinds of layers, as config.json's layer_types names them: attention to all tokens, to a window, or the delta rule
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
ATTENTION = (FULL, SLIDING)
KINDS_WITH = {  # {leaf of the tree of weights: the kinds of layers that have it}; all layers have the other leaves
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"), ATTENTION),
    **dict.fromkeys(("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"), (LINEAR,)),
    **dict.fromkeys(("conv1d", "A_log", "dt", "linear_norm"), (LINEAR,)),
}

OF_HEADS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
OF_KEYS = ("k_proj", "v_proj", "k_norm")
OF_MLP = ("gate_proj", "up_proj", "down_proj")
GLOBAL = "global_"  # begins the names of leaves with heads in full layers, if the model's sliding layers have others
WIDE = "wide_"  # begins the names of leaves of MLPs with twice the width


def plain(leaf: str) -> str:
    """The name of a leaf without GLOBAL or WIDE."""
    return leaf.removeprefix(GLOBAL).removeprefix(WIDE)


class Family(NamedTuple):
    """Features of a model_type's layers that no key of config.json states."""

    norms: tuple[str | None, ...] = LLAMA_NORMS  # before attention, after it, before the MLP, after it
    qk_norm: Literal["", "head", "all"] = ""  # norms of queries and keys: per head, or over all heads
    minus_one: bool = False  # norm weights are stored minus 1, except for `linear_norm`
    scaled_embeddings: bool = False  # embeddings are multiplied by sqrt(width)
    gated: bool = False  # q_proj also has a gate of every head, whose sigmoid multiplies the attention's output
    o_bias: bool = True  # attention_bias covers o_proj too
    kinds: tuple[str, ...] = ATTENTION  # the kinds of layers
    wide_norms: bool = False  # norm weights multiply in float32, as they always do with `minus_one`
    value_norm: bool = False  # values are normed per head, without a weight
    scaled_layers: bool = False  # a layer's output is multiplied by its `layer_scalar`, which is not trained
    dense_beside: bool = False  # experts stand beside an MLP, behind norms of their own and a router with scales
    full_last: bool = False  # the last layer has full attention


GEMMA4 = Family(
    GEMMA_NORMS,
    "head",
    scaled_embeddings=True,
    wide_norms=True,
    value_norm=True,
    scaled_layers=True,
    full_last=True,
)
FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(),
    "qwen2": Family(o_bias=False),
    "qwen3": Family(qk_norm="head"),
    "qwen3_moe": Family(qk_norm="head"),
    "gemma2": Family(GEMMA_NORMS, minus_one=True, scaled_embeddings=True),
    "gemma3_text": Family(GEMMA_NORMS, "head", minus_one=True, scaled_embeddings=True),
    "phi3": Family(),
    "olmo2": Family((None, "post_attention_layernorm", None, "post_feedforward_layernorm"), "all"),
    "smollm3": Family(),
    "granite": Family(),
    "qwen3_5_text": Family(qk_norm="head", minus_one=True, gated=True, kinds=(FULL, LINEAR)),
    "gemma4_text": GEMMA4._replace(dense_beside=True),
    "gemma4_unified_text": GEMMA4,
}


ACTIVATIONS: dict[str, Callable] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
}


@dataclass(frozen=True)
class Config:
    """A decoder of a known family (`model_type`), with the names of Hugging Face's config.json.

    Raises ValueError for values that contradict each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope: Rope = field(default_factory=Rope)
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    model_type: str = "llama"  # a key of FAMILIES
    hidden_act: str = "silu"
    attention_bias: bool = False  # q, k, v and, except in qwen2, o have biases
    mlp_bias: bool = False
    query_pre_attn_scalar: float | None = None  # scores are divided by its square root; None: head_dim
    sliding_window: int | None = None  # positions that a sliding layer sees, the token's own included
    layer_types: tuple[str, ...] = ()  # the kind of each layer: FULL, SLIDING or LINEAR; (): all full
    rope_sliding: Rope | None = None  # for sliding layers; None: the same as `rope`
    no_rope_layers: tuple[int, ...] = ()  # by layer: 0 without rotary embeddings, else 1; (): all have them
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None  # bound of attention scores, before the mask
    num_experts: int = 0  # MLPs a layer, each of width intermediate_size; 0: a single MLP and no router
    moe_intermediate_size: int = 0  # width of experts beside the layer's MLP; 0: experts stand in its place
    num_experts_per_tok: int = 0  # a token's experts have the largest probabilities of the router
    norm_topk_prob: bool = False  # these probabilities are divided by their sum
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # factor of the outputs of attention and MLP
    attention_multiplier: float | None = None  # factor of scores, in place of 1 / sqrt(query_pre_attn_scalar)
    logits_scaling: float = 1.0  # logits are divided by it
    global_head_dim: int | None = None  # heads of full layers, with leaves of their own; None: head_dim
    num_global_key_value_heads: int | None = None  # those of full layers; None: num_key_value_heads
    attention_k_eq_v: bool = False  # values of full layers are their keys, before the norm and the angle
    num_kv_shared_layers: int = 0  # so many last layers read keys and values of the last of their kind before them
    use_double_wide_mlp: bool = False  # the MLPs of these layers have the width 2 * intermediate_size
    hidden_size_per_layer_input: int = 0  # numbers that each layer reads of each token's own; 0: none
    vocab_size_per_layer_input: int = 0  # tokens that have such numbers, at least vocab_size
    linear_num_key_heads: int = 0  # this and the next four are sizes of layers with linear_attention, if any
    linear_num_value_heads: int = 0  # a multiple of the key heads
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0  # tokens that the convolution sees, the token's own included
    dtypes: Dtypes = field(default_factory=Dtypes)

    def __post_init__(self):
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        for name in (*sizes, "num_key_value_heads", "head_dim", "max_position_embeddings"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a positive whole number, got {getattr(self, name)!r}.")
        if not positive(self.rms_norm_eps) or not isinstance(self.tie_word_embeddings, bool):
            raise ValueError(
                f"rms_norm_eps must be a positive number and tie_word_embeddings a bool, got {self.rms_norm_eps!r} and "
                f"{self.tie_word_embeddings!r}."
            )
        for before, (dim, keys) in (("", self.heads_of(SLIDING)), (GLOBAL, self.heads_of(FULL))):
            if self.num_attention_heads % keys or dim % 2:
                raise ValueError(
                    f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                    f"num_{before}key_value_heads ({keys}) and {before}head_dim ({dim}) even."
                )
        for name, given, possible in (
            ("model_type", self.model_type, tuple(FAMILIES)),
            ("hidden_act", self.hidden_act, tuple(ACTIVATIONS)),
            ("attention", self.dtypes.attention, ("plain", "fused")),
        ):
            if given not in possible:
                raise ValueError(f"{name} must be one of {', '.join(possible)}, got {given!r}.")
        if self.layer_types and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(f"layer_types names {len(self.layer_types)} of {self.num_hidden_layers} layers.")
        if unknown := [kind for kind in self.layer_types if kind not in self.family.kinds]:
            raise ValueError(
                f"layer_types holds {unknown[0]!r}, and a {self.model_type} has {' and '.join(self.family.kinds)}."
            )
        self._check_linear()
        self._check_shared()
        self._check_experts()
        if any(self.sliding) and not self.sliding_window:
            raise ValueError("Layers with sliding_attention need a sliding_window.")
        if self.no_rope_layers and len(self.no_rope_layers) != self.num_hidden_layers:
            raise ValueError(f"no_rope_layers names {len(self.no_rope_layers)} of {self.num_hidden_layers} layers.")
        if self.attn_logit_softcapping is not None and self.dtypes.attention == "fused":
            raise ValueError('attention "fused" cannot bound scores (attn_logit_softcapping): choose "plain".')
        for rope, kind in ((self.rope, FULL), (self.rope_sliding or self.rope, SLIDING)):
            dim, _ = self.heads_of(kind)
            half = rope.rotated_dims(dim) // 2
            if not half or rope.rotated_dims(dim) % 2:
                raise ValueError(
                    f"partial_rotary_factor {rope.partial_rotary_factor} must rotate an even part of a head of {dim}."
                )
            if rope.rope_type == "longrope" and {len(rope.short_factor), len(rope.long_factor)} != {half}:
                raise ValueError(
                    f"short_factor and long_factor need {half} numbers each, got {len(rope.short_factor)} and "
                    f"{len(rope.long_factor)}."
                )

    def _check_linear(self) -> None:
        if not self.recurrent:
            return
        sizes = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
        for name in sizes:
            if not (isinstance(getattr(self, name), int) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a positive whole number, got {getattr(self, name)!r}.")
        if not (isinstance(self.linear_conv_kernel_dim, int) and self.linear_conv_kernel_dim > 1):
            raise ValueError(f"linear_conv_kernel_dim must be at least 2, got {self.linear_conv_kernel_dim!r}.")
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise ValueError(
                f"linear_num_value_heads ({self.linear_num_value_heads}) must be a multiple of linear_num_key_heads "
                f"({self.linear_num_key_heads})."
            )
        if set(self.layer_types) == {LINEAR}:
            raise ValueError("Of the layers at least one must have attention, but all have linear_attention.")

    def _check_shared(self) -> None:
        if (self.attention_k_eq_v or self.num_global_key_value_heads) and self.global_head_dim is None:
            raise ValueError("attention_k_eq_v and num_global_key_value_heads need a global_head_dim.")
        if not 0 <= self.num_kv_shared_layers < self.num_hidden_layers:
            raise ValueError(
                f"num_kv_shared_layers must be less than {self.num_hidden_layers}, the number of layers, got "
                f"{self.num_kv_shared_layers!r}."
            )
        if self.family.full_last and self.kinds[-1] != FULL:
            raise ValueError(f"The last layer of a {self.model_type} must have {FULL}, got {self.kinds[-1]}.")
        first = self.num_hidden_layers - self.num_kv_shared_layers
        if missing := set(self.kinds[first:]) - set(self.kinds[:first]):
            raise ValueError(f"Shared keys and values need a layer with {missing.pop()} among the first {first}.")
        if self.hidden_size_per_layer_input and self.vocab_size_per_layer_input < self.vocab_size:
            raise ValueError(
                f"vocab_size_per_layer_input ({self.vocab_size_per_layer_input}) must be at least vocab_size "
                f"({self.vocab_size})."
            )

    def _check_experts(self) -> None:
        chosen, count, width = self.num_experts_per_tok, self.num_experts, self.moe_intermediate_size
        if not 0 <= chosen <= count or bool(count) != bool(chosen):
            raise ValueError(
                f"num_experts_per_tok must be from 1 to the number of experts, got {chosen!r} of {count!r}."
            )
        if bool(width) != bool(count and self.family.dense_beside):
            raise ValueError(
                f"moe_intermediate_size is the width of experts beside an MLP, as only "
                f"{' and '.join(name for name, x in FAMILIES.items() if x.dense_beside)} may have them, got {width!r} "
                f"for {count} experts of a {self.model_type}."
            )

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every layer."""
        return self.layer_types or (FULL,) * self.num_hidden_layers

    @property
    def recurrent(self) -> bool:
        """True if some layers remember a whole row in a state, which cannot go back to an earlier token."""
        return LINEAR in self.kinds

    @property
    def loops(self) -> tuple[tuple[int, int, int], ...]:
        """(first layer, end, period) of runs of layers: in a run layer i + period has the leaves of layer i.

        Layers with the keys and values of others are a run of their own.
        """
        shared = self.num_hidden_layers - self.num_kv_shared_layers
        ends = [(0, shared), (shared, self.num_hidden_layers)][: 1 + bool(self.num_kv_shared_layers)]
        result = []
        for first, end in ends:
            names = [tuple(self.leaf_of(name, layer) for name in KINDS_WITH) for layer in range(first, end)]
            periods = range(1, len(names) + 1)
            result.append((first, end, next(p for p in periods if all(x == names[i % p] for i, x in enumerate(names)))))
        return tuple(result)

    def leaf_of(self, name: str, layer: int) -> str | None:
        """The leaf with the weight `name` of a layer: the name, after GLOBAL or WIDE if they apply; None without it."""
        kind, shared = self.kinds[layer], self.source(layer) != layer
        full = kind == FULL and self.global_head_dim is not None
        if kind not in KINDS_WITH.get(name, self.family.kinds) or (shared and name in OF_KEYS):
            return None
        if full and name == "v_proj" and self.attention_k_eq_v:
            return None
        if full and name in OF_HEADS:
            return GLOBAL + name
        return WIDE + name if shared and self.use_double_wide_mlp and name in OF_MLP else name

    def layers_with(self, leaf: str) -> tuple[int, ...]:
        """The layers that have a leaf of the tree of weights, in the order in which it is stacked over them."""
        leaf = leaf.removesuffix("_bias")
        return tuple(layer for layer in range(self.num_hidden_layers) if self.leaf_of(plain(leaf), layer) == leaf)

    def source(self, layer: int) -> int:
        """The layer whose keys and values a layer reads: its own, or those of the last of its kind that has some."""
        first = self.num_hidden_layers - self.num_kv_shared_layers
        return layer if layer < first else max(i for i in range(first) if self.kinds[i] == self.kinds[layer])

    @property
    def with_keys(self) -> tuple[int, ...]:
        """The layers with keys and values of their own."""
        layers = enumerate(self.kinds)
        return tuple(layer for layer, kind in layers if kind in ATTENTION and self.source(layer) == layer)

    def heads_of(self, kind: str) -> tuple[int, int]:
        """(head_dim, key-value heads) of the layers of a kind."""
        if kind != FULL or self.global_head_dim is None:
            return self.head_dim, self.num_key_value_heads
        return self.global_head_dim, self.num_global_key_value_heads or self.num_key_value_heads

    @property
    def linear_widths(self) -> tuple[int, int]:
        """(numbers of queries, keys and values together, numbers of values) in a layer with linear_attention."""
        values = self.linear_num_value_heads * self.linear_value_head_dim
        return 2 * self.linear_num_key_heads * self.linear_key_head_dim + values, values

    @property
    def attention(self) -> Callable:
        """`attention` with this model's scale and bound of scores."""
        scale = self.attention_multiplier
        if scale is None:
            scale = (self.query_pre_attn_scalar or self.head_dim) ** -0.5
        bound = self.attn_logit_softcapping
        return partial(attention, scale=scale, bound=bound)

    @property
    def longest(self) -> int | None:
        """The limit of tokens in a row; None: no limit.

        Past its original context longrope has other angles for all tokens, which a cache of rotated keys cannot follow.
        """
        ropes = (self.rope, self.rope_sliding or self.rope)
        return min((x.original_max_position_embeddings for x in ropes if x.rope_type == "longrope"), default=None)

    @property
    def sliding(self) -> tuple[bool, ...]:
        """bool by layer: the layer sees only the window."""
        return tuple(kind == SLIDING for kind in self.kinds)

    @property
    def maps_with_bias(self) -> tuple[str, ...]:
        """The linear maps with a bias."""
        attention = ("q_proj", "k_proj", "v_proj") + ("o_proj",) * self.family.o_bias
        return attention * self.attention_bias + ("gate_proj", "up_proj", "down_proj") * self.mlp_bias
