"""Pairs of samples with one joint ratio: against a loop over pairs, and as half of RLOO."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import mean_per_row

P, G, M = 5, 4, 6


def arrays(seed: int, group: int = G):
    generator = np.random.default_rng(seed)
    old = -generator.random((P, group, M)) * 3
    logp = old + generator.normal(0, 0.15, old.shape)
    where = np.arange(M)[None, None] < generator.integers(1, M + 1, (P, group, 1))
    reward = generator.integers(0, 3, (P, group)).astype(np.float32)
    return (*(jnp.asarray(x, jnp.float32) for x in (logp, old, reward)), jnp.asarray(where))


def value(logp, old, reward, where, **options):
    return losses.pairwise_clip(logp, old, reward, where, **options)[0].value


@pytest.mark.parametrize("seed", range(3))
def test_pairs_by_a_loop(seed: int):
    logp, old, reward, where = arrays(seed)
    where = where.at[0, 1].set(False)  # a row without tokens is in no pair
    lost, clipped = [], []
    for p in range(P):
        for i in range(G):
            for j in range(i + 1, G):
                if not (where[p, i].any() and where[p, j].any()):
                    continue
                better, worse = (i, j) if reward[p, i] >= reward[p, j] else (j, i)
                d = float(reward[p, better] - reward[p, worse]) / 2
                rows = [float(((logp - old)[p, k] * where[p, k]).sum()) for k in (better, worse)]
                ratio = np.exp(rows[0]) / np.exp(rows[1])
                lost.append(-d * (ratio if ratio < 1.3 else 1.3))
                clipped.append(d > 0 and ratio > 1.3)
    jitted = jax.jit(partial(losses.pairwise_clip, clip_low=0.2, clip_high=0.3))
    loss, metrics = jitted(logp, jnp.where(where, old, jnp.nan), reward, where)
    np.testing.assert_allclose(loss.value, np.mean(lost), rtol=1e-4)
    np.testing.assert_allclose(metrics["clipped"].value, np.mean(clipped))
    assert 0 < np.mean(clipped) < 1


@pytest.mark.parametrize("group", [2, G])
def test_on_policy_the_gradient_is_rloo_and_half_its_sum_for_two_samples(group: int):
    logp, _, reward, where = arrays(4, group)
    found = jax.jit(jax.grad(value))(logp, logp, reward, where)
    rows = reward.reshape(-1, 1, 1), jnp.ones((P * group, 1, 1), bool), jnp.repeat(jnp.arange(P), group), P
    rloo = np.asarray(advantages.rloo(*rows)).reshape(P, group, 1)
    np.testing.assert_allclose(found, -np.where(where, rloo, 0) / (P * group), atol=1e-6)  # the mean over rows
    if group == 2:
        np.testing.assert_allclose(P * found, -np.where(where, rloo / 2, 0), atol=1e-6)  # a pair's sum


def test_a_prompts_own_constant_changes_nothing_while_clipped():
    logp, old, reward, where = arrays(5)
    shift = jnp.arange(P, dtype=jnp.float32)[:, None] * 8
    for of in (value, jax.grad(value)):
        np.testing.assert_allclose(of(logp, old, reward + shift, where), of(logp, old, reward, where), atol=1e-6)


def test_clipped_apart_two_samples_are_ppo_with_the_ratio_of_the_row_and_half_of_rloo():
    logp, old, reward, where = arrays(6, 2)
    flat = lambda x: x.reshape(P * 2, M)
    advantage = jnp.stack([reward[:, 0] - reward[:, 1], reward[:, 1] - reward[:, 0]], 1)
    spread = flat(jnp.broadcast_to(advantage[..., None], where.shape))
    apart, _ = losses.ppo_clip(
        flat(logp), flat(old), spread / 2, flat(where),
        level=partial(losses.sequence_ratio, product=True), aggregate=mean_per_row,
    )  # fmt: skip
    expected = 0.0
    for p in range(P):
        for i in range(2):
            ratio = float(np.exp(((logp - old)[p, i] * where[p, i]).sum()))
            a = float(advantage[p, i]) / 2
            expected -= min(ratio * a, float(np.clip(ratio, 0.8, 1.2)) * a)
    np.testing.assert_allclose(apart.value, expected / (2 * P), rtol=1e-4)


def test_other_shapes_are_refused():
    logp, old, reward, where = arrays(7)
    with pytest.raises(ValueError, match=r"groups are \[P,G,M\]"):
        losses.pairwise_clip(logp[:, 0], old[:, 0], reward, where[:, 0])
