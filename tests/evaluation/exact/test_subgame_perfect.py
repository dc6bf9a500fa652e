"""Backward induction against a recursion, and against a search through all strategies."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.social.contributions import Contributions, Terms
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.subgame_perfect import backward_induction, outcomes


def recursive(payoff, history=()):
    """(moves, payoffs) of the equilibrium behind a history; the first of equals."""
    n = payoff.ndim - 1
    if len(history) == n:
        return history, payoff[history]
    found = [recursive(payoff, (*history, move)) for move in range(payoff.shape[len(history)])]
    return max(found, key=lambda it: it[1][len(history)])


@pytest.mark.parametrize("shape", [(4,), (2, 3), (3, 2, 4), (2, 2, 2, 2)])
def test_backward_induction_is_the_recursion(shape):
    n, solver = len(shape), jax.jit(backward_induction)
    for seed in range(5):
        payoff = np.random.default_rng(seed).integers(0, 50, (*shape, n)).astype(np.float32)
        found = solver(jnp.asarray(payoff))
        path, value = recursive(payoff)
        assert tuple(found.path.tolist()) == path and found.value.tolist() == value.tolist()
        for seat, strategy in enumerate(found.strategies):
            for history in product(*map(range, shape[:seat])):
                assert strategy[history] == recursive(payoff, history)[0][seat]


def test_the_margin_is_what_the_smallest_error_costs():
    payoff = jnp.array([[[3.0, 5.0], [1.0, 4.0]], [[9.0, 2.0], [2.5, 7.0]]])  # second: 5 or 4, 2 or 7; first: 3 or 2.5
    assert float(backward_induction(payoff).margin) == 0.5
    assert float(backward_induction(payoff.at[0, 1, 1].set(5.0)).margin) == 0


def perfect(tree):
    """Outcomes of all pure strategy profiles from which no move at any history gains, by trying them."""
    live = np.flatnonzero(tree.seat >= 0)
    child = {
        (int(up), int(a)): node for node, (up, a) in enumerate(zip(tree.parent, tree.action, strict=True)) if up >= 0
    }
    found = set()
    for moves in product(*(np.flatnonzero(tree.legal[tree.information[node]]) for node in live)):
        plan = dict(zip(live.tolist(), map(int, moves), strict=True))

        def end(node, plan=plan):
            while node in plan:
                node = child[node, plan[node]]
            return node

        gains = (
            tree.payoff[end(child[node, a]), tree.seat[node]] - tree.payoff[end(node), tree.seat[node]]
            for node in plan
            for a in np.flatnonzero(tree.legal[tree.information[node]]).tolist()
        )
        if max(gains) <= 1e-6:
            found.add(end(0))
    return found


@pytest.mark.parametrize(
    "terms",
    [
        Terms(),
        Terms(cost=1.0, synergy=0.0, share=1.0, penalty=1.0, threshold=2.0),  # the last seat may tip it or not
        Terms(cost=1.0, synergy=0.0, share=1.0, penalty=0.0, threshold=0.0),  # a first unit is worth what it costs
    ],
)
def test_outcomes_are_those_of_all_strategies(terms):
    tree = solve.tree(Contributions(agents=2, most=2, terms=terms))
    found = outcomes(tree, 1e-6)
    assert sorted(found.tolist()) == sorted(perfect(tree)) and len(found) >= 1
    exact = backward_induction(Contributions(agents=2, most=2).payoffs(terms))
    _, moves, _ = tree.histories(found)
    assert tuple(exact.path.tolist()) in {tuple(row) for row in moves.tolist()}
    assert (len(found) == 1) or float(exact.margin) < 1e-6


def test_what_cannot_be_solved_is_refused():
    with pytest.raises(ValueError, match="needs to see all"):
        outcomes(solve.tree(KuhnPoker()))
    with pytest.raises(ValueError, match=r"got \(2, 2, 3\)"):
        backward_induction(jnp.zeros((2, 2, 3)))
