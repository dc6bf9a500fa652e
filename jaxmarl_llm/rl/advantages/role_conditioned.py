"""Role-conditioned advantages: the baseline of SPIRAL, a running mean return for each role of each game."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl.masked import segment_count
from jaxmarl_llm.rl.returns import Number
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import (
    Weight,
    accumulate,
    act_weights,
    estimate,
    game_index,
    key_of,
    weighted_mean,
)


class RoleBaselineState(NamedTuple):
    """Running mean returns, kept from update to update."""

    mean: Array  # float32 [games, roles], running mean of the returns
    known: Array  # bool [games, roles], True once the role was played


def init_role_baseline(num_roles: int, num_games: int = 1) -> RoleBaselineState:
    """The state before the first update. The first batch with a role sets its baseline."""
    return RoleBaselineState(jnp.zeros((num_games, num_roles)), jnp.zeros((num_games, num_roles), bool))


def role_baseline(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    role: Array,
    num_roles: int,
    state: RoleBaselineState,
    decay: Number = 0.95,
    game: Array | None = None,
    num_games: int = 1,
    weight: Weight = "episode",
) -> tuple[Array, RoleBaselineState]:
    """(R - running mean of its (game, role), the state after this batch): R the episode's sum.

    role [B,T,A], game [B]. The baseline is the mean before this batch, or the batch mean for a role without a past.
    Then mean <- decay mean + (1 - decay) batch mean for the roles in the batch. A seat that changes its role counts for
    each of its roles. The groups are not used.
    Raises ValueError if the state has other games or roles.

    Liu et al., SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement
    Learning (2025), https://arxiv.org/abs/2506.24119: role-conditioned advantage estimation. In its release the mean
    starts at 0, which biases the first 1 / (1 - decay) updates. It also discounts the difference by
    gamma^(turns to the end).
    """
    check_shapes("acted reward role [B,T,A] group game [B]", acted, reward, role, group, game)
    if state.mean.shape != (num_games, num_roles):
        raise ValueError(
            f"The state holds {state.mean.shape} means of games and roles: needed are {(num_games, num_roles)}."
        )
    key, num_keys = key_of(acted.shape, game=game_index(game, num_games), role=(role, num_roles))
    total = accumulate(reward, acted, "episode")
    weights = act_weights(acted, weight, role=(role, num_roles))
    mean, known = state.mean.ravel(), state.known.ravel()
    batch, played = weighted_mean(total, key, num_keys, acted, weights), segment_count(key, num_keys, acted) > 0
    advantage = estimate(total, acted, key, num_keys, baseline=jnp.where(known, mean, batch))
    after = jnp.where(played, jnp.where(known, decay * mean + (1 - decay) * batch, batch), mean)
    shape = num_games, num_roles
    return advantage, RoleBaselineState(after.reshape(shape), (known | played).reshape(shape))
