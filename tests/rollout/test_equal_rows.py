"""Equal rows of a group against a search row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout.equal_rows import first_equal_row, keep_distinct
from jaxmarl_llm.rollout.trajectory import Rows, SampledTokens

PROMPTS, MEMBERS, WIDTH, SAMPLED = 5, 6, 4, 2
ROWS = PROMPTS * MEMBERS


def rows_of(seed: int, tokens: int = 2) -> tuple[Rows, SampledTokens]:
    """Random rows of few different tokens, so that many are equal; what a mask hides is random as well."""
    generator = np.random.default_rng(seed)
    whole = lambda most, *shape: jnp.asarray(generator.integers(0, most, (ROWS, *shape)), jnp.int32)
    nothing = jnp.zeros((ROWS, WIDTH))
    rows = Rows(
        Prompts(jnp.zeros((PROMPTS, 3), jnp.int32), jnp.full(PROMPTS, 3)),
        jnp.arange(ROWS) // MEMBERS,
        whole(tokens, WIDTH).at[:, 1:].set(0),
        jnp.full(ROWS, WIDTH),
        nothing > 0,
        nothing,
        nothing,
        nothing,
        nothing,
        jnp.arange(ROWS),
        whole(2),
        (jnp.arange(ROWS) == 3).astype(jnp.int32),
    )
    mask = jnp.ones((ROWS, SAMPLED), bool).at[:, 1].set(whole(2) > 0)
    hidden = lambda most: whole(most, SAMPLED) * ~mask
    legal = jnp.ones((ROWS, SAMPLED, 3), bool).at[:, 0, 2].set(whole(2) > 0)
    return rows, SampledTokens(
        hidden(4), mask, hidden(4), whole(3, SAMPLED), jnp.zeros(mask.shape), hidden(4), hidden(4), legal
    )


def read(rows: Rows, sampled: SampledTokens, row: int) -> tuple:
    """All that a policy's scores of a row depend on."""
    seen = np.asarray(sampled.mask[row])
    fields = (sampled.at, sampled.token, sampled.grammar_state, sampled.tokens_left, sampled.legal)
    return (
        rows.prompt[row].item(),
        rows.policy[row].item(),
        rows.tokens[row].tobytes(),
        seen.tobytes(),
        *(np.asarray(field[row])[seen].tobytes() for field in fields),
    )


def test_the_first_equal_row_of_a_group_is_found():
    rows, sampled = rows_of(0)
    found, kinds = np.asarray(first_equal_row(rows, sampled)), [read(rows, sampled, row) for row in range(ROWS)]
    for row in range(ROWS):
        group = row // MEMBERS * MEMBERS
        assert found[row // MEMBERS, row - group] == kinds[group : group + MEMBERS].index(kinds[row])
    assert 1 < len(set(kinds)) < ROWS


@pytest.mark.parametrize("more", [0, 1, 100])
def test_kept_rows_stand_for_all_that_equal_them(more):
    """Also where a prompt has fewer rows than may be kept."""
    rows, sampled = rows_of(1, tokens=1)
    different = max(len({read(rows, sampled, row) for row in range(g, g + MEMBERS)}) for g in range(0, ROWS, MEMBERS))
    assert different + 1 < MEMBERS
    kept, kept_sampled, same = jax.jit(keep_distinct, static_argnums=2)(rows, sampled, different + more)
    assert len(kept.tokens) == PROMPTS * min(different + more, MEMBERS) and len(kept.prompts.tokens) == PROMPTS
    for row in range(ROWS):
        assert read(kept, kept_sampled, int(same[row])) == read(rows, sampled, row)


def test_of_more_distinct_rows_the_first_are_kept():
    rows, sampled = rows_of(2, tokens=50)
    kept, _, same = keep_distinct(rows, sampled, 2)
    np.testing.assert_array_equal(kept.episode.reshape(PROMPTS, 2)[:, 0], np.arange(0, ROWS, MEMBERS))
    assert len(kept.tokens) == 2 * PROMPTS and int(same.max()) < 2 * PROMPTS
