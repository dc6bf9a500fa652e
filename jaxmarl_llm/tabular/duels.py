"""Duels of K answers: preferences with and without cycles, labels of pairs, a fitted reward, exploitability.

A judge prefers answer i to j with chance P[i, j]; P[j, i] = 1 - P[i, j]. Policies are softmax tables of K answers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.rankings import win_rate

CYCLE = 3


def transitive(quality: jax.Array) -> jax.Array:
    """Bradley-Terry's P[i, j] = sigmoid(q_i - q_j), float32 [K, K]."""
    return jax.nn.sigmoid(quality[:, None] - quality[None])


def cyclic(chance: jax.Array, answers: int, over_rest: float = 0.8) -> jax.Array:
    """Preferences float32 [K, K] of a cycle: answer i of the first three beats the next with chance[i], float [3].

    Each of them beats each other answer with `over_rest`, and the others are equal.
    """
    number = jnp.arange(answers)
    inside = number < CYCLE
    wins = jnp.where(inside[:, None] & ~inside[None], over_rest, 0.5)
    wins = wins.at[number[:CYCLE], (number[:CYCLE] + 1) % CYCLE].set(chance)
    return jnp.where(wins != 0.5, wins, 1 - wins.T)


def flip_labels(prefers: jax.Array, share: float) -> jax.Array:
    """Chances of a label that is flipped with this chance."""
    return share + (1 - 2 * share) * prefers


def exploitability(policy: jax.Array, prefers: jax.Array) -> jax.Array:
    """The best answer's win rate against a policy, float32 [K], less 1/2: 0 for the minimax winner alone."""
    return (prefers @ policy).max() - 0.5


def count_wins(key: jax.Array, policy: jax.Array, labels: jax.Array, count: int) -> jax.Array:
    """Wins float32 [K, K] of the row over the column, in so many labels of pairs of the policy's answers."""
    keys = jax.random.split(key)
    first, second = jax.random.categorical(keys[0], jnp.log(policy), shape=(2, count))
    won = jax.random.bernoulli(keys[1], labels[first, second])
    return jnp.zeros_like(labels).at[jnp.where(won, first, second), jnp.where(won, second, first)].add(1)


def judge_group(key: jax.Array, answers: jax.Array, labels: jax.Array) -> jax.Array:
    """Share of the others that each of these answers, int32 [N], beats; one label a pair, float32 [N]."""
    pairs = jnp.triu(jnp.ones((len(answers),) * 2, bool), 1)
    wins = jax.random.bernoulli(key, labels[answers[:, None], answers[None]])
    return win_rate(jnp.where(pairs, wins, (pairs & ~wins).T).astype(jnp.float32))


def fit_bradley_terry(reward: jax.Array, wins: jax.Array, steps: int, prior: float = 1e-3) -> jax.Array:
    """Rewards float32 [K] after gradient steps from `reward`; `wins` is float [K, K] of the row over the column.

    loss = - sum_ij wins_ij log sigmoid(r_i - r_j) / sum_ij wins_ij + prior |r|^2
    Bradley and Terry, Rank Analysis of Incomplete Block Designs (1952), https://doi.org/10.2307/2334029.
    """
    share = wins / jnp.maximum(wins.sum(), 1)

    def step(_: int, r: jax.Array) -> jax.Array:
        pull = share * jax.nn.sigmoid(r[None] - r[:, None])
        return r + 2 * (pull.sum(1) - pull.sum(0) - 2 * prior * r)

    return jax.lax.fori_loop(0, steps, step, reward)


def dpo_step(
    logits: jax.Array, pairs: jax.Array, reference: jax.Array, beta: float, target: jax.Array | float = 1.0
) -> jax.Array:
    """Ascent direction float32 [K] of DPO over beta, of logits with these reference logits.

    `pairs` is float [K, K], weights of winner and loser. `target`, a scalar or float [K, K], is the winner's chance to
    win. The gradient is that of

        sum_ij pairs_ij (t log sigmoid(d_ij) + (1 - t) log sigmoid(-d_ij)) / (beta sum_ij pairs_ij)
        d_ij = beta ((logits_i - logits_j) - (reference_i - reference_j))

    Rafailov et al., Direct Preference Optimization (2023), https://arxiv.org/abs/2305.18290.
    """
    ahead = beta * ((logits[:, None] - logits[None]) - (reference[:, None] - reference[None]))
    pull = pairs * (target - jax.nn.sigmoid(ahead))
    return (pull.sum(1) - pull.sum(0)) / jnp.maximum(pairs.sum(), 1e-6)
