"""Bias and noise of an estimator's policy gradient without sampling: moments over all games of an enumerated game."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.evaluation.exact.estimators import CRITICS, WRONG, named_inputs, variants
from jaxmarl_llm.evaluation.exact.exact_gradient import Tables, exact
from jaxmarl_llm.rl.advantages.registry import Estimate, apply
from jaxmarl_llm.rl.masked import keep


@cache
def all_games(game: Tables) -> tuple[np.ndarray, np.ndarray]:
    """Every way to the end: histories int [B, T + 1], actions int [B, T]. An ended game stays at its end."""
    tree = game.tree
    ends = np.flatnonzero(tree.seat < 0)
    history = np.empty((len(ends), len(tree.levels)), int)
    for row, node in enumerate(ends):
        path = [node]
        while tree.parent[path[-1]] >= 0:
            path.append(tree.parent[path[-1]])
        history[row] = path[::-1] + [node] * (len(tree.levels) - len(path))
    return history, np.maximum(tree.action[history[:, 1:]], 0)


def moments(
    game: Tables, policy: jax.Array, estimators: Mapping[str, Estimate], key: jax.Array, wrong: float = 1.0
) -> dict[str, dict[str, jax.Array]]:
    """{estimator: {"bias", "noise"}} at a policy [I, N], for `estimators.variants`, with values as there.

    With g the exact gradient, m and v the mean and the total variance of one game's gradient in the logits:

        bias    |m - g| / |g|
        noise   sqrt(v) / |g|

    Games are of one seat, and an estimator reads the values of its own game alone: it has no groups, and is not
    normalised. Errors of `.../wrong_value` are normal, one for each information set. Their scale is `wrong` times the
    root mean square of the exact advantages. May be traced. Raises ValueError for a game of several seats.
    """
    tree = game.tree
    if tree.payoff.shape[1] != 1:
        raise ValueError(f"Moments are of games of one seat, and this one has {tree.payoff.shape[1]}.")
    # constants would be folded for seconds while compiling
    history, action = jax.lax.optimization_barrier(tuple(map(jnp.asarray, all_games(game))))
    known = exact(game, policy)
    inputs = named_inputs(game, policy, known, history, action, jnp.arange(len(history)), len(history))
    acted, at = inputs["acted"], inputs["observation"][..., 0]
    said = jax.nn.one_hot(action, policy.shape[1])
    moved = jnp.where(acted[..., 0], (policy[at] * said).sum(-1), 1).prod(1)
    chance = jnp.asarray(game.chance, moved.dtype)[history[:, 0]] * moved
    size = wrong * jnp.sqrt((known.gradient * known.advantage).sum() / known.reach.sum())
    off = keep(size * jax.random.normal(key, known.value.shape)[inputs["observation"]], acted)
    length = jnp.linalg.norm(known.gradient)
    metrics = {}
    for name in variants(estimators):
        values = {critic: inputs[critic] + off * name.endswith(WRONG) for critic in CRITICS}
        advantage = apply(estimators[name.removesuffix(WRONG)], inputs | values)
        by_act = keep(advantage, acted) * (said - policy[at])  # a game comes to an information set once
        mean = jnp.zeros(policy.shape).at[at].add(chance[:, None, None] * by_act)
        square = (chance * (by_act**2).sum((1, 2))).sum()
        metrics[name] = {
            "bias": jnp.linalg.norm(mean - known.gradient) / length,
            "noise": jnp.sqrt(jnp.maximum(square - (mean**2).sum(), 0)) / length,
        }
    return metrics
