"""A reward model that knows its user by a few preferences: variational preference learning.

One network reads a text and says, after its last token, a score's parts and what a preference tells of the user:

  f(text, z) = s_0(text) + sum_d z_d s_d(text)
  q(z | preferences) = N(mean, exp(log variance)), each a sum of h(better) - h(worse): evidence adds up
  loss = mean of -log sigmoid(f(better, z) - f(worse, z)), z ~ q, + weight * KL(q || N(0, 1))

In the paper score and encoder are networks of their own of text and latent; here they are linear in what is read.
Shapes: U users, N preferences that are known of a user, P others that are predicted, D numbers of a latent, L tokens.

Paper: VPL (Poddar et al.) 2024, https://arxiv.org/abs/2408.10075
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.methods import networks
from jaxmarl_llm.methods.networks import Network
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import Mean, mean_of


def init(config: Config, key: jax.Array, latent: int) -> Network:
    """A random model of users with a latent of so many numbers. Its heads start larger than others: score and latent
    meet in a product, and where both are near 0 neither learns (the latent collapses to the prior)."""
    return networks.init(config, key, {"score": 1 + latent, "mean": latent, "log_variance": latent}, scale=0.3)


def encode(config: Config, weights: Any, known: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(mean, log variance) of the latent, float32 [..., D] each, of preferences int32 [..., N, 2, L], the better text
    first."""
    read = networks.read_last(config, weights, known)
    of = lambda name: (read[name][..., 0, :] - read[name][..., 1, :]).sum(-2)
    return of("mean"), of("log_variance")


def score(config: Config, weights: Any, texts: jax.Array, latent: jax.Array) -> jax.Array:
    """f of texts int32 [U, ..., L] for users of latents float32 [U, D], float32 [U, ...]."""
    parts = networks.read_last(config, weights, texts)["score"]
    each = latent.reshape(len(latent), *(1,) * (texts.ndim - 2), -1)
    return parts[..., 0] + (parts[..., 1:] * each).sum(-1)


def accuracy(
    config: Config, weights: Any, pairs: jax.Array, gain: jax.Array, *, known: int, personal: bool = True
) -> jax.Array:
    """How often the model knows which text is worth more: of users' preferences int32 [U, N + P, 2, L] those after the
    first N, `known`, where `gain` float32 [U, N + P], the first text's worth less the second's, is not 0."""
    latent = encode(config, weights, pairs[:, :known])[0] * personal
    f, gain = score(config, weights, pairs[:, known:], latent), gain[:, known:]
    return mean_of((f[..., 0] > f[..., 1]) == (gain > 0), gain != 0).value


def kind(latent: jax.Array, kinds: int) -> jax.Array:
    """Which of so many equal parts of the standard normal distribution a number float32 [...] lies in, int32 [...]: a
    latent as one of a few words, so that a policy can be told."""
    return jnp.clip(kinds * jax.scipy.stats.norm.cdf(latent), 0, kinds - 1).astype(jnp.int32)


def train_network(
    config: Config,
    network: Network,
    key: jax.Array,
    draw: Callable[[jax.Array], jax.Array],
    *,
    known: int,
    steps: int = 300,
    rate: float = 5e-3,
    weight: float = 0.02,
    personal: bool = True,
) -> Network:
    """The network after `steps` of Adam, each on draw(key), preferences of users int32 [U, N + P, 2, L], of which the
    first N, `known`, tell of the user and the others are predicted. Unless `personal` every latent is 0: one
    Bradley-Terry reward for all. The rate falls linearly to 0."""

    def loss(weights: Any, batch: Any) -> tuple[Mean, dict[str, Mean]]:
        pairs, noise = batch
        mean, log_variance = encode(config, weights, pairs[:, :known])
        z = (mean + jnp.exp(log_variance / 2) * noise) * personal
        f = score(config, weights, pairs[:, known:], z)
        fit, metrics = losses.pairwise_logistic(f[..., 0], f[..., 1], jnp.ones(f.shape[:-1], bool))
        apart = losses.kl_standard_normal(mean, log_variance).mean() * personal
        return Mean(fit.sum + weight * apart * fit.count, fit.count), metrics

    def one(network: Network, number: jax.Array) -> tuple[Network, None]:
        own, noise_key = jax.random.split(jax.random.fold_in(key, number))
        pairs = draw(own)
        noise = jax.random.normal(noise_key, (len(pairs), network.weights["heads"]["mean"]["w"].shape[1]))
        return networks.learn(network, loss, (pairs, noise), rate * (1 - number / steps), own)[0], None

    return networks.new_network(jax.lax.scan(one, network, jnp.arange(steps))[0].weights)
