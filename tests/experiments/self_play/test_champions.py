"""What champions are measured by: games among them, cycles and how general the last one is."""

from itertools import permutations

import numpy as np
import pytest

from experiments.self_play import champions
from experiments.self_play.exploitability import GAME
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.past_policies import tree_of


def policies(n: int) -> np.ndarray:
    sets, actions = tree_of(GAME).legal.shape
    return np.random.default_rng(1).dirichlet(np.ones(actions), (n, sets))


def test_games_are_zero_sum_and_a_best_response_wins_half_of_nash_conv():
    for own, other in policies(10).reshape(5, 2, *tree_of(GAME).legal.shape):
        assert champions.meet(own, other) == pytest.approx(-champions.meet(other, own), abs=1e-12)
        best = solve.best_response(tree_of(GAME), other)
        assert champions.meet(best, other) == pytest.approx(solve.nash_conv(tree_of(GAME), other) / 2, abs=1e-12)


def test_an_equilibrium_loses_to_nobody_and_always_betting_to_many():
    near, bold = solve.cfr(tree_of(GAME), 20_000), np.eye(2)[np.ones(len(tree_of(GAME).owner), int)]
    assert min(champions.meet(near, other) for other in champions.pure()) > -2e-3
    lost = [champions.meet(bold, other) < -1e-9 for other in champions.pure()]
    assert champions.general([near, bold]) == 1 - np.mean(lost) < 0.95


@pytest.mark.parametrize("circle", [False, True])
def test_cycles_are_counted_among_decided_triples(monkeypatch, circle):
    """Against a loop over all orders of three; some games are as good as drawn."""
    rng = np.random.default_rng(2)
    won = np.triu(rng.normal(size=(7, 7)), 1)
    won[rng.random((7, 7)) < 0.2] = 0.005
    won = np.triu(won, 1) - np.triu(won, 1).T
    if circle:
        won = np.array([[0, 1, -1], [-1, 0, 1], [1, -1, 0]])
    monkeypatch.setattr(champions, "meet", lambda a, b: won[a, b])
    triples, cycles = set(), set()
    for a, b, c in permutations(range(len(won)), 3):
        if min(abs(won[a, b]), abs(won[b, c]), abs(won[c, a])) > champions.EDGE:
            triples.add(frozenset((a, b, c)))
            if won[a, b] > 0 and won[b, c] > 0 and won[c, a] > 0:
                cycles.add(frozenset((a, b, c)))
    assert cycles and champions.share_of_cycles(range(len(won))) == pytest.approx(len(cycles) / len(triples))


def test_champions_that_have_all_drawn_have_no_cycles():
    same = list(policies(1)) * 4
    assert np.isnan(champions.share_of_cycles(same))


def test_who_is_met_in_each_arm():
    """Both seats take turns; snapshots are of every tenth update."""
    pools = {"latest": 1, "recent": 5, "all": 30}
    for name, arm in champions.STUDY.arms.items():
        other = {"self": champions.ME, "random": "random", "equilibrium": "equilibrium"}.get(name, "snapshot/learner")
        assert set(arm.seats) == {(champions.ME, other), (other, champions.ME)}, name
        assert (arm.snapshots and tuple(arm.snapshots)) == ((pools[name], 10) if name in pools else None)
        assert (arm.updates, arm.eval_every) == (300, 10)
