"""Log-probabilities and values that policies give to rows of played games.

A micro-batch of rows may be computed in several forms: at one of several widths, or its distinct rows alone.

Shapes: of one policy set R rows, M sampled tokens a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.devices import scopes
from jaxmarl_llm.devices.lanes import most_of_lanes
from jaxmarl_llm.models import decoder, lora
from jaxmarl_llm.rl.losses import Batch, Scores
from jaxmarl_llm.rollout import utterances
from jaxmarl_llm.rollout.equal_rows import first_equal_row, keep_distinct
from jaxmarl_llm.rollout.policy import Sampling
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens
from jaxmarl_llm.rollout.widths import bucket, narrow
from jaxmarl_llm.training.recipe import Parts
from jaxmarl_llm.training.update import Buckets

Weights = dict[str, Any]  # by policy


def score_policies(
    parts: Parts, weights: Weights, name: str, rows: Rows, sampled: SampledTokens
) -> tuple[Scores, dict[str, jax.Array]]:
    """(scores of a policy set's sampled tokens, each row under its own policy; {policy: mask of its tokens, bool
    [R, M]})."""
    policy_set, (params, joined, which) = parts.policy_sets[name], scoring_weights(parts, weights, name, rows)
    weights = parts.frozen | weights
    heads = [weights[policy]["value"] for policy in policy_set.policies if "value" in weights[policy]]
    head = jax.tree.map(lambda *x: jnp.stack(x)[rows.policy], *heads) if which is not None and heads else None
    scores = parts.scorer(name)(params, rows, sampled, joined, which, head or next(iter(heads), None))
    masks = {policy: sampled.mask & (rows.policy == i)[:, None] for i, policy in enumerate(policy_set.policies)}
    return scores, masks


def scored_again(parts: Parts, name: str) -> bool:
    """True if a learning policy set's tokens are scored again before the update, by the programs that train them.

    This holds in half precision or with an attention other than "plain", unless other weights play (`Parts.ahead`). In
    bfloat16, log-probabilities by token and by whole row differ by 0.03 on average, so that a clipped loss would clip
    before the first step. In float32 the difference is 1e-5. Games that other weights played keep their sampler's
    log-probabilities.
    """
    config = parts.policy_sets[name].config
    if config is None or parts.ahead or name not in parts.learner_sets:
        return False
    return config.dtypes.half or config.dtypes.attention != "plain"


def by_micro_batch(
    parts: Parts, score: Callable[[Rows, SampledTokens], Any], rows: Rows, sampled: SampledTokens
) -> Any:
    """score(rows, sampled), a tree of leaves [R, M], computed in the update's micro-batches: products then have equal
    shapes and roundings."""
    count = parts.optimiser.minibatches * parts.optimiser.grad_accumulation
    if count == 1:
        return score(rows, sampled)
    prompts = parts.prompts

    def split(x: jax.Array) -> jax.Array:  # as `update` does
        x = x.reshape(prompts // count, count, -1, *x.shape[1:]).swapaxes(0, 1)
        return x.reshape(count, -1, *x.shape[3:])

    def join(x: jax.Array) -> jax.Array:
        return x.reshape(count, prompts // count, -1, *x.shape[2:]).swapaxes(0, 1).reshape(-1, *x.shape[2:])

    scores = jax.lax.map(lambda part: score(*part), jax.tree.map(split, (rows, sampled)))
    return jax.tree.map(join, scores)


def resample(
    parts: Parts, weights: Weights, name: str, rows: Rows, sampled: SampledTokens, key: jax.Array
) -> tuple[Rows, SampledTokens]:
    """(rows, new utterances), drawn in place of a policy set's sampled ones from the policies of `weights`, with their
    log-probabilities.

    Utterances of one token are drawn in the rows themselves. For longer ones, rows and sampled tokens are those of
    `utterances.split`, a row for each utterance. Raises ValueError for a filter on utterances of one token, and for a
    hook on the distribution.
    """
    if parts.shaping is not None:
        raise ValueError("Utterances are drawn again from the policy's own distribution, without Parts.shaping.")
    layout, policy_set = parts.rollout.layouts[name], parts.policy_sets[name]
    params, joined, which = scoring_weights(parts, weights, name, rows)
    if layout.max_sampled > 1:
        assert policy_set.config is not None  # no script learns
        prepared = decoder.prepare(policy_set.config, params, joined, policy_set.merged)
        return utterances.draw(layout, prepared, rows, sampled, key)
    sampling = policy_set.sampling
    if any(
        x != Sampling(x.temperature) or not x.temperature
        for x in (sampling if isinstance(sampling, tuple) else (sampling,))
    ):
        raise ValueError("An answer can be drawn again only without top_k, top_p and min_p, and not greedily.")
    _, token, logp = parts.scorer(name).alternatives(
        params, rows, sampled, policy_set.tokenizer.vocab_size, joined, which
    )
    drawn = jax.random.categorical(key, logp)[..., None]
    taken = lambda x: jnp.take_along_axis(x, drawn, 2)[..., 0]
    return rows, sampled.replace(token=taken(token), behaviour_logp=jnp.where(sampled.mask, taken(logp), 0))


def scoring_weights(parts: Parts, weights: Weights, name: str, rows: Rows) -> tuple[dict, Any, jax.Array | None]:
    """(parameters, adapters or None, index of each row's adapter [R] or None) for scoring a policy set."""
    policy_set, weights = parts.policy_sets[name], parts.frozen | weights
    trees = [weights[policy]["policy"] for policy in policy_set.policies]
    joined = lora.concatenate(trees, policy_set.loras) if policy_set.lora else None
    return parts.base[name] if policy_set.lora else trees[0], joined, rows.policy if len(trees) > 1 else None


def reference(
    parts: Parts, initial: Weights, rows: dict[str, Rows], sampled: dict[str, SampledTokens]
) -> dict[str, jax.Array]:
    """{policy set: log-probabilities of sampled tokens under the reference, float32 [R, M]}. The reference is the
    policies before training, `initial`; for a policy set without these it is the base without adapters. Sets of frozen
    policies alone have none."""
    result = {}
    for name in rows:
        if set(parts.policy_sets[name].policies) <= set(parts.frozen):
            continue
        learner = {
            policy: parts.recipe.past.get(policy, ("", policy))[1] for policy in parts.policy_sets[name].policies
        }
        first = {policy: {"policy": initial[source]} for policy, source in learner.items() if source in initial}
        score = lambda rows, sampled, name=name, first=first: (
            score_policies(parts, first, name, rows, sampled)[0]
            if first
            else parts.scorer(name)(parts.base[name], rows, sampled)
        )
        logp = lambda *inputs, score=score: score(*inputs).logp
        with jax.named_scope(scopes.SCORING):
            result[name] = narrowly(parts, logp, rows[name], sampled[name])
    return result


def narrowly(parts: Parts, score: Callable[[Rows, SampledTokens], Any], rows: Rows, sampled: SampledTokens) -> Any:
    """score(rows, sampled), a tree of float32 [R, M], computed at the smallest bucket that holds all rows of all
    lanes."""
    widths, columns = parts.recipe.buckets, sampled.mask.shape[1]

    def at(i: int) -> Any:
        values = score(*narrow(rows, sampled, i, widths))
        return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, columns - x.shape[1]))), values)

    return jax.lax.switch(most_of_lanes(bucket(rows, sampled, widths)), [partial(at, i) for i in range(widths)])


class Part(struct.PyTreeNode):
    """Training data of one policy set, in order of the prompts."""

    rows: Rows
    sampled: SampledTokens
    batch: Batch
    same: jax.Array | None = None
    """int32 [R], the row that equals each row of the batch, if only distinct ones are left (`Recipe.distinct`)."""


def buckets_of(parts: Parts) -> Buckets | None:
    """The forms in which a micro-batch may be computed: its distinct rows (`Recipe.distinct`), then its rows at every
    width; None if there is one form alone."""
    recipe = parts.recipe
    again = any(scored_again(parts, name) for name in parts.learner_sets)  # by products of equal shapes
    distinct, widths = 0 if again else recipe.distinct, recipe.buckets
    if not distinct:
        return Buckets(widths, partial(_bucket_sizes, widths), partial(_cut, widths)) if widths > 1 else None

    def choose(batches: dict[str, Part]) -> jax.Array:
        wider = 1 + _bucket_sizes(widths, batches)
        return jnp.where(_most_distinct(batches) <= distinct, 0, wider)

    def cut(batches: dict[str, Part], i: int) -> dict[str, Part]:
        return _cut(widths, batches, i - 1) if i else {n: _share(part, distinct) for n, part in batches.items()}

    return Buckets(1 + widths, choose, cut)


def _by_prompt(batches: dict[str, Part], number: Callable[[Part], jax.Array]) -> jax.Array:
    """int32 [prompts]: the largest `number` (int32 [n] of a part) of each prompt."""
    prompts = math.gcd(*(len(part.rows.prompts.tokens) for part in batches.values()))
    return reduce(jnp.maximum, (number(part).reshape(prompts, -1).max(1) for part in batches.values()))


def _bucket_sizes(widths: int, batches: dict[str, Part]) -> jax.Array:
    """int32 [prompts]: the smallest bucket that holds all rows of each prompt."""
    return _by_prompt(batches, lambda part: bucket(part.rows, part.sampled, widths))


def _most_distinct(batches: dict[str, Part]) -> jax.Array:
    """int32 [prompts]: the number of different rows of each prompt."""

    def distinct(part: Part) -> jax.Array:
        first = first_equal_row(part.rows, part.sampled)
        return (first == jnp.arange(first.shape[1])[None]).sum(1)

    return _by_prompt(batches, distinct)


def _share(part: Part, limit: int) -> Part:
    rows, sampled, same = keep_distinct(part.rows, part.sampled, limit)
    return Part(rows, sampled, part.batch, same)


def _cut(widths: int, batches: dict[str, Part], i: int) -> dict[str, Part]:
    cuts = {name: narrow(part.rows, (part.sampled, part.batch), i, widths) for name, part in batches.items()}
    return {name: Part(rows, *of_tokens) for name, (rows, of_tokens) in cuts.items()}
