"""A step whose advantages also see what other joint actions would have paid, for games in which all act at once, once.

`Recipe.step=partial(joint_step, credit=crossed)`: no game is played and nothing decoded beside the batch. Shapes: n
groups of G members, B episodes, one turn, A seats, N actions; of one policy set R rows, M sampled tokens a row.
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
    """What a batch of games could have paid; each is computed where it is called, components added up."""

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
    """`step.on_policy_step` with the advantages of `credit`: `cross_joint_credit`, `counterfactual`, or another one.

    Raises ValueError for games of more than one turn, and where `credit` raises it.
    """
    own = key_for(key, UPDATE, number)

    def advantage(experience: Experience, hparams: Hparams, state: Any) -> Advantages:
        arranged = experience.arranged
        frozen = past.weights(parts.recipe, run, past.choose_snapshot(parts.recipe, own, number, arranged))
        action, given = experience.episodes.action, (parts.rollout, own)
        joint = JointActions(
            lambda: joint_actions.crossed_rewards(*given, action, arranged.deal).sum(-1),
            lambda: joint_actions.alternative_rewards(*given, action, arranged.deal).sum(-1),
            lambda: action_probabilities(parts, run.learners.weights | frozen, experience),
        )
        found = credit(experience, hparams, joint)
        return found if isinstance(found, Advantages) else Advantages(found, state=state)

    recipe = dataclasses.replace(parts.recipe, advantage=advantage)
    return step.on_policy_step(dataclasses.replace(parts, recipe=recipe), run, hparams, key, number)


def cross_joint_credit(experience: Experience, hparams: Hparams, joint: JointActions) -> jax.Array:
    """Cross-joint credit [B, 1, A], `rl.advantages.crossed`: G^A steps of the rules a group."""
    acted, _, _ = experience.learning_acts
    return keep(advantages.cross_joint(joint.crossed()).reshape(acted.shape), acted)


def counterfactual(experience: Experience, hparams: Hparams, joint: JointActions) -> jax.Array:
    """COMA's credit [B, 1, A], `rl.advantages.counterfactual`: A N steps of the rules an episode."""
    acted, _, _ = experience.learning_acts
    of = joint.alternatives()[:, None], joint.probabilities(), experience.episodes.action
    return keep(advantages.counterfactual(*of), acted)


def action_probabilities(parts: Parts, weights: Weights, experience: Experience) -> jax.Array:
    """float32 [B, T, A, N]: the policy's probability of every action where it acted, of those that learn, 1 for an only
    legal one. `weights` are those that played.

    A sum over the tokens with which an action can begin. Raises ValueError where an action is not decided by one token
    and for policies that play unmasked, whose answers may be no action at all.
    """
    legal = experience.episodes.legal
    found = keep(jnp.ones(legal.shape), legal & (legal.sum(-1, keepdims=True) == 1))
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
        one_hot = jax.nn.one_hot(action, legal.shape[-1])  # none of -1, a token that the grammar does not allow
        probability = (jnp.exp(logp)[..., None] * one_hot).sum(2)
        episode = jnp.where(sampled.mask, rows.episode[:, None], len(legal))  # beyond the last: dropped
        found = found.at[episode, sampled.turn, rows.seat[:, None]].set(probability, mode="drop")
    return found
