"""Chain-of-Agents: one policy imitates a team's dialogues, all roles in a single row, and learns further by RL.

Li et al., Chain-of-Agents: End-to-End Agent Foundation Models via Multi-Agent Distillation and Agentic RL (2025),
https://arxiv.org/abs/2508.13167; from its abstract and the README of its release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.around.as_one import Replayed
from jaxmarl_llm.keys import START, key_for
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, Trajectory, gather_sampled
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Run
from jaxmarl_llm.training.scoring import Weights
from jaxmarl_llm.training.update import Learners, update
from jaxmarl_llm.training.warm_start import TINY_RATE


def rows_as_one(
    game: Any, policy_set: PolicySet, budget: int | tuple[int, ...], played: Trajectory, key: jax.Array
) -> tuple[Rows, SampledTokens]:
    """(rows, sampled tokens) of one policy, for the dialogues of a team that were played with `key`, in groups of one.

    `game` is that of the team for one seat (`AsOne`), with the vocabulary of `policy_set`. It is dealt with the same
    keys and given the team's answers. Only answers are sampled tokens: texts that a role was told carry no loss.
    """
    recorded = Lineup((("recorded",),) * len(played.episodes.group), 1)
    again = Rollout(Replayed(game), {"team": PolicySet(policy_set.tokenizer, ("recorded",))}, recorded, budget)
    answers = jnp.where(played.episodes.acted, played.episodes.action, 0).sum(2)
    told = again({"team": {}}, key, answers)
    return told.rows["team"], gather_sampled(told.rows["team"], told.episodes.legal, again.max_sampled_tokens("team"))


def imitate_team(single: Parts, team: Parts, weights: Weights, run: Run, key: jax.Array, lessons: int) -> Run:
    """The run of a single tiny policy after it has imitated a team in `lessons` updates.

    In each it reads a fresh batch of dialogues of the team with `weights`: one of each group of `team`, whose groups
    have one episode. The rate is that of a warm start and falls to 0.
    """
    (name,) = single.learners
    policy_set, scorer = single.policy_sets[name], single.rollout.layouts[name].scorer()

    def read(learners: Learners, number: jax.Array) -> tuple[Learners, None]:
        event = key_for(key, START, number)
        played = step.play(team, weights, event)
        batch = rows_as_one(single.recipe.game, policy_set, single.recipe.budget, played, event)

        def loss(weights: dict, batch: tuple[Rows, SampledTokens]) -> losses.LossAndMetrics:
            return losses.cross_entropy(scorer(weights[name]["policy"], *batch).logp, batch[1].mask)

        rate = TINY_RATE * (1 - number / lessons)
        return update(team.optimiser, loss, learners, batch, len(played.episodes.group), rate, event)[0], None

    learners, _ = jax.lax.scan(read, run.learners, jnp.arange(lessons))
    return run.replace(learners=single.optimiser.init(learners.weights))


def train_side_by_side(
    parts: Parts, runs: Sequence[Run], rates: Sequence[float], key: jax.Array
) -> dict[str, jax.Array]:
    """The metrics [runs, updates] of a recipe that trains several runs, each at its own rate.

    With the same key all runs play the same deals. A run with a rate of 0 plays, and does not learn.
    """
    hparams = {name: jnp.float32(x) for name, x in parts.recipe.all_hparams.items()}

    def train(run: Run, rate: jax.Array) -> dict[str, jax.Array]:
        def learn(run: Run, number: jax.Array) -> tuple[Run, dict[str, jax.Array]]:
            return step.on_policy_step(parts, run, {**hparams, "learning_rate": rate}, key, number)

        return jax.lax.scan(learn, run, jnp.arange(parts.recipe.updates))[1]

    return jax.vmap(train)(jax.tree.map(lambda *x: jnp.stack(x), *runs), jnp.array(rates))
