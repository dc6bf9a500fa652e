"""Advantages for proposers and solvers: each is compared with its peers."""

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
    """The return less the mean of its peers: solvers within an episode, proposers within a group.

    An episode is a proposal by the seats `proposers`, with all other seats as its solvers. The episodes of a group
    propose from the same source. Solvers are compared only within their proposal, as a low return elsewhere may mean a
    harder question. Proposers are `compared` with the proposals of the group or of the batch; with "nothing" their
    advantage is the return. ``scale="std"`` divides the advantages of solvers by their standard deviation, never those
    of proposers. For arguments and shapes of all estimators see the docstring of ``jaxmarl_llm.rl.advantages``.

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
