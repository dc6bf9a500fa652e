"""An utterance critic as in ArCHer: Q and V of a seat's utterances, learnt off policy from past games.

Its own network says, before each utterance, two Q for every word that may be said and two V. They learn by temporal
differences from one utterance of a row to the next, Q towards the reward and the slow copy's V of the next utterance,
V towards the slow copy's Q of an utterance that is drawn anew from the policy of now:

  Q(s, a) -> r + gamma V'(s'),  V(s) -> Q'(s, a~),  a~ ~ policy(s);  V' = 0 after the last

Utterances are of one token, as in `scoring.resampled`, and the seat speaks in every turn: what is paid in a turn in
which it is silent is not seen. Shapes: R rows, M utterances.

Paper: ArCHer (Zhou et al.) 2024, https://arxiv.org/abs/2402.19446, equations 3 and 4.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.rl.masked import Mean, mean_of
from jaxmarl_llm.rollout.trajectory import SampledTokens
from jaxmarl_llm.training import networks
from jaxmarl_llm.training.networks import Network
from jaxmarl_llm.training.replay import Ring, empty
from jaxmarl_llm.training.setup import Parts
from jaxmarl_llm.training.step import Part


class Memory(struct.PyTreeNode):
    """The state of a recipe whose critic learns from a ring."""

    ring: Ring  # whose advantages are rewards
    critic: Network


def remembered(parts: Parts, key: jax.Array, *, kept: int) -> Memory:
    """An empty ring for `kept` updates and a critic of the rows of the only policy set that learns."""
    (name,) = parts.trained
    config = networks.config(parts, name)
    return Memory(empty(parts, key, kept=kept), networks.init(config, key, {"q": 2 * config.vocab_size, "v": 2}))


def twins(parts: Parts, name: str, weights: Any, part: Part, said: SampledTokens) -> tuple[jax.Array, jax.Array]:
    """Both Q of what is `said` and both V, float32 [R, M, 2]."""
    read = networks.read(networks.config(parts, name), weights, part.rows, said)
    each = read["q"].reshape(*said.token.shape, 2, -1)
    return jnp.take_along_axis(each, said.token[..., None, None], 3)[..., 0], read["v"]


def advantage(parts: Parts, name: str, critic: Network, part: Part, said: SampledTokens) -> jax.Array:
    """The lesser Q of what is `said` less the lesser V, float32 [R, M]."""
    q, v = twins(parts, name, critic.weights, part, said)
    return q.min(-1) - v.min(-1)


def learn(
    parts: Parts,
    name: str,
    critic: Network,
    part: Part,
    drawn: SampledTokens,
    gamma: jax.Array,
    rate: jax.Array,
    key: jax.Array,
) -> tuple[Network, dict[str, jax.Array]]:
    """The critic after one step on a part, whose advantages are rewards by utterance, and what was `drawn` anew."""
    mask = part.batch.mask
    q_slow, v_slow = twins(parts, name, critic.slow, part, drawn)
    after = jnp.pad((v_slow * mask[..., None])[:, 1:], ((0, 0), (0, 1), (0, 0)))
    towards = part.batch.advantage[..., None] + gamma * after

    def loss(weights: Any, batch: Any) -> tuple[Mean, dict]:
        part, towards, q_slow = batch
        q, v = twins(parts, name, weights, part, part.sampled)
        return mean_of(((q - towards) ** 2 + (v - q_slow) ** 2).sum(-1), part.batch.mask), {}

    return networks.learn(critic, loss, (part, towards, q_slow), rate, key)
