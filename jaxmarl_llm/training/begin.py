"""A run before its first update: policies with random weights or after their warm start."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.rollout import policy
from jaxmarl_llm.training import past, step
from jaxmarl_llm.training.recipe import INITIAL, Parts, Recipe
from jaxmarl_llm.training.setup import parts_of, rollout_of
from jaxmarl_llm.training.warm_start import imitate, imitation_update


def init_run(parts: Parts, key: jax.Array, tiny: dict[str, Any] | None = None) -> step.Run:
    """A run before its first update; `tiny` is the result of `init_tiny`, if it is known."""
    recipe, keys = parts.recipe, _keys(parts, key)
    tiny = init_tiny(parts, key) if tiny is None else tiny
    weights: dict[str, Any] = {}
    for i, name in enumerate(parts.learners):
        home = parts.policy_set_of[name]
        policy_set = parts.policy_sets[home]
        assert policy_set.config is not None  # learners are no scripts
        if policy_set.lora:
            initial_weights = lora.init(keys[i], parts.base[home], policy_set.loras[policy_set.policies.index(name)])
        elif home in parts.base:
            initial_weights = parts.base[home]
        else:
            initial_weights = tiny[name]
        weights[name] = {"policy": initial_weights}
        if recipe.critic:
            weights[name]["value"] = policy.init_value(policy_set.config)
    taught_later = recipe.warm_start and recipe.reference  # training then starts from other weights than the base
    kept = list(weights) if taught_later else list(tiny) if recipe.reference else []
    kept_names = dict.fromkeys([*kept, *past.learners_of(recipe, INITIAL)])
    initial = {name: weights[name]["policy"] for name in kept_names}
    state = recipe.init_state(parts, jax.random.fold_in(key, len(parts.learners)))
    state = jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.result_type(x)), state)  # no weak types
    return step.Run(parts.optimiser.init(weights), state, *past.begin(recipe, weights), initial)


def init_tiny(parts: Parts, key: jax.Array, taught: bool = True) -> dict[str, Any]:
    """Initial weights of a run's tiny policies, by learner. `taught` includes the warm start."""
    recipe, keys = parts.recipe, _keys(parts, key)
    new = [i for i, name in enumerate(parts.learners) if parts.policy_set_of[name] not in parts.base]
    names = [parts.learners[i] for i in new]
    if taught and isinstance(recipe.warm_start, Recipe):
        return where_ended(parts, key)
    sets = [parts.policy_sets[parts.policy_set_of[name]] for name in names]
    if taught and recipe.warm_start and new:
        return dict(zip(names, imitate(recipe, sets[0], names, keys[np.array(new)], key), strict=True))
    configs = [policy_set.config for policy_set in sets if policy_set.config is not None]  # learners are no scripts
    return {name: decoder.init(config, keys[i]) for name, config, i in zip(names, configs, new, strict=True)}


def tokens_of(parts: Parts) -> int:
    """Maximum tokens of the games of an update."""
    rollouts = [rollout_of(parts, recipe) for recipe in parts.recipe.games.values()] or [parts.rollout]
    return sum(layout.tokens for rollout in rollouts for layout in rollout.layouts.values())


def where_ended(parts: Parts, key: jax.Array) -> dict[str, dict]:
    """Trains the recipe that is the warm start and returns its learners' final weights: tiny policies with the
    vocabulary of `parts`."""
    first = parts.recipe.warm_start
    assert isinstance(first, Recipe)
    first_parts = parts_of(parts, first)
    run, _ = apply_updates(first_parts, init_run(first_parts, key), key, jnp.arange(first.updates))
    return {name: run.learners.weights[name]["policy"] for name in parts.learners}


def apply_updates(parts: Parts, run: step.Run, key: jax.Array, numbers: jax.Array) -> tuple[step.Run, step.Metrics]:
    """(the run after the updates `numbers` [n], metrics [n]), with the hparams of its recipe. It is a whole training
    inside another program."""
    recipe = parts.recipe
    with jax.ensure_compile_time_eval():  # a schedule is a function of concrete numbers
        hparams = recipe.traced_hparams

    def update(run: step.Run, number: jax.Array) -> tuple[step.Run, step.Metrics]:
        now = jax.tree.map(lambda x: x[jnp.minimum(number, len(x) - 1)] if x.ndim else x, hparams)
        return (recipe.step or step.on_policy_step)(parts, run, now, key, number)

    return jax.lax.scan(update, run, numbers)


def train_stages(
    parts: Parts, recipe: Recipe, weights: dict[str, dict], key: jax.Array, stages: int = 1, state: Any = None
) -> dict[str, dict]:
    """{learner: weights} of tiny policies after each of `stages` equal parts of a recipe's updates.

    Leaves are [stages, ...]. Training starts from `weights`, {learner: tree}. `state` replaces the initial state from
    the recipe's `init_state`. `stages` must divide the number of updates.
    """
    recipe_parts = parts_of(parts, recipe)
    run = init_run(recipe_parts, key, weights)
    run = run if state is None else run.replace(state=state)

    def stage(run: step.Run, numbers: jax.Array) -> tuple[step.Run, dict[str, dict]]:
        run, _ = apply_updates(recipe_parts, run, key, numbers)
        return run, {name: x["policy"] for name, x in run.learners.weights.items()}

    return jax.lax.scan(stage, run, jnp.arange(recipe.updates).reshape(stages, -1))[1]


def imitation_step(parts: Parts, run: step.Run, key: jax.Array, number: jax.Array) -> tuple[step.Run, step.Metrics]:
    """Update `number` of the warm start of pretrained policies. `initial` follows the weights; the last update also
    resets the optimisers."""
    learners, metrics = imitation_update(parts, run.learners, key, number)
    last = number + 1 == parts.recipe.warm_start_updates
    begun = parts.optimiser.init(learners.weights)  # training begins with fresh moments
    learners = jax.tree.map(lambda new, old: jnp.where(last, new, old), begun, learners)
    initial = {name: learners.weights[name]["policy"] for name in run.initial}
    return run.replace(learners=learners, initial=initial), metrics


def _keys(parts: Parts, key: jax.Array) -> jax.Array:
    """A key for each learner."""
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(len(parts.learners)))
