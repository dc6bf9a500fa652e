"""The arrays of slots: grammars as pages, and the tokens that a page allows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rollout.policy import allowed
from jaxmarl_llm.serving import slots
from jaxmarl_llm.text.grammar import lift
from tests.support.policies import BYTES, END, GRAMMARS
from tests.support.serving import config_of, tokenizer_of


def test_a_page_allows_what_the_grammar_allows():
    tables = [lift((grammar,), BYTES, END) for grammar in GRAMMARS]
    pages = slots.pages_of(tables)
    assert pages.next.shape[0] == 4 and not pages.next.shape[1] & (pages.next.shape[1] - 1)
    possible = jax.jit(slots.possible)
    for number, table in enumerate(tables):
        live = np.flatnonzero((table.distance < 9).any(1) & ~table.ended)
        state, left = (x.ravel() for x in np.meshgrid(live, np.arange(1, 9)))
        legal = np.ones((len(state), table.distance.shape[1]), bool)
        expected = allowed(table, jnp.asarray(state), jnp.asarray(legal), jnp.asarray(left))
        mask = possible(pages, jnp.full(len(state), number), jnp.asarray(state), jnp.asarray(left))
        np.testing.assert_array_equal(mask, expected)
        assert 0 < expected.sum() < expected.size


@pytest.mark.parametrize("capacity", [8, 64])
def test_slots_get_wider_and_keep_what_they_read(capacity):
    empty = slots.empty(config_of(tokenizer_of("toy")), 2, 16)
    filled = jax.tree.map(lambda x: x + 1, empty)
    wide = slots.widen(filled, capacity)
    assert wide.capacity == max(capacity, 16)
    for before, after in zip(filled.keys, wide.keys, strict=True):
        np.testing.assert_array_equal(after[..., :16], before)
        assert not np.asarray(after[..., 16:]).any()
    for before, after in zip(filled.values, wide.values, strict=True):
        np.testing.assert_array_equal(after[..., :16, :], before)


def test_a_slot_is_copied_whole_and_alone():
    empty = slots.empty(config_of(tokenizer_of("toy")), 3, 16)
    marked = jax.tree.map(lambda x: x + jnp.arange(3.0).reshape(3, *[1] * (x.ndim - 1)), empty)
    copied = slots.copy(jax.tree.map(jnp.copy, marked), np.int32(2), np.int32(0))
    for before, after in zip(jax.tree.leaves(marked), jax.tree.leaves(copied), strict=True):
        np.testing.assert_array_equal(after, before[np.array([2, 1, 2])])
