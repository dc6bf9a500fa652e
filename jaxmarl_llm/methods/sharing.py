"""Weights shared by several learners, selected by path: one trunk for several policies, or all but a head.

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
    """The weights of every policy, with the first policy's leaves at paths that match a pattern of `shared`. A path is
    e.g. policy/layers/q_proj; * matches any text. Raises ValueError for a pattern that matches no path."""
    first = next(iter(weights.values()))
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(first)]
    for pattern in shared:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise ValueError(f"Nothing to share is called {pattern!r}: the weights are {', '.join(paths)}.")

    def share_leaf(path: Any, leaf: jax.Array, theirs: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return theirs if any(fnmatchcase(name, pattern) for pattern in shared) else leaf

    return {name: jax.tree.map_with_path(share_leaf, tree, first) for name, tree in weights.items()}


def sharing_step(
    parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, shared: tuple[str, ...]
) -> tuple[Run, Metrics]:
    """The standard step of learners that share the weights whose paths match a pattern of `shared`, all of the same
    shapes.

    A shared weight's gradient is that of the summed losses of all policies, divided by the first policy's count: its
    tokens if its loss is a mean over tokens. The first policy's gradient norm includes it, and the first policy's
    learning rate applies.
    """
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
    """`step.apply_update` with tied weights."""
    tie = partial(tie_weights, shared=shared)
    learners, metrics = step.apply_update(parts, learners, hparams, batches, key, frozen, tie=tie)
    return learners.replace(weights=tie(learners.weights)), metrics
