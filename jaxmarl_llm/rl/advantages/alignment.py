"""Advantage Alignment for social dilemmas of two seats, and the baseline of its release for language models."""

import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.rl.returns import Number, return_to_go
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import accumulate, agent_index, estimate, group_index, key_of, turn_index


def round_leave_one_out(reward: Array, acted: Array, group: Array, num_groups: int, *, gamma: Number = 1.0) -> Array:
    """G_t - mean of G_t over the other episodes of the group, for the same turn and agent; G the return-to-go.

    An episode whose agent did not act in the turn is left out of that turn's mean.

    Piche et al., Learning Robust Social Strategies with Large Language Models (2025),
    https://arxiv.org/abs/2511.19405: its group-relative baseline; formula read in the released code.
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    indices = {"group": group_index(group, num_groups), "turn": turn_index(acted), "agent": agent_index(acted)}
    key = key_of(acted.shape, **indices)
    return estimate(accumulate(reward, acted, "to_go", gamma), acted, *key, baseline="leave_one_out")


def advantage_alignment(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    gamma: Number,
    beta: Number,
    leading_discount: bool = False,
) -> Array:
    """The advantage of a seat that also values how its past acts change the other seat's advantage, for two seats.

    A*_t = A1_t + beta gamma (sum_{k<t} gamma^(t-k) A1_k) A2_t, with A1 this seat's and A2 the other seat's advantage by
    ``round_leave_one_out``. The sum is D_t = gamma (D_{t-1} + A1_{t-1}), D_0 = 0. Both seats act in the same turn: if
    the other seat does not act, the second term is 0. ``leading_discount`` multiplies A*_t by gamma^t as in the paper;
    the released configurations do not. The product of two advantages above 1e19 overflows float32: scale such rewards.
    Raises ValueError unless there are two seats.

    Duque et al., Advantage Alignment Algorithms (2024), https://arxiv.org/abs/2406.14662; formula read in the code
    released for language models, https://arxiv.org/abs/2511.19405
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    if acted.shape[2] != 2:
        raise ValueError(f"Advantage alignment is defined for two seats, but there are {acted.shape[2]}.")
    advantage = round_leave_one_out(reward, acted, group, num_groups, gamma=gamma)
    inclusive = return_to_go(advantage[:, ::-1], gamma)[:, ::-1]  # a return run forwards in time: k = t included
    past = gamma * jnp.pad(inclusive[:, :-1], ((0, 0), (1, 0), (0, 0)))
    credit = advantage + beta * gamma * past * advantage[:, :, ::-1]
    if leading_discount:
        credit = credit * jnp.broadcast_to(gamma ** jnp.arange(acted.shape[1])[None, :, None], credit.shape)
    return keep(credit, acted)
