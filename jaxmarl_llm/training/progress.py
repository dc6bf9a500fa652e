"""A progress estimator as in SPA-RL: a network of its own learns what each turn contributes to the return.

Its head says a number c after the last token of each turn of a row, and it learns by the sum alone,

  loss = (sum over turns of c_t - R)^2

so that a policy can be paid c_t in turn t instead of R after the last one. A recipe keeps the network in its state. It
learns from each update's games after it has paid them (`learn`), or before the first one from many games (`taught`). Shapes: B episodes, T turns, A seats, R rows.

Paper: SPA-RL (Wang et al.) 2025, https://arxiv.org/abs/2505.20732; there the head sits on the logits of the policy's
own model, and learns before the policy does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.keys import ESTIMATE, START, key_for
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, Trajectory, last_of_turn
from jaxmarl_llm.training import networks, step
from jaxmarl_llm.training.networks import Network
from jaxmarl_llm.training.recipe import Experience, Hparams
from jaxmarl_llm.training.setup import Parts

HEAD = "contribution"


def init(parts: Parts, key: jax.Array) -> Network:
    """A new estimator for the rows of the only policy set that learns: its contributions begin near 0."""
    (name,) = parts.trained
    return networks.init(networks.config(parts, name), key, {HEAD: 1})


def contributions(parts: Parts, weights: Any, experience: Experience, reply: bool = False) -> jax.Array:
    """c_t of each turn of each seat of the policy set, float32 [B, T, A]; 0 where it did not speak. With `reply` it is
    said when the game's reply has been read as well: before the seat's next turn, of its last turn as without."""
    (name,) = parts.trained
    said = _said(networks.config(parts, name), weights, experience.rows[name], experience.sampled[name], reply)
    return by_turn(experience, name, jnp.where(last_of_turn(experience.sampled[name]), said, 0))


def by_turn(experience: Experience, name: str, values: jax.Array) -> jax.Array:
    """Values [R, M] of the sampled tokens of a policy set, added up over each turn of each seat, float32 [B, T, A]."""
    rows, sampled = experience.rows[name], experience.sampled[name]
    place = rows.episode[:, None], sampled.turn, rows.seat[:, None]
    return jnp.zeros(experience.episodes.acted.shape).at[place].add(jnp.where(sampled.mask, values, 0))


def learn(
    parts: Parts,
    network: Network,
    experience: Experience,
    total: jax.Array,
    rate: Any,
    key: jax.Array,
    steps: int,
    reply: bool = False,
) -> tuple[Network, dict[str, jax.Array]]:
    """The estimator after so many steps of Adam on these games, whose returns are `total` float32 [B, A], and the mean
    of the steps' metrics."""
    (name,) = parts.trained
    config, rows, sampled = networks.config(parts, name), experience.rows[name], experience.sampled[name]

    def loss(weights: Any, batch: Any) -> tuple[Mean, dict[str, Mean]]:
        rows, sampled, total = batch
        return losses.sum_to_return(_said(config, weights, rows, sampled, reply), total, last_of_turn(sampled))

    def one(network: Network, key: jax.Array) -> tuple[Network, dict[str, jax.Array]]:
        return networks.learn(network, loss, (rows, sampled, total[rows.episode, rows.seat]), rate, key)

    network, metrics = jax.lax.scan(one, network, jax.random.split(key, steps))
    return network, jax.tree.map(jnp.mean, metrics)


def games(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[Trajectory, Experience]:
    """A batch of games of the policies as they are, for update `number`; other keys, other games."""
    arranged = step.arrange(parts, run, hparams, key, number)
    trajectory = step.play(parts, run.learners.weights, key, arranged)
    return trajectory, step.make_experience(parts, run, trajectory, key, arranged=arranged)


def taught(
    parts: Parts,
    run: step.Run,
    hparams: Hparams,
    key: jax.Array,
    total: Callable[[Experience], jax.Array],
    *,
    rounds: int,
    steps: int,
    reply: bool = False,
) -> Network:
    """The estimator of the run after `rounds` batches of games of its policy as it is, `steps` of Adam on each, with
    the hparam `network_rate`; `total` gives their returns float32 [B, A]. The policy learns nothing."""

    def one(network: Network, i: jax.Array) -> tuple[Network, None]:
        own = key_for(key, START, i)
        _, experience = games(parts, run, hparams, own, i)
        of = total(experience), hparams["network_rate"], key_for(own, ESTIMATE), steps, reply
        return learn(parts, network, experience, *of)[0], None

    return jax.lax.scan(one, run.state, jnp.arange(rounds))[0]


def _said(config: Config, weights: Any, rows: Rows, sampled: SampledTokens, reply: bool) -> jax.Array:
    """What the head says with each sampled token, float32 [R, M], or with `reply` right before the next one."""
    if reply:
        following, more = (jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (sampled.at, sampled.mask))
        sampled = sampled.replace(at=jnp.where(more, following - 1, sampled.at))
    return networks.read_after(config, weights, rows, sampled)[HEAD][..., 0]
