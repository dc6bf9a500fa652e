"""What policies in training, or others, say of rows that were played.

Shapes: of one policy set R rows, M sampled tokens a row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.devices.lanes import most_of_lanes
from jaxmarl_llm.models import lora
from jaxmarl_llm.rl.losses import Scores
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, bucket, narrow
from jaxmarl_llm.training.recipe import Parts

Weights = dict[str, Any]  # by policy


def score_policies(
    parts: Parts, weights: Weights, name: str, rows: Rows, sampled: SampledTokens
) -> tuple[Scores, dict[str, jax.Array]]:
    """Scores of a policy set's sampled tokens, each row by its own policy; and {policy: bool [R, M]}, which are its."""
    policy_set, (params, joined, which) = parts.policy_sets[name], scoring_weights(parts, weights, name, rows)
    heads = [weights[policy]["value"] for policy in policy_set.policies if "value" in weights[policy]]
    head = jax.tree.map(lambda *x: jnp.stack(x)[rows.policy], *heads) if which is not None and heads else None
    scores = parts.scorer(name)(params, rows, sampled, joined, which, head or next(iter(heads), None))
    masks = {policy: sampled.mask & (rows.policy == i)[:, None] for i, policy in enumerate(policy_set.policies)}
    return scores, masks


def scored_again(parts: Parts, name: str) -> bool:
    """Whether the trained tokens of a policy set are scored before the update, by the programs that train them.

    In bfloat16 one token at a time and a whole row round differently, by 0.03 of a log-probability in the mean, and a
    clipped loss would clip before anything was learnt. float32 differs by 1e-5, and games that other weights played
    keep what their sampler said.
    """
    config = parts.policy_sets[name].config
    if config is None or parts.ahead or name not in parts.learner_sets:
        return False
    return config.dtypes.half or config.dtypes.attention != "plain"


def by_micro_batch(
    parts: Parts, score: Callable[[Rows, SampledTokens], Any], rows: Rows, sampled: SampledTokens
) -> Any:
    """score(rows, sampled), a tree of leaves [R, M], for as many rows at a time as the update takes, so that products
    have the same shapes and roundings."""
    count = parts.optimiser.minibatches * parts.optimiser.grad_accumulation
    if count == 1:
        return score(rows, sampled)
    prompts = parts.prompts

    def split(x: jax.Array) -> jax.Array:  # as `update` does
        x = x.reshape(prompts // count, count, -1, *x.shape[1:]).swapaxes(0, 1)
        return x.reshape(count, -1, *x.shape[3:])

    def join(x: jax.Array) -> jax.Array:
        return x.reshape(count, prompts // count, -1, *x.shape[2:]).swapaxes(0, 1).reshape(-1, *x.shape[2:])

    found = jax.lax.map(lambda part: score(*part), jax.tree.map(split, (rows, sampled)))
    return jax.tree.map(join, found)


def resample(
    parts: Parts, weights: Weights, name: str, rows: Rows, sampled: SampledTokens, key: jax.Array
) -> SampledTokens:
    """Answers drawn anew where a policy set's answers were sampled, with their log-probabilities: what the policies of
    `weights` might say there. Raises ValueError unless an utterance is one token, and for filters."""
    layout = parts.rollout.layouts[name]
    if layout.max_sampled > 1:
        raise ValueError(
            f"An answer of up to {layout.max_sampled} tokens cannot be drawn again, only one of one token."
        )
    how = parts.policy_sets[name].sampling
    if any(x != Sampling(x.temperature) or not x.temperature for x in (how if isinstance(how, tuple) else (how,))):
        raise ValueError("An answer can be drawn again only without top_k, top_p and min_p, and not greedily.")
    params, joined, which = scoring_weights(parts, weights, name, rows)
    vocabulary = parts.policy_sets[name].tokenizer.vocab_size
    _, token, logp = parts.scorer(name).alternatives(params, rows, sampled, vocabulary, joined, which)
    drawn = jax.random.categorical(key, logp)[..., None]
    taken = lambda x: jnp.take_along_axis(x, drawn, 2)[..., 0]
    return sampled.replace(token=taken(token), behaviour_logp=jnp.where(sampled.mask, taken(logp), 0))


def scoring_weights(parts: Parts, weights: Weights, name: str, rows: Rows) -> tuple[dict, Any, jax.Array | None]:
    """The parameters, adapters and the adapter of each row that a policy set is scored with."""
    policy_set = parts.policy_sets[name]
    own = [weights[policy]["policy"] for policy in policy_set.policies]
    joined = lora.concatenate(own, policy_set.loras) if policy_set.lora else None
    return parts.base[name] if policy_set.lora else own[0], joined, rows.policy if len(own) > 1 else None


def reference(
    parts: Parts, initial: Weights, rows: dict[str, Rows], sampled: dict[str, SampledTokens]
) -> dict[str, jax.Array]:
    """By policy set, what the reference says of sampled tokens, float32 [R, M]: the policies before training, `initial`
    by name, or for a policy set that has none its base without adapters."""
    found = {}
    for name in rows:
        learner = {
            policy: parts.recipe.past.get(policy, ("", policy))[1] for policy in parts.policy_sets[name].policies
        }
        first = {policy: {"policy": initial[own]} for policy, own in learner.items() if own in initial}
        score = lambda rows, sampled, name=name, first=first: (
            score_policies(parts, first, name, rows, sampled)[0]
            if first
            else parts.scorer(name)(parts.base[name], rows, sampled)
        )
        logp = lambda *of, score=score: score(*of).logp
        with jax.named_scope(scopes.SCORING):
            found[name] = narrowly(parts, logp, rows[name], sampled[name])
    return found


def narrowly(parts: Parts, score: Callable[[Rows, SampledTokens], Any], rows: Rows, sampled: SampledTokens) -> Any:
    """score(rows, sampled), a tree of float32 [R, M], at the smallest of the buckets that holds all rows of all
    lanes."""
    widths, most = parts.recipe.buckets, sampled.mask.shape[1]

    def at(i: int) -> Any:
        found = score(*narrow(rows, sampled, i, widths))
        return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, most - x.shape[1]))), found)

    return jax.lax.switch(most_of_lanes(bucket(rows, sampled, widths)), [partial(at, i) for i in range(widths)])
