"""A progress estimator as in SPA-RL: a network of its own learns what each turn contributes to the return.

Its head says a number c after the last token of each turn of a row, and it learns by the sum alone,

  loss = (sum over turns of c_t - R)^2

so that a policy can be paid c_t in turn t instead of R after the last one. A recipe keeps the network in its state, and
its step pays what the network said before it learnt from the same games. Shapes: B episodes, T turns, A seats, R rows.

Paper: SPA-RL (Wang et al.) 2025, https://arxiv.org/abs/2505.20732; there the head sits on the logits of the policy's
own model, and learns before the policy does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.trajectory import last_of_turn
from jaxmarl_llm.training import networks
from jaxmarl_llm.training.networks import Network
from jaxmarl_llm.training.recipe import Experience
from jaxmarl_llm.training.setup import Parts

HEAD = "contribution"


def init(parts: Parts, key: jax.Array) -> Network:
    """A new estimator for the rows of the only policy set that learns: its contributions begin near 0."""
    (name,) = parts.trained
    return networks.init(networks.config(parts, name), key, {HEAD: 1})


def contributions(parts: Parts, weights: Any, experience: Experience) -> jax.Array:
    """c_t of each turn of each seat of the policy set, float32 [B, T, A]; 0 where it did not speak."""
    (name,) = parts.trained
    rows, sampled = experience.rows[name], experience.sampled[name]
    said = networks.read_after(networks.config(parts, name), weights, rows, sampled)[HEAD][..., 0]
    place = rows.episode[:, None], sampled.turn, rows.seat[:, None]
    return jnp.zeros(experience.episodes.acted.shape).at[place].add(jnp.where(last_of_turn(sampled), said, 0))


def learn(
    parts: Parts, network: Network, experience: Experience, total: jax.Array, rate: Any, key: jax.Array, steps: int
) -> tuple[Network, dict[str, jax.Array]]:
    """The estimator after so many steps of Adam on these games, whose returns are `total` float32 [B, A], and the mean
    of the steps' metrics."""
    (name,) = parts.trained
    config, rows, sampled = networks.config(parts, name), experience.rows[name], experience.sampled[name]

    def loss(weights: Any, batch: Any) -> tuple[Mean, dict[str, Mean]]:
        rows, sampled, total = batch
        said = networks.read_after(config, weights, rows, sampled)[HEAD][..., 0]
        return losses.sum_to_return(said, total, last_of_turn(sampled))

    def one(network: Network, key: jax.Array) -> tuple[Network, dict[str, jax.Array]]:
        return networks.learn(network, loss, (rows, sampled, total[rows.episode, rows.seat]), rate, key)

    network, metrics = jax.lax.scan(one, network, jax.random.split(key, steps))
    return network, jax.tree.map(jnp.mean, metrics)
