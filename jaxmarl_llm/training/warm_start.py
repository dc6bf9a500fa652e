"""Supervised training of new policies on scripted dialogues, before reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxmarl_llm.keys import START, UPDATE, key_for
from jaxmarl_llm.models import decoder
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rollout.policy import Scorer
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import gather_sampled
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.update import Learners, Optimiser, update


def imitate(recipe: Recipe, student: PolicySet, names: Sequence[str], keys: jax.Array) -> list[dict]:
    """Weights of random policies after `recipe.warm_start_updates` of cross-entropy on scripted games.

    Each policy imitates what is said in the seats that it will take: a format, and the habits of the scripts. `student`
    is like the policy set of every policy, `keys` [n] are of the names.
    """
    game, config = recipe.game, student.config
    assert config is not None
    taken = jnp.array([[any(seats[a] == name for seats in recipe.seats) for a in range(game.agents)] for name in names])
    scripts = tuple(dict.fromkeys(script for seats in recipe.warm_start for script in seats))
    lineup = Lineup(recipe.warm_start * -(-8 // len(recipe.warm_start)), 8)
    teacher = Rollout(game, {"teacher": PolicySet(student.tokenizer, scripts)}, lineup, recipe.budget)
    scorer, optimiser = Scorer(config, teacher.layouts["teacher"].tables), Optimiser()

    def one(key: jax.Array, taken: jax.Array) -> dict:
        def loss(weights, batch):
            rows, sampled = batch
            scores = scorer(weights["student"], rows, sampled)
            return losses.cross_entropy(scores.logp, sampled.mask & taken[rows.seat][:, None])

        def step(learners: Learners, number: jax.Array):
            event = key_for(key, UPDATE, number)
            played = teacher({"teacher": {}}, event)
            rows = played.rows["teacher"]
            batch = rows, gather_sampled(rows, played.episodes.legal, teacher.max_sampled_tokens("teacher"))
            rate = 3e-3 * (1 - number / recipe.warm_start_updates)
            return update(optimiser, loss, learners, batch, len(rows.prompts.tokens), rate, event)[0], None

        learners = optimiser.init({"student": decoder.init(config, key_for(key, START))})
        return jax.lax.scan(step, learners, jnp.arange(recipe.warm_start_updates))[0].weights["student"]

    weights = jax.vmap(one)(keys, taken)
    return [jax.tree.map(lambda x, i=i: x[i], weights) for i in range(len(names))]
