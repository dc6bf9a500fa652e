from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import Mean, mean_of, mean_per_row, mean_per_turn, sum_per_row

R, M, T = 6, 8, 24


class Given(NamedTuple):
    """What the losses below are made of; `logp` also serves as a critic's value, `adv` as its target."""

    logp: jax.Array
    old: jax.Array  # behaviour, reference, or the value when sampled
    adv: jax.Array
    entropy: jax.Array
    turn: jax.Array
    where: jax.Array


RUNNING = jnp.asarray(np.random.default_rng(99).choice([0, 0.3, 0.5, 0.7], T))
ppo = partial(losses.ppo_clip, clip_low=0.2, clip_high=0.3)
LOSSES: dict[str, Callable[..., losses.Loss]] = {
    "ppo": lambda g, **k: ppo(g.logp, g.old, g.adv, g.where, **k),
    "dual ppo": lambda g, **k: ppo(g.logp, g.old, g.adv, g.where, dual_clip=1.5, **k),
    "sequence": lambda g, **k: ppo(g.logp, g.old, g.adv, g.where, level=losses.sequence_level, **k),
    "sequence product": lambda g, **k: ppo(
        g.logp, g.old, g.adv, g.where, level=partial(losses.sequence_level, product=True), **k
    ),
    "turn": lambda g, **k: ppo(g.logp, g.old, g.adv, g.where, level=partial(losses.turn_level, turn=g.turn), **k),
    "turn product": lambda g, **k: ppo(
        g.logp, g.old, g.adv, g.where, level=partial(losses.turn_level, turn=g.turn, product=True), **k
    ),
    "truncated": lambda g, **k: losses.truncated_policy_gradient(g.logp, g.old, g.adv, g.where, **k),
    "cispo": lambda g, **k: losses.truncated_policy_gradient(g.logp, g.old, g.adv, g.where, cap=1.5, floor=0.7, **k),
    "alignment": lambda g, **k: losses.alignment(g.logp, g.old, g.adv, g.entropy, g.where, **k),
    "value": lambda g, **k: losses.value_squared(g.logp, g.adv, g.where, **k),
    "value clip": lambda g, **k: losses.value_clip(g.logp, g.old, g.adv, g.where, clip=0.3, **k),
    "huber": lambda g, **k: losses.value_huber(g.logp, g.adv, g.where, delta=1.5, **k),
    "k1": lambda g, **k: losses.kl_penalty(g.logp, g.old, g.where, kind="k1", **k),
    "k2": lambda g, **k: losses.kl_penalty(g.logp, g.old, g.where, kind="k2", **k),
    "k3": lambda g, **k: losses.kl_penalty(g.logp, g.old, g.where, kind="k3", **k),
    "entropy": lambda g, **k: losses.entropy_bonus(g.entropy, g.where, **k),
    "corridor": lambda g, **k: losses.entropy_corridor(g.entropy, g.where, g.turn, RUNNING, low=0.8, high=1.2, **k),
    "cross entropy": lambda g, **k: losses.cross_entropy(g.logp, g.where, **k),
    "weighted": lambda g, **k: losses.reward_weighted(g.logp, g.adv, g.where, temperature=0.5, normalise=False, **k),
    "normalised": lambda g, **k: losses.reward_weighted(g.logp, g.adv, g.where, temperature=0.5, **k),
    "self imitation": lambda g, **k: losses.self_imitation(g.logp, g.adv, g.old, g.where, **k),
}
AGGREGATES: dict[str, Callable[[Given], losses.Aggregate]] = {
    "tokens": lambda g: mean_of,
    "rows": lambda g: mean_per_row,
    "length": lambda g: partial(sum_per_row, length=M),
    "turns": lambda g: partial(mean_per_turn, turn=g.turn),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def arrays(seed: int, dtype=np.float32) -> Given:
    """Log-ratios wide enough to reach every bound, on rows of different length (one is empty) with gaps."""
    generator = np.random.default_rng(seed)
    old = -generator.random((R, M)) * 3
    logp = old + generator.normal(0, 0.6, (R, M))
    where = np.arange(M)[None] < generator.integers(2, M + 1, R)[:, None]
    where &= generator.random((R, M)) < 0.9
    where[seed % R] = False
    floats = [x.astype(dtype) for x in (logp, old, generator.normal(size=(R, M)), generator.random((R, M)))]
    turn = np.cumsum((generator.random((R, M)) < 0.4) * generator.integers(1, 4, (R, M)), axis=1)
    assert turn.max() < T
    return Given(*(jnp.asarray(x) for x in (*floats, turn, where)))


def units(name: str, turn: np.ndarray, where: np.ndarray) -> list[list[tuple[int, int]]]:
    """The places of the trained tokens that belong together: a row's, an utterance's, or each for itself."""
    found: dict[tuple, list[tuple[int, int]]] = {}
    for r, m in zip(*np.nonzero(where), strict=True):
        key = (r,) if "sequence" in name else (r, turn[r, m]) if "turn" in name or name == "corridor" else (r, m)
        found.setdefault(key, []).append((r, m))
    return list(found.values())


def one_token(name: str, ratio: float, logp: float, old: float, adv: float, entropy: float, middle: float) -> float:
    """The loss of a token in plain Python, written by cases rather than with minima and maxima."""
    if name in ("ppo", "dual ppo", "turn", "turn product", "sequence", "sequence product"):
        if adv >= 0:
            return -(ratio if ratio < 1.3 else 1.3) * adv
        if name == "dual ppo" and ratio > 1.5:
            return -1.5 * adv
        return -(ratio if ratio > 0.8 else 0.8) * adv
    policy = -(ratio if ratio < 2 else 2) * adv * logp
    d, error, moved = old - logp, abs(logp - adv), logp - old
    near = logp if abs(moved) < 0.3 else old + 0.3 * np.sign(moved)
    low, high = 0.8 * middle, 1.2 * middle
    return {
        "truncated": policy,
        "cispo": -(1.5 if ratio > 1.5 else 0.7 if ratio < 0.7 else ratio) * adv * logp,
        "alignment": policy - 0.01 * entropy,
        "value": error**2 / 2,
        "value clip": (error**2 if error > abs(near - adv) else (near - adv) ** 2) / 2,
        "huber": error**2 / 2 if error < 1.5 else 1.5 * (error - 0.75),
        "k1": -d,
        "k2": d * d / 2,
        "k3": np.exp(d) - d - 1,
        "entropy": -entropy,
        "corridor": 0 if middle == 0 else low - entropy if entropy < low else entropy - high if entropy > high else 0,
        "cross entropy": -logp,
        "weighted": -np.exp(2 * adv) * logp,
        "normalised": -np.exp(2 * adv) * logp,
        "self imitation": -(adv - old) * logp if adv > old else 0,
    }[name]


def by_hand(name: str, given: Given) -> np.ndarray:
    """What every token loses [R,M], NaN where it is not trained."""
    g = Given(*map(np.asarray, given))
    lost = np.full((R, M), np.nan)
    for places in units(name, g.turn, g.where):
        log_ratios = [float(g.logp[i]) - float(g.old[i]) for i in places]
        ratio = np.exp(np.sum(log_ratios) if "product" in name else np.mean(log_ratios))
        entropy = np.mean([g.entropy[i] for i in places])
        for i in places:
            middle = RUNNING[g.turn[i]]
            lost[i] = one_token(name, ratio, *(float(x) for x in (g.logp[i], g.old[i], g.adv[i], entropy, middle)))
    return lost


def total(loss: losses.Loss) -> jax.Array:
    return loss[0].value


@every_loss
@pytest.mark.parametrize("seed", range(3))
def test_losses_equal_a_loop_over_tokens(name: str, seed: int):
    given = arrays(seed)
    loss, metrics = LOSSES[name](given)
    assert isinstance(loss, Mean) and all(isinstance(metric, Mean) for metric in metrics.values())
    np.testing.assert_allclose(loss.sum, np.nansum(by_hand(name, given)), rtol=1e-4, atol=1e-5)
    weight = np.exp(2 * given.adv) if name == "normalised" else np.ones((R, M))
    np.testing.assert_allclose(loss.count, weight[given.where].sum(), rtol=1e-5)


@every_loss
def test_the_aggregation_is_of_what_each_token_loses_and_metrics_remain_means_over_tokens(name: str):
    given = arrays(3)
    lost = jnp.asarray(by_hand(name, given), jnp.float32)
    _, plain = LOSSES[name](given)
    for make in AGGREGATES.values():
        aggregate = make(given)
        loss, metrics = LOSSES[name](given, aggregate=aggregate)
        np.testing.assert_allclose(loss.sum, aggregate(lost, given.where).sum, rtol=1e-4, atol=1e-6)
        weight = jnp.exp(2 * given.adv)
        count = aggregate(weight, given.where).sum if name == "normalised" else aggregate(lost, given.where).count
        np.testing.assert_allclose(loss.count, count, rtol=1e-5)
        for metric in set(metrics) - {"policy"}:  # the policy's loss in `alignment` is aggregated as the whole
            np.testing.assert_array_equal(metrics[metric], plain[metric])


def finite_differences(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> np.ndarray:
    steps = 1e-6 * jnp.eye(x.size).reshape(-1, *x.shape)
    up, down = (jax.jit(jax.vmap(function))(x[None] + sign * steps) for sign in (1, -1))
    return np.asarray((up - down) / 2e-6).reshape(x.shape)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"truncated", "cispo", "alignment"}))  # whose weight is constant
def test_gradients_equal_finite_differences(name: str):
    with jax.enable_x64(True):
        given = arrays(4, np.float64)

        def loss(**changed):
            return total(LOSSES[name](given._replace(**changed), aggregate=AGGREGATES["turns"](given)))

        for field in ("logp", "entropy"):
            of_field = lambda x, field=field: loss(**{field: x})  # noqa: E731
            at = getattr(given, field)
            np.testing.assert_allclose(jax.grad(of_field)(at), finite_differences(of_field, at), atol=1e-7)


def test_the_importance_weight_is_held_constant_and_capped():
    g = arrays(5)
    share = 1 / np.asarray(g.where).sum()
    gradient = jax.grad(lambda x: total(LOSSES["alignment"](g._replace(logp=x))))(g.logp)
    expected = np.where(g.where, -np.minimum(np.exp(g.logp - g.old), 2) * g.adv, 0) * share
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-7)
    by_entropy = jax.grad(lambda x: total(LOSSES["alignment"](g._replace(entropy=x))))(g.entropy)
    np.testing.assert_allclose(by_entropy, np.where(g.where, -0.01, 0) * share, rtol=1e-5)


@every_loss
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_tokens_that_are_not_trained_leak_nothing(name: str, garbage: float):
    given = arrays(6)
    fields = ("logp", "old", "adv", "entropy")
    spoilt = given._replace(**{f: jnp.where(given.where, getattr(given, f), garbage) for f in fields})

    def run(g):
        def loss(logp, entropy):
            out = LOSSES[name](g._replace(logp=logp, entropy=entropy))
            return out[0].sum, out

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(g.logp, g.entropy)

    for clean, dirty in zip(jax.tree.leaves(run(given)), jax.tree.leaves(run(spoilt)), strict=True):
        np.testing.assert_array_equal(clean, dirty)


@every_loss
def test_jit_agrees_and_micro_batches_add_up_under_every_aggregation(name: str):
    def everything(g):
        return {k: LOSSES[name](g, aggregate=make(g)) for k, make in AGGREGATES.items()}

    given, compiled = arrays(7), jax.jit(everything)
    whole = everything(given)
    parts = [compiled(Given(*(x[rows : rows + 2] for x in given))) for rows in range(0, R, 2)]
    added = jax.tree.map(lambda *x: sum(x), *parts)
    for other in (compiled(given), added):
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@every_loss
def test_data_carry_no_gradient(name: str):
    given = arrays(8)
    gradients = jax.grad(lambda data: total(LOSSES[name](given._replace(old=data[0], adv=data[1]))))(
        (given.old, given.adv)
    )
    assert all(not g.any() for g in gradients)


def test_shapes_must_be_equal():
    g = arrays(12)
    with pytest.raises(ValueError, match=rf"\({R}, 1\)"):
        ppo(g.logp, g.old, g.adv[:, :1], g.where)


# The clipped surrogate and its levels


def test_ppo_metrics():
    g = Given(*map(np.asarray, arrays(9)))
    _, metrics = LOSSES["dual ppo"](Given(*map(jnp.asarray, g)))
    ratio, adv = np.exp(g.logp - g.old)[g.where], g.adv[g.where]
    stopped = np.where(adv > 0, ratio > 1.3, (ratio < 0.8) | (ratio > 1.5))
    np.testing.assert_allclose(metrics["ratio"].value, ratio.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["clipped"].value, stopped.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["approximate_kl"].value, (ratio - 1 - np.log(ratio)).mean(), rtol=1e-3)


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
        reported = LOSSES[name](given)[1]
        for metric, values in metrics.items():
            assert reported[metric].count == kept.sum()
            np.testing.assert_allclose(reported[metric].value, values.mean(), rtol=1e-4, err_msg=f"{name} {metric}")


@pytest.mark.parametrize("name", ["ppo", "dual ppo", "sequence", "turn"])
def test_on_the_policy_itself_ppo_has_ratio_one_and_the_policy_gradient(name: str):
    """With one advantage an utterance (a row), so that a level averages nothing away."""
    g = arrays(10)
    adv = jnp.broadcast_to(g.adv[:, :1], g.adv.shape) if name in ("sequence", "turn") else g.adv
    loss = lambda x: (lambda out: (out[0].value, out[1]))(LOSSES[name](g._replace(logp=x, old=g.logp, adv=adv)))  # noqa: E731
    (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(g.logp)
    assert metrics["ratio"].value == 1 and metrics["clipped"].value == 0
    np.testing.assert_allclose(gradient, np.where(g.where, -adv, 0) / np.asarray(g.where).sum(), rtol=1e-5)


@pytest.mark.parametrize("adv", [-1.0, 1.0])
@pytest.mark.parametrize("level", [losses.token_level, partial(losses.sequence_level, product=True)])
def test_a_ratio_that_overflows_has_a_finite_loss_and_gradient(adv: float, level: losses.Level):
    one = jnp.ones((1, 1))
    loss = lambda logp: total(ppo(logp, -200 * one, adv * one, one > 0, level=level))  # noqa: E731
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
        level = partial(losses.turn_level, product=product)
        row = losses.sequence_level(log_ratio, g.where, product=product)
        kept = np.asarray(g.where)
        np.testing.assert_allclose(level(log_ratio, g.where, turn=one_turn)[kept], row[kept], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(level(log_ratio, g.where, turn=own_turns)[kept], log_ratio[kept], rtol=1e-5)


def test_clip_high_changes_the_gradient_and_not_a_metric_alone():
    """In the code of MARS `pg_clip_high` reaches a metric only."""
    old, one = jnp.zeros((1, 1)), jnp.ones((1, 1))
    gradient = lambda high: jax.grad(  # noqa: E731
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
    gradient = jax.grad(as_loss)(logits)
    np.testing.assert_allclose(gradient, target[kind], atol=1e-6)
    if kind in ("k1", "k3"):
        assert np.abs(gradient - right).max() > 0.05
    if kind != "k2":  # as an estimate k2 is biased
        np.testing.assert_allclose(as_loss(logits), kl(jax.nn.log_softmax(logits), reference), rtol=1e-5)


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
    value, gradient = jax.value_and_grad(loss)(logp)
    np.testing.assert_allclose(value, np.mean(expected), rtol=1e-4)
    np.testing.assert_allclose(jax.jit(loss)(logp), value, rtol=1e-6)
    with np.errstate(all="ignore"):
        slope = np.where(said & g.where[..., None], p * (np.log(p) - np.log(q) + 1), 0) / len(expected)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)
    spoilt = jnp.where(g.where[..., None], logp, jnp.nan), jnp.where(g.where[..., None], reference, jnp.nan)
    for clean, dirty in zip((value, gradient), jax.value_and_grad(loss)(*spoilt), strict=True):
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
    np.testing.assert_allclose(jax.grad(ours)(entropy), np.array([[-1, -1, 1, 1, 0, 0, 0]]) / 7, rtol=1e-5)
    assert theirs(entropy) > 0 and not jax.grad(theirs)(entropy).any()


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


# Pairs and imitation


def pairs(seed: int, dtype=np.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Four pairs of ragged rows, in one of which the rejected row is empty."""
    generator = np.random.default_rng(seed)
    reference = -generator.random((4, 2, 6)) * 3
    where = np.arange(6)[None, None] < generator.integers(1, 7, (4, 2, 1))
    where[2, 1] = False
    logp = reference + generator.normal(size=reference.shape)
    return jnp.asarray(logp, dtype), jnp.asarray(reference, dtype), jnp.asarray(where)


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


def test_the_gradient_of_dpo_equals_finite_differences():
    with jax.enable_x64(True):
        logp, reference, where = pairs(17, np.float64)
        loss = lambda x: total(losses.dpo(x, reference, where))  # noqa: E731
        gradient = jax.grad(loss)(jnp.where(where, logp, jnp.nan))
        np.testing.assert_allclose(gradient, finite_differences(loss, logp), atol=1e-8)
        assert not jax.grad(lambda x: total(losses.dpo(logp, x, where)))(reference).any()


def test_dpo_wants_pairs():
    with pytest.raises(ValueError, match="chosen"):
        losses.dpo(*(jnp.ones((4, 3)) for _ in range(2)), jnp.ones((4, 3), bool))


def test_normalised_reward_weights_ignore_what_is_added_to_all_rewards():
    g = arrays(18)
    weighted = lambda shift, **k: losses.reward_weighted(g.logp, g.adv + shift, g.where, **k)[0].value  # noqa: E731
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
    loss = lambda value: (lambda out: (out[0].value, out[1]))(  # noqa: E731
        losses.value_clip(value, old, target, jnp.ones(3, bool), clip=0.2)
    )
    gradient, metrics = jax.grad(loss, has_aux=True)(value)
    np.testing.assert_allclose(gradient, np.array([0, -0.9, -1.5]) / 3, rtol=1e-5)
    np.testing.assert_allclose(metrics["value_clipped"].value, 1 / 3, rtol=1e-6)


# Other implementations of the same formulas, on the same numbers

LOG_RATIO = [[0.5, -0.4, 0.1, 0.3], [-0.6, -0.5, 0.0, 0.0], [0.7, 0.0, 0.0, 0.0], [-0.1, 0.2, 0.4, 0.0]]
OLD = [[-0.5, -1.5, -0.2, -2.0], [-1.0, -0.3, 0.0, 0.0], [-1.2, 0.0, 0.0, 0.0], [-0.4, -0.9, -0.1, 0.0]]
ADVANTAGE = [1.5, -0.7, -1.1, 0.3]  # of each row
LENGTH = [4, 2, 1, 3]


def peer(dtype=np.float32) -> tuple[jax.Array, ...]:
    """logp, behaviour, advantage and where [4,4]."""
    old = np.array(OLD, dtype)
    adv = np.repeat(np.array(ADVANTAGE, dtype)[:, None], 4, 1)
    where = np.arange(4)[None] < np.array(LENGTH)[:, None]
    return tuple(jnp.asarray(x) for x in (old + np.array(LOG_RATIO, dtype), old, adv, where))


clip = partial(losses.ppo_clip, clip_low=0.2, clip_high=0.25)
sequence = partial(clip, level=losses.sequence_level)
cispo = partial(losses.truncated_policy_gradient, cap=1.4)
# TRL's loss_type, importance_sampling_level and delta -> ours, and the value of TRL's formula
TRL: dict[tuple, tuple[Callable[..., losses.Loss], float]] = {
    ("grpo", "token", None): (partial(clip, aggregate=mean_per_row), 0.208548712),
    ("bnpo", "token", None): (clip, -0.409098052),
    ("dapo", "token", None): (clip, -0.409098052),
    ("dr_grpo", "token", None): (partial(clip, aggregate=partial(sum_per_row, length=6)), -0.170457522),
    ("grpo", "sequence", None): (partial(sequence, aggregate=mean_per_row), 0.180249294),
    ("bnpo", "sequence", None): (sequence, -0.452698711),
    ("grpo", "token", 1.5): (partial(clip, aggregate=mean_per_row, dual_clip=1.5), 0.067266718),
    ("cispo", "token", None): (cispo, 0.406022172),
}


def trl(kind: tuple, logp, old, adv, where):
    """TRL's GRPO loss in torch, from its documented formulas; epsilon 0.2 and 0.25, max_completion_length 6.

    For "cispo" epsilon_high is 1.4, there the weight's cap itself.
    """
    torch = pytest.importorskip("torch")
    loss_type, level, delta = kind
    log_ratio = logp - old
    if level == "sequence":
        log_ratio = (log_ratio * where).sum(1, keepdim=True) / where.sum(1, keepdim=True)
    ratio = log_ratio.exp()
    if loss_type == "cispo":
        each = -ratio.clamp(max=1.4).detach() * adv * logp
    else:
        first = ratio if delta is None else ratio.clamp(max=delta)
        each = -torch.minimum(first * adv, ratio.clamp(0.8, 1.25) * adv)
    each = each * where
    if loss_type == "grpo":
        return (each.sum(1) / where.sum(1)).mean()
    return each.sum() / (len(each) * 6 if loss_type == "dr_grpo" else where.sum())


@pytest.mark.parametrize("kind", TRL)
def test_parity_with_the_formulas_of_trl_as_recorded(kind: tuple):
    ours, golden = TRL[kind]
    np.testing.assert_allclose(ours(*peer())[0].value, golden, rtol=1e-5)


@pytest.mark.parametrize("kind", TRL)
def test_parity_with_the_formulas_of_trl_and_their_gradient_in_torch(kind: tuple):
    torch = pytest.importorskip("torch")
    logp, old, adv, where = (torch.tensor(np.asarray(x, np.float64)) for x in peer())
    logp.requires_grad_()
    theirs = trl(kind, logp, old, adv, where)
    theirs.backward()
    ours, golden = TRL[kind]
    value, gradient = jax.value_and_grad(lambda x: total(ours(x, *peer()[1:])))(peer()[0])
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(theirs.item(), golden, rtol=1e-5)
    np.testing.assert_allclose(gradient, logp.grad, rtol=1e-5, atol=1e-7)


def test_parity_of_dpo_with_the_sigmoid_loss_of_trl_and_its_gradient_in_torch():
    """TRL's formula: -logsigmoid(beta ((chosen - rejected) - (ref chosen - ref rejected))), of summed log-probs."""
    torch = pytest.importorskip("torch")
    ours, reference, where = (x[jnp.array([0, 1, 3])] for x in pairs(24))  # TRL knows no empty row
    logp, old, kept = (torch.tensor(np.asarray(x, np.float64)) for x in (ours, reference, where))
    logp.requires_grad_()
    policy, fixed = (logp * kept).sum(2), (old * kept).sum(2)
    logits = (policy[:, 0] - policy[:, 1]) - (fixed[:, 0] - fixed[:, 1])
    theirs = -torch.nn.functional.logsigmoid(0.3 * logits).mean()
    theirs.backward()
    value, gradient = jax.value_and_grad(lambda x: total(losses.dpo(x, reference, where, beta=0.3)))(ours)
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, logp.grad, rtol=1e-5, atol=1e-7)


def test_parity_with_the_clipped_surrogate_of_rlax_as_recorded():
    logp, old, adv, where = peer()
    loss = losses.ppo_clip(logp, old, adv, where, clip_low=0.2, clip_high=0.2)[0]
    np.testing.assert_allclose(loss.value, -0.391955969, rtol=1e-5)


def test_parity_with_the_clipped_surrogate_of_rlax_and_its_gradient():
    rlax = pytest.importorskip("rlax")
    logp, old, adv, where = peer()
    kept = np.asarray(where)

    def theirs(x):
        return rlax.clipped_surrogate_pg_loss(jnp.exp(x - old)[kept], adv[kept], 0.2)

    ours = lambda x: total(losses.ppo_clip(x, old, adv, where, clip_low=0.2, clip_high=0.2))  # noqa: E731
    for a, b in zip(jax.value_and_grad(ours)(logp), jax.value_and_grad(theirs)(logp), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
