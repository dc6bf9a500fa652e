"""Rewards from demonstrations in tabular Markov games: inverse soft Q-learning with three kinds of critics.

Shapes, from one agent's side: S states, A own actions, M joint actions of the others. `others` float32 [S, M] is the
others' policy, `following` int32 [S, A, M] the next state. A critic gives the probabilities of the agent's actions and
the reward that it implies, and maximises `criterion`. After Haynam et al., Multi-Agent Inverse Q-Learning
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
    """The policy and the reward that a critic implies."""

    logp: Array  # float32 [S, A, M]: log pi(a | s), or log pi(a | s, m) if the critic knows the others' actions m
    reward: Array  # float32 [S, A] or [S, A, M]


def soft_value(q: Array, temperature: Number, axis: int = -1) -> Array:
    """temperature log sum_a exp(q / temperature)."""
    return temperature * jax.nn.logsumexp(q / temperature, axis)


def marginal_critic(q: Array, others: Array, following: Array, *, temperature: Number, discount: Number) -> Implied:
    """The critic Q [S, A], marginalised over the others' actions: pi(a | s) ~ exp(Q(s, a) / temperature), and

    r(s, a) = Q(s, a) - discount sum_m others(m | s) V(s'),   V the soft value of Q.
    """
    value = soft_value(q, temperature)
    reward = q - discount * (others[:, None] * value[following]).sum(-1)
    logp = jnp.broadcast_to(jax.nn.log_softmax(q / temperature)[..., None], following.shape)
    return Implied(logp, reward)


def joint_critic(q: Array, others: Array, following: Array, *, temperature: Number, discount: Number) -> Implied:
    """The critic Q [S, A, M] of joint actions: pi(a | s, m) ~ exp(Q(s, a, m) / temperature), and

    r(s, a, m) = Q(s, a, m) - discount sum_m' others(m' | s') V(s', m'),   V(s, m) the soft value of Q(s, ., m).

    The policy is a soft best response to the others' actions, as in the likelihood of MA-AIRL (Yu et al. 2019,
    https://arxiv.org/abs/1907.13220).
    """
    value = (others * soft_value(q, temperature, 1)).sum(-1)
    return Implied(jax.nn.log_softmax(q / temperature, 1), q - discount * value[following])


def averaged_critic(q: Array, others: Array, following: Array, *, temperature: Number, discount: Number) -> Implied:
    """The critic Q [S, A, M] of joint actions, whose policy reads its mean over the others' actions.

    It is `marginal_critic` of sum_m others(m | s) Q(s, a, m), except that r(s, a, m) = Q(s, a, m) - discount V(s').
    """
    mean = (others[:, None] * q).sum(-1)
    logp = jnp.broadcast_to(jax.nn.log_softmax(mean / temperature)[..., None], following.shape)
    return Implied(logp, q - discount * soft_value(mean, temperature)[following])


def criterion(implied: Implied, counts: Array, *, temperature: Number, strength: Number) -> Array:
    """IQ-Learn's criterion with the chi-square regulariser, float32 per sample, from demonstrations counts [S, A, M]:

        (temperature sum counts log pi - strength sum_{s, a} r^2) / sum counts

    IQ-Learn's E[phi(r)] - E[V(s) - discount V(s')], phi(x) = x - x^2 / 4 alpha, takes the mean of r^2 over the
    demonstrations. Here r^2 is summed over all states and actions (its mean over the others' actions), as in a normal
    prior. The reward of undemonstrated actions then stays bounded, and the bias vanishes with samples. Raises
    ValueError for a reward of another shape than [S, A] or [S, A, M].
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
    """The policy and reward of a critic that starts at 0, after `steps` of Adam on `criterion` with a cosine decay.

    With one state 300 steps reach the maximum. In a grid of 81 states, whose entries are seen rarely, the criterion
    stays 0.1 below its maximum for 128 samples, and less than 0.002 for 32768.
    """

    def apply_critic(q: Array) -> Implied:
        return critic(q, others, following, temperature=temperature, discount=discount)

    def loss(q: Array) -> Array:
        return -criterion(apply_critic(q), counts, temperature=temperature, strength=strength)

    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def update(state: tuple, _: None) -> tuple[tuple, None]:
        q, inner = state
        change, inner = adam.update(jax.grad(loss)(q), inner)
        return (optax.apply_updates(q, change), inner), None

    q = jnp.zeros(following.shape[:2] if critic is marginal_critic else following.shape)
    (q, _), _ = jax.lax.scan(update, (q, adam.init(q)), None, length=steps)
    return apply_critic(q)


def remove_shaping(reward: Array, others: Array, following: Array, discount: Number) -> Array:
    """A reward [S, A] minus its potential f: r(s, a) - f(s) + discount E f(s'), with f chosen by least squares.

    Potentials change no policy (Ng, Harada & Russell 1999), so demonstrations can reveal only this part of a reward if
    the others' policy is known. It is linear in r, and equal for rewards that differ by a potential.
    """
    states, actions, _ = following.shape
    to = (others[:, None, :, None] * jax.nn.one_hot(following, states)).sum(2)  # [S, A, S]
    basis = (jnp.eye(states)[:, None] - discount * to).reshape(states * actions, states)
    flat = reward.reshape(-1)
    # The normal equations are of full rank, as discount < 1. LAPACK is avoided: two of its batched calls in a program
    # wait for each other for ever on two cores (jaxlib 0.10.2, `ParallelBatchMap` inside XLA's own threads).
    f, _ = cg(lambda f: basis.T @ (basis @ f), basis.T @ flat, tol=1e-6, maxiter=4 * states)
    return (flat - basis @ f).reshape(reward.shape)
