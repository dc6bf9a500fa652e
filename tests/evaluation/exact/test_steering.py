"""The best planner against a search over all histories that counts hints, and against games.

The long case compiles the plan of a whole game.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.social.herd import Aim, Herd
from jaxmarl_llm.evaluation.exact import steering

GAME = Herd(followers=4, evidence=(0, 1, 2), cost=(0.0, 0.05, 0.15), prior=-1)
P = (1 / 2, 2 / 3, 4 / 5)


def search(red, blue, left, aim, choose=max):
    """The best value if red and blue have these masses: the joint probability of the prize and all that was seen."""
    if not left:
        return 0.0
    options = []
    for level, true in enumerate(P):
        hints = [(red * true, blue * (1 - true)), (red * (1 - true), blue * true)]  # it names red, or blue
        doors = [hint if abs(r - b) < 1e-12 else int(r < b) for hint, (r, b) in enumerate(hints)]
        total = -GAME.cost[level]
        for door in (0, 1):
            r, b = (sum(hints[h][i] for h in (0, 1) if doors[h] == door) for i in (0, 1))
            if r + b > 0:
                total += aim[0] * (r, b)[door] + aim[1] * (r + b) * (door == 0)
                total += (r + b) * search(r / (r + b), b / (r + b), left - 1, aim, choose)
        options.append(total)
    return choose(options)


@pytest.mark.parametrize("aim", [(1.0, 0.0), (0.0, 1.0), (0.3, 2.0)])
def test_the_best_planner_is_the_best_of_all_histories(aim):
    best = jax.jit(lambda aim: steering.plan(GAME, aim))(Aim(*map(jnp.float32, aim)))
    start = steering.place(GAME, jnp.int32(GAME.prior))
    assert float(best.value[0, start]) == pytest.approx(search(1 / 3, 2 / 3, 4, aim), abs=1e-5)


@pytest.mark.parametrize("level", range(3))
def test_what_constant_precision_brings(level):
    constant = jnp.full((4, len(steering.beliefs(GAME))), level)
    found = {name: float(x) for name, x in steering.outcome(GAME, constant).items()}
    pick = lambda options: options[level]
    cost = 4 * GAME.cost[level]
    assert found["cost"] == pytest.approx(cost)
    assert found["right"] == pytest.approx(search(1 / 3, 2 / 3, 4, (1, 0), pick) + cost, abs=1e-5)
    assert found["red"] == pytest.approx(search(1 / 3, 2 / 3, 4, (0, 1), pick) + cost, abs=1e-5)


@cache
def games(count=4000):
    """(levels, doors, what the planner got) of a planner that buys at random, with Bayesian followers."""
    aim = Aim(1.0, 0.5)

    def game(key):
        state, _ = GAME.reset(key, jnp.int32(0), aim)
        total = 0.0
        for turn in range(GAME.turns):
            own = jax.random.fold_in(key, turn)
            bought = jax.random.randint(own, (), 0, 3)
            door = GAME.scripts["bayesian"](state, jnp.int32(1), own)
            state, _, reward = GAME.step(state, jnp.full(GAME.agents, door).at[0].set(bought), own)
            total += reward[0].sum()
        return state.level, state.opened, total

    return aim, *jax.device_get(jax.jit(jax.vmap(game))(jax.random.split(jax.random.key(0), count)))


def test_regret_is_what_a_planner_gets_less():
    aim, level, opened, total = games()
    best = steering.plan(GAME, aim)
    lost = np.asarray(steering.regret(GAME, best, jnp.asarray(level), jnp.asarray(opened)))
    assert lost.shape == level.shape and lost.min() >= -1e-5
    value = float(best.value[0, steering.place(GAME, jnp.int32(GAME.prior))])
    assert abs(value - lost.sum(1).mean() - total.mean()) < 4 * total.std() / len(total) ** 0.5


@pytest.mark.long
def test_the_best_plan_has_no_regret_and_its_value_is_what_it_brings():
    best = steering.plan(GAME, Aim(1.0, 0.0))
    found = steering.outcome(GAME, best.q.argmax(-1))
    value = best.value[0, steering.place(GAME, jnp.int32(GAME.prior))]
    assert float(found["right"] - found["cost"]) == pytest.approx(float(value), abs=1e-5)
