"""The arrays of an engine: a fixed number of slots, and the three compiled programs that read, copy and speak.

A slot holds one row of tokens and its cache. The programs compute any of the slots: those that take part are gathered,
computed together and put back, so that idle slots cost nothing.
Shapes: R slots, M slots that take part, L tokens of a chunk, K tokens drawn at a time, V vocabulary, G grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.keys import key_for
from jaxmarl_llm.models import decoder
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import Cache
from jaxmarl_llm.models.delta_net import Memory
from jaxmarl_llm.rollout import decode
from jaxmarl_llm.rollout.policy import PerRow, Sampling, distribution, per_row, sample
from jaxmarl_llm.text.grammar import TokenTables

TOP = 20  # the most probable tokens that a call may ask for


class Slots(struct.PyTreeNode):
    """The cache and the last hidden state of every slot. The host knows how many tokens each slot has read."""

    keys: tuple[jax.Array, ...]  # a layer with attention: [R, heads, head_dim, capacity]
    values: tuple[jax.Array, ...]  # a layer with attention: [R, heads, capacity, head_dim]
    memories: tuple[Memory, ...]  # a layer with linear_attention: leaves [R, ...]
    hidden: jax.Array  # [R, D] final hidden state of the last token read

    @property
    def capacity(self) -> int:
        """The tokens that a slot has room for."""
        return self.keys[0].shape[3]


class Pages(NamedTuple):
    """Grammars as arrays of one size, one a page; a slot speaks in the grammar of its page.

    Page 0 is free text, which need not end within the budget: it is cut off there.
    """

    token_class: Any  # int32 [G, V]
    next: Any  # int32 [G, states, classes]
    ended: Any  # bool [G, states]
    shortest: Any  # int32 [G, states]: the fewest tokens to the end of an utterance


class Speaking(NamedTuple):
    """The slots that speak, M of them; the places past the last one have `at` = R."""

    at: Any  # int32 [M]
    length: Any  # int32 [M]: tokens read
    policy: Any  # int32 [M]: the adapter, -1: the base alone; None: the weights have no adapters
    key: Any  # uint32 [M, 2]
    event: Any  # int32 [M, 4]: token i is drawn with key_for(key, *event, i)
    page: Any  # int32 [M]
    state: Any  # int32 [M]: the grammar's state
    begun: Any  # int32 [M]: tokens said so far
    budget: Any  # int32 [M]: the most tokens of the answer
    last: Any  # int32 [M]: the last token said, which has not been read
    sampling: PerRow  # [M] each


class Said(NamedTuple):
    """The tokens that the slots said in one run of `speak`, and where they stand."""

    tokens: jax.Array  # int32 [M, K]
    logp: jax.Array  # float32 [M, K]
    top: jax.Array  # int32 [M, K, TOP or 0]: the most probable tokens
    top_logp: jax.Array  # float32 [M, K, TOP or 0]
    said: jax.Array  # int32 [M]: how many
    state: jax.Array  # int32 [M]
    over: jax.Array  # bool [M]: the grammar ended, or the budget did


def empty(config: Config, slots: int, capacity: int) -> Slots:
    """Slots without a token."""
    cache = decoder.empty_cache(config, slots, capacity)
    hidden = jnp.zeros((slots, config.hidden_size), config.dtypes.compute)
    return Slots(cache.keys, cache.values, cache.memories, hidden)


def cache_bytes(config: Config, slots: int, context: int, spare: int) -> int:
    """Bytes of the caches of all `slots`, each with room for `context` + `spare` tokens.

    The spare tokens are for a chunk that passes the end of the context.
    """
    cache = jax.eval_shape(lambda: decoder.empty_cache(config, 1, 1))
    size = lambda tree: sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
    return slots * ((context + spare) * size((cache.keys, cache.values)) + size(cache.memories))


def widen(slots: Slots, capacity: int) -> Slots:
    """The slots with room for at least `capacity` tokens each."""
    extra = max(capacity - slots.capacity, 0)
    pad = lambda x, axis: jnp.pad(x, [(0, extra * (i == axis)) for i in range(4)])
    return slots.replace(
        keys=tuple(pad(x, 3) for x in slots.keys), values=tuple(pad(x, 2) for x in slots.values)
    ) if extra else slots  # fmt: skip


def pages_of(tables: list[TokenTables]) -> Pages:
    """The grammars as pages; their number, states and classes are padded to powers of two."""
    up = lambda n: 1 << max(n - 1, 0).bit_length()
    count, states = up(len(tables)), up(max(len(x.next) for x in tables))
    classes = up(max(x.next.shape[1] for x in tables))
    pages = Pages(
        token_class=np.zeros((count, len(tables[0].token_class)), np.int32),
        next=np.zeros((count, states, classes), np.int32),
        ended=np.ones((count, states), bool),
        shortest=np.full((count, states), np.iinfo(np.int16).max, np.int32),
    )
    for number, table in enumerate(tables):
        size, width = table.next.shape
        pages.token_class[number] = table.token_class
        pages.next[number] = size - 1  # a class that the grammar lacks leads to its dead state
        pages.next[number, :size, :width] = table.next
        pages.ended[number, :size] = table.ended
        pages.shortest[number, :size] = table.distance.min(-1)
    return Pages(*map(jnp.asarray, pages))


def sampling_columns(settings: Sequence[Sampling]) -> Any:
    """Sampling settings as arrays [M]."""
    known = {setting: per_row(setting) for setting in set(settings)}
    columns = [known[setting] for setting in settings]
    kinds = {"greedy": bool, "top_k": np.int32}
    fields = {name: [getattr(column, name) for column in columns] for name in columns[0]._fields}
    return columns[0]._replace(**{name: np.array(x, kinds.get(name, np.float32)) for name, x in fields.items()})


def possible(pages: Pages, page: jax.Array, state: jax.Array, left: jax.Array) -> jax.Array:
    """bool [M, V]: tokens after which the utterance can still end in the tokens left, as `policy.allowed` has them."""
    after = pages.next[page, state]  # [M, classes]
    fits = jnp.take_along_axis(pages.shortest[page], after, 1) <= left[:, None] - 1
    return jnp.take_along_axis(fits, pages.token_class[page], 1)


def _take_slots(slots: Slots, at: jax.Array, length: jax.Array) -> tuple[Cache, jax.Array]:
    """(the caches of the slots `at`, their hidden states); a place past the last slot reads any slot.

    A slot of length 0 begins without a memory, whatever it read before.
    """
    if len(at) != len(slots.hidden):  # else all slots, in order
        slots = jax.tree.map(partial(jnp.take, indices=at, axis=0, mode="clip"), slots)
    begun = lambda x: jnp.where(length.reshape(-1, *(1,) * (x.ndim - 1)) > 0, x, 0)
    memories = jax.tree.map(begun, slots.memories)
    return Cache(slots.keys, slots.values, length, memories=memories), slots.hidden


def _put(slots: Slots, at: jax.Array, cache: Cache, hidden: jax.Array) -> Slots:
    """The slots with these caches and hidden states in place of those of the slots `at`."""
    new = Slots(cache.keys, cache.values, cache.memories, hidden)
    if len(at) == len(slots.hidden):
        return new
    return jax.tree.map(lambda old, new: old.at[at].set(new, mode="drop"), slots, new)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def read(
    config: Config,
    prepared: dict,
    slots: Slots,
    at: jax.Array,
    length: jax.Array,
    tokens: jax.Array,
    n: jax.Array,
    policy: jax.Array | None,
) -> Slots:
    """The slots after the slots `at` int32 [M] have read the first n[m] of tokens int32 [M, L]."""
    cache, hidden = _take_slots(slots, at, length)
    return _put(slots, at, *decode.feed(config, prepared, cache, hidden, tokens, n, policy))


@partial(jax.jit, donate_argnums=0)
def copy(slots: Slots, source: jax.Array, target: jax.Array) -> Slots:
    """The slots after a copy of slot `source`, its cache and hidden state, into slot `target`."""
    return jax.tree.map(lambda x: x.at[target].set(x[source]), slots)


class Kind(NamedTuple):
    """The static facts of a run of `speak`."""

    tokens: int  # K, the most tokens that a slot says
    top: int  # TOP, or 0 if nobody asks for the most probable tokens
    filtered: bool  # some slot is greedy or has a filter


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def speak(
    config: Config, kind: Kind, prepared: dict, slots: Slots, pages: Pages, speaking: Speaking
) -> tuple[Slots, Said]:
    """(slots, what they said): each of the M slots says up to K tokens, until its answer is over.

    The last token said is read before the next one is drawn, also in the next run. Long because the loop over tokens
    closes over the arrays of the run.
    """
    count, top, places, policy = kind.tokens, kind.top, len(speaking.at), speaking.policy
    sampling = speaking.sampling if kind.filtered else PerRow(False, speaking.sampling.temperature, 0, 1.0, 0.0)
    keys = jax.vmap(lambda key, event: key_for(jax.random.wrap_key_data(key), *event))(speaking.key, speaking.event)
    cache, hidden = _take_slots(slots, speaking.at, speaking.length)
    blank = jnp.zeros((places, count))
    said = Said(
        tokens=blank.astype(jnp.int32),
        logp=blank,
        top=jnp.zeros((places, count, top), jnp.int32),
        top_logp=jnp.zeros((places, count, top)),
        said=jnp.zeros((places,), jnp.int32),
        state=speaking.state,
        over=speaking.at >= len(slots.hidden),
    )

    def listen(carry):
        cache, hidden, said, last = carry
        n = (~said.over & (speaking.begun + said.said > 0)).astype(jnp.int32)
        return *decode.feed(config, prepared, cache, hidden, last[:, None], n, policy), said, last

    def step(carry):
        number, *carry = carry
        unread = ~carry[2].over & (speaking.begun + carry[2].said > 0)
        cache, hidden, said, last = jax.lax.cond(unread.any(), listen, lambda carry: carry, tuple(carry))
        index = speaking.begun + said.said
        mask = possible(pages, speaking.page, said.state, speaking.budget + (speaking.page == 0) - index)
        logp = distribution(decoder.logits(config, prepared, hidden), mask, sampling)
        uniform = jax.vmap(lambda key, i: jax.random.uniform(jax.random.fold_in(key, i)))(keys, index)
        token = sample(logp, uniform)
        state = pages.next[speaking.page, said.state, pages.token_class[speaking.page, token]]
        put = lambda into, new: jnp.where(jnp.expand_dims(said.over, range(1, new.ndim)), into[:, number], new)
        best, tokens = jax.lax.top_k(logp, top)
        after = Said(
            tokens=said.tokens.at[:, number].set(put(said.tokens, token)),
            logp=said.logp.at[:, number].set(put(said.logp, jnp.take_along_axis(logp, token[:, None], 1)[:, 0])),
            top=said.top.at[:, number].set(put(said.top, tokens)),
            top_logp=said.top_logp.at[:, number].set(put(said.top_logp, best)),
            said=said.said + ~said.over,
            state=jnp.where(said.over, said.state, state),
            over=said.over | pages.ended[speaking.page, state] | (index + 1 >= speaking.budget),
        )
        return number + 1, cache, hidden, after, jnp.where(said.over, last, token)

    going = lambda carry: (carry[0] < count) & ~carry[3].over.all()
    _, cache, hidden, said, _ = jax.lax.while_loop(going, step, (jnp.int32(0), cache, hidden, said, speaking.last))
    return _put(slots, speaking.at, cache, hidden), said
