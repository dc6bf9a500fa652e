"""Every loss with settings, arrays for all of them, and the loss of each token in plain Python."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import losses
from jaxmarl_llm.rl.masked import mean_of, mean_per_row, mean_per_turn, sum_per_row

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
LOSSES: dict[str, Callable[..., losses.LossAndMetrics]] = {
    "ppo": lambda g, **k: ppo(g.logp, g.old, g.adv, g.where, **k),
    "dual ppo": lambda g, **k: ppo(g.logp, g.old, g.adv, g.where, dual_clip=1.5, **k),
    "bounded ppo": lambda g, **k: ppo(
        g.logp, g.old, g.adv, g.where, level=partial(losses.bounded_ratio, max_ratio=1.5), **k
    ),
    "sequence": lambda g, **k: ppo(g.logp, g.old, g.adv, g.where, level=losses.sequence_ratio, **k),
    "sequence product": lambda g, **k: ppo(
        g.logp, g.old, g.adv, g.where, level=partial(losses.sequence_ratio, product=True), **k
    ),
    "turn": lambda g, **k: ppo(g.logp, g.old, g.adv, g.where, level=partial(losses.turn_ratio, turn=g.turn), **k),
    "turn product": lambda g, **k: ppo(
        g.logp, g.old, g.adv, g.where, level=partial(losses.turn_ratio, turn=g.turn, product=True), **k
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
    if name == "bounded ppo":
        ratio, name = (1.5 if ratio > 1.5 else 1 / 1.5 if ratio < 1 / 1.5 else ratio), "ppo"
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
    g, running = Given(*map(np.asarray, given)), np.asarray(RUNNING)
    lost = np.full((R, M), np.nan)
    for places in units(name, g.turn, g.where):
        log_ratios = [float(g.logp[i]) - float(g.old[i]) for i in places]
        ratio = np.exp(np.sum(log_ratios) if "product" in name else np.mean(log_ratios))
        entropy = np.mean([g.entropy[i] for i in places])
        for i in places:
            middle = running[g.turn[i]]
            lost[i] = one_token(name, ratio, *(float(x) for x in (g.logp[i], g.old[i], g.adv[i], entropy, middle)))
    return lost


def total(loss: losses.LossAndMetrics) -> jax.Array:
    return loss[0].value


def finite_differences(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> np.ndarray:
    steps = 1e-6 * jnp.eye(x.size).reshape(-1, *x.shape)
    up, down = jnp.split(jax.jit(jax.vmap(function))(x[None] + jnp.concatenate([steps, -steps])), 2)
    return np.asarray((up - down) / 2e-6).reshape(x.shape)


def pairs(seed: int, dtype=np.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Four pairs of ragged rows, in one of which the rejected row is empty."""
    generator = np.random.default_rng(seed)
    reference = -generator.random((4, 2, 6)) * 3
    where = np.arange(6)[None, None] < generator.integers(1, 7, (4, 2, 1))
    where[2, 1] = False
    logp = reference + generator.normal(size=reference.shape)
    return jnp.asarray(logp, dtype), jnp.asarray(reference, dtype), jnp.asarray(where)
