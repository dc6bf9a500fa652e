"""The gradients of a table; a factor changes how far a path is followed, not the path; duals end where they should."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.rewards import weights as study

KEY = jax.random.key(0)


def test_gradients_are_those_of_automatic_differentiation():
    reward, logits = study.aligned_rewards(KEY), jax.random.normal(KEY, (study.QUESTIONS, study.ANSWERS))
    found = study.gradients(logits, reward)
    np.testing.assert_allclose(found / study.QUESTIONS, jax.jacrev(study.values)(logits, reward), atol=1e-7)
    assert (study.values(logits, reward) <= 1).all() and study.aligned_rewards(KEY)[:, 0].all()


def test_a_common_factor_follows_the_path_of_the_fixed_weights():
    """After as many steps moved, the first component is where fixed weights have brought it."""
    hparams = {"first": jnp.float32(0.25), "rate": jnp.float32(0)}
    fixed, guided = (jax.jit(lambda key, by=by: study.compute_metrics(key, hparams, opposes=True, by=by))(KEY)
                     for by in ("", "hypervolume"))  # fmt: skip
    moved = np.cumsum(guided["factor"]) - guided["factor"]
    along = np.interp(moved, np.arange(study.STEPS), fixed["first"])
    np.testing.assert_allclose(guided["first"], along, atol=0.02)
    assert moved[-1] < 0.6 * study.STEPS
