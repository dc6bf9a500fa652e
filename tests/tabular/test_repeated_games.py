"""Best responses against a search over whole histories, and earnings against the sum over all plays."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.matrix_games import PRISONERS_DILEMMA
from jaxmarl_llm.tabular.repeated_games import best_response, earnings, shortfall, shortfall_unknown

ROUNDS = 3
PAYOFF = np.array(PRISONERS_DILEMMA)
best = jax.jit(partial(best_response, rounds=ROUNDS))
earned = jax.jit(partial(earnings, rounds=ROUNDS))


def chance(chances, own, other, action):
    """That a player plays the action after these moves of its own and of the other."""
    first = chances[0] if not own else chances[1 + 2 * own[-1] + other[-1]]
    return first if action == 0 else 1 - first


def searched(own, chances, discount, mine=(), theirs=()):
    """The best value after a history, with moves that may depend on all of it."""
    if len(mine) == ROUNDS:
        return 0.0
    values = []
    for a in (0, 1):
        after = [own[a][b] + discount * searched(own, chances, discount, (*mine, a), (*theirs, b)) for b in (0, 1)]
        values.append(sum(chance(chances, theirs, mine, b) * after[b] for b in (0, 1)))
    return max(values)


def summed(payoff, one, other, discount):
    total = np.zeros(2)
    for mine, theirs in product(product((0, 1), repeat=ROUNDS), repeat=2):
        weight = np.prod(
            [
                chance(one, mine[:t], theirs[:t], mine[t]) * chance(other, theirs[:t], mine[:t], theirs[t])
                for t in range(ROUNDS)
            ]
        )
        total += weight * sum(discount**t * payoff[mine[t], theirs[t]] for t in range(ROUNDS))
    return total


@pytest.mark.parametrize("seed", range(4))
def test_a_best_response_is_that_of_whole_histories(seed):
    rng = np.random.default_rng(seed)
    own, chances, discount = rng.normal(size=(2, 2)), rng.random(5), (1.0, 0.7)[seed % 2]
    found = best(jnp.asarray(own), jnp.asarray(chances), discount=discount)
    assert float(found.value) == pytest.approx(searched(own, chances, discount), abs=1e-5)
    # playing its moves earns its value: they may change by round, so the last two rounds are taken as they are
    value = np.zeros(5)
    for t in reversed(range(ROUNDS)):
        stay = [searched_once(own, chances, s, int(found.moves[t, s]), discount, value) for s in range(5)]
        value = np.array(stay)
    assert value[0] == pytest.approx(float(found.value), abs=1e-5)


def searched_once(own, chances, situation, a, discount, value):
    mine, theirs = ((), ()) if situation == 0 else (((situation - 1) // 2,), ((situation - 1) % 2,))
    return sum(chance(chances, theirs, mine, b) * (own[a][b] + discount * value[1 + 2 * a + b]) for b in (0, 1))


@pytest.mark.parametrize("seed", range(3))
def test_earnings_are_the_sum_over_all_plays(seed):
    rng = np.random.default_rng(seed)
    payoff, one, other, discount = rng.normal(size=(2, 2, 2)), rng.random(5), rng.random(5), (1.0, 0.9, 0.5)[seed]
    found = earned(*map(jnp.asarray, (payoff, one, other)), discount=discount)
    np.testing.assert_allclose(found, summed(payoff, one, other, discount), atol=1e-5)


def test_what_is_known_of_the_dilemma():
    own = jnp.asarray(PAYOFF[:, :, 0])
    tit_for_tat, defector = jnp.array([1.0, 1, 0, 1, 0]), jnp.zeros(5)  # after CC CD DC DD, its own move first
    ten = jax.jit(partial(best_response, rounds=10))
    copied = ten(own, tit_for_tat)
    assert float(copied.value) == 9 * 3 + 5 and copied.moves[0, 0] == 0 and copied.moves[-1].tolist() == [1] * 5
    assert float(ten(own, defector).value) == 10
    assert earned(jnp.asarray(PAYOFF), tit_for_tat, defector).tolist() == [2.0, 7.0]


def test_no_player_earns_more_than_a_best_response():
    chances = jax.random.uniform(jax.random.key(1), (2, 40, 5))
    value = jax.vmap(lambda x: best(jnp.asarray(PAYOFF[:, :, 0]), x).value)(chances[1])
    assert (jax.vmap(partial(earned, jnp.asarray(PAYOFF)))(*chances)[:, 0] <= value + 1e-5).all()


def test_what_is_no_repeated_game_is_refused():
    with pytest.raises(ValueError, match=r"five chances.*got \[2, 2\], \[4\] and 3"):
        best_response(jnp.zeros((2, 2)), jnp.zeros(4), 3)


def informed(own, chances, weight, rounds, case=0):
    """Expected payoffs, by player, of the best play of who knows the weights alone: by recursion over all histories."""
    if not rounds:
        return np.zeros(len(chances))
    values = []
    for a in (0, 1):
        value = np.zeros(len(chances))
        for b in (0, 1):
            p = np.array([who[(0, 1, 3, 2, 4)[case]] for who in chances])
            p = p if b == 0 else 1 - p
            value += p * (own[a, b] + informed(own, chances, weight * p, rounds - 1, 1 + 2 * a + b))
        values.append(value)
    return max(values, key=lambda value: (weight * value).sum())


def test_the_shortfall_of_who_does_not_know_whom_it_meets():
    rng = np.random.default_rng(7)
    payoff, chances = rng.normal(size=(2, 2, 2)), rng.random((3, 5))
    wanted = np.zeros(3)
    for own in (payoff[..., 0], payoff[..., 1].T):
        most = [informed(own, [who], np.ones(1), 4)[0] for who in chances]
        wanted += (np.array(most) - informed(own, chances, np.ones(3), 4)) / 8
    found = jax.jit(shortfall_unknown, static_argnums=2)(jnp.array(payoff), jnp.array(chances), 4)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    alone = shortfall_unknown(jnp.array(payoff), jnp.array(chances[:1]), 4)
    np.testing.assert_allclose(alone, 0, atol=1e-5)


def test_a_shortfall_is_of_both_seats():
    """Always the first action against who answers at random, by hand."""
    payoff, moves = jnp.arange(8.0).reshape(2, 2, 2), np.zeros((2, 1, 1, 2, 2), int)
    moves[0, 0, 0, :, 1] = moves[1, 0, 0, :, 0] = (0, 1)  # what the player did
    # seat 0 earned 0 and 2, seat 1 1 and 5; the best answers earn (4 + 6) / 2 and (3 + 7) / 2
    assert float(shortfall(payoff, jnp.full((1, 5), 0.5), jnp.asarray(moves))[0]) == pytest.approx((5 - 1 + 5 - 3) / 2)
