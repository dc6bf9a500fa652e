"""h of a batch, the temperature of a token, scores over the tokens of a group, weights and bounds, against loops.

The long case compiles the games of one update and their scores.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.exploration.token_entropy import HEAT, NO_BATCH, STUDY, arm_loss, by_tokens, heat, relative, spread
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import loading
from jaxmarl_llm.rl.losses import Batch, Scores
from jaxmarl_llm.rollout.policy import entropy_of
from jaxmarl_llm.training import begin, step
from jaxmarl_llm.training.setup import setup
from tests.support.families import random as numbers
from tests.support.recipe_plays import differences

RNG = np.random.default_rng(0)
PARTS = ("temperature", "scores", "weight", "bounds")


def test_h_is_1_at_the_largest_entropy_minus_1_at_the_least_and_positive_for_a_fifth():
    entropy, where = RNG.random((20, 7)).astype(np.float32), RNG.random((20, 7)) < 0.7
    h = np.asarray(jax.jit(lambda: relative(entropy, spread(entropy, where)))())
    log = np.log(entropy)
    inside = np.sort(log[where])
    pivot = inside[round(0.8 * (len(inside) - 1))]
    wanted = np.where(log > pivot, (log - pivot) / (inside[-1] - pivot), (log - pivot) / (pivot - inside[0]))
    np.testing.assert_allclose(h, np.clip(wanted, -1, 1), rtol=1e-4, atol=1e-5)
    assert h[where].max() == pytest.approx(1) and h[where].min() == pytest.approx(-1)
    assert (h[where] > 0).mean() == pytest.approx(0.2, abs=0.01)


def test_a_token_of_high_entropy_is_sampled_hotter_and_others_colder():
    logits = jnp.asarray(RNG.normal(size=(40, 6)) * np.geomspace(0.1, 9, 40)[:, None], jnp.float32)

    @jax.jit
    def run(weight, statistics):
        entropy = entropy_of(jax.nn.log_softmax(logits))
        statistics = jnp.where(jnp.isnan(statistics), spread(entropy, jnp.ones(40, bool)), statistics)
        return heat(logits, weight, statistics), relative(entropy, statistics)

    hot, h = run(HEAT, jnp.full(3, jnp.nan))
    np.testing.assert_allclose(logits / hot, np.repeat(1 + HEAT * np.asarray(h)[:, None], 6, 1), rtol=1e-5)
    assert h.max() == pytest.approx(1) and h.min() == pytest.approx(-1)
    np.testing.assert_array_equal(run(0.0, jnp.full(3, jnp.nan))[0], logits)
    np.testing.assert_allclose(run(HEAT, jnp.array(NO_BATCH))[0], logits, rtol=2e-6)


def test_scores_are_over_the_tokens_of_a_group_unless_one_is_5_or_more():
    width, groups = 16, 3
    length, group = RNG.integers(1, 5, 12), np.repeat(np.arange(groups), 4)
    reward = np.array([1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0], np.float32)
    length[8:] = 1, 16, 16, 16  # one right token of 49 has a score of 6.9
    where = np.arange(width)[None] < length[:, None]
    of_row = lambda x: jnp.broadcast_to(jnp.asarray(x)[:, None], where.shape)
    usual = np.where(where, RNG.normal(size=where.shape), 0).astype(np.float32)
    found = jax.jit(by_tokens, static_argnums=4)(of_row(reward), usual, jnp.asarray(where), of_row(group), groups)
    for g in range(groups):
        rows = np.flatnonzero(group == g)
        points = np.concatenate([[reward[r]] * length[r] for r in rows])
        for r in rows:
            score = (reward[r] - points.mean()) / points.std()
            wanted = score * where[r] if g < 2 else usual[r]
            np.testing.assert_allclose(found[r], wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.asarray(found)[:8].sum(), 0, atol=1e-3)


def test_weights_and_bounds_against_a_loop_also_as_released():
    """The release divides a negative h by a negative number: it has |h|, and no token is one of low entropy."""
    shape = (6, 8)
    draw = lambda: RNG.normal(size=shape).astype(np.float32)
    logp, old, advantage = draw() * 0.3 - 1, draw() * 0.3 - 1, draw()
    h, mask, zeros = RNG.uniform(-1, 1, shape).astype(np.float32), RNG.random(shape) < 0.8, jnp.zeros(shape)
    nothing = jnp.zeros(shape, jnp.int32)
    batch = Batch(
        token=nothing, turn=nothing, behaviour_logp=jnp.asarray(old), mask=jnp.asarray(mask), role=nothing,
        advantage=jnp.asarray(advantage), value_target=zeros, old_value=zeros, episode=nothing[:, 0],
        seat=nothing[:, 0], policy=nothing[:, 0],
    )  # fmt: skip
    scores = Scores(jnp.asarray(logp), zeros)

    @partial(jax.jit, static_argnums=0)
    def find(arm, h):
        return arm_loss(scores, batch.replace(extra={"h": h}), STUDY.arms[arm].all_hparams)[0].value

    for arm, weighs, bounds in (("dapo", 0, 0), ("weight", 1, 0), ("bounds", 0, 1), ("all", 1, 1), ("released", 1, 1)):
        total, k = 0.0, np.abs(h) if arm == "released" else h
        for at in zip(*np.nonzero(mask), strict=True):
            ratio, a = np.exp(logp[at] - old[at]), advantage[at]
            low = 0.2 * (1 - k[at]) if bounds and k[at] < 0 else 0.2
            high = 0.28 * (1 + k[at]) if bounds and k[at] > 0 else 0.28
            neutral = 1 - low / 2 < ratio < 1 + high / 2
            if weighs and neutral != (k[at] > 0):
                a *= 1 + k[at]
            surrogate = min(ratio * a, np.clip(ratio, 1 - low, 1 + high) * a)
            total -= max(surrogate, 10 * a) if a < 0 else surrogate
        np.testing.assert_allclose(find(arm, jnp.asarray(k)), total / mask.sum(), rtol=1e-4)


def test_the_release_is_hapo_without_its_temperature_and_without_signs():
    options = {name: arm.all_choices for name, arm in STUDY.arms.items()}
    plain = dict.fromkeys(PARTS, "plain")
    for name, arm in STUDY.arms.items():
        assert differences(STUDY.arms["dapo"], arm) <= {"selection"}
        assert {part for part in PARTS if options[name][part] != "plain"} == (
            {"all": {*PARTS}, "released": {*PARTS[1:]}}.get(name, {name} & {*PARTS})
        )
        assert (options[name]["sign"] == "lost") == (name == "released")
        assert (options[name]["tokens"] == "high") == (name == "high")
    assert {part: options["dapo"][part] for part in PARTS} == plain


@pytest.mark.long
def test_the_first_ratio_is_1_with_the_temperature_and_is_not_if_scores_lack_it(monkeypatch):
    arm = dataclasses.replace(STUDY.arms["temperature"], groups=4, group_size=8, warm_start=())
    parts, key = setup(arm, "tiny", sharding.mesh(), loading.load), jax.random.key(0)
    like = jax.eval_shape(partial(begin.init_run, parts), key)
    weights = jax.tree.map(lambda x: 2 * x, numbers(like.learners.weights, 0))  # far from uniform
    monkeypatch.setattr(step, "on_policy_step", lambda parts, *rest: parts)

    @jax.jit
    def ratios(statistics):
        run = like.replace(learners=like.learners.replace(weights=weights), state=statistics)
        heated = arm.step(parts, run, arm.traced_hparams, key, 0)
        trajectory = step.play(heated, weights, key)
        shared, lacking = (step.make_experience(x, run, trajectory, key) for x in (heated, parts))
        ((name, sampled),) = shared.sampled.items()
        logp, cold = shared.score(name).logp, lacking.score(name)
        ratio = lambda logp: jnp.where(sampled.mask, jnp.exp(logp - sampled.behaviour_logp), 1)
        return ratio(logp), ratio(cold.logp), relative(cold.entropy, statistics), sampled.mask

    shared, lacking, h, mask = (np.asarray(x) for x in ratios(jnp.array([-1.0, 2.0, 1.0])))
    np.testing.assert_allclose(shared, 1, atol=2e-5)
    assert np.abs(lacking - 1).max() > 5e-3 and (h[mask] > 0).any() and (h[mask] < 0).any()
