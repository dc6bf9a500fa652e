"""What each arm of progress is paid, against a loop over episodes and turns."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.progress import GROUP, SOURCES, STUDY, compute_reward

B, T = 2 * GROUP, 5


def by_hand(name, c, opens, fits, length, bonus):
    total = opens.sum(1)
    want = np.zeros((B, T))
    for b in range(B):
        n, group = length[b], [x for x in range(B) if x // GROUP == b // GROUP and x != b]
        for t in range(n):
            outcome = total[b] - np.mean([total[x] for x in group])
            want[b, t] = {
                "terminal": total[b] if t == n - 1 else 0,
                "spa": c[b, t] + bonus * fits[b, t],
                "oracle": opens[b, t],
                "uniform": total[b] / n,
                "released": (n - t - 1) * (outcome + bonus * fits[b, t]),
            }[name]
    return want


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_paid(name):
    rng = np.random.default_rng(0)
    length = rng.integers(1, T + 1, B)
    acted = np.arange(T)[None] < length[:, None]
    c, opens, fits = rng.normal(size=(B, T)), acted * (rng.random((B, T)) < 0.4) / 4, acted * (rng.random((B, T)) < 0.7)
    opened, facts = opens[..., None], np.stack([np.zeros((B, T)), fits], -1)[:, :, None]
    episodes = SimpleNamespace(
        acted=jnp.asarray(acted)[..., None],
        total_reward=jnp.asarray(opened, jnp.float32),
        measured=jnp.asarray(facts, jnp.float32),
    )
    experience = SimpleNamespace(episodes=episodes)
    hparams = {**STUDY.arms["terminal"].all_hparams, "reward": name}
    found = compute_reward(jnp.asarray(c, jnp.float32)[..., None], experience, hparams)[..., 0]
    np.testing.assert_allclose(found, by_hand(name, c, opens, fits, length, hparams["bonus"]), atol=1e-5)
    assert name in [recipe.all_choices["reward"] for recipe in STUDY.arms.values()]
