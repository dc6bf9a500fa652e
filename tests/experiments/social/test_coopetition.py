"""Equilibria of two investors against best responses on a grid, the paper's figures, and the cases that are drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import coopetition as study

VALUES = {"power": lambda a: a**0.75, "log": lambda a: 20 * np.log(1 + a)}
GAMMAS = {"power": 0.5, "log": 0.65}
SLOPES = {"power": study.power, "log": study.log}
solve = {name: jax.jit(lambda *case, f=f: study.equilibrium(f, *case)) for name, f in SLOPES.items()}


def by_grid(f, gamma, alpha, dependence):
    """Investments after rounds of best responses, partner after partner, each the best of a grid."""
    grid, a = np.geomspace(study.LEAST, study.MOST, 40_001), np.full(2, 10.0)
    for _ in range(40):
        for i, j in ((0, 1), (1, 0)):
            synergy = gamma * np.sqrt(grid * a[j])
            paid = 100 - grid + f(grid) + alpha[i] * synergy, 100 - a[j] + f(a[j]) + alpha[j] * synergy
            a[i] = grid[(paid[0] + dependence[i] * paid[1]).argmax()]
    return a


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("dependence", [(0.64, 0.86), (0.0, 0.9)])
def test_equilibria_against_a_grid(name, dependence):
    found = solve[name](GAMMAS[name], jnp.array(study.ALPHA), jnp.array(dependence))
    np.testing.assert_allclose(found, by_grid(VALUES[name], GAMMAS[name], study.ALPHA, dependence), rtol=2e-3)


@pytest.mark.parametrize("name, figures", [("power", (170.2, 166.1)), ("log", (42.2, 41.4))])
def test_the_figures_of_the_paper_are_against_neither_interdependence_nor_synergy(name, figures):
    """The release's figures, and the paper's with the partners' D exchanged."""
    alpha, dependence = jnp.array(study.ALPHA), jnp.array(study.DEPENDENCE)
    before = solve[name](0.0, alpha, jnp.zeros(2)).mean()
    after = jnp.stack([solve[name](GAMMAS[name], alpha, d).mean() for d in (dependence, dependence[::-1])])
    np.testing.assert_allclose(100 * (after / before - 1), figures, atol=0.1)


@pytest.mark.parametrize("name", VALUES)
def test_without_synergy_interdependence_changes_nothing(name):
    alone, joint = (solve[name](0.0, jnp.array(study.ALPHA), jnp.array(d)) for d in ((0.0, 0.0), study.DEPENDENCE))
    assert alone.tolist() == joint.tolist()


def test_arms_begin_at_the_investments_that_they_name():
    """Without synergy the slope of an arm's own value is 1."""
    slopes = SLOPES | study.SCALED
    for name, a in {"power": study.SMALL, "log": 19, "log/small": study.SMALL, "log/tiny": study.SMALL / 10}.items():
        assert float(slopes[name](a)) == pytest.approx(1, abs=1e-6)


def test_drawn_cases():
    drawn = jax.jit(jax.vmap(study.draw_case))(jax.random.split(jax.random.key(0), 4000))
    alpha, dependence = map(np.asarray, drawn)
    np.testing.assert_allclose(alpha.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(dependence.mean(0), study.DEPENDENCE, atol=0.01)
    share = np.abs(dependence / np.array(study.DEPENDENCE) - 1)
    assert 0.14 < share.max() <= 0.15 + 1e-6 and np.corrcoef(dependence.T)[0, 1] == pytest.approx(0, abs=0.06)


def test_rises_multiply_to_the_released_one():
    """The rise by synergy, then by interdependence, is the rise by both; the record is 15% to 50%."""
    names = ("log", "log/synergy", "log/as_released")
    curves = {name: study.STUDY.arms[name].curves([100, 101]) for name in names}
    alone, synergy, both = (1 + curves[name]["rise"] for name in names)
    np.testing.assert_allclose(alone * synergy, both, rtol=1e-4)
    for curve in curves.values():
        assert (curve["aligned"] == ((curve["rise"] >= 0.15) & (curve["rise"] <= 0.5))).all()
