"""A small Q-network over finitely many observations that learns from replay: double DQN with n-step returns.

Observations are few, so their values are computed once a step, as a table [S, N], and looked up to act and to learn.
Shapes: S observations of I numbers, N actions, A agents whose steps are stored, L steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm.rl.returns import Number


def init(key: jax.Array, inputs: int, hidden: int, actions: int) -> dict[str, jax.Array]:
    """Weights of one hidden layer; all weights and biases are uniform within 1 / sqrt(inputs of their layer)."""
    keys = jax.random.split(key, 4)
    shapes = {"hidden": (inputs, hidden), "hidden_bias": (hidden,), "out": (hidden, actions), "out_bias": (actions,)}
    reach = dict(zip(shapes, (inputs, inputs, hidden, hidden), strict=True))
    return {
        name: jax.random.uniform(subkey, shapes[name], minval=-1, maxval=1) / reach[name] ** 0.5
        for subkey, name in zip(keys, shapes, strict=True)
    }


def values(weights: dict[str, jax.Array], observations: jax.Array) -> jax.Array:
    """Action values float32 [S, N] of observations float32 [S, I]."""
    hidden = jax.nn.relu(observations @ weights["hidden"] + weights["hidden_bias"][None])
    return hidden @ weights["out"] + weights["out_bias"][None]


class Memory(NamedTuple):
    """The last L steps of A agents, step t in row t % L."""

    state: jax.Array  # int32 [L, A], the number of an observation
    action: jax.Array  # int32 [L, A]
    reward: jax.Array  # float32 [L, A]
    after: jax.Array  # int32 [L, A], the observation after the step


def empty(steps: int, agents: int) -> Memory:
    number, zeros = jnp.zeros((steps, agents), jnp.int32), jnp.zeros((steps, agents))
    return Memory(number, number, zeros, number)


def remember(memory: Memory, step: jax.Array, *new_step: jax.Array) -> Memory:
    """The memory after step number `step`, which overwrites the oldest row.

    `new_step` holds one array [A] for each field of `Memory`, in their order.
    """
    at = step % len(memory.state)
    return Memory(*(x.at[at].set(new) for x, new in zip(memory, new_step, strict=True)))


class Sample(NamedTuple):
    state: jax.Array  # int32 [n]
    action: jax.Array  # int32 [n]
    returns: jax.Array  # float32 [n]
    after: jax.Array  # int32 [n]
    discount: jax.Array  # float32 [n], the discount of the value of `after`


def sample(
    memory: Memory, last: jax.Array, key: jax.Array, agents: jax.Array, n: int, steps: int, gamma: Number
) -> Sample:
    """n stored steps of the agents int32 [P], drawn uniformly; `last` is the number of the latest step.

        returns = sum_{k < steps} gamma^k r_{t+k}, then gamma^steps times the value after step t + steps - 1

    The latest `steps` - 1 steps have one-step returns.
    """
    length, (when, who) = len(memory.state), jax.random.split(key)
    age = jax.random.randint(when, (n,), 0, jnp.minimum(last + 1, length))
    agent = agents[jax.random.randint(who, (n,), 0, len(agents))]
    whole = age >= steps - 1
    rows = (last - age)[:, None] + jnp.arange(steps)[None]
    reward = memory.reward[rows % length, agent[:, None]] * (gamma ** jnp.arange(steps))[None]
    row, end = (last - age) % length, jnp.where(whole, rows[:, -1], last - age) % length
    return Sample(
        memory.state[row, agent],
        memory.action[row, agent],
        jnp.where(whole, reward.sum(1), reward[:, 0]),
        memory.after[end, agent],
        jnp.where(whole, gamma**steps, gamma).astype(jnp.float32),
    )


def double_q_loss(q: jax.Array, target: jax.Array, given: Sample) -> jax.Array:
    """The mean Huber loss between q[s, a] and the constant returns + discount target[s', argmax_b q[s', b]].

    q and target are values [S, N] of the network and of an older copy.

    van Hasselt et al., Deep Reinforcement Learning with Double Q-learning (2016), https://arxiv.org/abs/1509.06461
    """
    best = target[given.after, q[given.after].argmax(1)]
    wanted = jax.lax.stop_gradient(given.returns + given.discount * best)
    return optax.huber_loss(q[given.state, given.action], wanted).mean()


def learn(
    weights: dict[str, jax.Array],
    moments: Any,
    older: jax.Array,
    given: Sample,
    observations: jax.Array,
    optimiser: Any,
) -> tuple[dict[str, jax.Array], Any]:
    """(weights, moments) after an optimiser's step on `double_q_loss`; `older` holds the values of the older copy."""
    gradient = jax.grad(lambda weights: double_q_loss(values(weights, observations), older, given))(weights)
    change, moments = optimiser.update(gradient, moments, weights)
    return optax.apply_updates(weights, change), moments
