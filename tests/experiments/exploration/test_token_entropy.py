"""Entropy about its median, the temperature of a token, and scores over the tokens of a group, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.token_entropy import (
    HEAT,
    PARTS,
    STUDY,
    arm_loss,
    by_tokens,
    heat,
    relative,
    spread,
)
from jaxmarl_llm.rl.losses import Batch, Scores
from jaxmarl_llm.rollout.policy import entropy_of
from tests.support.recipe_plays import differences

RNG = np.random.default_rng(0)


def test_h_is_1_at_the_largest_entropy_minus_1_at_the_least_and_0_at_the_median():
    entropy, where = RNG.random((5, 7)).astype(np.float32), RNG.random((5, 7)) < 0.7
    h = np.asarray(jax.jit(lambda: relative(entropy, **spread(entropy, where)))())
    log, inside = np.log(entropy), np.log(entropy[where])
    beyond = log - np.median(inside)
    wanted = np.where(
        beyond > 0, beyond / (inside.max() - np.median(inside)), beyond / (np.median(inside) - inside.min())
    )
    np.testing.assert_allclose(h, np.clip(wanted, -1, 1), rtol=1e-4, atol=1e-5)
    assert h[where].max() == pytest.approx(1) and h[where].min() == pytest.approx(-1)


def test_a_token_of_high_entropy_is_sampled_hotter_and_weight_0_changes_no_bit():
    logits = jnp.asarray(RNG.normal(size=(40, 6)) * np.geomspace(0.1, 9, 40)[:, None], jnp.float32)

    @jax.jit
    def run(weight):
        entropy = entropy_of(jax.nn.log_softmax(logits))
        statistics = spread(entropy, jnp.ones(40, bool))
        return heat(logits, weight, statistics), relative(entropy, **statistics)

    hot, h = run(HEAT)
    np.testing.assert_allclose(logits / hot, np.repeat(1 + HEAT * np.asarray(h)[:, None], 6, 1), rtol=1e-5)
    assert h.max() == pytest.approx(1) and h.min() == pytest.approx(-1)
    np.testing.assert_array_equal(run(0.0)[0], logits)


def test_the_mean_and_the_deviation_of_a_group_are_over_its_tokens():
    rows, width, groups = 12, 5, 3
    length, reward = RNG.integers(1, width + 1, rows), RNG.integers(0, 2, rows).astype(np.float32)
    where, group = np.arange(width)[None] < length[:, None], np.repeat(np.arange(groups), 4)
    found = jax.jit(by_tokens, static_argnums=3)(reward, jnp.asarray(where), jnp.asarray(group), groups)
    for g in range(groups):
        points = np.concatenate([[reward[r]] * length[r] for r in np.flatnonzero(group == g)])
        for r in np.flatnonzero(group == g):
            wanted = (reward[r] - points.mean()) / (points.std() + 1e-6)
            np.testing.assert_allclose(np.asarray(found)[r, where[r]], wanted, rtol=1e-4, atol=1e-4)
    assert (np.asarray(found)[~where] == 0).all()


def test_weights_and_bounds_of_hapo_against_a_loop():
    shape = (6, 8)
    logp = RNG.normal(size=shape).astype(np.float32) * 0.3 - 1
    old = RNG.normal(size=shape).astype(np.float32) * 0.3 - 1
    advantage, h = RNG.normal(size=shape).astype(np.float32), RNG.uniform(-1, 1, shape).astype(np.float32)
    zeros, mask = jnp.zeros(shape), RNG.random(shape) < 0.8
    nothing = jnp.zeros(shape, jnp.int32)
    batch = Batch(
        token=nothing, turn=nothing, behaviour_logp=jnp.asarray(old), mask=jnp.asarray(mask), role=nothing,
        advantage=jnp.asarray(advantage), value_target=zeros, old_value=zeros, episode=nothing[:, 0],
        seat=nothing[:, 0], policy=nothing[:, 0], extra={"h": jnp.asarray(h)},
    )  # fmt: skip
    find = lambda arm: jax.jit(
        lambda: arm_loss(Scores(jnp.asarray(logp), zeros), batch, STUDY.arms[arm].all_hparams)
    )()[0]
    for arm, weighs, bounds in (("dapo", 0, 0), ("weight", 1, 0), ("bounds", 0, 1), ("all", 1, 1)):
        total = 0.0
        for at in zip(*np.nonzero(mask), strict=True):
            ratio, a = np.exp(logp[at] - old[at]), advantage[at]
            outside = ratio < 0.9 or ratio > 1.14
            if weighs and outside == (h[at] > 0):
                a *= 1 + h[at]
            low = 0.2 * (1 - h[at]) if bounds and h[at] < 0 else 0.2
            high = 0.28 * (1 + h[at]) if bounds and h[at] > 0 else 0.28
            surrogate = min(ratio * a, np.clip(ratio, 1 - low, 1 + high) * a)
            total -= max(surrogate, 10 * a) if a < 0 else surrogate
        np.testing.assert_allclose(find(arm).value, total / mask.sum(), rtol=1e-4)


def test_the_release_is_hapo_without_its_temperature():
    base = STUDY.arms["dapo"]
    for name, arm in STUDY.arms.items():
        assert differences(base, arm) <= {"selection"}, name
    assert STUDY.arms["released"].selection == PARTS
    assert STUDY.arms["all"].selection == {**PARTS, "temperature": "entropy"}
