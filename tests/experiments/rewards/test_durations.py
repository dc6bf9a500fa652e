"""The simulated clock against a loop over ticks, and the gradient against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.rewards import durations as study

KEY, LOGITS = jax.random.key(0), jnp.array([0.4, -0.2])


def test_a_worker_is_busy_for_the_duration_of_its_action():
    action, finished = map(np.asarray, jax.jit(study.window)(KEY, LOGITS))
    assert action.shape == (study.TICKS, study.WORKERS)
    for worker in range(study.WORKERS):
        began = 0
        for tick in range(study.TICKS):
            assert action[tick, worker] == action[began, worker]  # until it has finished
            due = began + int(study.DURATION[action[began, worker]]) - 1
            assert finished[tick, worker] == (tick == due)
            began = tick + 1 if finished[tick, worker] else began
    assert 0 < finished[action == study.SLOW].sum() < (action == study.SLOW).sum()  # some were stopped


@pytest.mark.parametrize("kind", study.KINDS)
def test_the_gradient_is_that_of_weighted_rewards(kind):
    action, finished = jax.jit(study.window)(KEY, LOGITS)
    pays = np.array([0.6, 1.0])
    done, lasts = np.asarray(action)[np.asarray(finished)], np.array([1, 8])
    weight = lasts[done] / lasts[done].mean() if kind in ("weighted", "both") else np.ones(len(done))
    baseline = (weight * pays[done]).sum() / weight.sum() if kind in ("centred", "both") else 0.0
    each = jnp.asarray(weight * (pays[done] - baseline))
    wanted = jax.grad(lambda logits: (each * jax.nn.log_softmax(logits)[done]).mean())(LOGITS)
    found = study.gradient(LOGITS, action, finished, jnp.asarray(pays), study.KINDS[kind])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
