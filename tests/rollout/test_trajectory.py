"""Gathering the trained tokens of rows, against plain loops."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.rollout.trajectory import Episodes, Rows, gather_sampled, per_token
from jaxmarl_llm.rollout.widths import bucket, narrow
from jaxmarl_llm.training.measured import speech

B, T, A, N, R, S, VOCABULARY, STATES = 4, 5, 3, 2, 6, 17, 40, 9


def make(seed: int) -> tuple[Rows, np.ndarray]:
    """Rows with random contents, and legal [B, T, A, N]; row 0 has nothing of its own."""
    draw = np.random.default_rng(seed)
    loss_mask = (draw.random((R, S)) < 0.4) & (np.arange(R) > 0)[:, None]
    rows = Rows(
        prompts=Prompts(jnp.zeros((R, 1), jnp.int32), jnp.ones(R, jnp.int32)),
        prompt=jnp.arange(R),
        tokens=jnp.asarray(draw.integers(0, VOCABULARY, (R, S)), jnp.int32),
        length=jnp.full(R, S),
        loss_mask=jnp.asarray(loss_mask),
        turn=jnp.asarray(np.sort(draw.integers(0, T, (R, S)), 1), jnp.int32),
        logp=jnp.asarray(np.where(loss_mask, -draw.random((R, S)), 0), jnp.float32),
        grammar_state=jnp.asarray(draw.integers(0, STATES, (R, S)), jnp.int16),
        tokens_left=jnp.asarray(draw.integers(1, 8, (R, S)), jnp.int16),
        episode=jnp.asarray(draw.integers(0, B, R), jnp.int32),
        seat=jnp.asarray(draw.integers(0, A, R), jnp.int32),
        policy=jnp.zeros(R, jnp.int32),
    )
    return rows, draw.random((B, T, A, N)) < 0.5


@pytest.mark.parametrize("components", [1, 2])
def test_total_reward_adds_the_components_up(components):
    """A single component is the total, bit for bit: a sum that starts at 0 would lose the sign of -0.0."""
    reward = np.random.default_rng(0).normal(size=(B, T, A, components)).astype(np.float32)
    reward[0, 0] = -0.0
    episodes = Episodes(jnp.asarray(reward), *[jnp.zeros(B)] * 10)
    expected = reward[..., 0] if components == 1 else reward[..., 0] + reward[..., 1]
    np.testing.assert_array_equal(episodes.total_reward, expected)
    np.testing.assert_array_equal(episodes.team_reward, expected[..., 0])
    assert components > 1 or np.asarray(episodes.total_reward).tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_sampled_tokens_in_order(seed):
    rows, legal = make(seed)
    most = int(rows.loss_mask.sum(1).max())
    sampled = jax.jit(gather_sampled, static_argnums=2)(rows, jnp.asarray(legal), most)
    assert sampled.at.shape == (R, most)
    for r in range(R):
        places = [s for s in range(S) if rows.loss_mask[r, s]]
        n = len(places)
        assert sampled.mask[r].tolist() == [True] * n + [False] * (most - n)
        assert sampled.at[r, :n].tolist() == places
        for m, s in enumerate(places):
            assert sampled.token[r, m] == rows.tokens[r, s] and sampled.behaviour_logp[r, m] == rows.logp[r, s]
            assert (
                sampled.grammar_state[r, m] == rows.grammar_state[r, s]
                and sampled.tokens_left[r, m] == rows.tokens_left[r, s]
            )
            assert sampled.turn[r, m] == rows.turn[r, s]
            expected = legal[rows.episode[r], rows.turn[r, s], rows.seat[r]]
            assert sampled.legal[r, m].tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_metrics_of_utterances_equal_a_loop(seed):
    rows, legal = make(seed)
    rows = rows.replace(tokens=rows.tokens // 30, tokens_left=rows.tokens_left % 3)  # few tokens, so that pairs return
    sampled = gather_sampled(rows, jnp.asarray(legal), S)
    of = jnp.arange(R) != 2
    lengths, full, pairs, again = [], 0, 0, 0
    for r in (r for r in range(R) if of[r]):
        for turn in range(T):
            at = [m for m in range(S) if sampled.mask[r, m] and sampled.turn[r, m] == turn]
            seen: set[tuple[int, int]] = set()
            for a, b in itertools.pairwise(at):
                pair = int(sampled.token[r, a]), int(sampled.token[r, b])
                pairs, again = pairs + 1, again + (pair in seen)
                seen.add(pair)
            if at:
                lengths.append(len(at))
                full += int(sampled.tokens_left[r, at[-1]] <= 1)
    found = jax.jit(partial(speech, end=None))(sampled, sampled.mask & of[:, None])
    assert again and full
    expected = {"length": (sum(lengths), len(lengths)), "full": (full, len(lengths)), "repeated": (again, pairs)}
    assert {name: (float(mean.sum), float(mean.count)) for name, mean in found.items()} == expected


def test_a_larger_maximum_of_tokens_changes_nothing():
    rows, legal = make(3)
    most = int(rows.loss_mask.sum(1).max())
    tight, loose = (gather_sampled(rows, jnp.asarray(legal), m) for m in (most, S))
    assert not loose.mask[:, most:].any()
    for a, b in zip(jax.tree.leaves(tight), jax.tree.leaves(loose), strict=True):
        np.testing.assert_array_equal(a, b[:, :most])


def test_values_of_turns_reach_their_tokens():
    rows, legal = make(4)
    sampled = gather_sampled(rows, jnp.asarray(legal), S)
    values = np.random.default_rng(0).normal(size=(B, T, A)).astype(np.float32)
    found = per_token(jnp.asarray(values), rows, sampled)
    for r in range(R):
        own = [values[rows.episode[r], rows.turn[r, s], rows.seat[r]] for s in range(S) if rows.loss_mask[r, s]]
        np.testing.assert_array_equal(found[r], np.array([*own, *[0] * (S - len(own))], np.float32))


def test_the_smallest_bucket_for_a_row_loses_no_token():
    rows, legal = make(4)
    length = jnp.array([0, 3, 6, 7, 12, 17], jnp.int32)  # of 17, in thirds: 6, 12, 17
    rows = rows.replace(length=length, loss_mask=rows.loss_mask & (jnp.arange(S)[None] < length[:, None]))
    rows = rows.replace(loss_mask=rows.loss_mask.at[1, :3].set(True))  # 3 of the 7 there is room for: the first third
    sampled = gather_sampled(rows, jnp.asarray(legal), 7)
    need = bucket(rows, sampled, 3)
    most = rows.loss_mask.sum(1)
    widths, rooms = [6, 12, 17], [3, 5, 7]
    assert need.tolist() == [
        next(i for i in range(3) if n <= widths[i] and m <= rooms[i])
        for n, m in zip(length.tolist(), most.tolist(), strict=True)
    ]
    assert set(need.tolist()) == {0, 1, 2}
    for i, (width, room) in enumerate(zip(widths, rooms, strict=True)):
        less, kept = narrow(rows, sampled, i, 3)
        assert less.tokens.shape == (R, width) and kept.token.shape == (R, room) and kept.legal.shape == (R, room, N)
        assert less.prompts is rows.prompts and kept.at.max() < width
        for r in np.flatnonzero(np.asarray(need) <= i):
            again = gather_sampled(less, jnp.asarray(legal), room)
            for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(kept), strict=True):
                where = np.asarray(kept.mask[r])
                np.testing.assert_array_equal(np.asarray(a)[r][where], np.asarray(b)[r][where])
            assert kept.mask[r].sum() == sampled.mask[r].sum()
