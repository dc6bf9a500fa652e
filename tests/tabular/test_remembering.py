"""Tabular learners that remember: what is remembered, and a step of learning, against loops."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.tabular import remembering as tables
from jaxmarl_llm.tabular.repeated_games import best_response

PAYOFF = np.array((((3.0, 3.0), (0.0, 5.0)), ((5.0, 0.0), (1.0, 1.0))))
PURE = jnp.array([[1.0, 0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0, 1.0]])


def played(rounds=9, seed=0, told=False):
    games = tables.meetings(2, PURE, jnp.bool_(told))
    logit = jax.random.normal(jax.random.key(seed), tables.fresh(2, 2).logit.shape)
    value = jax.random.normal(jax.random.key(seed + 1), logit.shape)
    now = tables.Tables(logit, value)
    return now, games, tables.play(now, games, jnp.asarray(PAYOFF), rounds, jax.random.key(seed + 2))


def test_memory_is_the_last_answer_in_each_situation():
    _, games, found = played()
    who, flag, memory, situation = map(np.asarray, found.context)
    assert games.learner.tolist() == [[0, 1], [0, 1], [0, -1], [1, -1]] and not flag.any()
    for game in range(4):
        for seat in range(2):
            assert (who[game, :, seat] == max(0, games.learner[game, seat])).all()
            known, here = [0] * 5, 0
            for t in range(10):
                assert memory[game, t, seat] == sum(k * 3**i for i, k in enumerate(known))
                assert situation[game, t, seat] == here
                if t < 9:
                    own, other = (int(found.action[game, t, s]) for s in (seat, 1 - seat))
                    assert (
                        found.reward[game, t, seat]
                        == (PAYOFF if seat == 0 else PAYOFF.swapaxes(0, 1))[own, other][seat]
                    )
                    known[here], here = 1 + other, 1 + 2 * own + other


def test_players_of_certain_answers_are_what_is_told_of_them():
    _, games, found = played(told=True)
    assert games.flag.tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]] and games.memory[:2].tolist() == [[0, 0]] * 2
    memory = np.asarray(found.context[2])[2:, :, 0]
    assert (memory == memory[:, :1]).all() and (memory > 0).all()  # what happens is what was known
    for game in range(2):
        for t in range(9):
            case = int(found.context[3][2 + game, t, 1])
            assert found.action[2 + game, t, 1] == 1 - PURE[game, case]
    assert tables.memory_of(jnp.full(5, -1)) == 0


def test_a_step_of_learning_against_a_loop():
    now, _, found = played()
    rate, entropy, gamma, lam, prior = 0.7, 0.2, 0.9, 0.8, 3.0
    learns = np.array([[True, True], [False, True], [True, False], [True, False]])
    options = {"rate": rate, "entropy": entropy, "gamma": gamma, "lam": lam, "prior": prior}
    after = tables.learn(now, found, jnp.asarray(learns), **options)
    logit, value = np.array(now.logit, float), np.array(now.value, float)
    up, error, count = (np.zeros_like(logit) for _ in range(3))
    for game, seat in np.argwhere(learns):
        at = [tuple(int(x[game, t, seat]) for x in found.context) for t in range(10)]
        advantage = 0.0
        for t in reversed(range(9)):
            advantage = (
                float(found.reward[game, t, seat]) + gamma * value[at[t + 1]] - value[at[t]] + gamma * lam * advantage
            )
            p = 1 / (1 + np.exp(-logit[at[t]]))
            up[at[t]] += advantage * ((found.action[game, t, seat] == 0) - p)
            error[at[t]] += advantage
            count[at[t]] += 1
    p = 1 / (1 + np.exp(-logit))
    up -= entropy * logit * p * (1 - p) * count
    np.testing.assert_allclose(after.logit, logit + rate * up / (count + prior), atol=1e-4)
    np.testing.assert_allclose(after.value, value + error / (count + prior), atol=1e-4)


def test_learners_find_who_always_cooperates():
    """Defection pays 5 instead of 3; nobody is told whom it meets."""
    kind = lambda key, number: jnp.ones((number, 5))
    measure = lambda action, points: {"points": points.mean()}
    yes, no = jnp.bool_(True), jnp.bool_(False)
    options = {"rate": 1.0, "entropy": 0.05, "gamma": 0.9, "updates": 40, "rounds": 8, "pairs": 16}
    given = {"from_pairs": no, "from_others": yes, "told": no}
    _, curves = tables.train(jax.random.key(0), kind, jnp.asarray(PAYOFF), measure, **options, **given)
    assert curves["points"][0] < 4.3 and curves["points"][-1] > 4.6


def test_drawn_players_are_five_chances_or_five_coins():
    fair, coins = (tables.draw_chances(jax.random.key(3), 50, coins=x) for x in (0.0, 1.0))
    assert fair.shape == (50, 5) and ((fair > 0) & (fair < 1)).all()
    np.testing.assert_array_equal(coins, np.asarray(fair) > 0.5)


def whole_games(logit, rounds, discount, choose, known=(0,) * 5, here=0, moves=()):
    """Both players' points after a history; `choose` picks among the values of the two moves, given the own history."""
    if len(moves) == rounds:
        return np.zeros(2)
    p = 1 / (1 + np.exp(-logit[sum(k * 3**i for i, k in enumerate(known)), here]))
    values = []
    for a in (0, 1):
        seen = tuple(1 + a if case == here else k for case, k in enumerate(known))
        value = np.zeros(2)
        for b, chance in ((0, p), (1, 1 - p)):
            after = whole_games(logit, rounds, discount, choose, seen, 1 + 2 * b + a, (*moves, (a, b)))
            value += chance * (PAYOFF[a, b] + discount * after)
        values.append(value)
    return choose(values, moves)


@pytest.mark.parametrize("discount", [1.0, 0.6])
def test_what_a_frozen_table_answers_is_that_of_all_games(discount):
    logit = np.random.default_rng(1).normal(size=(tables.MEMORIES, tables.SITUATIONS)) * 2
    five = np.array([0.3, 0.9, 0.2, 0.6, 0.1])

    def best(values, moves):
        return max(values, key=lambda x: x[0])

    def by_chances(values, moves):
        p = five[0 if not moves else 1 + 2 * moves[-1][0] + moves[-1][1]]
        return p * values[0] + (1 - p) * values[1]

    for chances, choose in ((None, best), (jnp.asarray(five), by_chances)):
        found = tables.exact_earnings(jnp.asarray(logit), jnp.asarray(PAYOFF), 5, chances, discount)
        np.testing.assert_allclose(found, whole_games(logit, 5, discount, choose), rtol=1e-4)


def test_a_best_response_to_a_table_of_five_chances_is_that_to_the_player():
    five = jnp.array([0.3, 0.9, 0.2, 0.6, 0.1])
    logit = jnp.broadcast_to(jnp.log(five / (1 - five)), (tables.MEMORIES, tables.SITUATIONS))
    found = tables.exact_earnings(logit, jnp.asarray(PAYOFF), 7)[0]
    assert float(found) == pytest.approx(float(best_response(jnp.asarray(PAYOFF)[..., 0], five, 7).value), rel=1e-4)


MAPPED = """
import jax, jax.numpy as jnp
from jaxmarl_llm.tabular import remembering as tables
logit, payoff = jnp.ones((3, tables.MEMORIES, tables.SITUATIONS)), jnp.ones((2, 2, 2))
scaled = lambda x, scale: tables.exact_earnings(scale * x, payoff, 4)
found = jax.jit(jax.vmap(jax.vmap(scaled, (None, 0)), (0, None)))(logit, jnp.ones(1))
assert abs(found - 4).max() < 1e-5
"""


@pytest.mark.commands
def test_what_a_table_answers_may_be_mapped_over_seeds_and_one_setting():
    """A reduction in it crashed the process, optimised as a user's is and not as these tests are."""
    flagless = {name: x for name, x in os.environ.items() if name not in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")}
    subprocess.run([sys.executable, "-c", MAPPED], env=flagless, check=True, timeout=300)


def test_learners_that_learn_from_no_game_are_frozen():
    start = tables.Tables(*(jnp.ones((3, 1, tables.MEMORIES, tables.SITUATIONS)) * x for x in (0.5, 0.0)))
    games = tables.line_ups([(2, 0), (1, -1)], 3, (1.0, 0.0, 1.0, 0.0, 1.0))
    assert games.learner.tolist() == [[2, 0], [1, -1]] * 3 and games.chances.shape == (6, 5)
    options = {"updates": 2, "rounds": 4, "rate": 1.0, "entropy": 0.0, "gamma": 0.9}
    meet = lambda key: (games, games.learner > 0)
    measure = lambda played: {"points": played.reward.mean()}
    after, curves = tables.improve(jax.random.key(0), start, meet, jnp.asarray(PAYOFF), measure, **options)
    same = [bool((x[i] == y[i]).all()) for x, y in zip(after, start, strict=True) for i in range(3)]
    assert same == [True, False, False] * 2 and curves["points"].shape == (2,)
