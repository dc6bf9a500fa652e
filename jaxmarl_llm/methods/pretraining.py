"""Pretraining of a tiny policy on text: it predicts scripted games of many kinds, token by token, before it plays any.

  prior = reading({"kuhn": KUHN, "leduc": LEDUC}, most=96, updates=200)
  recipe = together({"kuhn": KUHN}, also=(LeducPoker(),), warm_start=prior)

The policy predicts all tokens, heard or said, as in language-model training, and no token is masked. It learns in all
games which words follow which, which answers are legal, and their consequences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.environments.helpers import at_least
from jaxmarl_llm.keys import GAME, UPDATE, key_for
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.policy import Scorer
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens
from jaxmarl_llm.training import step
from jaxmarl_llm.training.recipe import Parts, Recipe, check_games
from jaxmarl_llm.training.update import update
from jaxmarl_llm.training.warm_start import scripted_games, teacher_of


def reading(games: Mapping[str, Recipe], most: int, **changed: Any) -> Recipe:
    """A recipe that pretrains on all of these games, on the first `most` tokens of a row; `changed` are other fields of
    it.

    Each recipe's `warm_start` has its line-ups of scripts, and its groups times `group_size` is its number of games.
    All have the single learner of the first. As a `warm_start`, the recipe takes its vocabulary from the recipe that
    follows. Raises ValueError for recipes with other learners or more than one, or without line-ups of scripts.
    """
    at_least(1, most=most)
    check_games(games)
    first = next(iter(games.values()))
    for name, recipe in games.items():
        if len(recipe.learners) != 1 or recipe.learners != first.learners:
            raise ValueError(f"One policy reads all games: {name} has {recipe.learners}, not {first.learners[:1]}.")
        if not isinstance(recipe.warm_start, tuple) or not recipe.warm_start:
            raise ValueError(f"{name}: a game that is read needs a warm_start, line-ups of its scripts.")
    fields: dict[str, Any] = {"games": games, "step": partial(read, most=most)}
    fields |= {"warm_start": (), "arrange": None, "advantage": None}
    return dataclasses.replace(first, **{**fields, **changed})


def read(
    parts: Parts,
    run: step.Run,
    hparams: Hparams,
    key: jax.Array,
    number: jax.Array,
    *,
    most: int,
) -> tuple[step.Run, dict[str, jax.Array]]:
    """A recipe's step: one update on the mean over games of the cross-entropy per token, for the first `most` tokens of
    rows."""
    key, (learner,) = key_for(key, UPDATE, number), parts.learners
    student = parts.policy_sets[parts.policy_set_of[learner]]
    assert student.config is not None  # a learner is no script
    scorer, batches = Scorer(student.config, None, masked=False), {}
    for i, (name, recipe) in enumerate(parts.recipe.games.items()):
        teacher = teacher_of(recipe, student.tokenizer, parts.learners, recipe.groups, recipe.group_size)
        rows, _ = scripted_games(teacher, key_for(key, GAME, i))
        rows = first_tokens(rows, most)
        batches[name] = rows, every_token(rows)
    tokens = {name: text.mask.sum() for name, (_, text) in batches.items()}  # over all micro-batches

    def loss(weights: dict, batches: dict) -> tuple[dict[str, Mean], dict[str, Mean]]:
        total, metrics = Mean(jnp.float32(0), jnp.float32(0)), {}
        for name, (rows, text) in batches.items():
            scores = scorer(weights[learner]["policy"], rows, text)
            mean, statistics = losses.cross_entropy(scores.logp, text.mask)
            total = jax.tree.map(lambda x, new, n=tokens[name]: x + new / n, total, mean)
            metrics[f"{name}/cross_entropy"] = statistics["cross_entropy"]
        return {learner: total}, metrics

    prompts = math.gcd(*(len(rows.prompts.tokens) for rows, _ in batches.values()))
    with jax.named_scope(scopes.UPDATE):
        learners, metrics = update(parts.optimiser, loss, run.learners, batches, prompts, hparams["learning_rate"], key)
    return run.replace(learners=learners), metrics


def first_tokens(rows: Rows, length: int) -> Rows:
    """The rows cut to their first `length` tokens."""
    cut = {name: x[:, :length] for name, x in vars(rows).items() if getattr(x, "shape", ()) == rows.tokens.shape}
    return rows.replace(**cut, length=jnp.minimum(rows.length, length))


def every_token(rows: Rows) -> SampledTokens:
    """All tokens of rows, heard or said, as if each had been sampled without a grammar."""
    nothing, at = jnp.zeros(rows.tokens.shape, jnp.int32), jnp.arange(rows.tokens.shape[1])[None]
    return SampledTokens(
        at=jnp.broadcast_to(at, rows.tokens.shape),
        mask=at < rows.length[:, None],
        token=rows.tokens,
        turn=rows.turn,
        behaviour_logp=nothing.astype(jnp.float32),
        grammar_state=nothing,
        tokens_left=nothing,
        legal=nothing[..., None] > 0,
    )
