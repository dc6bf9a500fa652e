"""Duels: preferences, exact exploitability, the fit and the direction of DPO against other computations."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from jaxmarl_llm.tabular import duels

CHANCE = jnp.array([0.9, 0.7, 0.6])


def random_policy(seed, size=5):
    return jnp.asarray(np.random.default_rng(seed).dirichlet(np.ones(size)), jnp.float32)


def test_a_cycle_is_a_preference_without_a_best_answer():
    prefers = np.asarray(duels.cyclic(CHANCE, 5))
    np.testing.assert_allclose(prefers + prefers.T, 1, atol=1e-6)
    assert [prefers[0, 1], prefers[1, 2], prefers[2, 0]] == pytest.approx([0.9, 0.7, 0.6])
    assert (prefers[:3, 3:] == np.float32(0.8)).all() and prefers[3, 4] == 0.5
    assert all(duels.exploitability(jnp.eye(5)[i], jnp.asarray(prefers)) > 0.05 for i in range(5))
    quality = jnp.array([1.0, 0.0, -2.0])
    assert float(duels.transitive(quality)[0, 2]) == pytest.approx(1 / (1 + np.exp(-3)))
    assert float(duels.flip_labels(jnp.float32(0.9), 0.3)) == pytest.approx(0.9 * 0.7 + 0.1 * 0.3)


def test_exploitability_against_a_linear_program():
    """The minimax winner of the program has exploitability 0; a policy's is the best answer's win rate less 1/2."""
    prefers = np.asarray(duels.cyclic(CHANCE, 5), np.float64)
    # min v over p: prefers @ p <= v
    solved = linprog([0] * 5 + [1], np.c_[prefers, -np.ones(5)], np.zeros(5), [[1] * 5 + [0]], [1])
    winner = jnp.asarray(solved.x[:5], jnp.float32)
    assert float(duels.exploitability(winner, jnp.asarray(prefers))) == pytest.approx(0, abs=1e-5)
    for seed in range(5):
        policy = random_policy(seed)
        rates = [sum(prefers[i, j] * float(policy[j]) for j in range(5)) for i in range(5)]
        assert float(duels.exploitability(policy, jnp.asarray(prefers))) == pytest.approx(max(rates) - 0.5, abs=1e-5)


def test_labels_are_drawn_with_their_chances():
    prefers, policy, count = duels.cyclic(CHANCE, 4), random_policy(0, 4), 40_000
    wins = np.asarray(duels.count_wins(jax.random.key(0), policy, prefers, count))
    assert wins.sum() == count
    for i, j in product(range(4), repeat=2):
        chance = float(policy[i] * policy[j]) * (float(prefers[i, j]) + 1 - float(prefers[j, i]))
        chance = chance if i != j else float(policy[i] ** 2)
        assert wins[i, j] / count == pytest.approx(chance, abs=4 * (chance / count) ** 0.5 + 1e-4)


def test_shares_of_a_group_are_means_of_its_labels():
    prefers, answers = duels.cyclic(CHANCE, 4), jnp.array([0, 0, 1, 3])
    keys = jax.random.split(jax.random.key(1), 8000)
    shares = jax.vmap(lambda key: duels.judge_group(key, answers, prefers))(keys)
    np.testing.assert_allclose(shares.sum(1), 2, atol=1e-5)  # half of the group
    for i, mean in enumerate(shares.mean(0)):
        others = [float(prefers[answers[i], answers[j]]) for j in range(4) if j != i]
        assert float(mean) == pytest.approx(np.mean(others), abs=0.02)
    assert set(np.unique(np.round(3 * np.asarray(shares)))) == {0, 1, 2, 3}


def test_the_fit_is_the_maximum_of_the_likelihood():
    wins = np.random.default_rng(0).integers(1, 20, (4, 4)).astype(float)
    np.fill_diagonal(wins, 0)

    def loss(r):
        ahead = r[:, None] - r[None]
        return (wins * np.log1p(np.exp(-ahead))).sum() / wins.sum() + 1e-3 * (r**2).sum()

    want = minimize(loss, np.zeros(4)).x
    got = duels.fit_bradley_terry(jnp.zeros(4), jnp.asarray(wins), 2000)
    np.testing.assert_allclose(got, want, atol=1e-3)


@pytest.mark.parametrize("soft", [False, True])
def test_the_direction_is_the_gradient_of_dpo(soft):
    rng, beta = np.random.default_rng(1), 0.3
    logits, reference = jnp.asarray(rng.normal(size=(2, 4)))
    pairs = jnp.asarray(rng.integers(0, 3, (4, 4)).astype(float))
    target = jnp.asarray(rng.random((4, 4))) if soft else 1.0

    def objective(logits):
        logp, before = jax.nn.log_softmax(logits), jax.nn.log_softmax(reference)
        total = 0.0
        for i, j in product(range(4), repeat=2):
            ahead = beta * ((logp[i] - before[i]) - (logp[j] - before[j]))
            chance = target[i, j] if soft else 1.0
            total += pairs[i, j] * (chance * jax.nn.log_sigmoid(ahead) + (1 - chance) * jax.nn.log_sigmoid(-ahead))
        return total / (beta * pairs.sum())

    direction = duels.dpo_step(logits, pairs, reference, beta, target)
    np.testing.assert_allclose(direction, jax.grad(objective)(logits), atol=1e-5)
