"""A batch of games to be read: what was played, the distributions behind every sampled token, and its advantage."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.keys import DEAL, batch_keys
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.rollout.trajectory import SampledTokens, Trajectory
from jaxmarl_llm.training import step
from jaxmarl_llm.training.setup import Parts

MOST = 8  # alternatives that are kept of a token


class Look(struct.PyTreeNode):
    """The sampled tokens of one policy set, and the distributions that they were drawn from."""

    sampled: SampledTokens
    entropy: jax.Array  # float32 [R, M], nats
    token: jax.Array  # int32 [R, M, K], the most probable tokens
    logp: jax.Array  # float32 [R, M, K], of these; -1e30 for a token that could not be drawn
    advantage: jax.Array | None  # float32 [R, M]; None for policies that do not learn, and under a step of one's own


class Examined(struct.PyTreeNode):
    trajectory: Trajectory
    start: Any  # states of the deals, leaves [groups, ...]
    rules: jax.Array  # int32 [groups, A, K'], the phrases of the rules that each seat was told
    looks: dict[str, Look]  # by policy set


def examine(parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array) -> Examined:
    """Plays a batch as large as an update's with the present weights, and computes what an update would.

    Advantages are those of the recipe's estimator, in its present state, over the whole batch.
    """
    recipe, weights = parts.recipe, step.current_weights(parts, run.learners.weights)
    trajectory, groups = step.play(parts, weights, key), jnp.arange(recipe.groups, dtype=jnp.int32)
    start, _ = jax.vmap(recipe.game.reset)(batch_keys(key, DEAL, groups), groups)
    experience = step.make_experience(parts, weights, trajectory)
    advantages = None if recipe.step is not None else step.estimate(parts, run, hparams, experience)
    looks = {}
    for name, rows in trajectory.rows.items():
        sampled, advantage = experience.sampled[name], None
        if advantages is not None and name in parts.trained:
            advantage = step.make_part(name, experience, advantages).batch.advantage
        params, joined, which = step.scoring_weights(parts, weights, name, rows)
        with jax.named_scope(scopes.SCORING):
            found = parts.scorer(name).alternatives(params, rows, sampled, MOST, joined, which)
        looks[name] = Look(sampled, *found, advantage)
    return Examined(trajectory, start, jax.vmap(recipe.game.prompt)(start), looks)
