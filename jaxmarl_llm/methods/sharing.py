"""Parts of the weights that several learners share, by path: one trunk for several policies, or all but a head.

Recipe(..., step=partial(sharing_step, shared=("policy/layers/*", "policy/embed_tokens")))
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax

from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Run
from jaxmarl_llm.training.step import Metrics, Part, Weights
from jaxmarl_llm.training.update import Learners


def tie_weights(weights: Weights, shared: tuple[str, ...]) -> Weights:
    """The weights of every policy with the first one's leaves where a path, e.g. policy/layers/q_proj, is like one of
    `shared`, in which * stands for anything. Raises ValueError for one that no path is like."""
    first = next(iter(weights.values()))
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(first)]
    for pattern in shared:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise ValueError(f"Nothing to share is called {pattern!r}: the weights are {', '.join(paths)}.")

    def of(path: Any, own: jax.Array, theirs: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return theirs if any(fnmatchcase(name, pattern) for pattern in shared) else own

    return {name: jax.tree.map_with_path(of, own, first) for name, own in weights.items()}


def sharing_step(
    parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, shared: tuple[str, ...]
) -> tuple[Run, Metrics]:
    """The standard step of learners that share these weights, all of the same shapes. The gradient of what is shared is
    the sum of all policies' losses, each over its own tokens' mean if they have as many; it counts for the norm of the
    first policy, with whose rate it is learnt."""
    run = run.replace(learners=run.learners.replace(weights=tie_weights(run.learners.weights, shared)))
    return step.on_policy_step(parts, run, hparams, key, number, apply=partial(apply_shared, shared=shared))


def apply_shared(
    parts: Parts,
    learners: Learners,
    hparams: Hparams,
    batches: dict[str, Part],
    key: jax.Array,
    frozen: Weights,
    *,
    shared: tuple[str, ...],
) -> tuple[Learners, Metrics]:
    """As `step.apply_update`, with the weights tied."""
    tie = partial(tie_weights, shared=shared)
    learners, metrics = step.apply_update(parts, learners, hparams, batches, key, frozen, tie=tie)
    return learners.replace(weights=tie(learners.weights)), metrics
