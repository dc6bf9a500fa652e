"""The exact advantage of every act of played games: the truth for advantage estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.solve import Tree


def exact_advantages(tree: Tree, policy: np.ndarray, acted: Any, action: Any, deal: Any) -> np.ndarray:
    """A(i, a) = Q(i, a) - sum over b of policy[i, b] Q(i, b) of every act, float64 [B, T, A], 0 where none acted.

    Q are `solve.action_values` if all play `policy` [I, N]. The arrays acted bool and action int [B, T, A] are those of
    `Episodes`. `deal` int [B] is the index of each episode's start in the game's `initial_states()`. Raises ValueError
    for actions that the tree does not have.
    """
    acted, action, at = np.asarray(acted), np.asarray(action), np.array(deal)
    value = solve.action_values(tree, policy)
    value = np.where(np.isnan(value), 0, value)
    exact = value - (policy * value).sum(1, keepdims=True)
    moved = np.flatnonzero(tree.parent >= 0)
    child = np.full((len(tree.parent), tree.legal.shape[1]), -1)
    child[tree.parent[moved], tree.action[moved]] = moved
    result = np.zeros(acted.shape)
    for turn in range(acted.shape[1]):
        rows = np.flatnonzero(acted[:, turn].any(1))
        seat = acted[rows, turn].argmax(1)
        move = action[rows, turn, seat]
        if (tree.seat[at[rows]] != seat).any() or (child[at[rows], move] < 0).any():
            raise ValueError(f"In turn {turn} an episode leaves the tree: are these games of it, these their deals?")
        result[rows, turn, seat] = exact[tree.information[at[rows]], move]
        at[rows] = child[at[rows], move]
    return result
