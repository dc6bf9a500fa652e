"""The clipped surrogate, its levels, the truncated policy gradient and the default loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import mean_of, mean_per_row, segment_mean, sum_per_row
from tests.support.loss_cases import (
    LOSSES,
    Given,
    M,
    R,
    arrays,
    by_hand,
    ppo,
    total,
)


def test_ppo_metrics():
    g = Given(*map(np.asarray, arrays(9)))
    _, metrics = LOSSES["dual ppo"](Given(*map(jnp.asarray, g)))
    ratio, adv = np.exp(g.logp - g.old)[g.where], g.adv[g.where]
    stopped = np.where(adv > 0, ratio > 1.3, (ratio < 0.8) | (ratio > 1.5))
    np.testing.assert_allclose(metrics["ratio"].value, ratio.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["clipped"].value, stopped.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["approximate_kl"].value, (ratio - 1 - np.log(ratio)).mean(), rtol=1e-3)


@pytest.mark.parametrize("name", ["ppo", "dual ppo", "sequence", "turn"])
def test_on_policy_ppo_has_ratio_one_and_the_policy_gradient(name: str):
    """With one advantage an utterance (a row), so that a level averages nothing away."""
    g = arrays(10)
    adv = jnp.broadcast_to(g.adv[:, :1], g.adv.shape) if name in ("sequence", "turn") else g.adv
    loss = lambda x: (lambda out: (out[0].value, out[1]))(LOSSES[name](g._replace(logp=x, old=g.logp, adv=adv)))
    (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(g.logp)
    assert metrics["ratio"].value == 1 and metrics["clipped"].value == 0
    np.testing.assert_allclose(gradient, np.where(g.where, -adv, 0) / np.asarray(g.where).sum(), rtol=1e-5)


def test_an_upper_bound_that_keeps_its_gradient_is_cispo_for_gains_and_ppo_for_losses():
    """The value is that of PPO. The gradient is CISPO's where A > 0, and PPO's where A < 0 or no upper bound binds."""
    g = arrays(13)
    given = lambda x: (x, g.old, g.adv, g.where)
    kept = lambda x, **k: losses.ppo_clip(*given(x), keep_gradient=True, **k)
    plain = lambda x, **k: losses.ppo_clip(*given(x), **k)
    cispo = lambda x: losses.truncated_policy_gradient(*given(x), cap=1.2)
    derive = lambda loss: jax.jit(lambda x: jax.grad(lambda x: loss(x)[0].sum)(x))(g.logp)
    (mine, metrics), (ppos, _) = jax.jit(lambda x: (kept(x), plain(x)))(g.logp)
    np.testing.assert_allclose(mine.sum, ppos.sum, rtol=1e-6)
    found, cut, truncated = derive(kept), derive(plain), derive(cispo)
    gains = np.asarray(g.adv > 0)
    np.testing.assert_allclose(found, np.where(gains, truncated, cut), rtol=1e-5, atol=1e-6)
    above = np.asarray((jnp.exp(g.logp - g.old) > 1.2) & g.where) & gains
    assert above.sum() >= 3 and (np.asarray(found)[above] != 0).all() and (np.asarray(cut)[above] == 0).all()
    below = np.asarray((jnp.exp(g.logp - g.old) < 0.8) & g.where) & ~gains
    np.testing.assert_allclose(metrics["clipped"].value, below.sum() / np.asarray(g.where).sum(), rtol=1e-6)
    endless = {"clip_high": 1e9, "dual_clip": 3.0}
    np.testing.assert_allclose(derive(partial(kept, **endless)), derive(partial(plain, **endless)), rtol=1e-6)


@pytest.mark.parametrize("adv", [-1.0, 1.0])
@pytest.mark.parametrize("level", [losses.token_ratio, partial(losses.sequence_ratio, product=True)])
def test_a_ratio_that_overflows_has_a_finite_loss_and_gradient(adv: float, level: losses.Level):
    one = jnp.ones((1, 1))
    loss = lambda logp: total(ppo(logp, -200 * one, adv * one, one > 0, level=level))
    value, gradient = jax.value_and_grad(loss)(-one)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_the_gradient_of_gspo_is_the_papers():
    """Mean over rows of A s mean(grad logp), and nothing from a row whose ratio s is clipped, whatever its tokens'."""
    g = arrays(21)
    adv = jnp.broadcast_to(g.adv[:, :1], g.adv.shape)
    where, rows = np.asarray(g.where), np.asarray(g.where).any(1).sum()

    def loss(logp):
        return total(LOSSES["sequence"](g._replace(logp=logp, adv=adv), aggregate=mean_per_row))

    expected, clipped = np.zeros((R, M)), 0
    for r in range(R):
        if where[r].any():
            s = np.exp(np.mean((g.logp - g.old)[r][where[r]]))
            stopped = s > 1.3 if adv[r, 0] > 0 else s < 0.8
            clipped += stopped
            expected[r, where[r]] = 0 if stopped else -adv[r, 0] * s / where[r].sum() / rows
    assert 0 < clipped < rows
    np.testing.assert_allclose(jax.grad(loss)(g.logp), expected, rtol=1e-4, atol=1e-7)


def test_levels_agree_where_units_coincide():
    g = arrays(22)
    log_ratio = jnp.where(g.where, g.logp - g.old, 0)
    one_turn, own_turns = jnp.zeros((R, M), int), jnp.broadcast_to(jnp.arange(M)[None], (R, M))
    for product in (False, True):
        level = partial(losses.turn_ratio, product=product)
        row = losses.sequence_ratio(log_ratio, g.where, product=product)
        kept = np.asarray(g.where)
        np.testing.assert_allclose(level(log_ratio, g.where, turn=one_turn)[kept], row[kept], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(level(log_ratio, g.where, turn=own_turns)[kept], log_ratio[kept], rtol=1e-5)


def test_clip_high_changes_the_gradient_and_not_a_metric_alone():
    """In the code of MARS `pg_clip_high` reaches a metric only."""
    old, one = jnp.zeros((1, 1)), jnp.ones((1, 1))
    gradient = lambda high: jax.grad(
        lambda x: total(losses.ppo_clip(x, old, one, one > 0, clip_low=0.2, clip_high=high))
    )(jnp.log(1.25 * one))
    np.testing.assert_allclose(gradient(0.2), 0)
    np.testing.assert_allclose(gradient(0.3), -1.25, rtol=1e-6)


def test_the_mean_over_rows_of_the_sum_over_tokens_is_what_its_name_says():
    """In the code of MARS "seq-mean-token-sum" is a mean over tokens."""
    where = jnp.array([[True, False, False], [True, True, True]])
    x = jnp.array([[6.0, jnp.nan, jnp.nan], [1, 2, 3]])
    assert (sum_per_row(x, where).value, mean_per_row(x, where).value, mean_of(x, where).value) == (6, 4, 3)


def test_every_token_keeps_its_gradient_under_cispo():
    g = arrays(23)
    gradients = {
        name: jax.grad(lambda x, name=name: total(LOSSES[name](g._replace(logp=x))))(g.logp)[g.where]
        for name in ("ppo", "cispo")
    }
    assert (gradients["ppo"] == 0).any() and (gradients["cispo"] != 0).all()


# The default loss


def sampled(g: Given) -> losses.Batch:
    """The given arrays as the batch of one policy: two rows an episode, seats with a role of their own."""
    rows = jnp.arange(R)
    return losses.Batch(
        token=jnp.zeros((R, M), int),
        turn=g.turn,
        behaviour_logp=g.old,
        mask=g.where,
        advantage=g.adv,
        value_target=2 * g.adv,
        old_value=g.old,
        episode=rows // 2,
        seat=rows % 2,
        policy=jnp.zeros(R, int),
        role=jnp.broadcast_to((rows % 2)[:, None], (R, M)),
    )


HPARAMS = {"clip_low": 0.2, "clip_high": 0.3, "entropy": 0.01, "value": 0.5}


@pytest.mark.parametrize("critic", [False, True])
def test_the_default_loss_is_clipped_less_entropy_plus_the_error_of_a_critic(critic: bool):
    g = arrays(25)
    scores = losses.Scores(g.logp, g.entropy, g.logp / 2 if critic else None)
    loss, metrics = jax.jit(losses.ppo)(scores, sampled(g), HPARAMS)
    kept = np.asarray(g.where)
    each = by_hand("ppo", g)[kept] - 0.01 * np.asarray(g.entropy)[kept]
    if critic:
        each = each + 0.5 * (np.asarray(g.logp)[kept] / 2 - 2 * np.asarray(g.adv)[kept]) ** 2 / 2
    np.testing.assert_allclose(loss.value, each.mean(), rtol=1e-5)
    assert loss.count == kept.sum()
    of_critic = {"value", "value_error"} if critic else set()
    assert set(metrics) == {"ratio", "clipped", "approximate_kl", "entropy"} | of_critic


def test_a_loss_may_group_tokens_by_the_labels_of_the_batch():
    """A loss of one's own: the mean of each role, so that a talkative role weighs no more than a silent one."""
    g = arrays(26)
    batch = sampled(g)

    def by_role(scores: losses.Scores, batch: losses.Batch, hparams: losses.Hparams) -> losses.LossAndMetrics:
        each = segment_mean(-scores.logp * batch.advantage, batch.role, 2, batch.mask)
        return mean_of(each, each == each), {}

    loss: losses.LossFn = by_role
    lost = -np.asarray(g.logp) * np.asarray(g.adv)
    expected = np.mean([lost[r::2][np.asarray(g.where)[r::2]].mean() for r in range(2)])
    np.testing.assert_allclose(loss(losses.Scores(g.logp, g.entropy), batch, {})[0].value, expected, rtol=1e-5)
    assert len(jax.tree.leaves(batch)) == 11  # all but the reference


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_two_advantages_are_clipped_apart_and_weighed(dual_clip: float | None):
    g = arrays(31)
    between, weight = g.entropy - 0.5, jax.nn.sigmoid(g.turn - 2.0)
    options = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": dual_clip}

    def blended(logp):
        return losses.blended_clip(logp, g.old, g.adv, between, weight, g.where, **options)

    def one(ratio, advantage):
        surrogate = min(ratio * advantage, float(np.clip(ratio, 0.8, 1.3)) * advantage)
        return max(surrogate, dual_clip * advantage) if dual_clip and advantage < 0 else surrogate

    expected = 0.0
    for i in zip(*np.nonzero(g.where), strict=True):
        ratio, w = float(np.exp(g.logp[i] - g.old[i])), float(weight[i])
        expected -= w * one(ratio, float(g.adv[i])) + (1 - w) * one(ratio, float(between[i]))
    loss, metrics = jax.jit(blended)(g.logp)
    np.testing.assert_allclose(loss.sum, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["weight"].value, np.asarray(weight)[g.where].mean(), rtol=1e-5)
    summed = weight * g.adv + (1 - weight) * between
    together = total(losses.ppo_clip(g.logp, g.old, summed, g.where, **options))
    assert abs(together - loss.value) > 1e-3  # opposite signs: one clip would not do
    gradient = jax.grad(lambda x: losses.blended_clip(x, g.logp, g.adv, between, weight, g.where)[0].sum)(g.logp)
    np.testing.assert_allclose(gradient, np.where(g.where, -summed, 0), rtol=1e-4, atol=1e-6)


def test_a_ratio_bounded_before_the_exponential_has_no_gradient_beyond():
    """As in the released StableReinforce, 1e3 either way: a negative advantage is otherwise unbounded."""
    log_ratio = jnp.array([[-8.0, -1.0, 0.0, 3.0, 8.0]])
    where = jnp.ones((1, 5), bool)
    gradient = lambda level: jax.grad(
        lambda x: losses.ppo_clip(x, 0 * x, -jnp.ones((1, 5)), where, level=level)[0].sum
    )(log_ratio)[0]
    np.testing.assert_allclose(gradient(losses.bounded_ratio), [0, 0, 1, np.exp(3.0), 0], rtol=1e-5)
    assert gradient(losses.token_ratio)[-1] > 2900


def test_cispo_is_the_clip_that_keeps_gradients_where_advantages_are_positive():
    """min(r A, (1 + eps) r / sg(r) A): the gradient of a clipped token is that of the bound, not 0."""
    g = arrays(33)

    def kept(logp):
        ratio = jnp.exp(jnp.where(g.where, logp - g.old, 0))
        at_bound = 1.3 * ratio / jax.lax.stop_gradient(ratio)
        return -jnp.where(g.where, jnp.minimum(ratio * g.adv, at_bound * g.adv), 0).sum() / g.where.sum()

    cispo = jax.grad(lambda x: total(losses.truncated_policy_gradient(x, g.old, g.adv, g.where, cap=1.3)))(g.logp)
    positive = np.asarray(g.where & (g.adv > 0))
    capped = positive & (np.asarray(g.logp - g.old) > np.log(1.3))
    assert capped.any()
    np.testing.assert_allclose(np.asarray(cispo)[positive], np.asarray(jax.grad(kept)(g.logp))[positive], rtol=1e-4)


def test_a_recipes_loss_finds_a_second_advantage_in_the_batch():
    """As an estimator hands it over in ``Advantages.extra``."""
    g = arrays(34)
    extra = {"between": g.entropy - 0.5, "weight": jax.nn.sigmoid(g.turn - 2.0)}

    def copo(scores: losses.Scores, batch: losses.Batch, hparams: losses.Hparams) -> losses.LossAndMetrics:
        given = batch.advantage, batch.extra["between"], batch.extra["weight"], batch.mask
        return losses.blended_clip(scores.logp, batch.behaviour_logp, *given)

    found, _ = losses.check_loss(copo(losses.Scores(g.logp, g.entropy), sampled(g).replace(extra=extra), HPARAMS))
    local = losses.blended_clip(g.logp, g.old, g.adv, 0 * g.adv, jnp.ones(g.adv.shape), g.where)[0]
    np.testing.assert_allclose(local.value, total(losses.ppo_clip(g.logp, g.old, g.adv, g.where)), rtol=1e-6)
    assert abs(found.value - local.value) > 1e-3
