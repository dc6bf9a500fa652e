"""Proposers and solvers: with whom each arm compares them, against loops."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards.proposer_solver import STUDY, credit
from experiments.rewards.search_self_play import CORRECT, PROPOSAL


@pytest.mark.parametrize("arm", STUDY.arms)
def test_who_is_compared_with_whom(arm):
    """Six proposals of two groups; a proposer acts first and is paid last, four solvers act last."""
    rng, group = np.random.default_rng(0), np.array([0, 0, 0, 1, 1, 1])
    acted, reward = np.zeros((6, 2, 5), bool), np.zeros((6, 2, 5, 2), np.float32)
    acted[:, 0, 0] = acted[:, 1, 1:] = True
    reward[:, 1, 1:, CORRECT] = rng.integers(0, 2, (6, 4))
    reward[:, 1, 0, PROPOSAL] = rng.random(6)
    acts = jnp.asarray(acted), jnp.asarray(group), 2
    experience: Any = SimpleNamespace(episodes=SimpleNamespace(reward=jnp.asarray(reward)), learning_acts=acts)
    found = np.asarray(credit(experience, STUDY.recipes[arm].all_hparams, ()).advantage)
    paid = np.concatenate([reward[:, 1, :1, PROPOSAL], reward[:, 1, 1:, CORRECT]], 1)
    expected = np.zeros(acted.shape)
    for b, turn, seat in zip(*np.nonzero(acted), strict=True):
        own = paid[group == group[b]]
        if arm == "pooled":
            baseline = own.mean()
        elif seat > 0:
            baseline = paid[b, 1:].mean()
        else:
            baseline = own[:, 0].mean() if arm == "hierarchical" else 0
        expected[b, turn, seat] = paid[b, seat] - baseline
    np.testing.assert_allclose(found, expected, atol=1e-5)
