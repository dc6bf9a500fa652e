"""Returns on episodes small enough to check by hand, exact expectations, and the numbers of rlax."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl import returns

GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "rlax.npz"


def test_three_agents_of_two_steps_written_out():
    """Within a step nothing is discounted, and the reward of a step falls on the agent that ended it."""
    value = jnp.array([[[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]])
    acted = jnp.array([[[True, True, False], [True, False, True]]])
    got = returns.gae_through_agents(jnp.array([[3.0, 5.0]]), value, acted, gamma=0.5, lam=0.0)
    by_hand = [[[2.0 - 1.0, 3.0 + 0.5 * 8.0 - 2.0, 0], [32.0 - 8.0, 0, 5.0 - 32.0]]]
    np.testing.assert_allclose(got.advantage, by_hand)
    every = returns.gae_through_agents(jnp.array([[3.0, 5.0]]), value, acted, gamma=0.5, lam=0.0, discount="acts")
    by_hand = [[[1.0 - 1.0, 3.0 + 0.5 * 8.0 - 2.0, 0], [16.0 - 8.0, 0, 5.0 - 32.0]]]
    np.testing.assert_allclose(every.advantage, by_hand)


def test_rewards_of_turns_fall_on_their_last_trained_tokens():
    reward = jnp.array([[1.0, 2.0, 4.0, 8.0]])
    turn = jnp.array([[0, 0, 2, 2, 2, 3]])
    where = jnp.array([[True, True, True, True, False, False]])  # turn 1 has no token, turn 3 none that is trained
    np.testing.assert_array_equal(returns.on_last_token(reward, turn, where), [[0, 3, 0, 12, 0, 0]])
    np.testing.assert_array_equal(returns.on_last_token(reward, turn, where & False), jnp.zeros((1, 6)))


def test_rewards_belong_to_the_act_before_them():
    reward = jnp.array([1.0, 2.0, 4.0, 8.0, 16.0])[None, :, None]
    acted = jnp.array([False, True, False, True, False])[None, :, None]
    np.testing.assert_array_equal(returns.credit_to_acts(reward, acted)[0, :, 0], [0, 7, 0, 24, 0])
    np.testing.assert_array_equal(returns.credit_to_acts(reward, acted & False), jnp.zeros((1, 5, 1)))


def test_returns_follow_their_recursion():
    reward = jnp.array([1.0, 0.0, 4.0])[None, :, None]
    np.testing.assert_allclose(returns.return_to_go(reward, 0.5)[0, :, 0], [2.0, 2.0, 4.0])
    np.testing.assert_array_equal(returns.return_to_go(reward)[:, 0], returns.episode_return(reward)[:, 0])


def test_v_trace_without_truncation_corrects_the_expectation():
    """One step, two actions, exact expectations: the corrected target is the value of the new policy."""
    mu, pi, reward = np.array([0.8, 0.2]), np.array([0.3, 0.7]), np.array([1.0, 5.0])
    shape = (2, 1)
    ratio = jnp.asarray(np.log(pi / mu).reshape(shape), jnp.float32)
    paid = jnp.asarray(reward.reshape(shape), jnp.float32)
    given = jnp.full(shape, 2.5), ratio, jnp.ones(shape, bool)
    free = returns.v_trace(paid, *given, rho=100.0, c=100.0)
    np.testing.assert_allclose(mu @ np.asarray(free.value_target)[:, 0], pi @ reward, rtol=1e-5)
    stale = returns.n_step(paid, given[0], given[2], 1)
    np.testing.assert_allclose(mu @ np.asarray(stale.value_target)[:, 0], mu @ reward, rtol=1e-5)


def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as stored:
        return {name: stored[name] for name in stored.files}


def ours(x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    reward, value, log_ratio = (jnp.asarray(x[name]) for name in ("reward", "value", "log_ratio"))
    where, options = jnp.ones(reward.shape, bool), {"gamma": 0.97, "last": jnp.asarray(x["last"])}
    corrected = returns.v_trace(reward, value, log_ratio, where, lam=0.9, rho=1.2, c=1.0, **options)
    return {
        "gae": np.asarray(returns.gae(reward, value, where, lam=0.9, **options).advantage),
        "n_step": np.asarray(returns.n_step(reward, value, where, 3, **options).value_target),
        "v_trace_target": np.asarray(corrected.value_target),
        "v_trace_advantage": np.asarray(corrected.advantage),
    }


def rlax_of(x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of rlax for inputs [sequences, steps]; the golden file holds those of 0.1.9, with the inputs."""
    rlax = pytest.importorskip("rlax")

    def one(reward, value, log_ratio, last):
        after = jnp.concatenate([value[1:], last[None]])
        discount = jnp.full(reward.shape, 0.97)
        every = jnp.concatenate([value, last[None]])
        given = value, after, reward, discount, jnp.exp(log_ratio)
        corrected = rlax.vtrace_td_error_and_advantage(
            *given, lambda_=0.9, clip_rho_threshold=1.2, clip_pg_rho_threshold=1.2
        )
        return {
            "gae": rlax.truncated_generalized_advantage_estimation(reward, discount, 0.9, every),
            "n_step": rlax.n_step_bootstrapped_returns(reward, discount, after, 3),
            "v_trace_target": corrected.errors + value,
            "v_trace_advantage": corrected.pg_advantage,
        }

    inputs = (jnp.asarray(x[name]) for name in ("reward", "value", "log_ratio", "last"))
    return jax.tree.map(np.asarray, jax.vmap(one)(*inputs))


def test_parity_with_the_numbers_of_rlax():
    x = golden()
    for name, found in ours(x).items():
        np.testing.assert_allclose(found, x[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_parity_with_rlax():
    generator = np.random.default_rng(14)
    x = {name: generator.normal(size=(4, 10)).astype(np.float32) for name in ("reward", "value", "log_ratio")}
    x["last"] = generator.normal(size=4).astype(np.float32)
    theirs = rlax_of(x)
    for name, found in ours(x).items():
        np.testing.assert_allclose(found, theirs[name], rtol=1e-4, atol=1e-5, err_msg=name)
