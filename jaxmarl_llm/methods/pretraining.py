"""A tiny policy's pretraining: it reads scripted games of many kinds, token by token, before it plays any.

  prior = reading({"kuhn": KUHN, "leduc": LEDUC}, updates=200)
  recipe = together({"kuhn": KUHN}, also=(LeducPoker(),), warm_start=prior)

What a player hears and what it says is predicted alike, as a language model is trained on text, and no token is
masked: the policy learns which words follow which, which answers are legal and what comes of them, in all games.
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
    """One recipe that reads all of these games, of a row the first `most` tokens; `changed` are its own fields.

    Line-ups of scripts are each recipe's `warm_start`, the number of games its groups times `group_size`; all have the
    one learner of the first. As a `warm_start` it is told its vocabulary by the recipe that goes on.
    Raises ValueError for recipes with other learners or more than one, or without line-ups of scripts.
    """
    at_least(1, most=most)
    check_games(games)
    first = next(iter(games.values()))
    for name, recipe in games.items():
        if len(recipe.learners) != 1 or recipe.learners != first.learners:
            raise ValueError(f"One policy reads all games: {name} has {recipe.learners}, not {first.learners[:1]}.")
        if not isinstance(recipe.warm_start, tuple) or not recipe.warm_start:
            raise ValueError(f"{name}: a game that is read needs a warm_start, line-ups of its scripts.")
    own: dict[str, Any] = {"games": games, "step": partial(read, most=most)}
    own |= {"warm_start": (), "arrange": None, "advantage": None}
    return dataclasses.replace(first, **{**own, **changed})


def read(
    parts: Parts,
    run: step.Run,
    hparams: Hparams,
    key: jax.Array,
    number: jax.Array,
    *,
    most: int,
) -> tuple[step.Run, dict[str, jax.Array]]:
    """A recipe's step: the mean over the games of the cross-entropy of a token of their rows, the first `most`."""
    key, (learner,) = key_for(key, UPDATE, number), parts.learners
    student = parts.policy_sets[parts.policy_set_of[learner]]
    assert student.config is not None  # a learner is no script
    scorer, batches = Scorer(student.config, None, masked=False), {}
    for i, (name, recipe) in enumerate(parts.recipe.games.items()):
        teacher = teacher_of(recipe, student.tokenizer, parts.learners, recipe.groups, recipe.group_size)
        rows, _ = scripted_games(teacher, key_for(key, GAME, i))
        rows = first_tokens(rows, most)
        batches[name] = rows, every_token(rows)
    tokens = {name: text.mask.sum() for name, (_, text) in batches.items()}  # of all micro-batches

    def loss(weights: dict, batches: dict) -> tuple[dict[str, Mean], dict[str, Mean]]:
        total, metrics = Mean(jnp.float32(0), jnp.float32(0)), {}
        for name, (rows, text) in batches.items():
            scores = scorer(weights[learner]["policy"], rows, text)
            own, found = losses.cross_entropy(scores.logp, text.mask)
            total = jax.tree.map(lambda x, new, n=tokens[name]: x + new / n, total, own)
            metrics[f"{name}/cross_entropy"] = found["cross_entropy"]
        return {learner: total}, metrics

    prompts = math.gcd(*(len(rows.prompts.tokens) for rows, _ in batches.values()))
    with jax.named_scope(scopes.UPDATE):
        learners, metrics = update(parts.optimiser, loss, run.learners, batches, prompts, hparams["learning_rate"], key)
    return run.replace(learners=learners), metrics


def first_tokens(rows: Rows, most: int) -> Rows:
    """The rows without what follows their first `most` tokens."""
    cut = {name: x[:, :most] for name, x in vars(rows).items() if getattr(x, "shape", ()) == rows.tokens.shape}
    return rows.replace(**cut, length=jnp.minimum(rows.length, most))


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
