"""Exact expected gradients of advantage alignment, for two players that remember one round of a repeated game.

In each round a fair coin deals roles 0 and 1 to the two seats, and both see it. Then both take action 0 or 1 at once; a
seat gets `payoff` [role, own action, other's action]. A player sees its role and a situation. The situation is its view
of the round before, 4 role + 2 own action + other's action, or 8 in the first round. The policy `logits` [T, 9, 2] is
the logit of action 1 for every round, situation and role; both seats play it. All functions are traced.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.rl.advantages import advantage_alignment
from jaxmarl_llm.rl.returns import Number

SITUATIONS, FIRST = 9, 8
FACTS = np.stack(np.unravel_index(np.arange(8), (2, 2, 2)))  # role, own action, other's action of each situation
BY_OTHER = np.append(np.ravel_multi_index((1 - FACTS[0], FACTS[2], FACTS[1]), (2, 2, 2)), FIRST)  # the other's one
NEXT = np.arange(8).reshape(2, 2, 2)  # situation after (role, own action, other's action)


class Aligned(NamedTuple):
    gradient: jax.Array  # [T, 9, 2], in the logits
    points: jax.Array  # [T], expected payoff of a seat in a round
    reach: jax.Array  # [T, 9, 2], probability that a seat is in this situation and role


def exact_alignment(
    logits: jax.Array, payoff: jax.Array, *, gamma: Number, beta: Number, luck: Number = 0.0
) -> Aligned:
    """E[sum_t A*_t d log pi(a_t)] of one seat, with exact advantages in `rl.advantages.advantage_alignment`:

        A*_t = A1_t + beta gamma (sum_{k<t} gamma^(t-k) A1_k) A2_t     A1(s, a, b) = Q1(s, a, b) - V1(s)

    where a and b are the two actions, and s is the round's situation and roles. Gains before t do not depend on a_t, so
    the past enters only by its mean in every s, weighted by the probability of s. With `luck` above 0 the past gains
    A1_k are Q1 minus the mean of V1 over roles, and include the luck of the deal.

    Duque et al., Advantage Alignment Algorithms (2024), https://arxiv.org/abs/2406.14662
    """
    chances = jax.nn.sigmoid(logits)
    mine = jnp.stack([1 - chances, chances], -1)  # [T, 9, 2, action]
    joint = mine[..., :, None] * mine[:, BY_OTHER, ::-1, None, :]  # [T, 9, 2, own action, other's]
    other_payoff = payoff[::-1].swapaxes(1, 2)

    def before(value: tuple, joint: jax.Array) -> tuple[tuple, tuple]:
        q = [(paid + gamma * v.mean(1)[NEXT])[None] for paid, v in zip((payoff, other_payoff), value, strict=True)]
        now = tuple((joint * x).sum((2, 3)) for x in q)
        mine, other = (x - v[..., None, None] for x, v in zip(q, now, strict=True))
        gain = jnp.where(luck > 0, q[0] - now[0].mean(1)[:, None, None, None], mine)
        return now, (mine, other, gain)

    zero = jnp.zeros((SITUATIONS, 2))
    _, advantages = jax.lax.scan(before, (zero, zero), joint, reverse=True)
    move = lambda flow: jnp.zeros(SITUATIONS).at[NEXT].add(flow.sum(0))[:, None].repeat(2, 1) / 2

    def after(carry: tuple, now: tuple) -> tuple[tuple, Aligned]:
        reach, past = (x[..., None, None] for x in carry)  # past: E[sum_{k<t} gamma^(t-k) A1_k; s]
        mine, other, gain, joint, chance = now
        worth = (joint * (reach * mine + beta * gamma * past * other)).sum(3)  # [9, 2, action]
        gradient = worth[..., 1] - chance * worth.sum(2)  # d log pi of a logit is the action minus its probability
        following = move(reach * joint), move(gamma * joint * (past + reach * gain))
        return following, Aligned(gradient, (reach * joint * payoff[None]).sum(), carry[0])

    return jax.lax.scan(after, (zero.at[FIRST].set(0.5), zero), (*advantages, joint, chances))[1]


def worth(chances: jax.Array | None, logits: jax.Array, payoff: jax.Array) -> jax.Array:
    """Expected payoff of a whole game against `logits`, for a player that takes action 1 by `chances` [T, 9, 2].

    Without `chances` it is a best response, which needs to remember no more than one round, as its opponent.
    """
    theirs = jax.nn.sigmoid(logits)[:, BY_OTHER, ::-1]

    def before(value: jax.Array, now: tuple) -> tuple[jax.Array, None]:
        other, mine = now
        both = (payoff + value.mean(1)[NEXT])[None]
        q = both[..., 0] * (1 - other[..., None]) + both[..., 1] * other[..., None]  # [9, 2, own action]
        return (q.max(2) if mine is None else q[..., 0] * (1 - mine) + q[..., 1] * mine), None

    return jax.lax.scan(before, jnp.zeros((SITUATIONS, 2)), (theirs, chances), reverse=True)[0][FIRST].mean()


def sampled_alignment(
    key: jax.Array,
    logits: jax.Array,
    payoff: jax.Array,
    *,
    games: int,
    group_size: int,
    gamma: Number,
    beta: Number,
    luck: Number = 0.0,
) -> jax.Array:
    """The gradient [T, 9, 2] of `advantage_alignment` on a batch of games.

    Games of a group share their deals; with `luck` above 0 every game has its own.
    """
    of_deals, of_actions = jax.random.split(key)
    rounds, number = len(logits), jnp.arange(games)
    deals = jax.random.bernoulli(of_deals, 0.5, (games, rounds))[jnp.where(luck > 0, number, number // group_size)]
    dice = jax.random.uniform(of_actions, (rounds, games, 2))

    def step(situation: jax.Array, now: tuple) -> tuple[jax.Array, tuple]:
        deal, dice, logits = now
        seen, role = (
            jnp.stack([situation, jnp.asarray(BY_OTHER)[situation]], 1),
            jnp.stack([deal, 1 - deal], 1),
        )  # [B, 2]
        chance = jax.nn.sigmoid(logits[seen, role])
        action = (dice < chance).astype(int)
        return jnp.asarray(NEXT)[deal, *action.T], (seen, role, action - chance, payoff[role, action, action[:, ::-1]])

    start = jnp.full(games, FIRST)
    seen, role, score, reward = jax.lax.scan(step, start, (deals.T.astype(int), dice, logits))[1]  # [T, B, 2]
    reward = reward.swapaxes(0, 1)
    acted, group = jnp.ones(reward.shape, bool), number // group_size
    aligned = advantage_alignment(reward, acted, group, games // group_size, gamma=gamma, beta=beta).swapaxes(0, 1)
    turn = jnp.broadcast_to(jnp.arange(rounds)[:, None, None], seen.shape)
    return jnp.zeros(logits.shape).at[turn, seen, role].add(aligned * score) / (2 * games)


def agreement(sampled: jax.Array, exact: jax.Array) -> dict[str, jax.Array]:
    """Batch gradients [n, ...] beside the exact one: `cosine` is the mean cosine, `direction` the mean gradient's."""
    angle = lambda x: (x * exact).sum() / jnp.sqrt((x**2).sum() * (exact**2).sum())
    return {"cosine": jax.vmap(angle)(sampled).mean(), "direction": angle(sampled.mean(0))}
