"""Divergence, entropy, pairs, imitation and values: each loss by its own identities."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import mean_per_row
from tests.support.loss_cases import (
    RUNNING,
    M,
    R,
    T,
    arrays,
    finite_differences,
    pairs,
    total,
)

# Divergence


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "exact"])
def test_gradients_of_the_kl_losses_over_all_tokens_of_a_small_vocabulary(
    kind: Literal["k1", "k2", "k3", "exact"],
):
    """The expectation is taken exactly: token n occurs with its probability, which is held constant as a sample is."""
    generator = np.random.default_rng(11)
    logits, reference = jnp.asarray(generator.normal(size=5)), jax.nn.log_softmax(generator.normal(size=5))

    def kl(a, b):
        return (jnp.exp(a) * (a - b)).sum()

    def as_loss(logits):
        logp = jax.nn.log_softmax(logits)
        if kind == "exact":
            return losses.kl_exact(logp, reference, jnp.array(True))[0].sum
        each = jnp.stack(
            [losses.kl_penalty(logp[n], reference[n], jnp.array(True), kind=kind)[0].sum for n in range(5)]
        )
        return (jax.lax.stop_gradient(jnp.exp(logp)) * each).sum()

    right = jax.grad(lambda x: kl(jax.nn.log_softmax(x), reference))(logits)
    target = {
        "k1": jnp.zeros(5),
        "k2": right,
        "k3": jax.grad(lambda x: kl(reference, jax.nn.log_softmax(x)))(logits),
        "exact": right,
    }
    gradient = jax.jit(jax.grad(as_loss))(logits)
    np.testing.assert_allclose(gradient, target[kind], atol=1e-6)
    if kind in ("k1", "k3"):
        assert np.abs(gradient - right).max() > 0.05
    if kind != "k2":  # as an estimate k2 is biased
        np.testing.assert_allclose(as_loss(logits), kl(jax.nn.log_softmax(logits), reference), rtol=1e-5)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_weighted_by_the_ratio_to_the_sampler_an_estimate_is_unbiased_off_policy_and_has_the_gradient_of_the_divergence(
    kind: Literal["k1", "k3"],
):
    """The expectation is over the sampler's tokens, exactly, on policy and off policy."""
    generator = np.random.default_rng(12)
    logits, reference = jnp.asarray(generator.normal(size=5)), jax.nn.log_softmax(generator.normal(size=5))
    kl = lambda x: (jnp.exp(jax.nn.log_softmax(x)) * (jax.nn.log_softmax(x) - reference)).sum()
    right = jax.jit(jax.value_and_grad(kl))(logits)

    def as_loss(logits, sampler):
        logp, one = jax.nn.log_softmax(logits), jnp.array(True)
        each = [losses.kl_penalty(logp[n], reference[n], one, kind=kind, behaviour_logp=sampler[n]) for n in range(5)]
        return (jnp.exp(sampler) * jnp.stack([loss.sum for loss, _ in each])).sum()

    found = jax.jit(jax.value_and_grad(as_loss))
    for sampler in (jax.nn.log_softmax(logits), jax.nn.log_softmax(generator.normal(size=5))):
        value, gradient = found(logits, sampler)
        np.testing.assert_allclose(value, right[0], rtol=1e-5)
        np.testing.assert_allclose(gradient, right[1], atol=1e-6)


def test_an_unknown_kl_estimate_is_refused():
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        losses.kl_penalty(jnp.zeros(1), jnp.zeros(1), jnp.ones(1, bool), kind="k4")  # type: ignore[arg-type]


@pytest.mark.parametrize("never", [-1e30, -np.inf])
def test_the_exact_kl_equals_a_loop_and_ignores_what_is_never_said(never: float):
    g, generator = arrays(13), np.random.default_rng(13)
    logits, reference = generator.normal(size=(2, R, M, 6))
    said = generator.random((R, M, 6)) < 0.6
    said[..., 0] = True
    logits, reference = (np.where(said, x, never) for x in (logits, reference))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (logits, reference))
    expected = [
        sum(p[i][v] * np.log(p[i][v] / q[i][v]) for v in range(6) if said[i][v])
        for i in zip(*np.nonzero(g.where), strict=True)
    ]

    def loss(logp, reference=reference):
        return total(losses.kl_exact(logp, jax.nn.log_softmax(jnp.asarray(reference, jnp.float32)), g.where))

    logp = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32))
    both = jax.jit(jax.value_and_grad(loss))
    value, gradient = both(logp, jnp.asarray(reference))
    np.testing.assert_allclose(value, np.mean(expected), rtol=1e-4)
    np.testing.assert_allclose(loss(logp), value, rtol=1e-6)  # without jit
    with np.errstate(all="ignore"):
        slope = np.where(said & g.where[..., None], p * (np.log(p) - np.log(q) + 1), 0) / len(expected)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)
    spoilt = jnp.where(g.where[..., None], logp, jnp.nan), jnp.where(g.where[..., None], reference, jnp.nan)
    for clean, dirty in zip((value, gradient), both(*spoilt), strict=True):
        np.testing.assert_array_equal(clean, dirty)


def test_the_exact_kl_adds_up_over_rows_and_wants_a_vocabulary():
    g = arrays(14)
    logp, reference = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(14).normal(size=(2, R, M, 4))))
    parts = [losses.kl_exact(logp[rows], reference[rows], g.where[rows])[0] for rows in (slice(0, 3), slice(3, R))]
    np.testing.assert_allclose((parts[0] + parts[1]).value, total(losses.kl_exact(logp, reference, g.where)), rtol=1e-5)
    each = (jnp.exp(logp) * (logp - reference)).sum(-1)
    by_row = losses.kl_exact(logp, reference, g.where, aggregate=mean_per_row)
    np.testing.assert_allclose(total(by_row), mean_per_row(each, g.where).value, rtol=1e-5)
    assert not jax.grad(lambda x: total(losses.kl_exact(logp, x, g.where)))(reference).any()
    with pytest.raises(ValueError, match="vocabulary"):
        losses.kl_exact(logp, reference[:, :1], g.where)


# Entropy corridor


def test_the_corridor_pulls_back_from_both_sides_where_epos_released_penalty_has_no_gradient():
    """Their term is where(inside, 0, constant) of the entropies: read in their code, written anew here."""
    turn, where = jnp.array([[0, 0, 1, 1, 2, 2, 3]]), jnp.ones((1, 7), bool)
    entropy = jnp.array([[0.2, 0.4, 1.2, 1.6, 0.9, 1.1, 9.0]])  # below, above and within; of turn 3 nothing is known
    running = jnp.array([1.0, 1, 1, 0])

    def ours(entropy):
        return losses.entropy_corridor(entropy, where, turn, running, low=0.8, high=1.2)[0].value

    def theirs(entropy):
        history = running[turn]
        inside = (entropy > 0.8 * history) & (entropy < 1.2 * history)
        return jnp.where(inside, 0, 0.1).mean()

    np.testing.assert_allclose(ours(entropy), (2 * 0.5 + 2 * 0.2) / 7, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(ours))(entropy), np.array([[-1, -1, 1, 1, 0, 0, 0]]) / 7, rtol=1e-5)
    assert theirs(entropy) > 0 and not jax.jit(jax.grad(theirs))(entropy).any()


def test_the_running_entropy_equals_a_loop():
    g = arrays(15)
    spoilt = jnp.where(g.where, g.entropy, jnp.nan)
    expected = np.asarray(RUNNING).copy()
    for t in range(T):
        said = np.asarray(g.entropy)[np.asarray(g.where & (g.turn == t))]
        if len(said):
            expected[t] = 0.9 * expected[t] + 0.1 * said.mean() if expected[t] else said.mean()
    for update in (losses.running_entropy, jax.jit(losses.running_entropy)):
        np.testing.assert_allclose(update(RUNNING, spoilt, g.where, g.turn), expected, rtol=1e-5)
    assert not jax.grad(lambda x: losses.running_entropy(RUNNING, x, g.where, g.turn).sum())(g.entropy).any()


def test_dpo_equals_a_loop_over_pairs_with_or_without_jit_and_parts_add_up():
    logp, reference, where = (np.asarray(x) for x in pairs(16))
    margins = [
        0.5 * ((logp - reference)[p, 0][where[p, 0]].sum() - (logp - reference)[p, 1][where[p, 1]].sum())
        for p in (0, 1, 3)
    ]
    spoilt = jnp.where(where, logp, jnp.nan), jnp.where(where, reference, jnp.inf), jnp.asarray(where)
    for dpo in (losses.dpo, jax.jit(losses.dpo)):
        loss, metrics = dpo(*spoilt, beta=0.5)
        np.testing.assert_allclose(loss.value, np.mean([np.log1p(np.exp(-m)) for m in margins]), rtol=1e-5)
        np.testing.assert_allclose(metrics["margin"].value, np.mean(margins), rtol=1e-5)
        np.testing.assert_allclose(metrics["accuracy"].value, np.mean([m > 0 for m in margins]), rtol=1e-5)
    parts = [losses.dpo(*(x[p] for x in spoilt), beta=0.5)[0] for p in (slice(0, 3), slice(3, 4))]
    np.testing.assert_allclose((parts[0] + parts[1]).value, loss.value, rtol=1e-6)


def test_the_divergence_from_the_standard_normal_equals_its_integral():
    mean, deviation = np.array([0.0, -1.0, 0.5]), np.array([1.0, 0.5, 2.0])
    x = np.linspace(-20, 20, 200_001)
    wanted = 0.0
    for m, s in zip(mean, deviation, strict=True):
        log_q = -((x - m) ** 2) / (2 * s**2) - np.log(s)
        q = np.exp(log_q) / np.sqrt(2 * np.pi)
        wanted += np.sum(q * (log_q + x**2 / 2)) * (x[1] - x[0])
    found = losses.kl_standard_normal(jnp.asarray(mean, jnp.float32), jnp.asarray(2 * np.log(deviation), jnp.float32))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_pairwise_loss_equals_a_loop_over_valid_pairs_and_ignores_a_common_shift():
    rng = np.random.default_rng(3)
    better, worse, where = rng.normal(size=(2, 4)), rng.normal(size=(2, 4)), rng.random((2, 4)) < 0.6
    margins = [b - w for b, w, valid in zip(better.ravel(), worse.ravel(), where.ravel(), strict=True) if valid]
    spoilt = [jnp.asarray(np.where(where, x, np.nan), jnp.float32) for x in (better, worse)]
    loss, metrics = losses.pairwise_logistic(*spoilt, jnp.asarray(where))
    np.testing.assert_allclose(loss.value, -np.mean([np.log(1 / (1 + np.exp(-m))) for m in margins]), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"].value, np.mean([m > 0 for m in margins]), rtol=1e-6)
    np.testing.assert_allclose(metrics["margin"].value, np.mean(margins), rtol=1e-5)
    shifted, _ = losses.pairwise_logistic(spoilt[0] + 3, spoilt[1] + 3, jnp.asarray(where))
    np.testing.assert_allclose(shifted.value, loss.value, rtol=1e-5)
    gradient = jax.grad(lambda x: losses.pairwise_logistic(x, spoilt[1], jnp.asarray(where))[0].value)(spoilt[0])
    assert np.isfinite(gradient).all() and not gradient[~where].any()
    empty = losses.pairwise_logistic(*spoilt, jnp.zeros((2, 4), bool))[0]
    assert empty.value == 0 and empty.count == 0


def test_the_gradient_of_dpo_equals_finite_differences():
    with jax.enable_x64(True):
        logp, reference, where = pairs(17, np.float64)
        loss = lambda x: total(losses.dpo(x, reference, where))
        gradient = jax.jit(jax.grad(loss))(jnp.where(where, logp, jnp.nan))
        np.testing.assert_allclose(gradient, finite_differences(loss, logp), atol=1e-8)
        assert not jax.grad(lambda x: total(losses.dpo(logp, x, where)))(reference).any()


def test_dpo_wants_pairs():
    with pytest.raises(ValueError, match="chosen"):
        losses.dpo(*(jnp.ones((4, 3)) for _ in range(2)), jnp.ones((4, 3), bool))


def test_normalised_reward_weights_ignore_what_is_added_to_all_rewards():
    g = arrays(18)
    weighted = lambda shift, **k: losses.reward_weighted(g.logp, g.adv + shift, g.where, **k)[0].value
    np.testing.assert_allclose(weighted(3.0), weighted(0.0), rtol=1e-5)
    np.testing.assert_allclose(weighted(3.0, normalise=False), np.exp(3) * weighted(0.0, normalise=False), rtol=1e-5)


def test_the_value_loss_of_self_imitation_is_the_squared_error_up_to_the_better_of_return_and_value():
    g = arrays(19)
    value, returns = np.asarray(g.logp), np.asarray(g.adv)
    better = np.maximum(returns - value, 0)[np.asarray(g.where)]
    loss = losses.value_squared(g.logp, jnp.maximum(g.adv, g.logp), g.where)[0]
    np.testing.assert_allclose(loss.value, np.mean(better**2) / 2, rtol=1e-5)


def test_a_value_that_has_moved_far_towards_its_target_has_no_gradient():
    value, old, target = jnp.array([0.5, 0.1, -0.5]), jnp.zeros(3), jnp.ones(3)  # far, near, away from the target
    loss = lambda value: (lambda out: (out[0].value, out[1]))(
        losses.value_clip(value, old, target, jnp.ones(3, bool), clip=0.2)
    )
    gradient, metrics = jax.grad(loss, has_aux=True)(value)
    np.testing.assert_allclose(gradient, np.array([0, -0.9, -1.5]) / 3, rtol=1e-5)
    np.testing.assert_allclose(metrics["value_clipped"].value, 1 / 3, rtol=1e-6)


def test_reward_weights_that_reach_their_bound_are_reported():
    g = arrays(20)
    large = jnp.where(g.adv > 0, 1e30, -1e30)
    loss, metrics = losses.reward_weighted(g.logp, large, g.where)
    kept = np.asarray(g.where)
    better = np.asarray(g.adv)[kept] > 0
    np.testing.assert_allclose(metrics["capped"].value, better.mean(), rtol=1e-6)
    np.testing.assert_allclose(loss.value, -np.asarray(g.logp)[kept][better].mean(), rtol=1e-5)  # the best, alike
    assert losses.reward_weighted(g.logp, g.adv, g.where)[1]["capped"].value == 0


def test_contributions_are_fitted_by_their_sum():
    """Against a loop over rows; every turn of a row has the same gradient, and what does not count may be NaN."""
    given, totals = arrays(5), np.random.default_rng(5).normal(size=R)
    where = np.asarray(given.where).copy()
    where[1] = False
    said = jnp.where(where, given.logp, jnp.nan)

    def loss(said):
        return losses.sum_to_return(said, jnp.asarray(totals), jnp.asarray(where))

    rows = [i for i in range(R) if where[i].any()]
    assert 1 < len(rows) < R and (where.sum(1) > 1).any()
    error = {i: sum(float(said[i, m]) for m in range(M) if where[i, m]) - totals[i] for i in rows}
    found, metrics = loss(said)
    np.testing.assert_allclose(found.sum, sum(e**2 for e in error.values()), rtol=1e-5)
    assert found.count == len(rows)
    np.testing.assert_allclose(metrics["redistributed"].value, np.mean([error[i] + totals[i] for i in rows]), rtol=1e-5)
    gradient = jax.grad(lambda said: loss(said)[0].sum)(said)
    want = [[2 * error[i] if where[i, m] else 0.0 for m in range(M)] for i in range(R) if i in rows]
    np.testing.assert_allclose(np.asarray(gradient)[rows], want, rtol=1e-5)
    with pytest.raises(ValueError, match="one return for each"):
        losses.sum_to_return(said, jnp.zeros(R + 1), jnp.asarray(where))
