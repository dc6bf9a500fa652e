"""Rewards from demonstrations in tabular Markov games: inverse soft Q-learning with critics of several kinds.

Shapes, from one agent's side: S states, A own actions, M joint actions of the others. `others` float32 [S, M] is the
others' policy, `following` int32 [S, A, M] the next state. A critic says how likely the agent's own actions are and
which reward it implies; `criterion` is what a critic maximises. After Haynam et al., Multi-Agent Inverse Q-Learning
from Demonstrations (2025), https://arxiv.org/abs/2503.04679, and Garg et al., IQ-Learn (2021),
https://arxiv.org/abs/2106.12142.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.sparse.linalg import cg

from jaxmarl_llm.rl.returns import Number


class Implied(NamedTuple):
    """What a critic implies."""

    logp: Array  # float32 [S, A, M]: of the agent's action, if the others do m
    reward: Array  # float32 [S, A] or [S, A, M]


def soft_value(q: Array, temperature: Number, axis: int = -1) -> Array:
    """temperature log sum_a exp(q / temperature)."""
    return temperature * jax.nn.logsumexp(q / temperature, axis)


def marginal_critic(q: Array, others: Array, following: Array, *, temperature: Number, discount: Number) -> Implied:
    """Q [S, A], marginalised over the others: pi(a | s) ~ exp(Q(s, a) / temperature) whatever they do, and

    r(s, a) = Q(s, a) - discount sum_m others(m | s) V(s'),   V the soft value of Q.
    """
    value = soft_value(q, temperature)
    reward = q - discount * (others[:, None] * value[following]).sum(-1)
    logp = jnp.broadcast_to(jax.nn.log_softmax(q / temperature)[..., None], following.shape)
    return Implied(logp, reward)


def joint_critic(q: Array, others: Array, following: Array, *, temperature: Number, discount: Number) -> Implied:
    """Q [S, A, M] of joint actions: pi(a | s, m) ~ exp(Q(s, a, m) / temperature), a soft best response to what the
    others do, and

    r(s, a, m) = Q(s, a, m) - discount sum_m' others(m' | s') V(s', m'),   V(s, m) the soft value of Q(s, ., m).

    So is the policy of MA-AIRL, whose likelihood it is (Yu et al. 2019, https://arxiv.org/abs/1907.13220).
    """
    value = (others * soft_value(q, temperature, 1)).sum(-1)
    return Implied(jax.nn.log_softmax(q / temperature, 1), q - discount * value[following])


def averaged_critic(q: Array, others: Array, following: Array, *, temperature: Number, discount: Number) -> Implied:
    """Q [S, A, M] of joint actions, of which the policy reads the mean over the others: as `marginal_critic` of
    sum_m others(m | s) Q(s, a, m), but r(s, a, m) = Q(s, a, m) - discount V(s').
    """
    mean = (others[:, None] * q).sum(-1)
    logp = jnp.broadcast_to(jax.nn.log_softmax(mean / temperature)[..., None], following.shape)
    return Implied(logp, q - discount * soft_value(mean, temperature)[following])


def criterion(implied: Implied, counts: Array, *, temperature: Number, strength: Number) -> Array:
    """IQ-Learn's criterion with the chi-square regulariser, of demonstrations counts [S, A, M]; float32, per sample:

        (temperature sum counts log pi - strength sum_{s, a} r^2) / sum counts

    as E[phi(r)] - E[V(s) - discount V(s')] with phi(x) = x - x^2 / 4 alpha is this with the square's mean over the
    demonstrations. Here it is a sum over all states and actions (its mean over the others), as in a normal prior: the
    reward of what was not demonstrated stays bounded, and the bias vanishes with samples. Raises ValueError for a
    reward of another shape than [S, A] or [S, A, M].
    """
    if implied.reward.shape not in (counts.shape, counts.shape[:2]):
        raise ValueError(f"A reward is [S, A] or [S, A, M] of {counts.shape}, got {implied.reward.shape}.")
    square = implied.reward**2
    penalty = square.sum() if square.ndim == 2 else square.mean(-1).sum()
    return (temperature * (counts * implied.logp).sum() - strength * penalty) / counts.sum()


def recover(
    critic: Callable[..., Implied],
    counts: Array,
    others: Array,
    following: Array,
    *,
    temperature: Number,
    discount: Number,
    strength: Number,
    steps: int = 300,
    rate: float = 0.1,
) -> Implied:
    """What a critic implies after `steps` of Adam from 0 that raise the `criterion`, its rate falling to 0 by a cosine.

    300 are at the maximum where there is one state. In a grid of 81 states whose entries are met rarely they are not:
    after 128 samples the criterion is 0.1 below it, after 32768 less than 0.002.
    """

    def implied(q: Array) -> Implied:
        return critic(q, others, following, temperature=temperature, discount=discount)

    def loss(q: Array) -> Array:
        return -criterion(implied(q), counts, temperature=temperature, strength=strength)

    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def update(state: tuple, _: None) -> tuple[tuple, None]:
        q, inner = state
        change, inner = adam.update(jax.grad(loss)(q), inner)
        return (optax.apply_updates(q, change), inner), None

    q = jnp.zeros(following.shape[:2] if critic is marginal_critic else following.shape)
    (q, _), _ = jax.lax.scan(update, (q, adam.init(q)), None, length=steps)
    return implied(q)


def unshaped(reward: Array, others: Array, following: Array, discount: Number) -> Array:
    """A reward [S, A] less the potential f that leaves the least squares: r(s, a) - f(s) + discount E f(s').

    Potentials change no policy (Ng, Harada & Russell 1999): this is the part of a reward that play can reveal to one
    who knows the others' policy. Linear; the same for any two rewards that differ by a potential.
    """
    states, actions, _ = following.shape
    to = (others[:, None, :, None] * jax.nn.one_hot(following, states)).sum(2)  # [S, A, S]
    basis = (jnp.eye(states)[:, None] - discount * to).reshape(states * actions, states)
    flat = reward.reshape(-1)
    # The normal equations are of full rank, as discount < 1. Not by LAPACK: two of its batched calls side by side in a
    # program wait for each other for ever on two cores (jaxlib 0.10.2, `ParallelBatchMap` inside XLA's own threads).
    f, _ = cg(lambda f: basis.T @ (basis @ f), basis.T @ flat, tol=1e-6, maxiter=4 * states)
    return (flat - basis @ f).reshape(reward.shape)
