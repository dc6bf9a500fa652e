"""The decode loop: feed tokens to the caches, draw a token under the mask, repeat until all rows are silent.

`Rollout` decodes all rows of a compiled game with `speak`; `PythonRollout` and `play` get utterances as arrays from
`utter`. Both use `feed`, `draw` and `until_silent`.
Shapes: R rows, S tokens of a row, L tokens of a chunk, D width, V vocabulary, W tokens of a message, N actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.devices import scopes, sharding
from jaxmarl_llm.devices.lanes import any_lane
from jaxmarl_llm.environments.base import View
from jaxmarl_llm.keys import SAY, batch_keys
from jaxmarl_llm.models import decoder, lora, packing
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import Cache
from jaxmarl_llm.models.layers import in_order
from jaxmarl_llm.models.lora import PolicyOf
from jaxmarl_llm.rollout.dialogue import in_progress, place
from jaxmarl_llm.rollout.layout import RowLayout
from jaxmarl_llm.rollout.policy import PerRow, Sampling, Shaping, allowed, distribution, entropy_of, sample
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.text.grammar import TokenTables

RECORDED = ("tokens", "length", "loss_mask", "turn", "logp", "grammar_state", "tokens_left")  # fields of Rows


class LiveRows(struct.PyTreeNode):
    """The rows of one policy set during a game. The RECORDED fields are those of `Rows`."""

    tokens: jax.Array
    length: jax.Array
    loss_mask: jax.Array
    turn: jax.Array
    logp: jax.Array
    grammar_state: jax.Array
    tokens_left: jax.Array
    stage: jax.Array  # int32 [R]: RULES_ONLY, LISTENING or SPOKE
    cache: Cache | None
    hidden: jax.Array | None  # [R, D] final hidden state of the last token fed
    used: jax.Array  # int32 [R]: tokens of this row that were fed to the cache
    slots: jax.Array  # int32: tokens computed for the caches of all rows, padding included
    message: jax.Array  # int32 [R, W]: the free text of the row's last utterance
    message_length: jax.Array  # int32 [R]
    truncated_message_tokens: jax.Array  # int32: tokens cut off messages to these rows


def blank_rows(layout: RowLayout, stage: jax.Array, cache: Cache | None, hidden: jax.Array | None) -> LiveRows:
    """Rows without a token after their prompts, at the stages int32 [R]."""
    rows = len(stage)
    blank = lambda dtype: sharding.rows(jnp.zeros((rows, layout.slots), dtype))
    return LiveRows(
        tokens=blank(jnp.int32),
        length=sharding.rows(jnp.zeros((rows,), jnp.int32)),
        loss_mask=blank(bool),
        turn=blank(jnp.int32),
        logp=blank(jnp.float32),
        grammar_state=blank(jnp.int16),
        tokens_left=blank(jnp.int16),
        stage=stage,
        cache=cache,
        hidden=hidden,
        used=sharding.rows(jnp.zeros((rows,), jnp.int32)),
        slots=jnp.int32(0),
        message=sharding.rows(jnp.zeros((rows, layout.max_message), jnp.int32)),
        message_length=sharding.rows(jnp.zeros((rows,), jnp.int32)),
        truncated_message_tokens=jnp.int32(0),
    )


def prepare(policy_set: PolicySet, weights: dict) -> dict | None:
    """Weights {"params": tree, "adapters": (one a policy, ...)} in the form for decoding; None for a scripted set."""
    if policy_set.config is None:
        return None
    joined = lora.concatenate(weights["adapters"], policy_set.loras) if policy_set.lora else None
    return decoder.prepare(policy_set.config, weights["params"], joined, policy_set.merged)


def adapter_of(policy_set: PolicySet, policy: PolicyOf) -> PolicyOf | None:
    """The adapter int32 [R] of rows with these policies; None if all rows have the same weights."""
    return None if policy_set.lora is None or policy_set.merged else policy.astype(np.int32)


def feed(
    config: Config,
    prepared: dict,
    cache: Cache,
    hidden: jax.Array,
    tokens: jax.Array,
    n: jax.Array,
    adapter: PolicyOf | None,
    whole: bool = False,
) -> tuple[Cache, jax.Array]:
    """Adds the first n[r] of tokens int32 [R, L] to the caches; returns them and hidden [R, D] of the last token fed.

    `hidden` does not change in rows without a token. For `whole` see `decoder.append`.
    """
    cache, states = decoder.append(config, prepared, cache, tokens, n, adapter, whole)
    last = jnp.take_along_axis(states, jnp.maximum(n - 1, 0)[:, None, None], 1)[:, 0]
    return cache, jnp.where((n > 0)[:, None], last, hidden)


def draw(
    logits: jax.Array,
    mask: jax.Array | None,
    sampling: Sampling | PerRow,
    uniform: jax.Array,
    shaping: Shaping | None = None,
) -> tuple[jax.Array, jax.Array]:
    """(a token int32 [R], its log-probability float32 [R]), drawn from logits [R, V] at uniforms float32 [R]."""
    logp = distribution(logits, mask, sampling, shaping=shaping)
    token = sample(logp, uniform)
    return token, jnp.take_along_axis(logp, token[:, None], 1)[:, 0]


def until_silent(
    speaking: Callable[[Any], jax.Array], feed: Callable[[Any], Any], speak: Callable[[Any], Any], carry: Any
) -> Any:
    """Feeds the last tokens and speaks again, while `speaking(carry)` bool [R] is true for a row of any lane."""
    return jax.lax.while_loop(lambda carry: any_lane(speaking(carry)), lambda carry: speak(feed(carry)), carry)


@dataclass(frozen=True, eq=False)
class Voice:
    """The static facts about rows for `utter`."""

    config: Config
    tables: TokenTables
    sampling: Sampling | PerRow
    adapter: PolicyOf | None  # int32 [R]


def utter(
    voice: Voice,
    prepared: dict,
    cache: Cache,
    hidden: jax.Array,
    speaking: jax.Array,
    start: jax.Array,
    uniform: jax.Array,
    mask: Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[Cache, jax.Array, jax.Array, jax.Array]:
    """(caches, tokens int32 [R, L], log-probabilities, lengths [R]) of an utterance of the rows `speaking` bool [R].

    A row starts in the grammar state `start` int32 [R] and stops when the grammar ends. `mask(state, i)` bool [R or 1,
    V] must end it within L tokens. Token i is drawn at `uniform` float32 [L, R]. The last token of an utterance is not
    fed.
    """
    tables, (max_tokens, rows) = voice.tables, uniform.shape

    def speak(carry):
        cache, hidden, speaking, state, i, tokens, logps, length = carry
        logits = decoder.logits(voice.config, prepared, hidden)
        token, logp = draw(logits, mask(state, i), voice.sampling, uniform[i])
        tokens, logps, length = tokens.at[:, i].set(token), logps.at[:, i].set(logp), length + speaking
        state = jnp.asarray(tables.next)[state, jnp.asarray(tables.token_class)[token]].astype(jnp.int32)
        return cache, hidden, speaking & ~jnp.asarray(tables.ended)[state], state, i + 1, tokens, logps, length

    def feed_last(carry):
        cache, hidden, speaking, state, i, tokens, *rest = carry
        last = jax.lax.dynamic_slice_in_dim(tokens, i - 1, 1, 1)
        n = speaking.astype(jnp.int32)
        cache, hidden = feed(voice.config, prepared, cache, hidden, last, n, voice.adapter)
        return cache, hidden, speaking, state, i, tokens, *rest

    blank = jnp.zeros((rows, max_tokens), jnp.int32), jnp.zeros((rows, max_tokens)), jnp.zeros((rows,), jnp.int32)
    carry = speak((cache, hidden, speaking & ~jnp.asarray(tables.ended)[start], start, jnp.int32(0), *blank))
    carry = until_silent(lambda carry: carry[2], feed_last, speak, carry)
    return carry[0], *carry[5:]


@jax.named_scope(scopes.DECODE)
def speak(
    layout: RowLayout,
    prepared: dict | None,
    rows: LiveRows,
    view: View,
    turn: jax.Array,
    key: jax.Array,
    chosen: jax.Array | None,
) -> tuple[LiveRows, jax.Array]:
    """Plays the utterances of a turn of all acting rows: returns (rows after it, actions int32 [R]).

    The action is 0 for a row that does not act, and -1 for an illegal answer. A row samples nothing if the forced
    beginning of its answer is the whole answer. Rows of a scripted set say the actions `chosen` int32 [R].
    """
    tables = layout.tables
    alive = in_progress(view)[layout.episode]
    acting = view.acting[layout.episode, layout.seat] & alive
    legal, grammar, budget, state, left, over = _start_utterance(layout, view)
    rows = rows.replace(message_length=jnp.where(acting, 0, rows.message_length))
    script = None if chosen is None else (jnp.asarray(layout.script[0])[grammar, chosen], budget)
    if prepared is not None:
        rows = catch_up(layout, prepared, rows, alive)
    rows, state = say(layout, prepared, rows, acting & ~over, legal, state, left, turn, key, script)
    action = jnp.where(acting, jnp.asarray(tables.action)[state].astype(jnp.int32), 0)
    if not layout.policy_set.masked:
        known = jnp.clip(action, 0)
        fine = jnp.asarray(tables.ended)[state] & jnp.take_along_axis(legal, known[:, None], 1)[:, 0]
        action = jnp.where(acting & ~fine, -1, known)
        rows = rows.replace(message_length=jnp.where(action < 0, 0, rows.message_length))
    return rows, action


def say(
    layout: RowLayout,
    prepared: dict | None,
    rows: LiveRows,
    speaking: jax.Array,
    legal: jax.Array,
    state: jax.Array,
    left: jax.Array,
    turn: jax.Array,
    key: jax.Array,
    script: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[LiveRows, jax.Array]:
    """(rows after the utterances of those that are `speaking` bool [R], their grammar states int32 [R]).

    A row starts in the grammar state `state` with `left` tokens left, int32 [R] each, and legal actions [R, N]. Its
    `hidden` must be of the token before. `script` holds the tokens [R, L] of scripted rows and their budgets [R].
    """
    tables, masked = layout.tables, layout.policy_set.masked
    end = layout.policy_set.tokenizer.end
    dead = len(tables.next) - 1

    def say_token(carry):
        """A token of every speaking row, and the forced tokens after it."""
        rows, state, left, speaking, index = carry
        if script is None:
            assert prepared is not None  # a set without a script has a model
            keys = batch_keys(key, SAY, layout.episode, turn, layout.seat, index)
            uniform = jax.vmap(jax.random.uniform)(keys)
            token, logp, several = _draw_rows(layout, prepared, rows.hidden, state, legal, left, uniform, speaking)
        else:
            tokens, budget = script
            said = budget - left  # so far, the forced beginning included
            token = jnp.take_along_axis(tokens, jnp.minimum(said, tokens.shape[1] - 1)[:, None], 1)[:, 0]
            logp, several = jnp.zeros(token.shape), _possible_tokens(layout, state, legal, left)[1]
        after = jnp.asarray(tables.next)[state, jnp.asarray(tables.token_class)[token]]
        tail, extra = jnp.asarray(tables.forced)[after], jnp.asarray(tables.forced_length)[after].astype(jnp.int32)
        tokens = jnp.concatenate([token[:, None], tail], 1)
        rows = write(rows, tokens, jnp.where(speaking, 1 + extra, 0), turn, (speaking & several, logp, state, left))
        if layout.max_message:  # a token that stays in free text is part of the message
            part, inside = jnp.asarray(tables.part), jnp.asarray(tables.free)
            n = jnp.where(speaking & inside[state] & inside[after] & (part[state] == part[after]), 1, 0)
            message = place(rows.message, token[:, None], rows.message_length, n)
            rows = rows.replace(message=message, message_length=rows.message_length + n)
        state = jnp.where(speaking, jnp.asarray(tables.forced_state)[after].astype(jnp.int32), state)
        left = jnp.where(speaking, left - 1 - extra, left)
        over = jnp.asarray(tables.ended)[state]
        if not masked:
            over |= (token == end) if end is not None else jnp.bool_(True)
            late = speaking & ~over & (left <= 0)
            if end is not None:
                rows = write(rows, jnp.full_like(token, end)[:, None], jnp.where(late, 1, 0), turn)
            state, over = jnp.where(late, dead, state), over | late
        return rows, state, left, speaking & ~over, index + 1

    def feed_said(carry):
        if prepared is None:
            return carry
        return _feed_rows(layout, prepared, carry[0], 1 + tables.forced.shape[1], carry[3], whole=True), *carry[1:]

    carry = say_token((rows, state, left, speaking, jnp.int32(0)))
    if layout.max_sampled > 1:
        carry = until_silent(lambda carry: carry[3], feed_said, say_token, carry)
    return carry[0], carry[1]


def _draw_rows(
    layout: RowLayout,
    prepared: dict,
    hidden: jax.Array,
    state: jax.Array,
    legal: jax.Array,
    left: jax.Array,
    uniform: jax.Array,
    speaking: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(a token, its log-probability, true if more than one token was possible), [R] each, for rows in `speaking`.

    The values of other rows are arbitrary.
    """
    config, sampling = layout.policy_set.config, layout.sampling
    assert config is not None
    settings = {name: x for name, x in sampling._asdict().items() if not isinstance(x, int | float)}

    def draw_packed(hidden, state, legal, left, uniform, settings):
        mask, several = _possible_tokens(layout, state, legal, left)
        logits = sharding.in_place(partial(decoder.logits, config, prepared), "lm_head")(hidden)
        return *draw(sharding.rows(logits), mask, sampling._replace(**settings), uniform, layout.shaping), several

    packed = packing.packing(config, speaking.astype(jnp.int32), 1)
    rows = jax.tree.map(packed.rows, (hidden, state, legal, left, uniform, jax.tree.map(jnp.asarray, settings)))
    token, logp, several = (packed.unpack(x[:, None])[:, 0] for x in packed.map_rows(draw_packed)(*rows))
    return token, logp, several


def _possible_tokens(
    layout: RowLayout, state: jax.Array, legal: jax.Array, left: jax.Array
) -> tuple[jax.Array | None, jax.Array]:
    """(the possible tokens of each row, bool [R, V], or None for all; true if there are several, bool [R])."""
    if not layout.policy_set.masked:
        return None, jnp.full(state.shape, True)
    mask = allowed(layout.tables, state, legal, left)
    return mask, mask.sum(-1) > 1


def _start_utterance(layout: RowLayout, view: View) -> tuple[jax.Array, ...]:
    """The state of every row after the forced beginning of its utterance: a tuple of six arrays.

    Legal actions bool [R, N]; grammar, budget, grammar state and tokens left, int32 [R] each; and a bool [R] for
    utterances that end there.
    """
    tables = layout.tables
    legal, grammar = view.legal[layout.episode, layout.seat], view.grammar[layout.episode, layout.seat]
    start, budget = jnp.asarray(tables.start)[grammar], jnp.asarray(layout.budget)[grammar]
    state = jnp.asarray(tables.forced_state)[start].astype(jnp.int32)
    left = budget - jnp.asarray(tables.forced_length)[start].astype(jnp.int32)
    return legal, grammar, budget, state, left, jnp.asarray(tables.ended)[state]


def catch_up(layout: RowLayout, prepared: dict, rows: LiveRows, alive: jax.Array) -> LiveRows:
    """Feeds the unread tokens of the rows in `alive` bool [R], a chunk at a time."""
    lags = lambda rows: any_lane(alive & (rows.length > rows.cache.length))
    feed_heard = lambda rows: _feed_rows(layout, prepared, rows, layout.chunk, alive)
    with jax.named_scope(scopes.PROMPT):
        return jax.lax.while_loop(lags, feed_heard, rows)


def next_entropy(layout: RowLayout, prepared: dict, rows: LiveRows, view: View) -> jax.Array:
    """Entropy in nats, float32 [R], before the first token of every row's next utterance; 0 without an utterance.

    All tokens of the rows must have been fed (`catch_up`).
    """
    config = layout.policy_set.config
    assert config is not None and rows.hidden is not None
    legal, _, _, state, left, over = _start_utterance(layout, view)
    acting = (view.acting & in_progress(view)[:, None])[layout.episode, layout.seat]
    mask = allowed(layout.tables, state, legal, left) if layout.policy_set.masked else None
    logits = decoder.logits(config, prepared, rows.hidden)
    logp = distribution(logits, mask, layout.sampling, shaping=layout.shaping)
    return jnp.where(acting & ~over, entropy_of(logp), 0)


def _feed_rows(
    layout: RowLayout, prepared: dict, rows: LiveRows, width: int, where: jax.Array, whole: bool = False
) -> LiveRows:
    """Feeds up to `width` unread tokens of the rows in `where` bool [R] to the caches."""
    config, cache = layout.policy_set.config, rows.cache
    assert config is not None and cache is not None and rows.hidden is not None
    n = jnp.where(where, jnp.minimum(rows.length - cache.length, width), 0)
    index = jnp.minimum(cache.length[:, None] + jnp.arange(width)[None], layout.slots - 1)
    chunk = jnp.take_along_axis(rows.tokens, index, 1)
    adapter = adapter_of(layout.policy_set, layout.policy)
    cache, hidden = feed(config, prepared, cache, rows.hidden, chunk, n, adapter, whole)
    unpacked = in_order(prepared["layers"][0], adapter)
    slots = rows.slots + packing.count_computed(config, len(n), width, n.sum(), unpacked)
    return rows.replace(cache=cache, hidden=hidden, used=rows.used + n, slots=slots)


def write(rows: LiveRows, tokens: jax.Array, n: jax.Array, turn: jax.Array, first: tuple | None = None) -> LiveRows:
    """Appends the first n[r] of tokens [R, L] to the rows.

    `first` = (loss_mask, logp, grammar_state, tokens_left), [R] each, belongs to the first of these tokens. It is
    written only if its loss_mask is true.
    """
    same = jnp.broadcast_to(turn, tokens.shape)
    rows = rows.replace(tokens=place(rows.tokens, tokens, rows.length, n), turn=place(rows.turn, same, rows.length, n))
    if first is not None:
        written = jnp.where(first[0], 1, 0)
        values = zip(("loss_mask", "logp", "grammar_state", "tokens_left"), first, strict=True)
        rows = rows.replace(**{k: place(getattr(rows, k), value[:, None], rows.length, written) for k, value in values})
    return rows.replace(length=rows.length + n)
