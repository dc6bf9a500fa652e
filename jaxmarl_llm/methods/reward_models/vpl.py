"""Variational preference learning: a reward model that infers its user from a few preferences.

One network reads a text. After its last token it gives the parts of a score, and the evidence of a preference about the
user:

  f(text, z) = s_0(text) + sum_d z_d s_d(text)
  q(z | preferences) = N(mean, exp(log variance)), each a sum of h(better) - h(worse): evidence adds up
  loss = mean of -log sigmoid(f(better, z) - f(worse, z)), z ~ q, + weight * KL(q || N(0, 1))

In the paper, score and encoder are separate networks of text and latent; here they are linear in the network's output.
Shapes: U users, N known preferences of a user, P others that are predicted, D numbers of a latent, L tokens.

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
    """A random model of users with a latent of `latent` numbers. Its heads start larger than other networks' heads.
    Score and latent meet in a product, and with both near 0 neither learns (the latent collapses to the prior)."""
    return networks.init(config, key, {"score": 1 + latent, "mean": latent, "log_variance": latent}, scale=0.3)


def encode(config: Config, weights: Any, known: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(mean, log variance) of the latent, float32 [..., D] each, from preferences int32 [..., N, 2, L], the better text
    first."""
    read = networks.read_last(config, weights, known)
    difference = lambda name: (read[name][..., 0, :] - read[name][..., 1, :]).sum(-2)
    return difference("mean"), difference("log_variance")


def score(config: Config, weights: Any, texts: jax.Array, latent: jax.Array) -> jax.Array:
    """f of texts int32 [U, ..., L] for users with latents float32 [U, D], float32 [U, ...]."""
    parts = networks.read_last(config, weights, texts)["score"]
    coefficients = latent.reshape(len(latent), *(1,) * (texts.ndim - 2), -1)
    return parts[..., 0] + (parts[..., 1:] * coefficients).sum(-1)


def accuracy(
    config: Config, weights: Any, pairs: jax.Array, gain: jax.Array, *, known: int, personal: bool = True
) -> jax.Array:
    """The share of predicted preferences that the model orders rightly. `pairs` are users' preferences int32 [U, N + P,
    2, L]; the first N, `known`, tell of the user. `gain` is float32 [U, N + P], the first text's worth minus the
    second's; pairs with gain 0 are left out."""
    latent = encode(config, weights, pairs[:, :known])[0] * personal
    f, gain = score(config, weights, pairs[:, known:], latent), gain[:, known:]
    return mean_of((f[..., 0] > f[..., 1]) == (gain > 0), gain != 0).value


def kind(latent: jax.Array, kinds: int) -> jax.Array:
    """The quantile bin of a latent float32 [...] under the standard normal distribution, int32 [...], with `kinds`
    equal bins. It turns a latent into one of a few words, which a policy can be told."""
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
    """The network after `steps` of Adam, each on draw(key), preferences of users int32 [U, N + P, 2, L]. The first N,
    `known`, tell of the user, and the others are predicted. Unless `personal`, every latent is 0: one Bradley-Terry
    reward for all. The rate falls linearly to 0."""

    def loss(weights: Any, batch: Any) -> tuple[Mean, dict[str, Mean]]:
        pairs, noise = batch
        mean, log_variance = encode(config, weights, pairs[:, :known])
        z = (mean + jnp.exp(log_variance / 2) * noise) * personal
        f = score(config, weights, pairs[:, known:], z)
        fit, metrics = losses.pairwise_logistic(f[..., 0], f[..., 1], jnp.ones(f.shape[:-1], bool))
        apart = losses.kl_standard_normal(mean, log_variance).mean() * personal
        return Mean(fit.sum + weight * apart * fit.count, fit.count), metrics

    def train_step(network: Network, number: jax.Array) -> tuple[Network, None]:
        draw_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
        pairs = draw(draw_key)
        noise = jax.random.normal(noise_key, (len(pairs), network.weights["heads"]["mean"]["w"].shape[1]))
        return networks.learn(network, loss, (pairs, noise), rate * (1 - number / steps), draw_key)[0], None

    return networks.new_network(jax.lax.scan(train_step, network, jnp.arange(steps))[0].weights)
