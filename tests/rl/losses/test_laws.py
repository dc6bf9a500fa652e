"""Every loss against a loop over tokens, and by the laws of all losses.

The long case compiles every loss for its metrics.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl.masked import Mean
from tests.support.loss_cases import (
    AGGREGATES,
    LOSSES,
    RUNNING,
    Given,
    M,
    R,
    arrays,
    by_hand,
    every_loss,
    finite_differences,
    ppo,
    total,
)


@functools.cache
def aggregated(name: str) -> Callable:
    """The loss and its metrics under every aggregation, in one program."""
    return jax.jit(lambda given: {k: LOSSES[name](given, aggregate=make(given)) for k, make in AGGREGATES.items()})


@every_loss
@pytest.mark.parametrize("seed", range(3))
def test_losses_equal_a_loop_over_tokens(name: str, seed: int):
    given = arrays(seed)
    loss, metrics = aggregated(name)(given)["tokens"]
    assert isinstance(loss, Mean) and all(isinstance(metric, Mean) for metric in metrics.values())
    np.testing.assert_allclose(loss.sum, np.nansum(by_hand(name, given)), rtol=1e-4, atol=1e-5)
    weight = np.exp(2 * given.adv) if name == "normalised" else np.ones((R, M))
    np.testing.assert_allclose(loss.count, weight[given.where].sum(), rtol=1e-5)


@every_loss
def test_aggregation_applies_to_token_losses_and_metrics_remain_means_over_tokens(name: str):
    given = arrays(3)
    lost = jnp.asarray(by_hand(name, given), jnp.float32)
    found = aggregated(name)(given)
    for kind, (loss, metrics) in found.items():
        aggregate = AGGREGATES[kind](given)
        np.testing.assert_allclose(loss.sum, aggregate(lost, given.where).sum, rtol=1e-4, atol=1e-6)
        weight = jnp.exp(2 * given.adv)
        count = aggregate(weight, given.where).sum if name == "normalised" else aggregate(lost, given.where).count
        np.testing.assert_allclose(loss.count, count, rtol=1e-5)
        for metric in set(metrics) - {"policy"}:  # the policy's loss in `alignment` is aggregated as the whole
            np.testing.assert_array_equal(metrics[metric], found["tokens"][1][metric])


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"truncated", "cispo", "alignment"}))  # whose weight is constant
def test_gradients_equal_finite_differences(name: str):
    with jax.enable_x64(True):
        given = arrays(4, np.float64)

        def loss(trained):
            changed = given._replace(logp=trained[0], entropy=trained[1])
            return total(LOSSES[name](changed, aggregate=AGGREGATES["turns"](given)))

        at = np.stack([given.logp, given.entropy])
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(at), finite_differences(loss, at), atol=1e-7)


def test_the_importance_weight_is_held_constant_and_capped():
    g = arrays(5)
    share = 1 / np.asarray(g.where).sum()
    loss = lambda logp, entropy: total(LOSSES["alignment"](g._replace(logp=logp, entropy=entropy)))
    gradient, by_entropy = jax.jit(jax.grad(loss, (0, 1)))(g.logp, g.entropy)
    expected = np.where(g.where, -np.minimum(np.exp(g.logp - g.old), 2) * g.adv, 0) * share
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(by_entropy, np.where(g.where, -0.01, 0) * share, rtol=1e-5)


@functools.cache
def differentiated(name: str) -> Callable:
    """The loss, its metrics and its gradients by logp and entropy, which are trained, and by old and adv."""

    def run(g: Given):
        def loss(logp, entropy, old, adv):
            out = LOSSES[name](g._replace(logp=logp, entropy=entropy, old=old, adv=adv))
            return out[0].sum, out

        return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(g.logp, g.entropy, g.old, g.adv)

    return jax.jit(run)


@every_loss
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_tokens_that_are_not_trained_leak_nothing(name: str, garbage: float):
    given = arrays(6)
    fields = ("logp", "old", "adv", "entropy")
    spoilt = given._replace(**{f: jnp.where(given.where, getattr(given, f), garbage) for f in fields})

    run = differentiated(name)
    for clean, dirty in zip(jax.tree.leaves(run(given)), jax.tree.leaves(run(spoilt)), strict=True):
        np.testing.assert_array_equal(clean, dirty)


def assert_near(tree, other) -> None:
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@every_loss
def test_micro_batches_add_up_under_every_aggregation(name: str):
    given, run = arrays(7), aggregated(name)
    whole = run(given)
    parts = [run(Given(*(x[rows : rows + 2] for x in given))) for rows in range(0, R, 2)]
    assert_near(jax.tree.map(lambda *x: sum(map(np.asarray, x)), *parts), whole)
    assert_near(differentiated(name)(given)[0][1], whole["tokens"])  # means over tokens are the default


@pytest.mark.parametrize("name", ["dual ppo", "turn", "normalised"])
def test_jit_agrees(name: str):
    """Three losses stand for all: out of `jit` each operation is a program of its own."""
    given = arrays(7)
    assert_near(LOSSES[name](given), aggregated(name)(given)["tokens"])


@every_loss
def test_data_carry_no_gradient(name: str):
    _, (*trained, old, adv) = differentiated(name)(arrays(8))
    assert not old.any() and not adv.any() and any(g.any() for g in trained)


def test_shapes_must_be_equal():
    g = arrays(12)
    with pytest.raises(ValueError, match=rf"\({R}, 1\)"):
        ppo(g.logp, g.old, g.adv[:, :1], g.where)


@pytest.mark.long
def test_metrics_of_the_other_losses():
    given = arrays(9)
    kept = np.asarray(given.where)
    logp, old, adv, entropy, turn = (np.asarray(x)[kept] for x in given[:-1])
    ratio, weight, middle = np.exp(logp - old), np.exp(2 * adv), np.asarray(RUNNING)[turn]
    lost = by_hand("corridor", given)[kept]
    expected = {
        "cispo": {"ratio": ratio, "truncated": (ratio > 1.5) | (ratio < 0.7)},
        "value": {"value": logp, "value_error": (logp - adv) ** 2},
        "k2": {"kl": np.exp(old - logp) - (old - logp) - 1},
        "corridor": {"entropy": entropy, "outside": (lost > 0) & (middle > 0)},
        "normalised": {"weight": weight, "cross_entropy": -logp},
        "self imitation": {"weight": np.maximum(adv - old, 0), "imitated": adv > old},
    }
    for name, metrics in expected.items():
        reported = aggregated(name)(given)["tokens"][1]
        for metric, values in metrics.items():
            assert reported[metric].count == kept.sum()
            np.testing.assert_allclose(reported[metric].value, values.mean(), rtol=1e-4, err_msg=f"{name} {metric}")
