"""Soft equilibria of tabular Markov games: all agents play Boltzmann policies of their values against the others.

Shapes: n agents, S states, A actions each. `reward` float32 [n, S, A, ..., A] and `following` int32 [S, A, ..., A] have
an axis of actions for every agent.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.returns import Number
from jaxmarl_llm.tabular.inverse import soft_value


class SoftEquilibrium(NamedTuple):
    policy: jax.Array  # float32 [n, S, A]
    q: jax.Array  # float32 [n, S, A]: the soft action values
    gap: jax.Array  # float32, the largest change of q in the last step


def side(x: jax.Array, agent: int) -> jax.Array:
    """A table [S, A, ..., A] from an agent's side, [S, A, M], with M joint actions of the others in their order."""
    moved = jnp.moveaxis(x, 1 + agent, 1)
    return moved.reshape(*moved.shape[:2], -1)


def others(policy: jax.Array, agent: int) -> jax.Array:
    """Probabilities of the others' joint actions, float32 [S, M], from independent policies [n, S, A]."""
    joint = jnp.ones((policy.shape[1], 1))
    for k in range(len(policy)):
        if k != agent:
            joint = (joint[:, :, None] * policy[k][:, None, :]).reshape(len(joint), -1)
    return joint


def soft_equilibrium(
    reward: jax.Array, following: jax.Array, *, temperature: Number, discount: Number, steps: int = 400
) -> SoftEquilibrium:
    """The quantal response equilibrium (McKelvey & Palfrey 1995, https://doi.org/10.1006/game.1995.1023):

        Q_i(s, a) = E_{others}[r_i + discount V_i(s')],   V_i = temperature log sum_a exp(Q_i / temperature)
        pi_i(a | s) ~ exp(Q_i(s, a) / temperature)

    Starting at Q = 0, each of `steps` steps moves Q half way to the right-hand side. At a low temperature this may not
    converge: the `gap` then stays large.
    """
    agents = len(reward)
    tables = [(side(reward[i], i), side(following, i)) for i in range(agents)]

    def towards(q: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        policy, targets = jax.nn.softmax(q / temperature), []
        for i, (paid, then) in enumerate(tables):
            target = paid + discount * soft_value(q[i], temperature)[then]
            targets.append((others(policy, i)[:, None] * target).sum(-1))
        return (q + jnp.stack(targets)) / 2, jnp.abs(jnp.stack(targets) - q).max()

    start = jnp.zeros((agents, *tables[0][0].shape[:2]))
    q, gaps = jax.lax.scan(towards, start, None, length=steps)
    return SoftEquilibrium(jax.nn.softmax(q / temperature), q, gaps[-1])


def demonstrations(
    following: jax.Array, policy: jax.Array, key: jax.Array, *, sizes: tuple[int, ...], length: int = 1
) -> jax.Array:
    """Counts of joint actions in the first n steps, float32 [sizes, S, A, ..., A], for each n of the rising `sizes`.

    Episodes of `length` steps begin in uniformly drawn states. Raises ValueError for sizes that do not rise or are not
    whole episodes.
    """
    if any(n % length for n in sizes) or list(sizes) != sorted({*sizes}):
        raise ValueError(f"Sizes rise and are whole episodes of {length} steps: got {sizes}.")
    episodes, start_key = sizes[-1] // length, jax.random.fold_in(key, length)

    def step(state: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        drawn = jax.random.categorical(key, jnp.log(policy[:, state]))  # [n, episodes]
        place = (state, *drawn)
        return following[place], jnp.ravel_multi_index(place, following.shape, mode="clip")

    start = jax.random.randint(start_key, (episodes,), 0, len(following), following.dtype)
    _, played = jax.lax.scan(step, start, jax.random.split(key, length))  # [length, episodes]
    first = jnp.searchsorted(jnp.array(sizes) // length, jnp.arange(episodes), side="right")
    first = jnp.broadcast_to(first[None], played.shape)
    counts = jnp.zeros((len(sizes), following.size)).at[first, played].add(1.0)
    return counts.cumsum(0).reshape(len(sizes), *following.shape)
