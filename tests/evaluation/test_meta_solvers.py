"""Meta-solvers against linear programming, OpenSpiel's alpha-Rank, and games that are solved by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from jaxmarl_llm.evaluation import meta_solvers

ROCK_PAPER_SCISSORS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)
ALL = [meta_solvers.latest, meta_solvers.uniform, meta_solvers.pfsp, meta_solvers.nash, meta_solvers.alpha_rank]


def table(seed: int, n: int = 9) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, n)).astype(np.float32)
    return x - x.T


def joined(n: int, members) -> meta_solvers.Pool:
    """A pool that these joined, in this order."""
    pool = meta_solvers.Pool(jnp.zeros(n, jnp.int32), jnp.int32(0))
    for member in members:
        pool = pool.join(jnp.int32(member))
    return pool


@pytest.mark.parametrize(
    "solver", [*ALL, meta_solvers.risk_averse], ids=lambda f: getattr(f, "__name__", "risk_averse")
)
def test_a_mixture_is_of_the_pool_alone(solver):
    mixture = np.asarray(jax.jit(solver)(table(0), joined(9, (4, 1, 7))))
    assert mixture.sum() == pytest.approx(1, abs=1e-5) and mixture.min() >= 0
    assert not mixture[[0, 2, 3, 5, 6, 8]].any()
    alone = np.asarray(jax.jit(solver)(table(0), joined(9, (5,))))
    np.testing.assert_allclose(alone, np.eye(9)[5], atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_nash_is_as_hard_to_exploit_as_that_of_a_linear_program(seed):
    """Of a symmetric zero-sum game the value is 0: the largest gain against the mixture goes to 0."""
    game = table(seed)
    mixture = meta_solvers.nash(game, joined(9, range(9)), steps=20_000)
    assert float(meta_solvers.exploitability(game, mixture)) < 0.005
    # minimise v with game @ x <= v, x a distribution
    bounds, equal = [(0, None)] * 9 + [(None, None)], np.ones((1, 10))
    equal[0, -1] = 0
    above = np.concatenate([game, -np.ones((9, 1))], 1)
    exact = linprog(np.eye(10)[-1], above, np.zeros(9), equal, [1.0], bounds)
    assert abs(exact.x[-1]) < 1e-8
    np.testing.assert_allclose(mixture, exact.x[:9], atol=0.05)


def test_who_joined_twice_counts_twice_for_fictitious_play():
    np.testing.assert_allclose(meta_solvers.uniform(table(0), joined(9, (2, 4, 2))), np.eye(9)[[2, 4, 2]].mean(0))


def test_rock_paper_scissors():
    everyone = joined(3, (0, 1, 2))
    for solver in (meta_solvers.uniform, meta_solvers.nash, meta_solvers.alpha_rank):
        np.testing.assert_allclose(solver(ROCK_PAPER_SCISSORS, everyone), [1 / 3] * 3, atol=1e-3)
    assert meta_solvers.latest(ROCK_PAPER_SCISSORS, everyone).tolist() == [0, 0, 1]
    lost = (1 - 1 / (1 + np.exp(-ROCK_PAPER_SCISSORS[2]))) ** 2  # scissors lose to rock
    np.testing.assert_allclose(meta_solvers.pfsp(ROCK_PAPER_SCISSORS, everyone), lost / lost.sum(), rtol=1e-5)
    assert float(meta_solvers.exploitability(ROCK_PAPER_SCISSORS, jnp.eye(3)[0])) == 1


@pytest.mark.parametrize("seed", range(4))
def test_alpha_rank_is_openspiel_s(seed):
    alpharank = pytest.importorskip("open_spiel.python.egt.alpharank")
    game, epsilon = table(seed, 6), 0.01
    expected = alpharank.compute([game.astype(float)], use_inf_alpha=True, inf_alpha_eps=epsilon)[2]
    mixture = meta_solvers.alpha_rank(game, joined(6, range(6)), epsilon=epsilon)
    np.testing.assert_allclose(mixture, expected, atol=2e-3)


def test_a_strategy_that_beats_all_is_the_answer_of_all_who_look_at_the_table():
    game = table(1)
    game[3], game[:, 3] = 1.0, -1.0
    game[3, 3] = 0
    for solver in (meta_solvers.nash, meta_solvers.alpha_rank):
        assert float(solver(game, joined(9, range(9)))[3]) > 0.99


def test_risk_aversion_prefers_the_steady_strategy():
    """Three cyclic strategies with large stakes, three with small ones, even against each other."""
    big, small = 4 * ROCK_PAPER_SCISSORS, 0.5 * ROCK_PAPER_SCISSORS
    game = np.block([[big, np.zeros((3, 3))], [np.zeros((3, 3)), small]]).astype(np.float32)
    mixture = meta_solvers.risk_averse(game, joined(6, range(6)))
    plain = meta_solvers.nash(game, joined(6, range(6)))
    variance = lambda x: float(((game**2) @ x) @ x)
    assert variance(mixture) < 0.5 * variance(plain)
