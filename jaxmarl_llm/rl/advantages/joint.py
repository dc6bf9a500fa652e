"""Advantages in games of one simultaneous turn, from the rewards of other joint actions. Arrays in, arrays out.

``rollout.joint_actions`` makes the tables of rewards. Shapes: n groups of G members, A seats, N actions.
"""

import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl.statistics import agent_index, estimate, group_index, key_of


def cross_joint(reward: Array) -> Array:
    """V(s, i) - mean of V(s, k) over the other members k: reward [n, G, ..., G, A] -> advantage [n, G, A], float32.

    reward[g, i_0, ..., i_(A-1), s] is the reward of seat s if each seat r plays the action of member i_r of group g.
    Each of the A seats has an axis of G entries. V(s, i) is its mean over the members of the other seats, with i_s = i.
    The members' actions must be independent given the group: all members stand at one state with the same observations.

    Its gradient has the expectation of ``rloo`` per agent on the G games as they were played (the diagonal
    i_0 = ... = i_(A-1)), and no larger variance: it averages that estimate over all pairings of the same actions
    (Rao-Blackwell).
    Raises ValueError for another shape, or for groups of one.

    In CoMLRL, MAGRPO's library, this is ``joint_mode="cross"`` with ``advantage_mode="rloo"``, up to a factor G^(A-1).
    CoMLRL adds the rewards of a sample; this takes their mean. https://github.com/OpenMLRL/CoMLRL, read in the release.
    Liu et al., LLM Collaboration with Multi-Agent Reinforcement Learning (2025), https://arxiv.org/abs/2508.04652
    """
    seats = reward.ndim - 2
    if seats < 1 or reward.shape[-1] != seats or len(set(reward.shape[1:-1])) != 1:
        raise ValueError(
            f"Crossed rewards have the shape [groups, G, ..., G, seats] with one G a seat, got {list(reward.shape)}."
        )
    groups, size = reward.shape[:2]
    if size < 2:
        raise ValueError("crossed compares the members of a group: it needs at least 2 of them.")
    others = lambda seat: tuple(1 + other for other in range(seats) if other != seat)
    value = jnp.stack([reward[..., seat].mean(others(seat)) for seat in range(seats)], -1).astype(jnp.float32)
    acted, group = jnp.ones(value.shape, bool), jnp.arange(groups)
    key = key_of(value.shape, group=group_index(group, groups), agent=agent_index(acted))
    return estimate(value, acted, *key, baseline="leave_one_out")


def counterfactual(reward: Array, probability: Array, action: Array) -> Array:
    """reward(a) - sum over b of probability(b) reward(b): [..., N], [..., N], action int [...] -> [...], float32.

    reward[..., b] is the seat's reward for playing b while the other seats' actions stay; probability[..., b] is the
    policy's. An illegal action has probability 0, and its reward may be anything. An action below 0 means no act and
    gets 0. This is COMA's advantage with an exact critic, the rules. Its mean under the policy is 0, and the baseline
    does not depend on the seat's action.
    Raises ValueError if the shapes differ.

    Foerster et al., Counterfactual Multi-Agent Policy Gradients (2018), https://arxiv.org/abs/1705.08926
    """
    if reward.shape != probability.shape or reward.shape[:-1] != action.shape:
        raise ValueError(
            f"Rewards and probabilities are of [..., N] actions, one of them taken in each [...]: got "
            f"{list(reward.shape)}, {list(probability.shape)} and {list(action.shape)}."
        )
    paid = jnp.where(probability > 0, reward, 0).astype(jnp.float32)
    taken = jnp.take_along_axis(paid, jnp.maximum(action, 0)[..., None], -1)
    # differences first: actions with equal rewards get exactly 0
    return jnp.where(action >= 0, (probability * (taken - paid)).sum(-1), 0)
