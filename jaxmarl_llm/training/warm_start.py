"""Warm start: supervised training of policies on scripted games or on a file of dialogues, before reinforcement
learning.

Each policy imitates scripts in the seats that it will take, or the dialogues of a file (`supervised`). It learns the
format of answers, and habits. A tiny policy imitates during initialisation (`imitate`). A pretrained policy imitates in
updates (`imitation_update`), which train its adapter, or all weights without one. Tiny policies use Adam, so that arms
with other optimisers start alike. Pretrained policies use the recipe's optimiser, with the rates below, which suit
Adam.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.keys import DEAL, START, UPDATE, key_for
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.policy import Scorer
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.team import Lineup, PolicySet
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, gather_sampled
from jaxmarl_llm.training import supervised
from jaxmarl_llm.training.recipe import Parts, Recipe
from jaxmarl_llm.training.records import Common
from jaxmarl_llm.training.update import Learners, Optimiser, update

TINY_RATE, ADAPTER_RATE, FULL_RATE = 3e-3, 1e-3, 3e-5
"""Learning rates of a tiny policy, an adapter, and all weights of a pretrained model; each falls linearly to 0."""


class Lessons(NamedTuple):
    """Examples for imitation: `draw` makes them from games of scripts or a file of dialogues, `scorer` scores them."""

    scorer: Scorer
    draw: Callable[..., tuple[Rows, SampledTokens, jax.Array]]
    """(key, deal=None) -> (rows, their sampled tokens, the rows that each policy imitates as bool [policies, R]). A
    deal is that of all games; a file has none."""
    tokens: int
    """Maximum tokens of all rows, with prompts counted once."""


def lessons(recipe: Recipe, student: PolicySet, names: Sequence[str], groups: int, group_size: int) -> Lessons:
    """Data from at least `groups` groups of scripted games, or from a file, `groups * group_size` dialogues a policy.

    Raises ValueError for a name in the warm start that is no script of the game, and for a file that cannot be read.
    """
    assert student.config is not None
    if isinstance(recipe.warm_start, Path):
        file, n = supervised.dialogues(recipe.warm_start, student, names), groups * group_size

        def draw_rows(key: jax.Array, deal: Any = None) -> tuple[Rows, SampledTokens, jax.Array]:
            rows, sampled = file.draw(key, n)
            return rows, sampled, rows.policy[None] == jnp.arange(len(names))[:, None]

        rows = jax.eval_shape(draw_rows, jax.random.key(0))[0]
        tokens = rows.tokens.size + rows.prompts.tokens.size
        return Lessons(Scorer(student.config, None, masked=False, remat=recipe.remat), draw_rows, tokens)
    teacher, taken = teacher_of(recipe, student.tokenizer, names, groups, group_size), taken_seats(recipe, names)

    def play_rows(key: jax.Array, deal: Any = None) -> tuple[Rows, SampledTokens, jax.Array]:
        rows, sampled = scripted_games(teacher, key, deal)
        return rows, sampled, jnp.asarray(taken)[:, rows.seat]

    layout = teacher.layouts["teacher"]
    return Lessons(Scorer(student.config, layout.tables, remat=recipe.remat), play_rows, layout.tokens)


def warm_start_of(recipe: Recipe) -> tuple:
    """A key with all settings that determine the warm start of tiny policies, beside their models and the seed."""
    imitation = (
        recipe.warm_start,
        recipe.warm_start_updates,
        recipe.warm_start_deal,
        recipe.learners,
        recipe.size,
        taken_seats(recipe, recipe.learners).tolist(),
    )
    return *imitation, recipe.game, recipe.tokenizer, recipe.budget, recipe.sampling, recipe.masked, recipe.remat


def tiny_lessons(recipe: Recipe, student: PolicySet, names: Sequence[str]) -> Lessons:
    """Data for one update of the warm start of tiny policies."""
    group_size = recipe.warm_start.group_size if isinstance(recipe.warm_start, Common) else 8
    return lessons(recipe, student, names, 8, group_size)


def imitate(
    recipe: Recipe, student: PolicySet, names: Sequence[str], keys: jax.Array, run_key: jax.Array
) -> list[dict]:
    """Weights of random tiny policies after `recipe.warm_start_updates` updates by cross-entropy on their `Lessons`.

    `student` is a policy set like that of every policy; `keys` [n] belong to `names`, `run_key` to their run.
    """
    deal = common_deal(recipe, run_key)
    common = isinstance(recipe.warm_start, Common)
    config, optimiser, taught = student.config, Optimiser(), tiny_lessons(recipe, student, names)
    assert config is not None

    def train_policy(key: jax.Array, i: jax.Array) -> dict:
        def loss(weights, batch):
            rows, sampled, mine = batch
            scores = taught.scorer(weights["student"], rows, sampled)
            return losses.cross_entropy(scores.logp, sampled.mask & mine[:, None])

        def step(learners: Learners, number: jax.Array):
            event = key_for(key, UPDATE, number)
            rows, sampled, taken = taught.draw(event, deal)
            batch = rows, sampled, taken.any(0) if common else taken[i]
            rate = TINY_RATE * (1 - number / recipe.warm_start_updates)
            return update(optimiser, loss, learners, batch, len(batch[0].prompts.tokens), rate, event)[0], None

        learners = optimiser.init({"student": decoder.init(config, key_for(key, START))})
        return jax.lax.scan(step, learners, jnp.arange(recipe.warm_start_updates))[0].weights["student"]

    if common:
        return [train_policy(keys[0], jnp.int32(0))] * len(names)
    weights = jax.vmap(train_policy)(keys, jnp.arange(len(names)))
    return [jax.tree.map(lambda x, i=i: x[i], weights) for i in range(len(names))]


def imitation_update(
    parts: Parts, learners: Learners, key: jax.Array, number: jax.Array
) -> tuple[Learners, dict[str, jax.Array]]:
    """Update `number` of the warm start of pretrained policies: cross-entropy on as many games or dialogues as an
    update of the recipe plays. Metrics: ``cross_entropy/POLICY`` in nats per token, and the metrics of `update`."""
    recipe, event = parts.recipe, key_for(key, UPDATE, number)
    optimiser = dataclasses.replace(parts.optimiser, epochs=1, minibatches=1)
    taught = {
        name: lessons(recipe, policy_set, policy_set.policies, recipe.groups, recipe.group_size)
        for name, policy_set in parts.policy_sets.items()
        if name in parts.base and name in parts.learner_sets
    }
    deal = common_deal(recipe, key)
    drawn = {name: lesson.draw(event, deal) for name, lesson in taught.items()}
    batches = {name: (rows, sampled, taken.T) for name, (rows, sampled, taken) in drawn.items()}
    prompts = [len(rows.prompts.tokens) for rows, *_ in batches.values()]
    optimiser.check(prompts)

    def loss(weights, batches):
        totals = dict.fromkeys(parts.learners, Mean(jnp.float32(0), jnp.float32(1)))  # tiny policies do not learn here
        metrics = {}
        for name, (rows, sampled, taken) in batches.items():
            policy_set = parts.policy_sets[name]
            for i, policy in enumerate(policy_set.policies):
                if policy not in weights:  # a past self or a frozen policy
                    continue
                tree = weights[policy]["policy"]
                adapters = lora.concatenate((tree,), (policy_set.loras[i],)) if policy_set.lora else None
                scores = taught[name].scorer(parts.base[name] if policy_set.lora else tree, rows, sampled, adapters)
                totals[policy], statistics = losses.cross_entropy(scores.logp, sampled.mask & taken[:, i, None])
                metrics[f"cross_entropy/{policy}"] = statistics["cross_entropy"]
        return totals, metrics

    fall = 1 - number / recipe.warm_start_updates
    rates = dict.fromkeys(parts.learners, jnp.float32(0))
    for name in batches:
        policy_set = parts.policy_sets[name]
        rates |= dict.fromkeys(policy_set.policies, fall * (ADAPTER_RATE if policy_set.lora else FULL_RATE))
    return update(optimiser, loss, learners, batches, math.gcd(*prompts), rates, event)


def teacher_of(recipe: Recipe, tokenizer: Any, names: Sequence[str], groups: int, group_size: int) -> Rollout:
    """A rollout of at least `groups` groups of scripted games. Its policy set "teacher" has the scripts in the seats
    that policies of these names will take.

    Raises ValueError for a name in the warm start that is no script of the game.
    """
    line_ups = recipe.warm_start.line_ups if isinstance(recipe.warm_start, Common) else recipe.warm_start
    assert isinstance(line_ups, tuple)
    scripts = dict.fromkeys(script for seats in line_ups for script in seats)
    if unknown := [script for script in scripts if script not in recipe.game.scripts]:
        known = ", ".join(recipe.game.scripts)
        raise ValueError(f"A warm start imitates scripts, and {unknown[0]!r} is none of the game's: {known}.")
    taken = np.flatnonzero(taken_seats(recipe, names).any(0))
    imitated = {seats[seat] for seats in line_ups for seat in taken}
    sets = {"teacher": tuple(x for x in scripts if x in imitated), "": tuple(x for x in scripts if x not in imitated)}
    policy_sets = {name: PolicySet(tokenizer, players) for name, players in sets.items() if players}
    lineup = Lineup(line_ups * -(-groups // len(line_ups)), group_size)
    return Rollout(recipe.game, policy_sets, lineup, recipe.budget)


def common_deal(recipe: Recipe, key: jax.Array) -> Any:
    """The deal of all scripted games in the warm start of the run with this key, or None."""
    return None if recipe.warm_start_deal is None else recipe.warm_start_deal(key_for(key, DEAL))


def scripted_games(teacher: Rollout, key: jax.Array, deal: Any = None) -> tuple[Rows, SampledTokens]:
    """(the teacher's rows of a batch of games, the tokens of these rows that were a choice). A deal is that of all
    games."""
    groups = len(teacher.lineup.seats)
    of_groups = jax.tree.map(lambda x: jnp.broadcast_to(x, (groups, *jnp.shape(x))), deal)
    played = teacher({name: {} for name in teacher.policy_sets}, key, of_groups)
    rows = played.rows["teacher"]
    return rows, gather_sampled(rows, played.episodes.legal, teacher.max_sampled_tokens("teacher"))


def taken_seats(recipe: Recipe, names: Sequence[str]) -> np.ndarray:
    """bool [names, A]: true if a policy or a past self of it ever has this seat."""
    seats, past = range(recipe.game.agents), recipe.past
    line_ups = [[past[name][1] if name in past else name for name in lineup] for lineup in recipe.seats]
    return np.array([[any(lineup[seat] == name for lineup in line_ups) for seat in seats] for name in names])
