"""The best planner of `environments.herd`, exactly: dynamic programming over what all believe.

All followers are Bayesian. Beliefs are whole numbers b, red with odds of 2^b; M of them are possible, from -m to m.
Aims may be traced, so that an arm's own optimum is computed beside its learning.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.environments.social.herd import Aim, Herd, chance


class Follower(NamedTuple):
    """One Bayesian follower of each belief and level of its hint."""

    right: np.ndarray  # float64 [M, levels], the probability that it opens the prize's door
    red: np.ndarray  # float64 [M, levels], that it opens red
    after: np.ndarray  # int64 [M, levels, door], the place of the belief after it opened a door


class Plan(NamedTuple):
    value: jax.Array  # float32 [n + 1, M]: what the best planner gets from follower k on
    q: jax.Array  # float32 [n, M, levels]: the same if it buys this level now


def beliefs(game: Herd) -> np.ndarray:
    """All that can be believed, in order, int [M]: nobody steps beyond twice the best hint, or the prior."""
    largest = max(2 * game.evidence[-1], abs(game.prior))
    return np.arange(-largest, largest + 1)


def follower(game: Herd) -> Follower:
    """The choices of a Bayesian, from the chances of its two hints.

    If |b| <= evidence it opens the door of the hint. The door is red with probability p q + (1 - p)(1 - q), at p =
    P(red) and a hint that is true with probability q. Else it opens the likelier door, whatever the hint (a cascade).
    """
    belief, evidence = beliefs(game)[:, None], np.array(game.evidence)[None, :]
    red, true = chance(belief.astype(float)), chance(evidence.astype(float))
    listens = np.abs(belief) <= evidence
    right = np.where(listens, true, np.maximum(red, 1 - red))
    opens = np.where(listens, red * true + (1 - red) * (1 - true), belief > 0)
    to = [belief + np.where(listens, sign * evidence, 0) for sign in (1, -1)]  # as `herd.next_belief`
    after = np.stack(to, -1) - belief.min()
    return Follower(right, opens, np.clip(after, 0, len(belief) - 1))  # impossible steps lead anywhere


def plan(game: Herd, aim: Aim) -> Plan:
    """The Bellman equation of a planner that knows what all believe, of every aim:

    Q_k(b, l) = right P(right | b, l) + wanted P(red | b, l) - cost_l + sum_door P(door | b, l) V_{k+1}(b')
    """
    bayesian = follower(game)
    now = aim.right * bayesian.right + aim.wanted * bayesian.red - np.array(game.cost)[None]
    value, q = [jnp.zeros(len(bayesian.right))], []
    for _ in range(game.followers):
        q.append(now + _expect_after(bayesian, value[-1]))
        value.append(q[-1].max(1))
    return Plan(jnp.stack(value[::-1]), jnp.stack(q[::-1]))


def outcome(game: Herd, level: jax.Array) -> dict[str, jax.Array]:
    """{right, red, cost}: expected followers that open the prize's door, or red, and the cost of the hints.

    A planner buys level int [n, M] for follower k at each belief. The game begins at the prior."""
    bayesian, at = follower(game), jnp.arange(len(beliefs(game)))
    paid = {
        "right": bayesian.right,
        "red": bayesian.red,
        "cost": np.broadcast_to(np.array(game.cost), bayesian.right.shape),
    }
    total = {name: jnp.zeros(len(at)) for name in paid}
    for k in reversed(range(game.followers)):
        total = {name: (x + _expect_after(bayesian, total[name]))[at, level[k]] for name, x in paid.items()}
    return {name: x[place(game, jnp.int32(game.prior))] for name, x in total.items()}


def place(game: Herd, belief: jax.Array) -> jax.Array:
    """Indices int32 [...] in `beliefs` of beliefs int32 [...]; a belief outside the list is not detected."""
    return belief - int(beliefs(game)[0])


def regret(game: Herd, best: Plan, level: jax.Array, opened: jax.Array) -> jax.Array:
    """The loss of a planner's purchases [B, n], of levels and doors int32 [B, n]: V_k(b_k) - Q_k(b_k, l_k).

    Its mean over games, summed over followers, is exactly the gap of the planner's policy to the best one (Kakade &
    Langford 2002, lemma 6.1). Luck in the games does not matter.
    """
    before = place(game, game.beliefs(level, opened)[:, :-1])
    k = jnp.arange(game.followers)[None]
    return best.value[k, before] - best.q[k, before, level]


def _expect_after(bayesian: Follower, value: jax.Array) -> jax.Array:
    """[M, levels]: the value of the belief after the follower."""
    return bayesian.red * value[bayesian.after[..., 0]] + (1 - bayesian.red) * value[bayesian.after[..., 1]]
