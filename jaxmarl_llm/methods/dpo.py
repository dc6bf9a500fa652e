"""DPO: learning from preferences in a file of pairs, without play.

  Recipe(game, seats, None, loss=preference, reference=True, hparams={"beta": 0.1},
         step=partial(preference_step, path=Path("pairs.jsonl")))

The game gives a tiny policy its vocabulary; its games serve evaluation before and after.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.losses import Batch, Hparams, LossAndMetrics, Scores
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens
from jaxmarl_llm.training import scoring, step, supervised
from jaxmarl_llm.training.recipe import Parts


def preference_step(
    parts: Parts, run: step.Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, path: Path
) -> tuple[step.Run, step.Metrics]:
    """An update on pairs of the file, without play. Each policy gets as many rows as in groups of the recipe's
    line-ups. Raises ValueError for groups of an odd size, without a reference, with past selves, and for a file that
    `supervised.pairs` refuses."""
    recipe, key = parts.recipe, key_for(key, UPDATE, number)
    if recipe.group_size % 2 or not recipe.reference or recipe.past:
        raise ValueError(
            "Preferences are learnt in pairs against a reference: an even group_size, reference=True, no past selves."
        )
    sets = {name: dataclasses.replace(policy_set, masked=False) for name, policy_set in parts.policy_sets.items()}
    free = dataclasses.replace(parts, policy_sets=sets)  # over all tokens, not the game's legal ones
    batches = {}
    for i, name in enumerate(parts.learner_sets):
        pairs = supervised.pairs(path, sets[name], sets[name].policies)
        rows, sampled = pairs.draw(jax.random.fold_in(key, i), recipe.groups * recipe.group_size, together=2)
        logp = scoring.reference(free, run.initial, {name: rows}, {name: sampled})[name]
        batches[name] = step.Part(rows, sampled, batch_of(rows, sampled, logp))
    learners, metrics = step.apply_update(free, run.learners, hparams, batches, key, {})
    return run.replace(learners=learners), metrics


def preference(scores: Scores, batch: Batch, hparams: Hparams) -> LossAndMetrics:
    """DPO (`losses.dpo`) of rows in pairs, the chosen row before the rejected one; hparam `beta`."""
    if batch.reference_logp is None:
        raise ValueError("Preferences are learnt against a reference: set Recipe.reference.")
    paired = [x.reshape(-1, 2, x.shape[-1]) for x in (scores.logp, batch.reference_logp, batch.mask)]
    return losses.dpo(*paired, beta=hparams["beta"])


def batch_of(rows: Rows, sampled: SampledTokens, reference_logp: jax.Array | None = None) -> Batch:
    """The batch of dialogues for a loss; all advantages are 1."""
    zeros = jnp.zeros(sampled.token.shape)
    return Batch(
        token=sampled.token,
        turn=sampled.turn,
        behaviour_logp=sampled.behaviour_logp,
        mask=sampled.mask,
        advantage=zeros + 1,
        value_target=zeros,
        old_value=zeros,
        episode=rows.episode,
        seat=rows.seat,
        policy=rows.policy,
        role=jnp.zeros_like(sampled.token),
        reference_logp=reference_logp,
    )
