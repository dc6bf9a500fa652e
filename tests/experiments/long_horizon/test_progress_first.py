"""What each arm of progress_first is paid, against a loop over episodes and turns."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.progress_first import STUDY, compute_reward

B, T = 6, 5


@pytest.mark.parametrize("name", STUDY.arms)
def test_what_is_paid(name):
    """Rows stand in another order than episodes; the log-ratio of each turn is taken off, times 0.01."""
    rng, hparams = np.random.default_rng(0), STUDY.arms[name].all_hparams
    length = rng.integers(1, T + 1, B)
    acted = np.arange(T)[None] < length[:, None]
    c, opens, fits = rng.normal(size=(B, T)), acted * (rng.random((B, T)) < 0.4) / 8, acted * (rng.random((B, T)) < 0.7)
    own, reference, episode = rng.normal(size=(B, T)), rng.normal(size=(B, T)), rng.permutation(B)
    array = lambda x: jnp.asarray(x, jnp.float32)
    sampled = SimpleNamespace(
        turn=jnp.tile(jnp.arange(T), (B, 1)), mask=jnp.asarray(acted[episode]), behaviour_logp=array(own[episode])
    )
    experience = SimpleNamespace(
        episodes=SimpleNamespace(
            acted=jnp.asarray(acted)[..., None],
            total_reward=array(opens[..., None]),
            measured=array(np.stack([np.zeros((B, T)), fits], -1)[:, :, None]),
        ),
        rows={"learner": SimpleNamespace(episode=jnp.asarray(episode), seat=jnp.zeros(B, jnp.int32))},
        sampled={"learner": sampled},
        reference_logp={"learner": array(reference[episode])},
    )
    found = compute_reward(array(c)[..., None], experience, hparams)[..., 0]
    kind = name.removeprefix("long/")
    bonus = {"bonus": 0.02, "spa": 0.02, "large": 0.5}.get(kind, 0)
    want = np.zeros((B, T))
    for b in range(B):
        for t in range(length[b]):
            ends = opens[b].sum() if t == length[b] - 1 else 0
            source = {"terminal": ends, "bonus": ends, "true": opens[b, t]}.get(kind, c[b, t])
            want[b, t] = source + bonus * fits[b, t] - 0.01 * (own[b, t] - reference[b, t])
    np.testing.assert_allclose(found, want, atol=1e-5)
