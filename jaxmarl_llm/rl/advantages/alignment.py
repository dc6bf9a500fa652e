"""Advantage Alignment, for seats that play a social dilemma, and the baseline of its release for language models."""

import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.rl.returns import Number, return_to_go
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import accumulate, agent_index, estimate, group_index, key_of, turn_index


def round_leave_one_out(reward: Array, acted: Array, group: Array, num_groups: int, *, gamma: Number = 1.0) -> Array:
    """G_t - mean of G_t over the other episodes of the group, for the same turn and agent; G the return-to-go.

    Turns in which the other episodes' agent did not act are no samples.

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
    """The advantage of a seat that also values the effect of its past on the other seat: two seats, moving at once.

    A*_t = A1_t + beta gamma (sum_{k<t} gamma^(t-k) A1_k) A2_t, with A1 this seat's and A2 the other seat's advantage by
    ``round_leave_one_out``; the sum is D_t = gamma (D_{t-1} + A1_{t-1}), D_0 = 0. A turn in which the other seat does
    not act has no second term. ``leading_discount`` multiplies A*_t by gamma^t, as in the paper; the released
    configurations do not. The product of two advantages of 1e19 and more is infinite in float32: scale such rewards.
    Raises ValueError unless there are two seats.

    Duque et al., Advantage Alignment Algorithms (2024), https://arxiv.org/abs/2406.14662; formula read in the code
    released for language models, https://arxiv.org/abs/2511.19405
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    if acted.shape[2] != 2:
        raise ValueError(f"Advantage alignment is defined for two seats, but there are {acted.shape[2]}.")
    own = round_leave_one_out(reward, acted, group, num_groups, gamma=gamma)
    through = return_to_go(own[:, ::-1], gamma)[:, ::-1]  # the recursion of a return, run forwards: it holds k = t too
    past = gamma * jnp.pad(through[:, :-1], ((0, 0), (1, 0), (0, 0)))
    credit = own + beta * gamma * past * own[:, :, ::-1]
    if leading_discount:
        credit = credit * jnp.broadcast_to(gamma ** jnp.arange(acted.shape[1])[None, :, None], credit.shape)
    return keep(credit, acted)
