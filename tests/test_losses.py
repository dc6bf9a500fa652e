from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import losses
from jaxmarl_llm.masked import Mean

R, M = 4, 7
ppo = partial(losses.ppo_clip, clip_low=0.2, clip_high=0.3)
LOSSES: dict[
    str, Callable[..., losses.Loss]
] = {  # each takes logp, behaviour (or reference), advantage, entropy, where
    "ppo": lambda logp, old, adv, entropy, where: ppo(logp, old, adv, where),
    "dual ppo": lambda logp, old, adv, entropy, where: ppo(logp, old, adv, where, dual_clip=1.5),
    "truncated": lambda logp, old, adv, entropy, where: losses.truncated_policy_gradient(logp, old, adv, where),
    "alignment": losses.alignment,
    "k1": lambda logp, old, adv, entropy, where: losses.kl_penalty(logp, old, where, kind="k1"),
    "k2": lambda logp, old, adv, entropy, where: losses.kl_penalty(logp, old, where, kind="k2"),
    "k3": lambda logp, old, adv, entropy, where: losses.kl_penalty(logp, old, where, kind="k3"),
    "entropy": lambda logp, old, adv, entropy, where: losses.entropy_bonus(entropy, where),
    "cross entropy": lambda logp, old, adv, entropy, where: losses.cross_entropy(logp, where),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def arrays(seed: int, dtype=np.float32):
    """Log-ratios wide enough to reach every bound, on rows of different length."""
    generator = np.random.default_rng(seed)
    old = -generator.random((R, M)) * 3
    logp = old + generator.normal(0, 0.6, (R, M))
    where = np.arange(M)[None] < generator.integers(1, M + 1, R)[:, None]
    floats = [x.astype(dtype) for x in (logp, old, generator.normal(size=(R, M)), generator.random((R, M)))]
    return tuple(jnp.asarray(x) for x in (*floats, where))


def one_token(name: str, logp: float, old: float, adv: float, entropy: float) -> float:
    """The loss of a token in plain Python, written by cases rather than with minima and maxima."""
    ratio = np.exp(logp - old)
    if "ppo" in name:
        if adv >= 0:
            return -(ratio if ratio < 1.3 else 1.3) * adv
        if name == "dual ppo" and ratio > 1.5:
            return -1.5 * adv
        return -(ratio if ratio > 0.8 else 0.8) * adv
    policy = -(ratio if ratio < 2 else 2) * adv * logp
    d = old - logp
    return {
        "truncated": policy,
        "alignment": policy - 0.01 * entropy,
        "k1": -d,
        "k2": d * d / 2,
        "k3": np.exp(d) - d - 1,
        "entropy": -entropy,
        "cross entropy": -logp,
    }[name]


@every_loss
@pytest.mark.parametrize("seed", range(3))
def test_losses_equal_a_loop_over_tokens(name: str, seed: int):
    given = arrays(seed)
    loss, metrics = LOSSES[name](*given)
    *floats, where = (np.asarray(x) for x in given)
    tokens = [one_token(name, *(float(x[i]) for x in floats)) for i in zip(*np.nonzero(where), strict=True)]
    assert isinstance(loss, Mean) and all(isinstance(metric, Mean) for metric in metrics.values())
    assert loss.count == len(tokens)
    np.testing.assert_allclose(loss.sum, sum(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"truncated", "alignment"}))  # whose weight is held constant
def test_gradients_equal_finite_differences(name: str):
    with jax.enable_x64(True):
        logp, old, adv, entropy, where = arrays(4, np.float64)
        loss = jax.jit(lambda logp, entropy: LOSSES[name](logp, old, adv, entropy, where)[0].value)
        gradients = jax.grad(loss, argnums=(0, 1))(logp, entropy)
        for argument, gradient in enumerate(gradients):
            for i in np.ndindex(R, M):
                step = jnp.zeros((R, M)).at[i].set(1e-6)
                up, down = (
                    loss(*[x + sign * step if n == argument else x for n, x in enumerate((logp, entropy))])
                    for sign in (1, -1)
                )
                np.testing.assert_allclose(gradient[i], (up - down) / 2e-6, atol=1e-7)


def test_the_importance_weight_is_held_constant_and_capped():
    logp, old, adv, entropy, where = arrays(5)
    gradient = jax.grad(lambda logp: losses.alignment(logp, old, adv, entropy, where)[0].value)(logp)
    expected = np.where(where, -np.minimum(np.exp(logp - old), 2) * adv, 0) / np.asarray(where).sum()
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    by_entropy = jax.grad(lambda entropy: losses.alignment(logp, old, adv, entropy, where)[0].value)(entropy)
    np.testing.assert_allclose(by_entropy, np.where(where, -0.01, 0) / np.asarray(where).sum(), rtol=1e-5)


@every_loss
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_tokens_that_are_not_trained_leak_nothing(name: str, garbage: float):
    *floats, where = arrays(6)
    spoilt = [jnp.where(where, x, garbage) for x in floats]

    def run(logp, old, adv, entropy):
        (loss, metrics), gradient = jax.value_and_grad(
            lambda logp, entropy: (lambda out: (out[0].sum, out))(LOSSES[name](logp, old, adv, entropy, where)),
            argnums=(0, 1),
            has_aux=True,
        )(logp, entropy)
        return loss, metrics, gradient

    for clean, dirty in zip(jax.tree.leaves(run(*floats)), jax.tree.leaves(run(*spoilt)), strict=True):
        np.testing.assert_array_equal(clean, dirty)


@every_loss
def test_jit_agrees_and_micro_batches_add_up(name: str):
    given = arrays(7)
    whole = LOSSES[name](*given)
    halves = [LOSSES[name](*(x[rows] for x in given)) for rows in (slice(0, 1), slice(1, R))]
    added = jax.tree.map(lambda a, b: a + b, *halves)
    for other in (jax.jit(LOSSES[name])(*given), added):
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@every_loss
def test_data_carry_no_gradient(name: str):
    logp, old, adv, entropy, where = arrays(8)
    gradients = jax.grad(lambda data: LOSSES[name](logp, *data, entropy, where)[0].value)((old, adv))
    assert all(not g.any() for g in gradients)


def test_ppo_metrics():
    logp, old, adv, _, where = (np.asarray(x) for x in arrays(9))
    _, metrics = ppo(*map(jnp.asarray, (logp, old, adv, where)), dual_clip=1.5)
    ratio, adv = np.exp(logp - old)[where], adv[where]
    stopped = np.where(adv > 0, ratio > 1.3, (ratio < 0.8) | (ratio > 1.5))
    np.testing.assert_allclose(metrics["ratio"].value, ratio.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["clipped"].value, stopped.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["approximate_kl"].value, (ratio - 1 - np.log(ratio)).mean(), rtol=1e-3)


def test_on_the_policy_itself_ppo_has_ratio_one_and_the_policy_gradient():
    logp, _, adv, _, where = arrays(10)
    (_, metrics), gradient = jax.value_and_grad(
        lambda x: (lambda out: (out[0].value, out[1]))(ppo(x, logp, adv, where)), has_aux=True
    )(logp)
    assert metrics["ratio"].value == 1 and metrics["clipped"].value == 0
    np.testing.assert_allclose(gradient, np.where(where, -adv, 0) / np.asarray(where).sum(), rtol=1e-5)


@pytest.mark.parametrize("adv", [-1.0, 1.0])
def test_a_ratio_that_overflows_has_a_finite_loss_and_gradient(adv: float):
    one = jnp.ones((1, 1))
    loss = lambda logp: ppo(logp, -200 * one, adv * one, one > 0)[0].value  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(-one)
    assert np.isfinite(value) and np.isfinite(gradient).all()


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_gradients_of_the_kl_estimates_over_all_tokens_of_a_small_vocabulary(kind: Literal["k1", "k2", "k3"]):
    """The expectation is taken exactly: token n occurs with its probability, which is held constant as a sample is."""
    generator = np.random.default_rng(11)
    logits, reference = jnp.asarray(generator.normal(size=5)), jax.nn.log_softmax(generator.normal(size=5))

    def kl(a, b):
        return (jnp.exp(a) * (a - b)).sum()

    def as_loss(logits):
        logp = jax.nn.log_softmax(logits)
        each = jnp.stack(
            [losses.kl_penalty(logp[n], reference[n], jnp.array(True), kind=kind)[0].sum for n in range(5)]
        )
        return (jax.lax.stop_gradient(jnp.exp(logp)) * each).sum()

    target = {
        "k1": jnp.zeros(5),
        "k2": jax.grad(lambda x: kl(jax.nn.log_softmax(x), reference))(logits),
        "k3": jax.grad(lambda x: kl(reference, jax.nn.log_softmax(x)))(logits),
    }
    gradient = jax.grad(as_loss)(logits)
    np.testing.assert_allclose(gradient, target[kind], atol=1e-6)
    if kind != "k2":
        assert np.abs(gradient - target["k2"]).max() > 0.05
    if kind != "k2":  # as estimates k1 and k3 are unbiased
        np.testing.assert_allclose(as_loss(logits), kl(jax.nn.log_softmax(logits), reference), rtol=1e-5)


def test_an_unknown_kl_estimate_is_refused():
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        losses.kl_penalty(jnp.zeros(1), jnp.zeros(1), jnp.ones(1, bool), kind="k4")  # type: ignore[arg-type]


def test_shapes_must_be_equal():
    logp, old, adv, _, where = arrays(12)
    with pytest.raises(ValueError, match=r"\(4, 1\)"):
        ppo(logp, old, adv[:, :1], where)
