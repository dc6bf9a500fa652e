"""Two-player games drawn at random: stag hunts, and tables with rare crashes.

A game's payoffs are two tables, of the first and of the second player: what a player earns, by its own action and the
other's. A bank holds n games, so that its tables are float32 [n, A, A].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Pair = tuple[jax.Array, jax.Array]
STAG, HARE = 0, 1


def stag_hunts(key: jax.Array, n: int, *, best: float = 4.0) -> tuple[Pair, jax.Array]:
    """(payoffs of n hunts, bool [n]: hare is risk-dominant).

    Two stags earn `best` each, and a stag beside a hare 0. Hare earns T beside a stag and P beside a hare: the larger
    and the smaller of two uniform draws below `best`. Hare is risk-dominant if best - T < P, i.e. T + P > best:
    Harsanyi and Selten, A General Theory of Equilibrium Selection in Games (1988).
    """
    hare = jnp.sort(jax.random.uniform(key, (n, 2), maxval=best))[:, ::-1]
    payoff = jnp.stack([jnp.broadcast_to(jnp.array([best, 0.0]), hare.shape), hare], 1)
    return (payoff, payoff), hare.sum(1) > best


def tables_with_crashes(
    key: jax.Array, n: int, actions: int, *, best: float = 4.0, crash: float = -20.0, odds: float = 0.05
) -> tuple[Pair, jax.Array]:
    """(payoffs of n games, bool [n, A, A]: a crash, by the first and the second player's action).

    Each cell is a crash with probability `odds` and then pays `crash` to both; elsewhere each player's points are
    uniform from 0 to `best`.
    """
    points_key, crash_key = jax.random.split(key)
    points = jax.random.uniform(points_key, (2, n, actions, actions), maxval=best)
    crashes = jax.random.bernoulli(crash_key, odds, points.shape[1:])
    first, second = jnp.where(jnp.stack([crashes, crashes.swapaxes(1, 2)]), crash, points)
    return (first, second), crashes


def chance(plays: Pair, cells: jax.Array) -> jax.Array:
    """Probability [n] that strategies [n, A] of both players meet in `cells` bool [n, A, A]."""
    return jnp.einsum("na,nab,nb->n", plays[0], cells, plays[1])


def moments(plays: Pair, payoffs: Pair) -> tuple[jax.Array, jax.Array]:
    """Mean and variance [2, n] of each player's points of a round, over both players' actions."""
    points = jnp.stack([payoffs[0], payoffs[1].swapaxes(1, 2)])
    mean, square = (jnp.einsum("na,inab,nb->in", plays[0], x, plays[1]) for x in (points, points**2))
    return mean, square - mean**2
