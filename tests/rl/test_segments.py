"""GAE of segments and turns, against loops over lists of segments, and where it is plain GAE."""

from functools import partial
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import returns, segments

B, T, A = 6, 8, 2
GAMMA, LAM, SEGMENT_LAM = 0.9, 0.7, 0.6
hae = partial(segments.gae_hierarchical, gamma=GAMMA, lam=LAM, segment_lam=SEGMENT_LAM)


def batch(seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    where = rng.random((B, T, A)) < 0.7
    where[0, :, 0] = False
    arrays = {"reward": np.where(where, normal(B, T, A), 0)}
    arrays |= {name: normal(B, T, A) for name in ("turn_value", "segment_value", "switch_value")}
    return {**arrays, "begins": rng.random((B, T, A)) < 0.4, "where": where}, normal(B, A)


def by_hand(r, u, v, w, begins, times, last, acts):
    """Lists of one seat's turns that count -> advantages of turn, segment (None elsewhere) and switch."""
    n = len(r)
    starts = [i for i in range(n) if i == 0 or begins[i]]
    passed = [1 if acts else later - now for now, later in pairwise(times)] + [1]
    d = [GAMMA**p for p in passed]
    value_after = lambda end: v[end] if end < n else last
    turn, segment, switch = [0.0] * n, [None] * n, [0.0] * n
    later = 0.0
    for k in reversed(range(len(starts))):
        low, high = starts[k], starts[k + 1] if k + 1 < len(starts) else n

        def gain(i, high=high):
            return sum(np.prod(d[i:j]) * r[j] for j in range(i, high)) + np.prod(d[i:high]) * value_after(high)

        delta = [r[i] + d[i] * (u[i + 1] if i + 1 < high else value_after(high)) - u[i] for i in range(low, high)]
        for i in range(low, high):
            turn[i] = sum(np.prod([d[m] * LAM for m in range(i, j)]) * delta[j - low] for j in range(i, high))
            switch[i] = gain(i) - w[i]
        later = gain(low) - v[low] + np.prod(d[low:high]) * SEGMENT_LAM * later
        segment[low] = later
    return turn, segment, switch


@pytest.mark.parametrize(("discount", "cut"), [("steps", False), ("acts", True)])
def test_against_loops(discount, cut):
    arrays, last = batch()
    found = hae(**arrays, discount=discount, last=jnp.asarray(last) if cut else None)
    assert not any(np.asarray(x)[~arrays["where"]].any() for targets in found for x in targets)
    for b in range(B):
        for a in range(A):
            at = np.flatnonzero(arrays["where"][b, :, a])
            lists = [arrays[name][b, at, a].tolist() for name in list(arrays)[:5]]
            want = by_hand(*lists, at.tolist(), last[b, a] if cut else 0.0, discount == "acts")
            for targets, wanted, name in zip(found, want, list(arrays)[1:4], strict=True):
                there = np.array([x is not None for x in wanted], bool)
                wanted = np.array([x or 0.0 for x in wanted])
                np.testing.assert_allclose(targets.advantage[b, at, a], wanted, atol=1e-5)
                value = wanted + arrays[name][b, at, a]
                np.testing.assert_allclose(np.asarray(targets.value_target)[b, at, a][there], value[there], atol=1e-5)


def test_one_turn_makes_hierarchical_turn_and_episode_credit_equal():
    arrays, _ = batch(1)
    value = arrays["turn_value"][:, :1]
    one = {name: x[:, :1] for name, x in arrays.items()} | {"where": np.ones((B, 1, A), bool)}
    one |= dict.fromkeys(("turn_value", "segment_value", "switch_value"), value)
    flat = returns.gae(one["reward"], value, one["where"], gamma=GAMMA, lam=LAM)
    episode = returns.episode_return(one["reward"]) - value
    for targets in hae(**one):
        np.testing.assert_allclose(targets.advantage, flat.advantage, atol=1e-6)
        np.testing.assert_allclose(targets.advantage, episode, atol=1e-6)
        np.testing.assert_allclose(targets.value_target, flat.value_target, atol=1e-6)


def test_one_segment_is_plain_gae_of_turns_and_segments_of_one_turn_are_plain_gae_of_segments():
    arrays, _ = batch(2)
    where, reward = arrays["where"], arrays["reward"]
    never = hae(**arrays | {"begins": np.zeros_like(where)})
    flat = returns.gae(reward, arrays["turn_value"], where, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(never.turn.advantage, flat.advantage, atol=1e-5)
    whole = returns.gae(reward, arrays["switch_value"], where, gamma=GAMMA, lam=1.0)
    np.testing.assert_allclose(never.switch.advantage, whole.advantage, atol=1e-5)
    always = hae(**arrays | {"begins": where})
    flat = returns.gae(reward, arrays["segment_value"], where, gamma=GAMMA, lam=SEGMENT_LAM)
    np.testing.assert_allclose(always.segment.advantage, flat.advantage, atol=1e-5)
    one_step = returns.gae(reward, arrays["segment_value"], where, gamma=GAMMA, lam=0.0).value_target
    np.testing.assert_allclose(always.turn.value_target, one_step, atol=1e-5)
