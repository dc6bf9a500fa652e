"""A short history of several networks against a loop over rounds and networks with the same draws; and the arms.

The long case compiles a history of networks; `test_contract` traces the study.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import lattice_network as game
from experiments.social import lattice_networks as study
from jaxmarl_llm.tabular import q_network as network
from jaxmarl_llm.tabular.torus import mean_payoff, observe

SMALL = {"SIDE": 4, "SITES": 16, "TRAINED": 16, "PLAYED": 24, "RENEWED": 8, "KEPT": 6}
NETWORKS, SAMPLES = 4, 8


@pytest.mark.long
def test_a_short_history_against_a_loop(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(study, name, value)
    for name, value in {"POINTS": 24 // 4, "BATCH": NETWORKS * SAMPLES}.items():
        monkeypatch.setattr(study, name, value)
    arm, whole = {"dilemma": 0.3, "tau": 0.9}, jax.random.key(7)
    found = jax.jit(lambda key: study.history(key, arm, NETWORKS))(whole)
    start, init, order, draw, key = jax.random.split(whole, 5)
    weights = [network.init(x, 5, 96, 2) for x in jax.random.split(init, NETWORKS)]
    agents = np.asarray(jax.random.permutation(order, 16)).reshape(NETWORKS, 4)
    owner = np.array([np.flatnonzero((agents == site).any(1))[0] for site in range(16)]).reshape(4, 4)
    moments, values = [game.OPTIMISER.init(x) for x in weights], jax.jit(lambda x: network.values(x, game.SEEN))
    target = [values(x) for x in weights]
    act = np.asarray(jax.random.bernoulli(start, 0.5, (4, 4))).astype(int)
    memory, payoff, wanted = network.empty(6, 16), jnp.array([[1, -0.3], [1.3, 0]]), {"cooperation": [], "gap": []}
    step = jax.jit(lambda *given: network.learn(*given, game.SEEN, game.OPTIMISER))
    share = jax.jit(lambda memory, t, key, agents: network.sample(memory, t, key, agents, SAMPLES, 5, 0.99))
    for t in range(24):
        seen = np.asarray(observe(jnp.asarray(act)))
        value, hot = np.stack([values(x) for x in weights])[owner, seen], 0.1 + 0.8 * max(0, 1 - t / 16)
        chance = 1 / (1 + np.exp((value[..., 0] - value[..., 1]) / hot))
        act = (np.asarray(jax.random.uniform(jax.random.fold_in(key, t), (4, 4))) < chance).astype(int)
        now = jnp.asarray(act)
        happened = jnp.asarray(seen), now, mean_payoff(now, payoff), observe(now)
        memory = network.remember(memory, t, *(x.ravel() for x in happened))
        wanted["cooperation"].append(1 - act.mean())
        wanted["gap"].append(np.abs(value[..., 1] - value[..., 0]).mean())
        if t % 4 == 3 and t < 16:
            keys = jax.random.split(jax.random.fold_in(draw, t // 4), NETWORKS)
            for n in range(NETWORKS):
                given = share(memory, t, keys[n], jnp.asarray(agents[n]))
                weights[n], moments[n] = step(weights[n], moments[n], target[n], given)
        if t % 8 == 7:
            target = [values(x) for x in weights]
    for name, curve in wanted.items():
        np.testing.assert_allclose(found[name], np.reshape(curve, (6, 4)).mean(1), rtol=1e-3)
    assert len({*wanted["cooperation"]}) > 3 and wanted["gap"][3] != wanted["gap"][4]


def test_networks_have_equal_shares_of_agents_and_samples():
    for networks in study.NETWORKS.values():
        assert game.SITES % networks == 0 and study.BATCH % networks == 0


def test_falls_are_from_little_exploration(monkeypatch):
    """A history in which cooperation tells its arm."""

    def tell(key, arm, networks):
        return {"cooperation": jnp.full(3, arm["dilemma"] + 10 * arm["tau"] + 100 * networks)}

    monkeypatch.setattr(study, "history", tell)
    for family, networks in study.NETWORKS.items():
        found = jax.jit(lambda family=family: study.histories.__wrapped__(None, {}, family=family))()
        cells = {f"{family}/{x}/{tau}": (a, b) for x, a in study.DILEMMAS.items() for tau, b in study.HEAT.items()}
        assert found.keys() == cells.keys()
        for name, (dilemma, tau) in cells.items():
            np.testing.assert_allclose(found[name]["cooperation"], dilemma + 10 * tau + 100 * networks, rtol=1e-6)
            np.testing.assert_allclose(found[name]["fall"], 10 * (study.HEAT[study.LITTLE] - tau), atol=1e-3)
