"""Equal rows of a group, of which an update computes one.

In games of few short answers many members of a group play the same tokens. Their log-probabilities are the same, only
their advantages differ.

Shapes: R rows, O prompts with G rows each, M sampled tokens a row, K <= G distinct rows that are kept.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens


def first_equal_row(rows: Rows, sampled: SampledTokens) -> jax.Array:
    """int32 [O, G]: the first member of the group whose row a policy scores in the same way, the member itself if no
    earlier one is."""
    prompts = len(rows.prompts.tokens)

    def alike(x: jax.Array) -> jax.Array:  # [O, G, G]
        x = x.reshape(prompts, len(rows.tokens) // prompts, -1)
        return (x[:, :, None] == x[:, None]).all(-1)

    seen = sampled.mask
    legal = sampled.legal & seen[..., None]
    fields = (sampled.at, sampled.token, sampled.grammar_state, sampled.tokens_left)
    equal = alike(rows.policy) & alike(rows.length) & alike(rows.tokens) & alike(sampled.mask) & alike(legal)
    for field in fields:
        equal &= alike(jnp.where(seen, field, 0))
    return equal.argmax(2).astype(jnp.int32)


def keep_distinct(rows: Rows, sampled: SampledTokens, limit: int) -> tuple[Rows, SampledTokens, jax.Array]:
    """(the first K distinct rows of each prompt, at most `limit`; their sampled tokens; int32 [R]: which of them each
    row equals). If a prompt has more than K distinct rows, `first_equal_row` tells so, and some equal none of these."""
    first = first_equal_row(rows, sampled)
    prompts, members = first.shape
    limit = min(limit, members)
    new = first == jnp.arange(members)[None]
    kept = jnp.argsort(~new, axis=1, stable=True)[:, :limit]
    place = jnp.take_along_axis(new.cumsum(1) - 1, first, axis=1).clip(max=limit - 1)
    of_prompt = jnp.arange(prompts)[:, None]
    take = lambda x: x[(of_prompt * members + kept).ravel()]
    fields = {name: take(x) for name, x in vars(rows).items() if name != "prompts"}
    return rows.replace(**fields), jax.tree.map(take, sampled), (of_prompt * limit + place).ravel()
