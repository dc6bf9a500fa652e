"""Inspection of a batch of games: the games, the distribution behind every sampled token, and its advantage."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.keys import DEAL, batch_keys
from jaxmarl_llm.models import lora
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rl.losses import Hparams
from jaxmarl_llm.rollout.dialogue import prompt_pieces
from jaxmarl_llm.rollout.rollout import Rollout
from jaxmarl_llm.rollout.trajectory import SampledTokens, Trajectory, gather_sampled
from jaxmarl_llm.text.tokenizers import Tokenizer
from jaxmarl_llm.training import past, step
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.records import Arranged

MOST = 8  # alternatives kept per token


class Look(struct.PyTreeNode):
    """The sampled tokens of one policy set, and the distributions from which they were sampled."""

    sampled: SampledTokens
    entropy: jax.Array  # float32 [R, M], nats
    token: jax.Array  # int32 [R, M, K], the most probable tokens
    logp: jax.Array  # float32 [R, M, K], their log-probabilities; -1e30 for a token that could not be drawn


class Examined(struct.PyTreeNode):
    trajectory: Trajectory
    start: Any  # states after `reset`, leaves [groups, ...]; empty for games in plain Python
    rules: dict[str, jax.Array]  # by policy set, int32 [O]: number of a prompt's tokens that are rules
    looks: dict[str, Look]  # by policy set
    advantage: dict[str, jax.Array] = struct.field(default_factory=dict)
    """By policy set that learns, float32 [R, M]; empty under a step of the recipe's own."""


def examine(
    parts: Parts, run: step.Run, key: jax.Array, arranged: Arranged, played: Trajectory | None = None
) -> Examined:
    """Plays a batch of an update's size with the present weights, or takes the games `played` in plain Python. The
    result has no advantages.

    Arms with the same game and policies share this program; it is compiled once.
    """
    recipe, weights = parts.recipe, past.present(parts.recipe, run)
    rules: dict[str, jax.Array] = {}
    start: Any = ()
    if played is not None:
        trajectory = played
        for name, rows in played.rows.items():
            rules[name] = rules_in_text(rows.prompts, parts.policy_sets[name].tokenizer)
    else:
        trajectory, groups = step.play(parts, weights, key, arranged), jnp.arange(recipe.groups, dtype=jnp.int32)
        deal = () if arranged.deal is None else (arranged.deal,)
        start, _ = jax.vmap(recipe.game.reset)(batch_keys(key, DEAL, groups), groups, *deal)
        rules = rules_told(parts.rollout, jax.vmap(recipe.game.prompt)(start))
    return Examined(trajectory, start, rules, look(parts.rollout, step.rollout_weights(parts, weights), trajectory))


def rules_told(rollout: Rollout, told: jax.Array) -> dict[str, jax.Array]:
    """{policy set: number of rules tokens in each of its O prompts, int32 [O]}, without the markers.

    A prompt belongs to one group and seat. The game's `prompt` gives its phrases, `told` int32 [groups, A, K].
    """
    rules = {}
    for name, layout in rollout.layouts.items():
        group, seat, _ = layout.assignments.T
        _, *pieces = prompt_pieces(layout, told[group, seat])
        rules[name] = sum((n for _, n in pieces), jnp.zeros(len(group), jnp.int32))
    return rules


def look(rollout: Any, weights: dict[str, dict], trajectory: Trajectory) -> dict[str, Look]:
    """By policy set, the distributions behind the sampled tokens of games; `weights` are a rollout's."""
    looks = {}
    for name, rows in trajectory.rows.items():
        layout, given = rollout.layouts[name], weights[name]
        policy_set = layout.policy_set
        sampled = gather_sampled(rows, trajectory.episodes.legal, rollout.max_sampled_tokens(name))
        joined = lora.concatenate(given["adapters"], policy_set.loras) if policy_set.lora else None
        which = rows.policy if len(policy_set.policies) > 1 else None
        scorer = policy_set.scorer(layout.tables)
        with jax.named_scope(scopes.SCORING):
            looks[name] = Look(sampled, *scorer.alternatives(given["params"], rows, sampled, MOST, joined, which))
    return looks


def rules_in_text(prompts: Prompts, tokenizer: Tokenizer) -> jax.Array:
    """The number of prompt tokens, int32 [O], between the markers of rules and of the first message. Without such
    markers all tokens after the start count."""
    markers, nothing = tokenizer.markers, tokenizer.trims.hear_nothing
    begin, mark = len(markers.before_rules), np.array(markers.hear_first, np.int32)
    rest = prompts.length - begin - (0 if nothing is None else len(nothing) + len(markers.speak))
    last = prompts.tokens.shape[1] - len(mark)
    if not len(mark) or last < begin:
        return rest
    windows = jnp.stack([prompts.tokens[:, at : at + len(mark)] for at in range(begin, last + 1)], 1)
    matches = (windows == mark[None, None]).all(-1)
    return jnp.where(matches.any(1), matches.argmax(1), rest)


def advantages(
    parts: Parts, run: step.Run, hparams: Hparams, trajectory: Trajectory, key: jax.Array, arranged: Arranged
) -> dict[str, jax.Array]:
    """{policy set: advantages of a batch's sampled tokens [R, M]}, from the recipe's estimator in its present state."""
    frozen = past.present(parts.recipe, run)
    experience = step.make_experience(parts, run, trajectory, key, frozen, arranged)
    estimates = step.estimate(parts, run, hparams, experience)
    return {name: step.make_part(name, experience, estimates).batch.advantage for name in parts.learner_sets}
