"""The torus against a loop over sites and neighbours."""

import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.tabular.torus import dilemma, mean_payoff, observe


def test_what_is_seen_and_paid_against_a_loop():
    act, side = np.random.default_rng(0).integers(0, 2, (4, 4)), 4
    table = np.array([[1, -0.3], [1.3, 0]])
    np.testing.assert_allclose(dilemma(0.3), table, rtol=1e-6)
    seen, paid = observe(jnp.asarray(act)), mean_payoff(jnp.asarray(act), dilemma(0.3))
    for i in range(side):
        for j in range(side):
            met = [act[i - 1, j], act[i, (j + 1) % side], act[(i + 1) % side, j], act[i, j - 1]]
            assert seen[i, j] == sum(int(x) << k for k, x in enumerate([*met, act[i, j]]))
            np.testing.assert_allclose(paid[i, j], np.mean([table[act[i, j], x] for x in met]), atol=1e-6)
    assert len(np.unique(np.asarray(seen))) > 5
