"""CORY: two policies that start as copies and exchange roles, https://arxiv.org/abs/2410.06101.

A policy is its weights and its optimiser's moments. Seats keep their names and policies move between them, so that each
policy continues in the other role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.training import step
from jaxmarl_llm.training.optimiser import check_common
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Experience
from jaxmarl_llm.training.update import Learners


def exchanging_step(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[step.Run, step.Metrics]:
    """A recipe's step: `on_policy_step` for two learners that exchange names after every `exchange_every` updates
    (hparam, 0: never). Before update 0 both become copies of the first learner, also in the reference.

    The choice `optimisers`: "kept" moments move with the weights. With "new" both optimisers restart at each exchange,
    as in CORY's release. Raises ValueError unless there are two learners with one optimiser for both.
    """
    if len(parts.learners) != 2:
        raise ValueError(f"Two policies exchange their roles, not {len(parts.learners)}.")
    check_common(parts.recipe.optimiser)
    copied = run.replace(
        learners=run.learners.replace(weights=_copies(run.learners.weights)), initial=_copies(run.initial)
    )
    run = jax.tree.map(lambda new, old: jnp.where(number == 0, new, old), copied, run)
    run, metrics = step.on_policy_step(parts, run, hparams, key, number)
    every = hparams["exchange_every"]
    due = (every > 0) & ((number + 1) % jnp.maximum(every, 1) == 0)
    reset = select(hparams, "optimisers", kept=False, new=True)
    return run.replace(learners=exchange(parts, run.learners, due, reset)), metrics


def exchange(parts: Parts, learners: Learners, due: jax.Array, reset: jax.Array) -> Learners:
    """If `due`, swaps weights and moments of two learners; with `reset` the moments are new instead."""
    anew = parts.optimiser.init(learners.weights).optimiser
    moments = jax.tree.map(lambda new, old: jnp.where(reset, new, old), anew, _swap(learners.optimiser))
    swapped = learners.replace(weights=_swap(learners.weights), optimiser=moments)
    return jax.tree.map(lambda new, old: jnp.where(due, new, old), swapped, learners)


def log_ratios(experience: Experience) -> jax.Array:
    """The log-probability of each turn's tokens minus that under the reference, float32 [B, T, A]; 0 where a seat did
    not act. Its sum over turns is the k1 estimate of the KL."""
    ratio = jnp.zeros(experience.episodes.acted.shape)
    for name, rows in experience.rows.items():
        sampled = experience.sampled[name]
        place = rows.episode[:, None], sampled.turn, rows.seat[:, None]
        of_tokens = sampled.behaviour_logp - experience.reference_logp[name]
        ratio = ratio.at[place].add(jnp.where(sampled.mask, of_tokens, 0))
    return ratio


def _copies(trees: Mapping[str, Any]) -> dict[str, Any]:
    """The first of two entries for both names."""
    return {name: next(iter(trees.values())) for name in trees}


def _swap(trees: Mapping[str, Any]) -> dict[str, Any]:
    first, other = trees
    return {first: trees[other], other: trees[first]}
