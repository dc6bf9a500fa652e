"""Past selves: players with a learner's weights of an earlier update, from before training, or averaged."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.keys import POOL, key_for
from jaxmarl_llm.training.recipe import AVERAGE, INITIAL, SNAPSHOT, Hparams, Recipe
from jaxmarl_llm.training.records import Arranged, Given, Run
from jaxmarl_llm.training.scoring import Weights


def learners_of(recipe: Recipe, kind: str) -> list[str]:
    """The learners with a past self of this kind in some line-up."""
    return list(dict.fromkeys(learner for past_kind, learner in recipe.past.values() if past_kind == kind))


def begin(recipe: Recipe, weights: Weights) -> tuple[dict, dict]:
    """({learner: snapshots}, {learner: average of weights}) before the first update."""
    averages = {name: weights[name] for name in learners_of(recipe, AVERAGE)}
    if recipe.snapshots is None:
        return {}, averages
    repeated = partial(jax.tree.map, partial(_repeat, recipe.snapshots.kept))
    return {name: repeated(weights[name]) for name in learners_of(recipe, SNAPSHOT)}, averages


def _repeat(n: int, x: jax.Array) -> jax.Array:
    return jnp.repeat(x[None], n, 0)


def choose_snapshot(recipe: Recipe, key: jax.Array, number: jax.Array, arranged: Arranged) -> Any:
    """The index of the snapshot that plays in update `number`: the arranged one, or a uniform draw from the snapshots
    taken so far."""
    if recipe.snapshots is None or arranged.snapshot is not None:
        return arranged.snapshot
    taken = jnp.clip(1 + number // recipe.snapshots.every, 1, recipe.snapshots.kept)
    return jax.random.randint(key_for(key, POOL), (), 0, taken)


def weights(recipe: Recipe, run: Run, snapshot: Any) -> Weights:
    """The weights of every past self, by name; snapshots have the index `snapshot`."""
    of_kind = {
        SNAPSHOT: lambda learner: jax.tree.map(lambda x: x[snapshot], run.snapshots[learner]),
        INITIAL: lambda learner: {"policy": run.initial[learner]},
        AVERAGE: lambda learner: run.averages[learner],
    }
    return {name: of_kind[kind](learner) for name, (kind, learner) in recipe.past.items()}


def present(recipe: Recipe, run: Run) -> Weights:
    """The weights of all players, with the present learner's weights in place of snapshots."""
    latest = {name: jax.tree.map(partial(_repeat, 1), run.learners.weights[name]) for name in run.snapshots}
    return run.learners.weights | weights(recipe, run.replace(snapshots=latest), 0)


def keep(recipe: Recipe, run: Run, hparams: Hparams, number: jax.Array) -> Run:
    """The run after update `number`: updates averages, and takes snapshots if they are due."""
    now = run.learners.weights
    if recipe.snapshots is not None:
        slot = (1 + number // recipe.snapshots.every) % recipe.snapshots.kept
        due = (number + 1) % recipe.snapshots.every == 0
        put = lambda pool, new: pool.at[slot].set(jnp.where(due, new, pool[slot]))
        run = run.replace(snapshots={name: jax.tree.map(put, old, now[name]) for name, old in run.snapshots.items()})
    if run.averages:
        share = Given(hparams)["average"]
        mix = lambda old, new: (share * old + (1 - share) * new).astype(old.dtype)
        run = run.replace(averages={name: jax.tree.map(mix, old, now[name]) for name, old in run.averages.items()})
    return run
