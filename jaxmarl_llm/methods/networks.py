"""Auxiliary networks beside the policies (critic, predictor), with their own optimiser and a slow copy.

A recipe keeps a `Network` in its state (`init_state`), so that checkpoints hold it, and trains it in its step with
`learn`. A network has the size of a tiny policy and reads the rows of a policy set, whatever model plays there. Shapes:
R rows, M sampled tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.policy import states_before
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.setup import tiny
from jaxmarl_llm.training.update import Learners, Optimiser, update

NAME = "network"
Loss = Callable[[Any, Any], tuple[Mean, dict[str, Mean]]]  # (weights, batch) -> loss, metrics


class Network(struct.PyTreeNode):
    learners: Learners  # the single learner is NAME
    slow: Any  # the exponential average of its weights

    @property
    def weights(self) -> Any:
        return self.learners.weights[NAME]


def config(parts: Parts, policy_set: str) -> Config:
    """The configuration of a network that reads the rows of this policy set."""
    players = parts.policy_sets[policy_set]
    assert players.config is not None  # no network reads a script's rows
    size = tiny(players.tokenizer.vocab_size)
    return dataclasses.replace(size, max_position_embeddings=players.config.max_position_embeddings)


def init(config: Config, key: jax.Array, heads: Mapping[str, int], scale: float = 0.1) -> Network:
    """A network with a linear head of n outputs for each {name: n}. Heads start small and random: outputs are about
    `scale`."""
    width, (trunk, *keys) = config.hidden_size, jax.random.split(key, 1 + len(heads))
    small = lambda key, n: {"w": scale * jax.random.normal(key, (width, n)) / width**0.5, "b": jnp.zeros(n)}
    head_weights = {name: small(key, n) for key, (name, n) in zip(keys, heads.items(), strict=True)}
    return new_network({"trunk": decoder.init(config, trunk), "heads": head_weights})


def new_network(weights: Any) -> Network:
    """A network with these weights and a new optimiser."""
    return Network(Optimiser().init({NAME: weights}), weights)


def read(config: Config, weights: Any, rows: Rows, sampled: SampledTokens) -> dict[str, jax.Array]:
    """{head: outputs before each sampled token, float32 [R, M, outputs]}."""
    states = states_before(config, weights["trunk"], rows, sampled, None, None, "none").astype(jnp.float32)
    return {name: states @ head["w"] + head["b"][None, None] for name, head in weights["heads"].items()}


def read_after(config: Config, weights: Any, rows: Rows, sampled: SampledTokens) -> dict[str, jax.Array]:
    """{head: outputs after each sampled token has been read, float32 [R, M, outputs]}."""
    hidden, _ = decoder.forward(config, weights["trunk"], rows.tokens, rows.prompts)
    states = jnp.take_along_axis(hidden, sampled.at[:, :, None], 1).astype(jnp.float32)
    return {name: states @ head["w"] + head["b"][None, None] for name, head in weights["heads"].items()}


def read_last(config: Config, weights: Any, texts: jax.Array) -> dict[str, jax.Array]:
    """{head: outputs after the last token of texts int32 [..., L], float32 [..., outputs]}."""
    hidden, _ = decoder.forward(config, weights["trunk"], texts.reshape(-1, texts.shape[-1]))
    last = hidden[:, -1].astype(jnp.float32)
    return {
        name: (last @ head["w"] + head["b"][None]).reshape(*texts.shape[:-1], -1)
        for name, head in weights["heads"].items()
    }


def learn(
    network: Network, loss: Loss, batch: Any, rate: jax.Array, key: jax.Array, tau: float = 0.1
) -> tuple[Network, dict[str, jax.Array]]:
    """The network after one step of Adam on loss(weights, batch), and its metrics. The slow copy moves by `tau` towards
    the new weights."""
    network_loss = lambda weights, batch: loss(weights[NAME], batch)
    learners, metrics = update(Optimiser(), network_loss, network.learners, batch, 1, rate, key)
    slow = optax.incremental_update(learners.weights[NAME], network.slow, tau)
    return Network(learners, slow), {f"{name.removesuffix('/' + NAME)}/{NAME}": x for name, x in metrics.items()}
