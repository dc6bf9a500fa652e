"""Losses of the policy's entropy. For arguments and shapes see the docstring of ``losses.records``."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.losses.records import Aggregate, LossAndMetrics, Number
from jaxmarl_llm.rl.masked import constant, keep, mean_of, segment_count, segment_mean, utterance_of
from jaxmarl_llm.rl.shapes import check_shapes


def entropy_bonus(entropy: jax.Array, where: jax.Array, *, aggregate: Aggregate = mean_of) -> LossAndMetrics:
    """-entropy: add it to a loss with a positive weight. Metric: ``entropy``. Textbook formula.

    Mnih et al., Asynchronous Methods for Deep Reinforcement Learning (2016), https://arxiv.org/abs/1602.01783
    """
    check_shapes("where entropy [...]", where, entropy)
    return aggregate(-keep(entropy, where), where), {"entropy": mean_of(entropy, where)}


def entropy_corridor(
    entropy: jax.Array,
    where: jax.Array,
    turn: jax.Array,
    running: jax.Array,
    *,
    low: Number,
    high: Number,
    aggregate: Aggregate = mean_of,
) -> LossAndMetrics:
    """Distance of an utterance's mean entropy from a corridor [low, high] around the running mean of its turn.

    max(low m - H, 0) + max(H - high m, 0) for each token, with H the mean entropy of its utterance and m =
    running[turn], a constant. ``turn`` int [R,M] in 0..T-1, as in ``masked.utterance_of``; ``running_entropy`` updates
    ``running`` [T]. A running mean of 0 means no data yet: the penalty is 0. Metrics: ``entropy``, ``outside`` (the
    share of tokens whose utterance is outside).

    After Xu et al., EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning (2025),
    https://arxiv.org/abs/2509.22576. In its released code the penalty is one constant outside and 0 inside, without a
    gradient. The form with a gradient is ours.
    """
    check_shapes("where entropy turn [R,M] running [T]", where, entropy, turn, running)
    key = utterance_of(turn)
    mean = segment_mean(entropy, key, key.size, where)[key]
    middle = constant(running[turn], where)
    distance = jnp.maximum(low * middle - mean, 0) + jnp.maximum(mean - high * middle, 0)
    distance = jnp.where(middle > 0, distance, 0)
    return aggregate(distance, where), {"entropy": mean_of(entropy, where), "outside": mean_of(distance > 0, where)}


def running_entropy(
    running: jax.Array, entropy: jax.Array, where: jax.Array, turn: jax.Array, *, decay: Number = 0.9
) -> jax.Array:
    """The running mean entropy of each turn after this batch: [T] -> [T], a constant; zeros before the first batch.

    decay * running + (1 - decay) * the batch mean over the tokens of the turn; the batch mean itself the first time. A
    turn without tokens keeps its value.
    """
    check_shapes("where entropy turn [R,M] running [T]", where, entropy, turn, running)
    turns = running.shape[0]
    mean = segment_mean(jax.lax.stop_gradient(entropy), turn, turns, where)
    updated = jnp.where(running > 0, decay * running + (1 - decay) * mean, mean)
    return jnp.where(segment_count(turn, turns, where) > 0, updated, running)
