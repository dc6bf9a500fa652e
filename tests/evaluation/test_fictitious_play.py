"""Fictitious play in games of any sum: known equilibria, and aversion to variance against enumeration."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.matrix_games import SETTINGS
from jaxmarl_llm.evaluation.meta_solvers import fictitious_play, fictitious_round, risk_averse_response

solve = jax.jit(partial(fictitious_play, steps=3000))
respond = jax.jit(risk_averse_response)


def tables(game: str) -> tuple[np.ndarray, np.ndarray]:
    points = np.array(SETTINGS[game]["payoff"], np.float32)
    return points[:, :, 0], points[:, :, 1].T


def strategies(first: float, second: float) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.array([x, 1 - x], np.float32) for x in (first, second))


@pytest.mark.parametrize(
    "game, start, expected",
    [
        ("stag_hunt", (0.72, 0.72), (1, 1)),  # both hunt stag above a belief of 2/3
        ("stag_hunt", (0.62, 0.62), (0, 0)),
        ("chicken", (0.6, 0.4), (1, 0)),  # one swerves, the other drives on
        ("chicken", (0.4, 0.6), (0, 1)),
        ("chicken", (0.9, 0.9), (0.5, 0.5)),  # players alike find the mixed equilibrium
        ("matching_pennies", (0.9, 0.3), (0.5, 0.5)),
    ],
)
def test_known_equilibria(game, start, expected):
    found = solve(tables(game), strategies(*start), temperature=0.05)
    np.testing.assert_allclose([x[0] for x in found], expected, atol=0.03)


def test_players_may_have_different_numbers_of_actions():
    """The first player's third row dominates; the second's best action against it is the first."""
    first = np.array([[0, 0], [1, 0], [3, 2]], np.float32)
    second = np.array([[0, 0, 2], [1, 1, 0]], np.float32)
    found = solve((first, second), (np.full(3, 1 / 3, np.float32), np.full(2, 1 / 2, np.float32)))
    np.testing.assert_allclose(found[0], [0, 0, 1], atol=0.01)
    np.testing.assert_allclose(found[1], [1, 0], atol=0.01)


def objective(payoff, own, other, risk):
    """Mean less risk times the variance over the other's action, a loop over actions."""
    earned = [sum(own[a] * payoff[a, b] for a in range(len(own))) for b in range(len(other))]
    mean = sum(q * x for q, x in zip(other, earned, strict=True))
    return mean - risk * sum(q * (x - mean) ** 2 for q, x in zip(other, earned, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_a_strategy_that_responds_to_itself_is_the_best_of_a_grid(seed):
    rng = np.random.default_rng(seed)
    payoff = rng.uniform(0, 4, (3, 4)).astype(np.float32)
    other = rng.dirichlet(np.ones(4)).astype(np.float32)
    risk, temperature = 0.7, 0.3

    def step(i, own):
        now = risk_averse_response(payoff, own, other, risk=risk, temperature=temperature)
        return own + (now - own) / (i + 2)

    own = np.asarray(jax.jit(lambda own: jax.lax.fori_loop(0, 4000, step, own))(jnp.full(3, 1 / 3)))
    np.testing.assert_allclose(respond(payoff, own, other, risk=risk, temperature=temperature), own, atol=1e-3)

    def value(x):
        return objective(payoff, x, other, risk) - temperature * sum(p * np.log(p) for p in x)

    n = 60
    grid = [(a / n, b / n, (n - a - b) / n) for a in range(1, n) for b in range(1, n - a)]
    best = max(grid, key=value)
    np.testing.assert_allclose(own, best, atol=1.5 / n)
    assert value(own) >= value(best) - 1e-5


def test_the_response_follows_the_gradient():
    rng = np.random.default_rng(3)
    payoff, own, other = rng.normal(size=(3, 4)), rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(4))
    slope = [
        (objective(payoff, own + e, other, 0.4) - objective(payoff, own - e, other, 0.4)) / 2e-4
        for e in 1e-4 * np.eye(3)
    ]
    found = respond(*(jnp.float32(x) for x in (payoff, own, other)), risk=0.4, temperature=0.5)
    expected = np.exp(np.array(slope) / 0.5)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-4)


@pytest.mark.parametrize("risk", [0.0, 0.1, 3.0])
def test_risk_aversion_moves_and_removes_equilibria_of_the_stag_hunt(risk):
    """Symmetric equilibria are the roots of play(p) - p: from either end fictitious play reaches the nearest one."""
    tremble, temperature = 0.1, 0.1
    payoff = tables("stag_hunt")[0]

    def excess(p):
        """Play in answer to p, less p; the slope of the objective in p by differences."""
        up, down = (objective(payoff, (p + e, 1 - p - e), (p, 1 - p), risk) for e in (1e-4, -1e-4))
        intended = 1 / (1 + np.exp(-(up - down) / 2e-4 / temperature))
        return (1 - tremble) * intended + tremble / 2 - p

    grid = np.linspace(0.001, 0.999, 3000)
    signs = np.sign([excess(p) for p in grid])
    roots = [grid[i] for i in range(len(grid) - 1) if signs[i] > 0 > signs[i + 1]]  # the stable ones
    assert len(roots) == (1 if risk == 3 else 2)
    found = [
        float(solve(tables("stag_hunt"), strategies(p, p), risk=risk, temperature=temperature, tremble=tremble)[0][0])
        for p in (0.05, 0.95)
    ]
    np.testing.assert_allclose(found, [roots[0], roots[-1]], atol=5e-3)


def test_rounds_are_sampled_from_the_strategies_they_return():
    payoffs = tables("chicken")
    averages = strategies(0.5, 0.45)
    options = {"tremble": 0.3, "risk": 0.2, "temperature": 1.0}
    plays, after = jax.jit(partial(fictitious_round, **options))(payoffs, averages, 4.0)
    for seat in range(2):
        intended = respond(payoffs[seat], averages[seat], averages[1 - seat], risk=0.2, temperature=1.0)
        np.testing.assert_allclose(plays[seat], 0.7 * np.asarray(intended) + 0.15, rtol=1e-5)
        np.testing.assert_allclose(after[seat], (4 * averages[seat] + plays[seat]) / 5, rtol=1e-5)
    sampled = jax.jit(jax.vmap(lambda key: fictitious_round(payoffs, averages, 4.0, key, **options)[1]))
    drawn = [np.asarray(x) for x in sampled(jax.random.split(jax.random.key(0), 4000))]
    actions = [np.round(5 * drawn[seat] - 4 * averages[seat], 4) for seat in range(2)]  # one-hot
    assert set(np.unique(actions)) == {0.0, 1.0}
    for seat in range(2):
        np.testing.assert_allclose(actions[seat].mean(0), plays[seat], atol=0.04)
    joint = (actions[0][:, 0] * actions[1][:, 0]).mean()
    assert joint == pytest.approx(float(plays[0][0] * plays[1][0]), abs=0.04)
