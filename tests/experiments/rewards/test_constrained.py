"""The estimator of `constrained`: what is paid, against a NumPy loop, and the step of its multipliers by hand."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards.constrained import ARMS, USEFUL, estimate_advantages

B, T, M = 6, 8, 8


@pytest.mark.parametrize("arm", ["fixed", "lagrange_half"])
def test_what_is_paid_and_where_the_multipliers_go(arm):
    rng = np.random.default_rng(0)
    hparams = ARMS[arm].all_hparams
    reward = np.zeros((B, T, 1, 3), np.float32)
    reward[:, -1, 0] = rng.random((B, 3))
    logp, reference = -rng.random((2, B, M)).astype(np.float32)
    episode, raw = rng.permutation(B), np.array([0.3, -0.2], np.float32)
    group = np.repeat([0, 1], B // 2)
    acts = jnp.ones((B, T, 1), bool), jnp.array(group), 2
    given: Any = SimpleNamespace(
        episodes=SimpleNamespace(reward=jnp.array(reward[..., :2]), measured=jnp.array(reward[..., 2:]), acted=acts[0]),
        rows={"all": SimpleNamespace(episode=jnp.array(episode), seat=jnp.zeros(B, int))},
        sampled={"all": SimpleNamespace(behaviour_logp=jnp.array(logp), mask=jnp.ones((B, M), bool))},
        reference_logp={"all": jnp.array(reference)},
        acts=acts,
    )
    found = estimate_advantages(given, hparams, jnp.array(raw))
    weights = (1.0, 1.0) if arm == "fixed" else np.tanh(raw)
    paid = np.zeros(B)
    for row, b in enumerate(episode):
        kl = sum(logp[row] - reference[row])
        paid[b] = weights[0] * reward[b, -1, 0, 0] + weights[1] * reward[b, -1, 0, 1] - hparams["beta"] * kl
    for b in range(B):
        others = [paid[c] for c in range(B) if c != b and group[c] == group[b]]
        np.testing.assert_allclose(found.advantage[b], paid[b] - np.mean(others), atol=1e-5)
    rate = 0.0 if arm == "fixed" else 0.02
    climbed = raw + rate * (np.array(USEFUL) - reward[:, -1, 0, :2].mean(0))
    np.testing.assert_allclose(found.state, climbed, atol=1e-6)
