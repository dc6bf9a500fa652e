"""Subgame-perfect equilibria of sequential games, exactly: by backward induction.

`backward_induction` is for games in which n seats move once, in order, and see all moves before. It may be traced, so
that an arm's own payoffs are solved beside its learning. `outcomes` finds every equilibrium outcome of any game tree
of perfect information that `solve.tree` enumerates. With one outcome there is one prediction of what is played.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.evaluation.exact.solve import Tree


class Equilibrium(NamedTuple):
    """A subgame-perfect equilibrium. N_i are the actions of seat i."""

    strategies: tuple[jax.Array, ...]  # int32 [N_0, ..., N_{i-1}] of seat i: its move after every history
    path: jax.Array  # int32 [n], what is played
    value: jax.Array  # float32 [n], what each seat gets
    margin: jax.Array  # float32, the least that any seat loses by another move after any history; 0: it is not unique


def backward_induction(payoff: jax.Array) -> Equilibrium:
    """The equilibrium of payoff [N_0, ..., N_{n-1}, n]; of moves that are as good as each other the first is played.

    The last seat maximises its own payoff after every history. The seat before it knows this and does the same, and so
    on: s_i(h) = argmax_a u_i(h, a, s_{i+1}(h, a), ...). With a positive margin it is the only equilibrium.
    Raises ValueError unless there is an axis for each seat.

    Selten (1965); Osborne & Rubinstein, A Course in Game Theory (1994), chapter 6, https://arielrubinstein.tau.ac.il
    """
    n = payoff.ndim - 1
    if n < 1 or payoff.shape[-1] != n:
        raise ValueError(f"payoff has an axis of moves for each of n seats, then n payoffs: got {payoff.shape}.")
    value, strategies, margin = payoff, [], jnp.float32(jnp.inf)
    for seat in reversed(range(n)):
        mover_value = value[..., seat]  # [N_0, ..., N_seat]
        best = mover_value.argmax(-1).astype(jnp.int32)
        strategies.append(best)
        chosen = jax.nn.one_hot(best, mover_value.shape[-1], dtype=bool)
        rest = jnp.where(chosen, -jnp.inf, mover_value).max(-1)
        margin = jnp.minimum(margin, (mover_value.max(-1) - rest).min())
        value = jnp.take_along_axis(value, best[..., None, None], -2)[..., 0, :]
    path: list[jax.Array] = []
    for strategy in reversed(strategies):
        path.append(strategy[tuple(path)])
    return Equilibrium(tuple(reversed(strategies)), jnp.stack(path), value, margin)


def outcomes(tree: Tree, tolerance: float = 1e-9) -> np.ndarray:
    """Every ended history that a pure subgame-perfect equilibrium leads to, their numbers in the tree, int [m].

    A history h has the outcomes that some choice of equilibria in the subgames behind it supports. Outcome z behind
    action a is an outcome of h if

        u(z) >= max over other actions b of min over outcomes w behind b of u(w)      u: payoff of the seat that moves

    Payoffs that differ by the tolerance at most are equal. A tree with several deals has the
    outcomes of each.
    Raises ValueError for a game of hidden information.
    """
    if (tree.seat >= 0).sum() != len(tree.owner):
        raise ValueError("Seats cannot tell all histories of this game apart: backward induction needs to see all.")
    behind: list[np.ndarray] = [
        np.array([node]) if seat < 0 else np.array([], int) for node, seat in enumerate(tree.seat)
    ]
    children: list[list[int]] = [[] for _ in behind]
    for node, up in enumerate(tree.parent):
        if up >= 0:
            children[up].append(node)
    for node in reversed(range(len(behind))):  # children stand behind their parent
        if not children[node]:
            continue
        worth = [tree.payoff[behind[child], tree.seat[node]] for child in children[node]]
        floors = np.array([values.min() for values in worth])
        kept = []
        for i, (child, values) in enumerate(zip(children[node], worth, strict=True)):
            least = np.delete(floors, i).max(initial=-np.inf)
            kept.append(behind[child][values >= least - tolerance])
        behind[node] = np.concatenate(kept)
    return np.concatenate([behind[node] for node in np.flatnonzero(tree.parent < 0)])
