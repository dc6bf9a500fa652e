"""Utterances as rows of their own. Each continues the tokens that its seat had heard and said before it.

So an utterance of several tokens can be drawn anew at a stored state, and be scored or trained on there. The tokens
before it are computed once for all utterances of a row. Shapes: R rows, M sampled tokens of a row, U utterances of a
row, K sampled tokens of an utterance. Row r * U + u is utterance u of row r.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout.decode import RECORDED, adapter_of, blank_rows, say
from jaxmarl_llm.rollout.dialogue import SPOKE, join
from jaxmarl_llm.rollout.layout import RowLayout
from jaxmarl_llm.rollout.policy import per_row
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens, first_of_turn


def split(layout: RowLayout, rows: Rows, sampled: SampledTokens, of_tokens: Any) -> tuple[Rows, SampledTokens, Any]:
    """(a row for each utterance, its sampled tokens [R * U, K], `of_tokens` for these).

    `of_tokens` is a tree of leaves [R, M, ...] about the sampled tokens [R, M], or [R] about the rows. Rows with fewer
    than U utterances have empty ones at the end, whose mask is false.
    """
    count, utterances = layout.max_sampled, sampled.mask.shape[1] // layout.max_sampled
    first = first_of_turn(sampled)
    begin = jnp.argsort(~first, axis=1, stable=True)[:, :utterances]  # the first sampled token of each utterance
    of_first = lambda x: jnp.take_along_axis(x, begin, 1)
    start, real = of_first(sampled.at), of_first(first).reshape(-1, 1)
    spread = lambda x: jnp.repeat(x, utterances, 0)

    apart = lambda x: _windows(x, begin, count) if x.ndim > 1 else spread(x)
    said, of_tokens = jax.tree.map(apart, (sampled, of_tokens))
    mask = said.mask & (said.turn == said.turn[:, :1]) & real
    said = said.replace(mask=mask, at=jnp.where(mask, said.at - start.reshape(-1, 1), 0))
    prompt = rows.prompts.tokens[rows.prompt], rows.prompts.length[rows.prompt]
    recorded = {x: _windows(getattr(rows, x), start, layout.max_said) for x in RECORDED if x != "length"}
    trained = recorded["loss_mask"] & (recorded["turn"] == said.turn[:, :1]) & real
    rows = rows.replace(
        **recorded | {"loss_mask": trained},
        prompts=Prompts(join([prompt, (rows.tokens, rows.length)])[0], spread(prompt[1]) + start.reshape(-1)),
        prompt=spread(jnp.arange(len(rows.tokens), dtype=jnp.int32)),
        length=jnp.where(mask, said.at + 1, 0).max(1),
        **{name: spread(getattr(rows, name)) for name in ("episode", "seat", "policy")},
    )
    return rows, said, of_tokens


def _windows(x: jax.Array, start: jax.Array, size: int) -> jax.Array:
    """The entries x[r, start[r, u] : start[r, u] + size] of x [R, M, ...] as [R * U, size, ...], 0 past the end."""
    x = jnp.pad(x, ((0, 0), (0, size), *((0, 0),) * (x.ndim - 2)))
    window = lambda x, start: jax.lax.dynamic_slice_in_dim(x, start, size)
    return jax.vmap(jax.vmap(window, (None, 0)))(x, start).reshape(-1, size, *x.shape[2:])


def draw(
    layout: RowLayout, prepared: dict, rows: Rows, sampled: SampledTokens, key: jax.Array
) -> tuple[Rows, SampledTokens]:
    """New utterances in place of those of `split`, from the policies whose weights are `prepared` for decoding.

    The result has their log-probabilities, and the mask of tokens that were not forced.
    """
    config, policy_set = layout.policy_set.config, layout.policy_set
    assert config is not None  # no script is drawn anew
    (texts, start), (number, width) = (rows.prompts.tokens, rows.prompts.length), rows.tokens.shape
    if config.recurrent:  # its caches know a text to its end only, so every utterance has a text of its own
        texts = jnp.repeat(texts, number // len(texts), 0)
    of_text = start.reshape(len(texts), -1)
    cache, states = decoder.append(
        config,
        prepared,
        decoder.empty_cache(config, len(texts), texts.shape[1]),
        texts,
        of_text.max(1),
        adapter_of(policy_set, rows.policy[:: of_text.shape[1]]),
    )
    hidden = jnp.take_along_axis(states, of_text[:, :, None] - 1, 1).reshape(number, -1)
    here = dataclasses.replace(
        layout,
        episode=jnp.arange(number),
        seat=rows.seat,
        policy=rows.policy,
        sampling=per_row(policy_set.sampling, rows.policy),
        slots=width,
    )
    cache = decoder.empty_cache(config, number, width + layout.chunk, cache.replace(length=start))
    live = blank_rows(here, jnp.full(number, SPOKE, jnp.int32), cache, hidden)
    legal, state, left = sampled.legal[:, 0], sampled.grammar_state[:, 0], sampled.tokens_left[:, 0]
    live, _ = say(here, prepared, live, sampled.mask[:, 0], legal, state, left, jnp.int32(0), key)
    new = rows.replace(**{name: getattr(live, name) for name in RECORDED if name != "turn"})
    at = jnp.argsort(~new.loss_mask, axis=1, stable=True)[:, : sampled.mask.shape[1]]
    take = lambda x: jnp.take_along_axis(x, at, 1)
    return new, SampledTokens(
        at=at,
        mask=take(new.loss_mask),
        token=take(new.tokens),
        turn=jnp.broadcast_to(sampled.turn[:, :1], at.shape),
        behaviour_logp=take(new.logp),
        grammar_state=take(new.grammar_state).astype(jnp.int32),
        tokens_left=take(new.tokens_left).astype(jnp.int32),
        legal=jnp.broadcast_to(legal[:, None], (*at.shape, legal.shape[1])),
    )
