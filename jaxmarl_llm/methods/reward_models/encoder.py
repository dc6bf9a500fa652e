"""A frozen model as a text encoder: the mean of its final hidden states. Shapes: N texts, L tokens, D width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rollout.trajectory import SampledTokens
from jaxmarl_llm.text.tokenizers import Tokenizer, compile_phrases


class Texts(NamedTuple):
    tokens: Any  # int32 [N, L], right-padded
    length: Any  # int32 [N]


def texts(tokenizer: Tokenizer, given: Sequence[str]) -> Texts:
    """The tokens of texts."""
    compiled = compile_phrases(tokenizer, (given,))
    return Texts(compiled.tokens, compiled.length)


def utterance_texts(sampled: SampledTokens, end: int | None) -> Texts:
    """The utterance of each row of a game with one utterance, without the end token."""
    words = sampled.mask if end is None else sampled.mask & (sampled.token != end)
    return Texts(sampled.token, words.sum(1))


def encode(config: Config, params: dict, given: Texts) -> jax.Array:
    """float32 [N, D]: the mean of a model's final hidden states over each text's tokens, 0 for an empty text. The model
    reads each text alone. Pooling as in Sentence-BERT (Reimers and Gurevych, https://arxiv.org/abs/1908.10084)."""
    hidden, _ = decoder.forward(config, params, jnp.asarray(given.tokens))
    inside = jnp.arange(hidden.shape[1])[None] < jnp.asarray(given.length)[:, None]
    total = jnp.where(inside[..., None], hidden.astype(jnp.float32), 0).sum(1)
    return total / jnp.maximum(given.length, 1)[:, None]
