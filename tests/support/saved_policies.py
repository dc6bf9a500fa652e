"""Saved policies as users have them: a tiny policy of a game, a small model with its tokenizer, an adapter on it."""

import json
from dataclasses import replace
from pathlib import Path

import jax

from jaxmarl_llm.models import decoder, loading, lora
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy_files import save_policy
from jaxmarl_llm.rollout.team import PolicySet, strings
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from jaxmarl_llm.training.setup import tiny
from tests.support import tokenizer_files
from tests.support.families import CONFIG, weights

ADAPTER = Lora(2, 4.0)


def tiny_policy(directory: Path, game, seed: int) -> dict:
    """Saves a tiny policy of a game with random, marked preferences; returns its weights."""
    tokenizer = SymbolTokenizer(strings(game))
    policy_set = PolicySet(tokenizer, ("me",), tiny(tokenizer.vocab_size))
    params = jax.tree.map(lambda x: 3 * x, decoder.init(policy_set.config, jax.random.key(seed)))
    save_policy(directory, policy_set, 0, params, "")
    return params


def small_model(directory: Path) -> dict:
    """Saves a model of bytes with one layer and its tokenizer, as a hub stores them; returns its weights."""
    tokenizer_files.tiny(directory.parent / f"{directory.name}-tokenizer", tokenizer_files.CHATML)
    files = [*(directory.parent / f"{directory.name}-tokenizer").iterdir()]
    vocabulary = len(json.loads(next(x for x in files if x.name == "tokenizer.json").read_text())["model"]["vocab"])
    config = replace(CONFIG, vocab_size=vocabulary, max_position_embeddings=2048, num_hidden_layers=1)
    params = weights(config)
    loading.save(directory, config, params)
    for file in files:
        file.rename(directory / file.name)
    return params


def adapter_on(base: Path, directory: Path) -> dict:
    """Saves an adapter on the model in `base`; returns its weights."""
    config, params, _ = loading.load(base)
    adapter = jax.tree.map(lambda x: x + 0.1, lora.init(jax.random.key(3), params, ADAPTER))
    save_policy(directory, PolicySet(None, ("me",), config, ADAPTER), 0, adapter, str(base))
    return adapter
