"""Agents that act in sequence, with a critic: the estimator of MARFT."""

from typing import Any

from jax import Array

from jaxmarl_llm.rl.returns import Targets, gae_through_agents
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import whiten


def sequential_agents(
    reward: Array, acted: Array, group: Array, num_groups: int, *, value: Array, whitened: bool = True, **options: Any
) -> Targets:
    """``returns.gae_through_agents`` (with its options) whitened over all acts of the batch, and the critic's target.

    value [B,T,A] is the value before each act. The team's reward of a turn is the mean over its seats, which equals a
    reward common to all seats. The groups are not used.

    Liao et al., MARFT: Multi-Agent Reinforcement Fine-Tuning (2025), https://arxiv.org/abs/2504.16129; as described in
    ``gae_through_agents``. It normalises over all agents together, as this does.
    """
    check_shapes("acted reward value [B,T,A] group [B]", acted, reward, value, group)
    targets = gae_through_agents(reward.mean(axis=2), value, acted, **options)
    return targets._replace(advantage=whiten(targets.advantage, acted)) if whitened else targets
