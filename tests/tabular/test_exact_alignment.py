"""The expected gradient of advantage alignment, against all games written out, and against sampled ones."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.tabular.exact_alignment import (
    BY_OTHER,
    FIRST,
    NEXT,
    agreement,
    exact_alignment,
    sampled_alignment,
    worth,
)

PAYOFF = np.random.default_rng(0).normal(size=(2, 2, 2))
LOGITS = np.random.default_rng(1).normal(size=(3, 9, 2))
CHANCE = 1 / (1 + np.exp(-LOGITS))
GAMMA, BETA = 0.8, 1.3
MOVES = list(product(range(2), repeat=2))


def seen(seat, last):
    """A situation, of the last round's (deal, action of seat 0, of seat 1)."""
    if last is None:
        return 8
    deal, *actions = last
    return 4 * (deal if seat == 0 else 1 - deal) + 2 * actions[seat] + actions[1 - seat]


def chance_of(t, last, deal, actions):
    taken = [CHANCE[t, seen(i, last), deal if i == 0 else 1 - deal] for i in range(2)]
    return np.prod([p if a else 1 - p for p, a in zip(taken, actions, strict=True)])


def paid(deal, a, b):
    return np.array([PAYOFF[deal, a, b], PAYOFF[1 - deal, b, a]])


@cache
def value(t, last, deal):
    """Of both seats, from round t on, given its deal."""
    return sum(chance_of(t, last, deal, m) * q(t, deal, m) for m in MOVES)


@cache
def q(t, deal, moves):
    later = 0 if t == 2 else sum(value(t + 1, (deal, *moves), d) for d in range(2)) / 2
    return paid(deal, *moves) + GAMMA * later


@pytest.fixture(scope="module")
def written_out():
    """{luck: gradient}, points and reach, of seat 0 over all 512 games."""
    gradient = {luck: np.zeros((3, 9, 2)) for luck in (0, 1)}
    points, reach = np.zeros(3), np.zeros((3, 9, 2))
    for game in product(product(range(2), MOVES), repeat=3):
        chance, last, past = 1.0, None, {0: 0.0, 1: 0.0}
        steps = []
        for t, (deal, moves) in enumerate(game):
            now, mean = q(t, deal, moves), (value(t, last, 0) + value(t, last, 1))[0] / 2
            advantage, where = now - value(t, last, deal), (t, seen(0, last), deal)
            steps.append((where, moves[0] - CHANCE[where], advantage, past, paid(deal, *moves)[0]))
            gained = {0: advantage[0], 1: now[0] - mean}
            past = {luck: GAMMA * (past[luck] + gained[luck]) for luck in past}
            chance *= 0.5 * chance_of(t, last, deal, moves)
            last = (deal, *moves)
        for where, score, advantage, past, own in steps:
            for luck, into in gradient.items():
                into[where] += chance * (advantage[0] + BETA * GAMMA * past[luck] * advantage[1]) * score
            points[where[0]] += chance * own
            reach[where] += chance
    return gradient, points, reach


@pytest.mark.parametrize("luck", [0, 1])
def test_the_expected_gradient_is_that_of_all_games(written_out, luck):
    gradient, points, reach = written_out
    found = exact_alignment(jnp.asarray(LOGITS), jnp.asarray(PAYOFF), gamma=GAMMA, beta=BETA, luck=luck)
    np.testing.assert_allclose(found.gradient, gradient[luck], atol=1e-6)
    np.testing.assert_allclose(found.points, points, atol=1e-6)
    np.testing.assert_allclose(found.reach, reach, atol=1e-6)


def test_without_alignment_it_is_the_policy_gradient():
    """Of one seat, with the other one's policy held."""
    chances = lambda logits: jax.nn.sigmoid(logits)
    gradient = jax.grad(lambda own: worth(chances(own), jnp.asarray(LOGITS), jnp.asarray(PAYOFF)))(jnp.asarray(LOGITS))
    found = exact_alignment(jnp.asarray(LOGITS), jnp.asarray(PAYOFF), gamma=1.0, beta=0.0)
    np.testing.assert_allclose(found.gradient, gradient, atol=1e-6)
    whole = worth(chances(jnp.asarray(LOGITS)), jnp.asarray(LOGITS), jnp.asarray(PAYOFF))
    assert float(whole) == pytest.approx(float(found.points.sum()), abs=1e-6)


def test_a_best_response_is_that_of_all_choices():
    def best(t, last, deal):
        if t == 3:
            return 0.0
        other = CHANCE[t, seen(1, last), 1 - deal]
        after = lambda moves: sum(best(t + 1, (deal, *moves), d) for d in range(2)) / 2
        of = lambda a, b: (other if b else 1 - other) * (PAYOFF[deal, a, b] + after((a, b)))
        return max(of(a, 0) + of(a, 1) for a in range(2))

    found = float(worth(None, jnp.asarray(LOGITS), jnp.asarray(PAYOFF)))
    assert found == pytest.approx((best(0, None, 0) + best(0, None, 1)) / 2, abs=1e-5)


def test_situations_of_both_seats():
    for deal, a, b in product(range(2), repeat=3):
        assert NEXT[deal, a, b] == seen(0, (deal, a, b)) and BY_OTHER[NEXT[deal, a, b]] == seen(1, (deal, a, b))
    assert BY_OTHER[FIRST] == FIRST


def test_alignment_does_not_move_what_situations_share_if_the_past_is_not_looked_at():
    """Past gains have mean 0. With the same policy in all situations, they weigh a gradient that does not vary."""
    logits = jnp.broadcast_to(jnp.asarray(LOGITS)[:, :1], (3, 9, 2))
    with_beta, without = (
        exact_alignment(logits, jnp.asarray(PAYOFF), gamma=GAMMA, beta=beta).gradient for beta in (BETA, 0.0)
    )
    assert float(jnp.abs(with_beta - without).max()) > 1e-2
    np.testing.assert_allclose((with_beta - without).sum(1), 0, atol=1e-6)


@pytest.mark.parametrize("luck", [0, 1])
def test_without_alignment_sampled_gradients_are_right_in_the_mean(luck):
    numbers = {"gamma": GAMMA, "beta": 0.0, "luck": luck}
    one = lambda key: sampled_alignment(
        key, jnp.asarray(LOGITS), jnp.asarray(PAYOFF), games=64, group_size=8, **numbers
    )
    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 2000))
    expected = exact_alignment(jnp.asarray(LOGITS), jnp.asarray(PAYOFF), **numbers).gradient
    error = np.asarray(found.std(0)) / np.sqrt(len(found))
    np.testing.assert_array_less(np.abs(found.mean(0) - expected), 4.5 * error + 1e-7)


def test_agreement():
    found = agreement(jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]), jnp.array([3.0, 0.0]))
    assert float(found["cosine"]) == pytest.approx((1 + 0 + np.sqrt(0.5)) / 3)
    assert float(found["direction"]) == pytest.approx(np.sqrt(0.5))
