"""The exact value in hundred_turns, against a loop over turns and locks and the binomial distribution; every arm.

The long case imitates scripts.
"""

from math import comb
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.hundred_turns import PAY, STUDY, TURNS, estimate_advantages, exact_value, values
from jaxmarl_llm.rl import advantages, returns
from jaxmarl_llm.rl.statistics import whiten


def by_hand(p, locks, dense, gamma):
    value = np.zeros((TURNS + 1, TURNS + 1))
    for t in range(1, TURNS + 1):
        for n in range(1, TURNS + 1):
            paid = 1 / locks if dense else float(n == 1)
            value[t, n] = p * (paid + gamma * value[t - 1, n - 1]) + (1 - p) * gamma * value[t - 1, n]
    return value


@pytest.mark.parametrize(("dense", "gamma"), [(False, 1.0), (True, 1.0), (False, 0.9), (True, 0.9)])
def test_the_value_is_that_of_a_loop(dense, gamma):
    np.testing.assert_allclose(values(0.6, 65.0, dense, gamma), by_hand(0.6, 65, dense, gamma), atol=1e-5)


def test_undiscounted_it_is_the_chance_of_enough_right_keys():
    chance = sum(comb(TURNS, k) * 0.6**k * 0.4 ** (TURNS - k) for k in range(65, TURNS + 1))
    np.testing.assert_allclose(values(0.6, 65.0, False, 1.0)[TURNS, 65], chance, atol=1e-5)
    np.testing.assert_allclose(values(0.6, 100.0, True, 1.0)[TURNS, 100], 0.6, atol=1e-5)  # no chain ends early


def games(locks, seed=0):
    """Four games whose keys are right with probability 0.7: which turns are played, and which are right."""
    rng = np.random.default_rng(seed)
    right, acted = rng.random((4, TURNS)) < 0.7, np.ones((4, TURNS), bool)
    for game in range(4):
        opened = 0
        for turn in range(TURNS):
            acted[game, turn] = opened < locks
            right[game, turn] &= acted[game, turn]
            opened += right[game, turn]
    return right, acted


@pytest.mark.parametrize("pay", PAY)
def test_each_turn_has_the_value_of_what_is_left(pay):
    hparams = {**{name: jnp.float32(x) for name, x in PAY[pay].items()}, "reward": pay}
    locks, (right, acted) = int(PAY[pay]["locks"]), games(PAY[pay]["locks"])
    table = by_hand(right.sum() / acted.sum(), locks, pay == "dense", PAY[pay]["gamma"])
    want = np.zeros(acted.shape)
    for game, turn in zip(*np.nonzero(acted), strict=True):
        want[game, turn] = table[TURNS - turn, locks - right[game, :turn].sum()]
    found = exact_value(jnp.asarray(right)[..., None], jnp.asarray(acted)[..., None], hparams)[..., 0]
    np.testing.assert_allclose(found, want, atol=1e-5)


@jax.jit
def credited_of(acted, reward, said, hparams):
    acts = acted, jnp.zeros(4, int), 1
    episodes = SimpleNamespace(acted=acted, total_reward=reward[..., 0], measured=reward[..., 1:])
    return estimate_advantages(SimpleNamespace(episodes=episodes, turn_value=said, acts=acts), hparams, ())


@jax.jit
def whitened(paid, value, acted, gamma, lam):
    return whiten(returns.gae(paid, value, acted, gamma=gamma, lam=lam).advantage, acted)


@pytest.mark.parametrize("arm", STUDY.arms)
def test_an_arm_has_one_estimator(arm):
    hparams = STUDY.arms[arm].traced_hparams
    pay, name = arm.removeprefix("cold/").split("/")
    locks = int(PAY[pay]["locks"])
    right, acted = (jnp.asarray(x)[..., None] for x in games(locks))
    solved = right & (jnp.cumsum(right, 1) == locks)
    reward = jnp.stack([solved, right / locks], -1).astype(jnp.float32)
    said = jnp.asarray(np.random.default_rng(1).random(acted.shape), jnp.float32)
    acts = acted, jnp.zeros(4, int), 1
    found = credited_of(acted, reward, said, hparams)

    paid, gamma, lam = reward[..., int(pay == "dense")], hparams["gamma"], hparams["lambda"]
    gae = lambda value: whitened(paid, value, acted, gamma, lam)
    want = {
        "critic": lambda: gae(said),
        "exact": lambda: gae(exact_value(right, acted, hparams)),
        "discounted": lambda: whitened(paid, 0 * said, acted, gamma * lam, 1.0),
        "grpo": lambda: advantages.grpo(paid, *acts),
        "reinforce_plus_plus": lambda: advantages.reinforce_plus_plus(paid, *acts, gamma=hparams["to_go"]),
    }[name]()
    np.testing.assert_allclose(found.advantage, want, atol=2e-4)
    np.testing.assert_allclose(found.metrics["paid"], paid.sum(1).mean(), rtol=1e-5)


@pytest.mark.long
def test_warm_policies_have_imitated_and_cold_ones_have_not():
    for name, arm in STUDY.arms.items():
        assert bool(arm.warm_start) is not name.startswith("cold/")
        assert arm.warm_start_updates == 60 or not arm.warm_start
        assert arm.all_hparams["locks"] == (100 if "dense" in name else 65) and arm.game.turns == TURNS
