"""Adaptive weights of reward components. Arrays in, arrays out; the caller holds the state.

Shapes: K components. An estimator keeps the state between updates (`Advantages.state`), so checkpoints include it.
"""

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.rl.shapes import check_shapes

Number = float | jax.Array


def dual_ascent(multiplier: jax.Array, value: jax.Array, target: jax.Array, rate: Number) -> jax.Array:
    """One step of dual ascent on the Lagrange multipliers: lambda + rate (target - value), all [K].

    ``equality_weights`` and ``at_least_weights`` turn lambda into weights. lambda grows while a component is below its
    target and falls while it is above.
    Moskovitz et al., Confronting Reward Model Overoptimization with Constrained RLHF (2023),
    https://arxiv.org/abs/2310.04373. In its released code the step is also multiplied by the derivative of the weight
    function.
    """
    check_shapes("multiplier value target [K]", multiplier, value, target)
    return multiplier + rate * (target - value)


def at_least_weights(multiplier: jax.Array) -> jax.Array:
    """Weights for lower-bound constraints: sigmoid(lambda), in (0, 1); [K] -> [K].

    As released by Moskovitz et al. (2023), https://arxiv.org/abs/2310.04373; there the task's advantage weighs
    1 - sigmoid(lambda).
    """
    return jax.nn.sigmoid(multiplier)


def equality_weights(multiplier: jax.Array) -> jax.Array:
    """Weights for equality constraints: tanh(lambda), in (-1, 1); [K] -> [K].

    The weight of a component above its target falls below 0. As released by Moskovitz et al. (2023),
    https://arxiv.org/abs/2310.04373; there the KL's advantage weighs K - sum of the weights.
    """
    return jnp.tanh(multiplier)


class ParetoBuffer(struct.PyTreeNode):
    """Points of past policies that increased the hypervolume."""

    points: jax.Array  # float32 [P, K]
    filled: jax.Array  # bool [P]


def pareto_buffer(size: int, components: int) -> ParetoBuffer:
    """An empty buffer. Raises ValueError for a size below 1."""
    if size < 1:
        raise ValueError(f"A buffer holds at least one point, got size = {size}.")
    return ParetoBuffer(jnp.zeros((size, components)), jnp.zeros(size, bool))


def hypervolume(points: jax.Array, where: jax.Array, reference: jax.Array) -> jax.Array:
    """The volume below any of the points and above the reference: [P,K], bool [P], [K] -> scalar.

    Exact for every K: the coordinates of the points cut the space into P^K boxes, and a box counts if some point covers
    it. P^K should thus be small. Larger values of each component are better.
    """
    check_shapes("points [P,K] where [P] reference [K]", points, where, reference)
    inside = where & (points > reference[None]).all(1)
    points = jnp.where(inside[:, None], points, reference[None])
    cuts = jnp.sort(jnp.concatenate([reference[None], points]), axis=0)  # [P + 1, K]
    covered = jnp.ones((len(points),) * (points.shape[1] + 1), bool)  # [P, box of each component ...]
    volume = jnp.ones(covered.shape[1:])
    for k in range(points.shape[1]):
        along = [1] * points.shape[1]
        along[k] = len(points)
        below = points[:, k, None] >= cuts[None, 1:, k]
        covered &= below.reshape(len(points), *along)
        volume *= jnp.diff(cuts[:, k]).reshape(along)
    return jnp.where(covered.any(0), volume, 0).sum()


def hypervolume_gain(buffer: ParetoBuffer, point: jax.Array, reference: jax.Array) -> tuple[jax.Array, ParetoBuffer]:
    """(the volume that the point [K] adds to that of the buffer, the new buffer). For 0 it is unchanged.

    The point takes an empty place. In a full buffer it replaces the point whose removal loses the least volume, which
    is a dominated point if there is any.
    """
    check_shapes("point reference [K]", point, reference)
    points = jnp.concatenate([buffer.points, point[None]])
    known, every = jnp.append(buffer.filled, False), jnp.append(buffer.filled, True)
    gain = jnp.maximum(hypervolume(points, every, reference) - hypervolume(points, known, reference), 0)
    size = len(buffer.filled)
    without = jax.vmap(lambda i: hypervolume(points, every & (jnp.arange(size + 1) != i), reference))(jnp.arange(size))
    at = jnp.where(buffer.filled, without, jnp.inf).argmax()  # an empty place, or the least loss
    new = ParetoBuffer(buffer.points.at[at].set(point), buffer.filled.at[at].set(True))
    return gain, jax.tree.map(lambda a, b: jnp.where(gain > 0, a, b), new, buffer)


def meta_reward(gain: jax.Array) -> jax.Array:
    """Hypervolume-guided weighting: 0.5 + 1.5 tanh(gain), a factor of all rewards in the next update.

    The factor is common to the batch: it cancels in an advantage divided by a standard deviation.
    Lu et al., Learning to Optimize Multi-Objective Alignment Through Dynamic Reward Weighting (2025),
    https://arxiv.org/abs/2509.11452, as released.
    """
    return 0.5 + 1.5 * jnp.tanh(gain)


def influence_weights(weights: jax.Array, gradients: jax.Array, rate: Number) -> jax.Array:
    """w_k exp(rate sum_j <g_k, g_j>) / Z: larger weights for components whose gradients help all; [K], [K,D] -> [K].

    Mirror ascent on the simplex. g_k is the ascent gradient of component k alone. Lu et al. (2025),
    https://arxiv.org/abs/2509.11452, as released; there rate is the policy's learning rate by a regularisation factor.
    """
    check_shapes("weights [K] gradients [K,D]", weights, gradients)
    influence = (gradients * gradients.sum(0, keepdims=True)).sum(1)  # not a matrix product: bfloat16 on a TPU
    return jax.nn.softmax(jnp.log(weights) + rate * influence)
