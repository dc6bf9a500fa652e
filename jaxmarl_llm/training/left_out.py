"""Exclusion of episodes with a reward that is not finite, or beyond `base.LARGEST`: they are left out of the update and
counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.environments.base import LARGEST
from jaxmarl_llm.rollout.trajectory import Episodes, Trajectory

COUNT, FIRST = "left_out", "left_out/"


def leave_out(trajectory: Trajectory) -> tuple[Trajectory, dict[str, jax.Array]]:
    """(games, metrics); the games are without acts, rewards and trained tokens of episodes with a reward that is not
    finite or too large. If all episodes have such a reward, nothing is removed, so that the whole update is skipped.

    Metrics are int32 scalars; `left_out` counts the episodes. The place of the first such reward is `left_out/episode`,
    /turn and /seat, -1 without one. Metric /speaker is the seat that was paid if it acted in that turn, otherwise the
    first that acted; /action is its action.
    """
    episodes = trajectory.episodes
    wrong = ~(jnp.abs(episodes.reward) <= LARGEST).all(-1)
    bad = wrong.any((1, 2))
    out = bad & ~bad.all()
    episode, turn, seat = jnp.unravel_index(jnp.argmax(wrong.ravel()), wrong.shape)
    acted = episodes.acted[episode, turn]
    speaker = jnp.where(acted[seat], seat, jnp.argmax(acted))
    first = {"episode": episode, "turn": turn, "seat": seat, "speaker": speaker}
    first["action"] = episodes.action[episode, turn, speaker]
    kept = episodes.replace(
        reward=jnp.where(out[:, None, None, None], 0, episodes.reward), acted=episodes.acted & ~out[:, None, None]
    )
    rows = {
        name: rows.replace(loss_mask=rows.loss_mask & ~out[rows.episode, None])
        for name, rows in trajectory.rows.items()
    }
    metrics = {FIRST + name: jnp.where(bad.any(), x, -1).astype(jnp.int32) for name, x in first.items()}
    return trajectory.replace(episodes=kept, rows=rows), {COUNT: out.sum(dtype=jnp.int32), **metrics}


def are_kept(episodes: Episodes) -> jax.Array:
    """Bool [B]: the episodes in which somebody acted, or all if nobody ever did. The others were left out."""
    acted = episodes.acted.any((1, 2))
    return acted | ~acted.any()


def mean_of_kept(
    episodes: Episodes, x: jax.Array, axis: int | None = None, then: Callable[[jax.Array], Any] = lambda mean: mean
) -> Any:
    """The mean of x [B, ...] over the episodes that are kept, and over all other axes; with axis=0 over these episodes
    alone. `then` computes metrics of the mean. If none is left out, they are bit for bit those of `x.mean(axis)`: XLA
    joins its constant count with other numbers."""
    kept = are_kept(episodes)
    where = kept.reshape(-1, *(1,) * (x.ndim - 1))
    return jax.tree.map(partial(jnp.where, kept.all()), then(x.mean(axis)), then(x.mean(axis, where=where)))


def without_places(metrics: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The metrics to plot: all but the place of the first bad reward, `left_out/...`, which only `Watch` reads."""
    return {name: x for name, x in metrics.items() if FIRST not in name}
