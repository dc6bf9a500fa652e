"""A progress estimator as in SPA-RL: a separate network learns each turn's contribution to the return.

Its head gives a number c_t after the last token of each turn t of a row. It learns from the sum alone:

  loss = (sum over turns of c_t - R)^2

A policy can then be paid c_t in turn t instead of R after the last turn. A recipe keeps the network in its state. The
network learns from each update's games after it has paid them (`learn`), or before the first update
(`train_estimator`).

c_t may include another turn's contribution: the result of a turn is told after it, and read with the next one. With
`reply`, a bool that may be traced, c_t is read after the reply to turn t, right before the seat's next turn begins. The
last turn has no reply that is read, so that its c_t is as without `reply`.

Shapes: B episodes, T turns, A seats; R rows, M sampled tokens of one policy set.

Paper: SPA-RL (Wang et al.) 2025, https://arxiv.org/abs/2505.20732. There the head sits on the logits of the policy's
own model, and learns before the policy does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.keys import ESTIMATE, START, key_for
from jaxmarl_llm.methods import networks
from jaxmarl_llm.methods.networks import Network
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rl.statistics import whiten
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, Trajectory, last_of_turn
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Experience

HEAD = "contribution"


def init(parts: Parts, key: jax.Array) -> Network:
    """A new estimator for the rows of the only policy set that learns; its contributions start near 0."""
    (name,) = parts.learner_sets
    return networks.init(networks.config(parts, name), key, {HEAD: 1})


def contributions(parts: Parts, weights: Any, experience: Experience, reply: bool | jax.Array = False) -> jax.Array:
    """c_t of each turn of each seat of the policy set, float32 [B, T, A]; 0 where it did not speak."""
    (name,) = parts.learner_sets
    said = _head_values(networks.config(parts, name), weights, experience.rows[name], experience.sampled[name], reply)
    return by_turn(experience, name, jnp.where(last_of_turn(experience.sampled[name]), said, 0))


def compare_contributions(c: jax.Array, true: jax.Array, acted: jax.Array) -> dict[str, jax.Array]:
    """Comparison of contributions c with true ones, float32 [B, T, A], over the turns in which a seat `acted`, bool.
    Metrics are their correlation, and that of c_t with the true contribution of turn t - 1. `explained` is the
    explained variance of the true return by the sum of c, 1 - mean (R - sum_t c_t)^2 / var R."""
    before, total = jnp.pad(true[:, :-1], ((0, 0), (1, 0), (0, 0))), true.sum(1)
    correlation = lambda x: (whiten(c, acted) * whiten(x, acted)).sum() / acted.sum()
    explained = 1 - ((total - c.sum(1)) ** 2).mean() / jnp.maximum(total.var(), 1e-6)
    return {"correlation": correlation(true), "with the turn before": correlation(before), "explained": explained}


def by_turn(experience: Experience, name: str, values: jax.Array) -> jax.Array:
    """Values [R, M] of a policy set's sampled tokens, summed over each turn of each seat, float32 [B, T, A]."""
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
    reply: bool | jax.Array = False,
) -> tuple[Network, dict[str, jax.Array]]:
    """(the estimator, the mean metrics) after `steps` steps of Adam on these games, with returns `total` float32
    [B, A]."""
    (name,) = parts.learner_sets
    config, rows, sampled = networks.config(parts, name), experience.rows[name], experience.sampled[name]

    def loss(weights: Any, batch: Any) -> tuple[Mean, dict[str, Mean]]:
        rows, sampled, total = batch
        return losses.sum_to_return(_head_values(config, weights, rows, sampled, reply), total, last_of_turn(sampled))

    def train_step(network: Network, key: jax.Array) -> tuple[Network, dict[str, jax.Array]]:
        return networks.learn(network, loss, (rows, sampled, total[rows.episode, rows.seat]), rate, key)

    network, metrics = jax.lax.scan(train_step, network, jax.random.split(key, steps))
    return network, jax.tree.map(jnp.mean, metrics)


def games(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[Trajectory, Experience]:
    """A batch of games of the present policies, for update `number`; another key gives other games."""
    arranged = step.arrange(parts, run, hparams, key, number)
    trajectory = step.play(parts, run.learners.weights, key, arranged)
    return trajectory, step.make_experience(parts, run, trajectory, key, arranged=arranged)


def train_estimator(
    parts: Parts,
    run: step.Run,
    hparams: Hparams,
    key: jax.Array,
    *,
    component: int,
    rounds: int,
    steps: int,
    reply: bool | jax.Array = False,
) -> Network:
    """The estimator after `rounds` batches of games of the run's present policy, with `steps` steps of Adam on each.
    The rate is hparam `network_rate`, and a return is the sum of one component of the reward. The policy does not
    learn."""

    def train_round(network: Network, i: jax.Array) -> tuple[Network, None]:
        round_key, rate = key_for(key, START, i), hparams["network_rate"]
        _, experience = games(parts, run, hparams, round_key, i)
        total = experience.episodes.reward[..., component].sum(1)
        return learn(parts, network, experience, total, rate, key_for(round_key, ESTIMATE), steps, reply)[0], None

    return jax.lax.scan(train_round, run.state, jnp.arange(rounds))[0]


def _head_values(
    config: Config, weights: Any, rows: Rows, sampled: SampledTokens, reply: bool | jax.Array
) -> jax.Array:
    """The head's output with each sampled token, float32 [R, M]; with `reply` right before the next one."""
    following, more = (jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (sampled.at, sampled.mask))
    sampled = sampled.replace(at=jnp.where(more & reply, following - 1, sampled.at))
    return networks.read_after(config, weights, rows, sampled)[HEAD][..., 0]
