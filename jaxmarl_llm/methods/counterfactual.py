"""Counterfactual credit: a step whose advantages use the payoffs of other joint actions, for simultaneous one-turn
games.

`Recipe.step=partial(joint_step, credit=cross_joint_credit)`: beyond the batch, no game is played and nothing is
decoded. Shapes: n groups of G members, B episodes, one turn, A seats, N actions; of one policy set R rows, M sampled
tokens a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmarl_llm.keys import UPDATE, key_for
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.rl.masked import keep
from jaxmarl_llm.rollout import joint_actions
from jaxmarl_llm.training import past, step
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Advantages, Experience
from jaxmarl_llm.training.scoring import Weights, scoring_weights


class JointActions(NamedTuple):
    """Payoffs of other joint actions in a batch, with components added. Each field is computed when it is called."""

    crossed: Callable[[], jax.Array]  # float32 [n, G, ..., G, A]: `joint_actions.crossed_rewards`
    alternatives: Callable[[], jax.Array]  # float32 [B, A, N]: `joint_actions.alternative_rewards`
    probabilities: Callable[[], jax.Array]  # float32 [B, 1, A, N]: `action_probabilities`


CreditFn = Callable[[Experience, Hparams, JointActions], jax.Array | Advantages]
"""(experience, hparams, joint) -> the advantage [B, 1, A], or `Advantages`."""


def joint_step(
    parts: Parts,
    run: step.Run,
    hparams: Hparams,
    key: jax.Array,
    number: jax.Array,
    *,
    credit: CreditFn,
) -> tuple[step.Run, step.Metrics]:
    """`step.on_policy_step` with the advantages that `credit` computes, e.g. `cross_joint_credit` or `counterfactual`.

    Advantages by turn, [B, 1, A], pass `leave_out`: acts with an advantage that is not finite are not trained.
    Advantages by token, {policy set: [R, M]}, stay as they are. Raises the errors of `credit`, e.g. ValueError if it
    uses other joint actions in a game of more than one turn.
    """
    update_key = key_for(key, UPDATE, number)

    def advantage(experience: Experience, hparams: Hparams, state: Any) -> Advantages:
        arranged = experience.arranged
        frozen = past.weights(parts.recipe, run, past.choose_snapshot(parts.recipe, update_key, number, arranged))
        played = parts.rollout, update_key, experience.episodes.action, arranged.deal
        joint = JointActions(
            lambda: joint_actions.crossed_rewards(*played).sum(-1),
            lambda: joint_actions.alternative_rewards(*played).sum(-1),
            lambda: action_probabilities(parts, run.learners.weights | frozen, experience),
        )
        given = credit(experience, hparams, joint)
        estimate = given if isinstance(given, Advantages) else Advantages(given, state=state)
        return estimate if isinstance(estimate.advantage, dict) else leave_out(estimate)

    recipe = dataclasses.replace(parts.recipe, advantage=advantage)
    return step.on_policy_step(dataclasses.replace(parts, recipe=recipe), run, hparams, key, number)


def leave_out(estimate: Advantages) -> Advantages:
    """The estimate without turns whose advantage is not finite, because a joint action that nobody played pays so.

    These turns are not trained, and the metric `left_out_joint` counts their episodes. If no turn is finite, nothing is
    removed, so that the whole update is skipped. Advantages are by turn, [B, T, A].
    """
    advantage = jnp.asarray(estimate.advantage)
    finite = jnp.isfinite(advantage)
    out = ~finite & finite.any()
    trained = ~out if estimate.trained is None else jnp.asarray(estimate.trained) & ~out
    metrics = {**estimate.metrics, "left_out_joint": out.any((1, 2)).sum(dtype=jnp.int32)}
    return estimate._replace(advantage=jnp.where(out, 0, advantage), trained=trained, metrics=metrics)


def cross_joint_credit(experience: Experience, hparams: Hparams, joint: JointActions) -> jax.Array:
    """Cross-joint credit [B, 1, A], `rl.advantages.cross_joint`; it takes G^A steps of the rules per group."""
    acted, _, _ = experience.learning_acts
    return keep(advantages.cross_joint(joint.crossed()).reshape(acted.shape), acted)


def counterfactual(experience: Experience, hparams: Hparams, joint: JointActions) -> jax.Array:
    """COMA's credit [B, 1, A], `rl.advantages.counterfactual`; it takes A N steps of the rules per episode."""
    acted, _, _ = experience.learning_acts
    inputs = joint.alternatives()[:, None], joint.probabilities(), experience.episodes.action
    return keep(advantages.counterfactual(*inputs), acted)


def action_probabilities(parts: Parts, weights: Weights, experience: Experience) -> jax.Array:
    """float32 [B, T, A, N]: the probability of every action where a learner acted, 1 for a single legal action.
    `weights` are the weights that played.

    The probability is a sum over the tokens that an action can begin with. Raises ValueError if one token does not
    decide the action, and for policies that play unmasked, whose answers may be no action.
    """
    legal = experience.episodes.legal
    result = keep(jnp.ones(legal.shape), legal & (legal.sum(-1, keepdims=True) == 1))
    for name in parts.learner_sets:
        layout, policy_set = parts.rollout.layouts[name], parts.policy_sets[name]
        if not policy_set.masked:
            raise ValueError("Policies that play unmasked can give answers that are no action: play masked.")
        if layout.max_sampled > 1:
            raise ValueError(
                f"An answer of up to {layout.max_sampled} tokens has no probability by itself: one of one token does "
                "(a budget of 1, or answers that one token decides)."
            )
        rows, sampled, tables = experience.rows[name], experience.sampled[name], layout.tables
        params, joined, which = scoring_weights(parts, weights, name, rows)
        every = policy_set.tokenizer.vocab_size
        _, token, logp = parts.scorer(name).alternatives(params, rows, sampled, every, joined, which)
        after = jnp.asarray(tables.next)[sampled.grammar_state[..., None], jnp.asarray(tables.token_class)[token]]
        action = jnp.asarray(tables.action)[after].astype(jnp.int32)
        one_hot = jax.nn.one_hot(action, legal.shape[-1])  # zeros for -1, a token outside the grammar
        probability = (jnp.exp(logp)[..., None] * one_hot).sum(2)
        episode = jnp.where(sampled.mask, rows.episode[:, None], len(legal))  # beyond the last: dropped
        result = result.at[episode, sampled.turn, rows.seat[:, None]].set(probability, mode="drop")
    return result
