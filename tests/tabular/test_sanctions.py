"""Rounds of a society against a loop in plain Python: acts, fines, reputations, and what all learn."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.tabular.sanctions import STATES, Customs, Society, begin, linear_in_bits, outsiders, partners, play

N = 5
PAYOFF = jnp.array([[3.0, 0.5], [4.0, 1.0]])
ARMS = {
    "all": Customs(1.0, 1.0, 1.0, 1.0, 2.0, -10.0, 3.0),
    "direct": Customs(0.0, 1.0, 0.0, 0.0, -1.0, -1.0, 2.0),
    "third": Customs(0.0, 0.0, 1.0, 1.0, 2.0, -10.0, 3.0),
    "bare": Customs(1.0, 0.0, 0.0, 0.0, 2.0, -10.0, 3.0),
}
ROUND = jax.jit(partial(play, payoff=PAYOFF, temperature=0.1, rate=0.1, discount=0.9))


def certain(seed):
    """A society whose tables leave no doubt about what is done."""
    rng = np.random.default_rng(seed)
    table = 1000.0 * rng.choice([-1, 1], (N * STATES + 1, 1)) * [[1, -1]]
    return Society(
        jnp.asarray(table, jnp.float32),
        jnp.asarray(rng.normal(size=(N, N + 2)), jnp.float32),
        jnp.asarray(rng.integers(0, 2, N), jnp.int32),
        jnp.asarray(rng.integers(-2, 3, N), jnp.float32),
    )


def round_in_a_loop(table, met, last, points, pair, judges, arm):
    """One round, in place; (cooperation, reward, fines)."""
    good = [int(x >= np.mean(points)) for x in points]
    reputed = int(arm.reputation)
    state = lambda i, j: reputed * (8 * good[j] + 4 * good[i]) + 2 * last[j] + last[i]
    old = table.copy()
    cells = [20 * i + state(i, j) for i, j in (pair, pair[::-1])]
    acts = [int(old[cell].argmax()) for cell in cells]
    reward = [float(PAYOFF[acts[k], acts[1 - k]]) for k in range(2)]
    worth = N + good[pair[1]] if reputed else pair[1]
    moves, fines, earned = [], 0, 0.0
    direct = ((pair[1], 0, arm.direct), (pair[0], 1, arm.direct))
    for judge, k, on in (*direct, (judges[0], 0, arm.third), (judges[1], 1, arm.third)):
        if not on:
            continue
        cell = 20 * judge + 16 + 2 * acts[k] + acts[1 - k]
        fine, just = int(old[cell].argmax()), acts[k] == 1
        pay = fine * (arm.just if just else arm.unjust)
        reward[k] -= arm.fine * fine
        points[judge] += fine * (2 if just else -3)
        moves.append((cell, fine, pay))
        fines, earned = fines + fine, earned + pay
    for k, i in enumerate(pair):
        last[i] = acts[k]
        points[i] += 1 - 2 * acts[k]
    good = [int(x >= np.mean(points)) for x in points]
    for k, (i, j) in enumerate((pair, pair[::-1])):
        moves.append((cells[k], acts[k], reward[k] + 0.9 * old[20 * i + state(i, j)].max()))
    for cell, act in {move[:2] for move in moves}:
        table[cell, act] += 0.1 * np.mean([to - old[cell, act] for c, a, to in moves if (c, a) == (cell, act)])
    met[pair[0], worth] += 0.1 * (reward[0] - met[pair[0], worth])
    return 1 - np.mean(acts), (sum(reward) + earned) / 2, fines


@pytest.mark.parametrize("name", ARMS)
def test_rounds_against_a_loop(name):
    arm, fined = ARMS[name], 0
    for seed in range(4):
        society, rng = certain(seed), np.random.default_rng(seed)
        wanted = [np.array(x, np.float64) for x in society[:2]] + [x.tolist() for x in society[2:]]
        for number in range(3):
            pair = rng.choice(N, 2, replace=False).tolist()
            judges = rng.choice([i for i in range(N) if i not in pair], 2).tolist()
            given = jnp.array(pair), jnp.array(judges), jax.random.key(number)
            society, found = ROUND(society, *given, customs=Customs(*map(jnp.float32, arm)))
            loop = round_in_a_loop(*wanted, pair, judges, arm)
            np.testing.assert_allclose([found[x] for x in ("cooperation", "reward", "fines")], loop, atol=1e-4)
            fined += loop[2]
        for one, other in zip(society[1:], wanted[1:], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
        np.testing.assert_allclose(society.table[:-1], wanted[0][:-1], atol=1e-2)  # of a thousand
    assert (fined > 0) == (name != "bare")


@pytest.mark.parametrize("name", ["all", "bare", "direct"])
def test_partners_are_drawn_by_their_worth_or_alike(name):
    society, arm = certain(1), ARMS[name]
    drawn = jax.vmap(lambda key: partners(society, key, arm, 0.7))(jax.random.split(jax.random.key(0), 8000))
    good = np.array([int(x >= np.mean(society.points)) for x in np.asarray(society.points)])
    for i in range(N):
        value = np.asarray(society.met)[i, N + good if arm.reputation else np.arange(N)] / 0.7 * arm.choose
        chance = np.where(np.arange(N) == i, 0, np.exp(value))
        np.testing.assert_allclose(np.bincount(drawn[:, i], minlength=N) / 8000, chance / chance.sum(), atol=0.025)


def test_judges_are_outsiders_and_all_alike():
    drawn = np.asarray(
        jax.vmap(lambda key: outsiders(key, jnp.array([3, 1]), N))(jax.random.split(jax.random.key(0), 3000))
    )
    for k in range(2):
        np.testing.assert_allclose(np.bincount(drawn[:, k], minlength=N) / 3000, [1 / 3, 0, 1 / 3, 0, 1 / 3], atol=0.04)
    assert abs((drawn[:, 0] == drawn[:, 1]).mean() - 1 / 3) < 0.04
    assert begin(jnp.array([0, 1, 1])).table.shape == (61, 2)


def test_linear_values_against_weights():
    """The same updates of weights of the five features, an agent and an act, and of the table that they give."""
    rng, rate = np.random.default_rng(3), 0.1
    weights, table = np.zeros((2, 2, 5)), jnp.zeros((2 * STATES + 1, 2))
    value = lambda i, s, a: weights[i, a] @ features(s)
    for _ in range(40):
        i, s, a, target = rng.integers(2), rng.integers(16), rng.integers(2), rng.normal()
        cell = STATES * i + s
        new = table.at[cell, a].add(rate * (target - table[cell, a])).at[STATES + 17, 0].add(0.5)
        weights[i, a] += rate * (target - value(i, s, a)) * features(s)
        table = linear_in_bits(table, new)
    for i in range(2):
        wanted = [[value(i, s, a) for a in (0, 1)] for s in range(16)]
        np.testing.assert_allclose(table[STATES * i : STATES * i + 16], wanted, atol=1e-5)
    assert float(table[STATES + 17, 0]) == 20 and not np.asarray(table[16:20]).any()


def features(situation):
    return np.array([1, *(-1 if situation >> bit & 1 else 1 for bit in range(4))]) / 5**0.5
