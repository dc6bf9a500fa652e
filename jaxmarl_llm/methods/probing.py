"""A probe before each update: how many episodes of a group begin at its first turn, and how many are left for branches.

Dong et al., Agentic Entropy-Balanced Policy Optimization (2025, AEPO), https://arxiv.org/abs/2510.14545.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.rollout.branching import by_entropy, first_by_probe
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup
from jaxmarl_llm.rollout.trajectory import Episodes
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Arranged, Run

RECORDED = Arranged(branch=Partial(by_entropy, first=1, base=0.0, weight=0.0))  # records entropies, copies nothing


def half_of_members(parts: Parts, key: jax.Array) -> jax.Array:
    """A recipe's `init_state`: half of the members of each group, int32 [groups, 1]."""
    recipe = parts.recipe
    return jnp.full((recipe.groups, 1), recipe.group_size // 2, jnp.int32)


def probe_first(
    parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, replies: np.ndarray, seat: int = 0
) -> tuple[Run, step.Metrics]:
    """The standard step, after a probe whose `first_by_probe` becomes the run's state, int32 [groups, 1].

    The entropies are those before the first turn and in the turns `replies`, bool [T], of `seat`. `Recipe.arrange`
    reads the state, and the estimator returns it unchanged. Metrics do not count the turns of the probe.
    """
    branches = play_probe(parts, run, key_for(key, UPDATE, number)).branches
    assert branches is not None
    entropy = branches.entropy[..., seat]
    first = first_by_probe(entropy[:, 0], entropy[:, replies].mean(1), parts.recipe.group_size)
    return step.on_policy_step(parts, run.replace(state=first), hparams, key, number)


def play_probe(parts: Parts, run: Run, key: jax.Array) -> Episodes:
    """One episode a group with the deals that the update of this key has, and with entropies in `branches`."""
    recipe = parts.recipe
    seats = tuple(recipe.seats[group % len(recipe.seats)] for group in range(recipe.groups))
    rollout = Rollout(recipe.game, parts.policy_sets, Lineup(seats, 1), recipe.budget)
    probing = dataclasses.replace(parts, rollout=rollout)
    return step.play(probing, run.learners.weights, key, RECORDED).episodes
