"""A short history against a loop over rounds with the same draws: who acts by what, what is learnt when.

The long case compiles a history of networks; `test_contract` traces the study.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import lattice_network as study
from jaxmarl_llm.tabular import q_network as network
from jaxmarl_llm.tabular.torus import mean_payoff, observe

SMALL = {"SIDE": 4, "SITES": 16, "TRAINED": 16, "PLAYED": 24, "POINTS": 24 // 4, "RENEWED": 8, "KEPT": 6, "BATCH": 8}


def test_a_network_sees_the_bits_of_an_observation():
    assert study.SEEN.shape == (32, 5)
    np.testing.assert_array_equal(study.SEEN[0b10110], [0, 1, 1, 0, 1])


@pytest.mark.long
def test_a_short_history_against_a_loop(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(study, name, value)
    arm, whole = {"dilemma": 0.3, "tau": 0.9}, jax.random.key(7)
    found = jax.jit(lambda key: study.history(key, arm))(whole)
    start, own, draw, key = jax.random.split(whole, 4)
    weights = network.init(own, 5, 96, 2)
    moments, values = study.OPTIMISER.init(weights), jax.jit(lambda weights: network.values(weights, study.SEEN))
    target = values(weights)
    act = np.asarray(jax.random.bernoulli(start, 0.5, (4, 4))).astype(int)
    memory, payoff, wanted = network.empty(6, 16), jnp.array([[1, -0.3], [1.3, 0]]), {"cooperation": [], "gap": []}
    step = jax.jit(lambda *given: network.learn(*given, study.SEEN, study.OPTIMISER))
    for t in range(24):
        table = np.asarray(values(weights))
        seen = np.asarray(observe(jnp.asarray(act)))
        value, hot = table[seen], 0.1 + 0.8 * max(0, 1 - t / 16)
        chance = 1 / (1 + np.exp((value[..., 0] - value[..., 1]) / hot))
        act = (np.asarray(jax.random.uniform(jax.random.fold_in(key, t), (4, 4))) < chance).astype(int)
        now = jnp.asarray(act)
        happened = jnp.asarray(seen), now, mean_payoff(now, payoff), observe(now)
        memory = network.remember(memory, t, *(x.ravel() for x in happened))
        wanted["cooperation"].append(1 - act.mean())
        wanted["gap"].append(np.abs(value[..., 1] - value[..., 0]).mean())
        if t % 4 == 3 and t < 16:
            draws = jax.random.fold_in(draw, t // 4)
            weights, moments = step(
                weights, moments, target, network.sample(memory, t, draws, jnp.arange(16), 8, 5, 0.99)
            )
        if t % 8 == 7:
            target = values(weights)
    for name, each in wanted.items():
        np.testing.assert_allclose(found[name], np.reshape(each, (6, 4)).mean(1), rtol=1e-3)
    assert len({*wanted["cooperation"]}) > 3 and wanted["gap"][3] != wanted["gap"][4]
