"""Exact values, advantages and the policy gradient of a policy that is a table.

The table is a policy of a game that `solve.tree` enumerates. All is computed along the histories of the tree in
operations of JAX, so that it may be traced. Shapes: n histories, I information
sets, N actions, A seats, C reward components.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.solve import Tree


@dataclass(frozen=True, eq=False)
class Tables:
    """A tree as look-up tables: a game is played and judged without its rules."""

    tree: Tree
    child: np.ndarray  # int32 [n, N], the history after an action; the history itself where it is illegal
    chance: np.ndarray  # float64 [D], of the deals, which are the first D histories
    rewards: np.ndarray  # float64 [n, A, C], paid by the move that led here, by component
    weights: np.ndarray  # float64 [C]

    @property
    def reward(self) -> np.ndarray:
        """Paid by the move that led here, components weighed and added, float64 [n, A]."""
        return self.rewards @ self.weights


class Exact(NamedTuple):
    """Values, advantages and gradient of a policy. Values are of rewards from the decision on, not of those paid
    before."""

    returns: jax.Array  # [A], expected payoff of every seat: J
    reach: jax.Array  # [I], chance that a game comes through
    value: jax.Array  # [I], of the seat that decides
    team_value: jax.Array  # [I], of the mean over seats
    advantage: jax.Array  # [I, N], of the seat that decides; 0 for illegal actions
    gradient: jax.Array  # [I, N], of J of the seat that decides, in the logits


def tables(environment: Any, weights: Sequence[float] | None = None, limit: int = 200_000) -> Tables:
    """Enumerates a game, as `solve.tree` does and with its errors; may be called while something else is traced."""
    units = np.eye(len(environment.components))
    with jax.ensure_compile_time_eval():
        tree = solve.tree(environment, weights, limit)
        trees = (
            [tree]
            if weights is None and len(units) == 1
            else [solve.tree(environment, tuple(unit), limit) for unit in units]
        )
        chance = np.asarray(environment.initial_states()[1], np.float64)
    moved = np.flatnonzero(tree.parent >= 0)
    child = np.broadcast_to(np.arange(len(tree.parent))[:, None], (len(tree.parent), tree.legal.shape[1])).copy()
    child[tree.parent[moved], tree.action[moved]] = moved
    payoff = np.stack([unit.payoff for unit in trees], -1)
    before = np.where(tree.parent[:, None, None] >= 0, payoff[tree.parent], 0)
    scale = np.ones(len(units)) if weights is None else np.asarray(weights, np.float64)
    return Tables(tree, child.astype(np.int32), chance, payoff - before, scale)


@partial(jax.jit, static_argnames="game")
def exact(game: Tables, policy: jax.Array) -> Exact:
    """J, values, advantages and the gradient of J if all seats play `policy` [I, N], in its dtype.

    With r(h) the chance of history h, V(h) the expected rewards after it and u(h a) those paid by the move a from h,

        Q(i, a) = sum over h in i of r(h) (u(h a) + V(h a)) / r(i)          r(i) = sum over h in i of r(h)
        A(i, a) = Q(i, a) - sum_b policy(i, b) Q(i, b)
        dJ / d logit(i, a) = r(i) policy(i, a) A(i, a)                       J of the seat that decides in i

    The logits are those of a softmax. Any policy's table of log-probabilities pulls the same numbers back to its
    gradient:

        sum over i, a of r(i) policy(i, a) A(i, a) d log policy(i, a)

    With a common payoff they are the
    gradient of the team's. Values and advantages are 0 in sets that no game reaches.

    Sutton et al., Policy Gradient Methods for Reinforcement Learning with Function Approximation (1999),
    https://proceedings.neurips.cc/paper/1999/hash/464d828b85b0bed98e80ade0a5c43b0f-Abstract.html
    """
    tree = game.tree
    # deals and ended games have no move: index 0 stands for it, and is not used
    up, action = np.maximum(tree.parent, 0), np.maximum(tree.action, 0)
    chosen = jnp.asarray(policy)[tree.information[up], action]
    paid = jnp.asarray(game.reward, chosen.dtype)
    reach = jnp.zeros(len(tree.parent), chosen.dtype).at[: len(game.chance)].set(game.chance.astype(chosen.dtype))
    for low, high in tree.levels[1:]:
        reach = reach.at[low:high].set(reach[up[low:high]] * chosen[low:high])
    after = jnp.zeros_like(paid)  # expected rewards after a history, of every seat
    for low, high in reversed(tree.levels[1:]):
        worth = chosen[low:high, None] * (paid[low:high] + after[low:high])
        after = after.at[up[low:high]].add(worth)
    live, moved = np.flatnonzero(tree.seat >= 0), np.flatnonzero(tree.parent >= 0)
    sets = tree.information[live]
    through = jnp.zeros(len(tree.owner), chosen.dtype).at[sets].add(reach[live])
    divisor = jnp.where(through > 0, through, 1)
    of_sets = lambda x: jnp.zeros(len(through), x.dtype).at[sets].add(reach[live] * x) / divisor
    value, team_value = of_sets(after[live, tree.seat[live]]), of_sets(after[live].mean(1))
    origin = up[moved]
    gained = (paid + after)[moved, tree.seat[origin]]
    q = jnp.zeros(tree.legal.shape, chosen.dtype)
    q = q.at[tree.information[origin], action[moved]].add(reach[origin] * gained) / divisor[:, None]
    advantage = jnp.where(tree.legal & (through[:, None] > 0), q - value[:, None], 0)
    returns = reach[: len(game.chance)] @ after[: len(game.chance)]
    gradient = through[:, None] * policy * advantage
    return Exact(returns, through, value, team_value, advantage, gradient)


def exact_gradient(game: Tables, policy: np.ndarray) -> np.ndarray:
    """The gradient of `exact` in float64, [I, N]. Raises ValueError for a table that is no policy of the game."""
    solve.expected_value(game.tree, policy)
    with jax.enable_x64(True):
        return np.asarray(jax.device_get(exact(game, jnp.asarray(policy, jnp.float64)).gradient))
