"""Values and gradients of tables: against finite differences of J, `solve` and automatic differentiation."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.environments.solo.fork import Fork
from jaxmarl_llm.environments.solo.stairs import Stairs
from jaxmarl_llm.environments.teams.team_signals import SixTurns
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.exact_gradient import Tables, exact, exact_gradient, tables

GAMES = {"kuhn": KuhnPoker(), "stairs": Stairs(3), "fork": Fork(3), "six": SixTurns(2)}
games = pytest.mark.parametrize("name", GAMES)


@cache
def game(name: str) -> Tables:
    return tables(GAMES[name])


def softmax(game: Tables, logits: np.ndarray) -> np.ndarray:
    mass = np.where(game.tree.legal, np.exp(logits), 0)
    return mass / mass.sum(1, keepdims=True)


def drawn(game: Tables) -> np.ndarray:
    return np.random.default_rng(0).normal(size=game.tree.legal.shape)


@games
def test_the_gradient_is_a_finite_difference_of_what_the_seat_gets(name):
    one, step = game(name), 1e-5
    logits = drawn(one)
    found = exact_gradient(one, softmax(one, logits))
    rows, actions = np.nonzero(one.tree.legal)
    for i, a in list(zip(rows, actions, strict=True))[::3]:
        moved = np.zeros_like(logits)
        moved[i, a] = step
        up, down = (solve.expected_value(one.tree, softmax(one, logits + x)) for x in (moved, -moved))
        seat = one.tree.owner[i]
        assert found[i, a] == pytest.approx((up - down)[seat] / (2 * step), abs=1e-8)
    assert np.abs(found).max() > 1e-3


@games
def test_values_are_those_of_solve(name):
    one = game(name)
    policy = softmax(one, drawn(one))
    with jax.enable_x64(True):
        found = jax.device_get(exact(one, jnp.asarray(policy)))
    np.testing.assert_allclose(found.returns, solve.expected_value(one.tree, policy), atol=1e-12)
    q = solve.action_values(one.tree, policy)
    advantage = np.where(one.tree.legal, q - np.nansum(policy * q, 1, keepdims=True), 0)
    np.testing.assert_allclose(found.advantage, advantage, atol=1e-12)
    first = [int(one.tree.information[deal]) for deal in range(len(one.chance))]  # nothing was paid before
    np.testing.assert_allclose(found.value[first], np.nansum(policy * q, 1)[first], atol=1e-12)
    assert found.reach[np.unique(first)].sum() == pytest.approx(1)


def test_the_gradient_is_that_of_automatic_differentiation():
    one = game("stairs")
    logits = jnp.asarray(drawn(one), jnp.float32)
    policy = lambda logits: jax.nn.softmax(jnp.where(one.tree.legal, logits, -jnp.inf))
    wanted = jax.jit(jax.grad(lambda logits: exact(one, policy(logits)).returns[0]))(logits)
    np.testing.assert_allclose(exact(one, policy(logits)).gradient, wanted, atol=1e-6)


def test_components_are_weighed_and_a_value_counts_what_is_still_to_come():
    """Of the second turn's reward of each seat: a hit by chance, and half of the constant 2 to the second seat."""
    one = tables(SixTurns(2), weights=(1.0, 0.5))
    found = exact(one, jnp.asarray(solve.uniform(one.tree), jnp.float32))
    hit = (1.0 - 0.2 * 3) / 4
    np.testing.assert_allclose(found.value, np.where(one.tree.owner == 0, hit, hit + 1), atol=1e-6)
    np.testing.assert_allclose(found.returns, [hit, hit + 1], atol=1e-6)


def test_a_table_that_is_no_policy_is_refused():
    with pytest.raises(ValueError, match="probabilities of legal actions"):
        exact_gradient(game("stairs"), np.ones(game("stairs").tree.legal.shape))
