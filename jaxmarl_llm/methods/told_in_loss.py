"""Observations in the loss: what an error of masking does, a told phrase that is trained as if the policy had said it.

ARTIST and Search-R1 leave the tokens of tools out of the loss. Here an arm may train them, for comparison.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.rollout.trajectory import Rows
from jaxmarl_llm.text.grammar import options_of
from jaxmarl_llm.training.recipe import Hparams, Parts
from jaxmarl_llm.training.records import Run
from jaxmarl_llm.training.step import Metrics, arrange, estimate, learn_from, make_experience, play


def include_told(parts: Parts, rows: Rows, *, turn: int, grammar: int) -> Rows:
    """The rows with the words of a grammar that a seat is told before a turn among the trained tokens.

    Each word is one token, and is scored among the words of the grammar, with the advantage of the seat's act in that
    turn. Raises ValueError for words of several tokens. Rows have the shapes of `trajectory.Rows`.
    """
    (layout,) = (parts.rollout.layouts[name] for name in parts.learner_sets)
    words = [layout.policy_set.tokenizer.encode(x) for x in options_of(parts.recipe.game.grammars[grammar]).values()]
    if any(len(word) != 1 for word in words):
        raise ValueError("A told phrase is trained only where each word of its grammar is one token.")
    inside = jnp.arange(rows.tokens.shape[1])[None] < rows.length[:, None]
    told = inside & ~rows.loss_mask & (rows.turn == turn) & jnp.isin(rows.tokens, np.array(words)[:, 0])
    state = jnp.where(told, layout.tables.start[grammar], rows.grammar_state).astype(rows.grammar_state.dtype)
    left = jnp.where(told, 1, rows.tokens_left).astype(rows.tokens_left.dtype)
    return rows.replace(loss_mask=rows.loss_mask | told, grammar_state=state, tokens_left=left)


def told_step(
    parts: Parts, run: Run, hparams: Hparams, key: jax.Array, number: jax.Array, *, turn: int, grammar: int
) -> tuple[Run, Metrics]:
    """The standard step of a recipe with one learner, where the choice `told` is "masked" or "trained".

    With "trained" the words of `include_told` are trained too. Their ratio is to the policy that played. The game needs
    a turn in which the seat says nothing, so that its rows have room for one more trained token.
    """
    key, (name,) = key_for(key, UPDATE, number), parts.learner_sets
    arranged = arrange(parts, run, hparams, key, number)
    trajectory = play(parts, run.learners.weights, key, arranged)
    said = trajectory.rows[name]
    rows = select(hparams, "told", masked=said, trained=include_told(parts, said, turn=turn, grammar=grammar))
    trajectory = trajectory.replace(rows={**trajectory.rows, name: rows})
    experience = make_experience(parts, run, trajectory, key, {}, arranged)
    sampled, before = experience.sampled[name], experience.score(name).logp
    spoken = jnp.take_along_axis(said.loss_mask, sampled.at, 1)
    known = sampled.replace(behaviour_logp=jnp.where(spoken, sampled.behaviour_logp, before))
    experience = experience._replace(sampled={**experience.sampled, name: known})
    estimated = estimate(parts, run, hparams, experience)
    return learn_from(parts, run, hparams, trajectory, experience, estimated, key, {})
