"""The filters and the loss of `large_ratios` against loops; the released lines, written again in NumPy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.credit_assignment import large_ratios as study
from jaxmarl_llm.rl.losses import Batch, Scores

ARMS = study.STUDY.arms
KEY = jax.random.key(3)


def three_sigma(raw: np.ndarray) -> np.ndarray:
    """Formula of the paper: advantages within three deviations of their mean."""
    white = (raw - raw.mean()) / raw.std()
    return np.where(np.abs(white) <= 3, white, 0)


def released(raw: np.ndarray) -> np.ndarray:
    """`NaiveReplayBuffer.normalize` of the release: bounds around the mean of the raw values, for z-scores."""
    mean = raw.mean()
    result = (raw - mean) / np.sqrt(max(((raw - mean) ** 2).mean(), 1e-8)) + 1e-8
    result = np.where((result < mean - 3) | (result > mean + 3), 0, result)
    return np.where(np.isnan(result) | np.isinf(result) | (np.abs(result) > 10), 0, result)


def released_loss(log_probs, old_log_probs, advantages) -> float:
    """`PolicyLoss.forward` of the release, for rows of one token."""
    ratio = np.exp(np.clip(log_probs - old_log_probs, np.log(1e-3), np.log(1e3)))
    return float(-np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages).mean())


def played(rewards: np.ndarray) -> SimpleNamespace:
    """One answer an episode."""
    shape = (len(rewards), 1, 1)
    return SimpleNamespace(
        episodes=SimpleNamespace(total_reward=jnp.asarray(rewards).reshape(shape)),
        acts=(jnp.ones(shape, bool), None, 1),
        key=KEY,
    )


@pytest.fixture(scope="module")
def estimate():
    """(arm, rewards, changed hparams) -> (advantages, errors, share that is dropped)."""

    @jax.jit
    def run(hparams, rewards):
        estimated = study.estimate_advantages(played(rewards), hparams, ())
        return estimated.advantage.ravel(), estimated.extra["error"].ravel(), estimated.metrics["dropped"]

    return lambda arm, rewards, **changes: map(
        np.asarray, run(ARMS[arm].with_hparams(**changes).traced_hparams, jnp.asarray(rewards, jnp.float32))
    )


def rewards(share: float, scale: float) -> np.ndarray:
    """200 points, most of them equal, and one outlier on each side."""
    points = np.random.default_rng(0).random(200) < share
    return np.concatenate([points * scale, [scale + 6.0, -7.0]])


@pytest.mark.parametrize("arm, filtered", [("stable", three_sigma), ("as_released", released)])
def test_filters_against_numpy(estimate, arm, filtered):
    for share, scale in ((0.9, 1.0), (0.05, 1.0), (0.9, 2.0)):
        raw = rewards(share, scale)
        found, _, dropped = estimate(arm, raw, noise=0.0)
        np.testing.assert_allclose(found, filtered(raw), atol=1e-4)
        assert dropped == pytest.approx((filtered(raw) == 0).mean(), abs=1e-6) and dropped > 0


def test_the_released_filter_is_lopsided(estimate):
    """With a mean reward near 2, 0.5 for format and 1.5 for accuracy, it drops failures 2.9 deviations below."""
    raw = np.concatenate([np.full(181, 2.0), np.zeros(21)])
    kept, (dropped, *_) = next(estimate("stable", raw, noise=0.0)), estimate("as_released", raw, noise=0.0)
    assert (kept[181:] < -2.9).all() and not dropped[181:].any()
    np.testing.assert_array_equal(kept[:181], dropped[:181])


def test_noise_and_errors_are_two_draws_of_the_same_law(estimate):
    raw = rewards(0.5, 1.0)
    white, error, _ = estimate("plain", raw)
    exact, none, _ = estimate("exact", raw)
    np.testing.assert_array_equal(white, exact)  # the errors change no advantage
    assert not none.any() and np.median(np.abs(error)) == pytest.approx(0.2 * 0.86, rel=0.3)
    noise = 0.2 * np.asarray(jax.random.t(jax.random.split(KEY)[0], 1.5, (202,)))
    np.testing.assert_allclose(white, (raw + noise - (raw + noise).mean()) / (raw + noise).std(), atol=1e-4)
    assert abs(np.corrcoef(np.abs(noise), np.abs(error))[0, 1]) < 0.5


def test_the_loss_is_that_of_the_release_on_recorded_probabilities():
    generator = np.random.default_rng(1)
    logp, old, advantage = (generator.normal(size=60).astype(np.float32) for _ in range(3))
    error = 4 * generator.standard_t(1.5, 60).astype(np.float32)
    column = lambda x: jnp.asarray(x)[:, None]
    zeros = jnp.zeros((60, 1))
    blank = dict.fromkeys(("token", "turn", "value_target", "old_value", "episode", "seat", "policy", "role"), zeros)
    batch = Batch(
        **blank,
        behaviour_logp=column(old),
        advantage=column(advantage),
        mask=zeros == 0,
        extra={"error": column(error)},
    )

    def mean(logp, hparams):
        loss, metrics = study.clipped_loss(Scores(logp, zeros), batch, hparams)
        return loss.value, {name: x.value for name, x in metrics.items()}

    both = jax.jit(jax.value_and_grad(mean, has_aux=True))
    most = {arm: {"most": jnp.float32(ARMS[arm].hparams["most"])} for arm in ("plain", "stable")}
    (value, _), gradient = both(column(logp), most["stable"])
    log_ratio = logp - old + error
    assert value == pytest.approx(released_loss(logp, old - error, advantage), rel=1e-4)
    beyond = (np.abs(log_ratio) > np.log(1e3)) & (advantage < 0)
    assert beyond.sum() > 3 and not np.asarray(gradient)[beyond].any()
    (_, metrics), unbounded = both(column(logp), most["plain"])
    between = (log_ratio > np.log(1e3)) & (log_ratio < 20) & (advantage < 0)
    expected = -np.exp(log_ratio[between]) * advantage[between] / 60
    np.testing.assert_allclose(np.asarray(unbounded)[between, 0], expected, rtol=1e-4)
    negative = log_ratio[advantage < 0]
    assert metrics["beyond"] == pytest.approx((negative > np.log(1e3)).sum() / 60)
    assert metrics["bound"] == pytest.approx((negative > 20).sum() / 60)
    assert metrics["largest"] == pytest.approx(negative.max() / np.log(10), rel=1e-5)


def test_percentiles_are_over_updates():
    curves = {"gradient_norm/learner": np.arange(202.0).reshape(2, 101)}
    np.testing.assert_allclose(study.percentile(curves, metric="gradient_norm", q=99), [99, 200])
