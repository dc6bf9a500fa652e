"""Advantages of proposers and of the solvers of what they propose, each compared with its like."""

from typing import Literal

import jax.numpy as jnp
from jax import Array

from jaxmarl_llm.rl.advantages.group_relative import grpo, reinforce
from jaxmarl_llm.rl.shapes import check_shapes
from jaxmarl_llm.rl.statistics import Scale, check_option


def hierarchical(
    reward: Array,
    acted: Array,
    group: Array,
    num_groups: int,
    *,
    proposers: tuple[int, ...] = (0,),
    compared: Literal["group", "batch", "nothing"] = "group",
    scale: Scale = "none",
) -> Array:
    """Solvers less the mean of the solvers of their episode, proposers less that of their group's proposers.

    An episode is a proposal (by the seats `proposers`) with its solvers (all others); the episodes of a group propose
    from the same source. A solver's sum is compared with the other solvers of the same proposal alone, as a low one
    elsewhere may mean a harder question; a proposer's with the proposals of the same group, of the whole batch, or with
    nothing: then it is the sum itself. With ``scale="std"`` solvers are divided by their standard deviation; proposers
    never are. Arguments and shapes of all estimators stand in the docstring of ``jaxmarl_llm.rl.advantages``.

    hierarchical GRPO of prime-rl (2026), https://github.com/PrimeIntellect-ai/prime-rl/pull/3138, from its description:
    means without a standard deviation. Raises ValueError for another `compared`.
    """
    check_shapes("acted reward [B,T,A] group [B]", acted, reward, group)
    check_option("compared", compared, ("group", "batch", "nothing"))
    proposes = jnp.isin(jnp.arange(acted.shape[2]), jnp.asarray(proposers))[None, None]
    episodes = jnp.arange(len(acted)), len(acted)
    of_solvers = grpo(reward, acted & ~proposes, *episodes, scale=scale)
    groups = (jnp.zeros_like(group), 1) if compared == "batch" else (group, num_groups)
    if compared == "nothing":
        return of_solvers + reinforce(reward, acted & proposes, *groups)
    return of_solvers + grpo(reward, acted & proposes, *groups, scale="none")
