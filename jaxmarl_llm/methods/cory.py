"""Two policies that begin as copies of one and exchange their roles: CORY's (https://arxiv.org/abs/2410.06101).

A policy is its weights with its optimiser's moments. Seats keep their names and policies move between them, so that
what is learnt in a role goes on in the other one.
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
from jaxmarl_llm.training.update import Learners


def exchanging_step(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array
) -> tuple[step.Run, step.Metrics]:
    """A recipe's step: `on_policy_step` for two learners that are copies of the first before update 0 (also what the
    reference says) and exchange names after every hparam `exchange_every` updates, 0: never.

    The choice `optimisers`: moments that are "kept" move with the weights; with "new" ones both optimisers begin anew
    at each exchange, as CORY's release builds them. Raises ValueError unless there are two learners.
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
    """Where it is `due`, each of two learners has the other's weights and moments, or with `reset` fresh moments."""
    anew = parts.optimiser.init(learners.weights).optimiser
    moments = jax.tree.map(lambda new, old: jnp.where(reset, new, old), anew, _swap(learners.optimiser))
    swapped = learners.replace(weights=_swap(learners.weights), optimiser=moments)
    return jax.tree.map(lambda new, old: jnp.where(due, new, old), swapped, learners)


def _copies(of: Mapping[str, Any]) -> dict[str, Any]:
    """The first of two for both."""
    return {name: next(iter(of.values())) for name in of}


def _swap(of: Mapping[str, Any]) -> dict[str, Any]:
    one, other = of
    return {one: of[other], other: of[one]}
