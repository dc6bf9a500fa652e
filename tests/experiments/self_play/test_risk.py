"""The first round of `risk` against NumPy, and where the hunts begin."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.self_play import risk as study
from jaxmarl_llm.tabular.drawn_tables import HARE, STAG, stag_hunts, tables_with_crashes

KEY = jax.random.key(7)
GAMES = 12


def respond(payoff, own, other, risk):
    """A strategy [A] of one game, with the covariance of its rows as a loop."""
    mean = payoff @ other
    covariance = sum(q * np.outer(column - mean, column - mean) for q, column in zip(other, payoff.T, strict=True))
    logits = (mean - 2 * risk * covariance @ own) / 0.1
    chances = np.exp(logits - logits.max())
    return chances / chances.sum()


def test_the_first_round(monkeypatch):
    monkeypatch.setattr(study, "GAMES", GAMES)
    monkeypatch.setattr(study, "ROUNDS", 1)
    hparams = {name: jnp.float32(x) for name, x in study.ARMS["risk_averse"].items()}
    found = jax.jit(study.learn)(KEY, hparams)

    def draw(key):
        keys = jax.random.split(key, 5)
        stag = jax.random.uniform(keys[2], (2, GAMES), minval=study.NEAR_STAG)
        beliefs = jax.random.dirichlet(keys[3], jnp.ones(study.ACTIONS), (2, GAMES))
        return stag_hunts(keys[0], GAMES), tables_with_crashes(keys[1], GAMES, study.ACTIONS), stag, beliefs

    drawn = jax.device_get(jax.jit(draw)(KEY))
    (hunts, dilemma), (tables, crash), stag, beliefs = jax.tree.map(lambda x: np.asarray(x, np.float64), drawn)
    believed = np.stack([stag, 1 - stag], -1)
    rows: dict[str, list[float]] = {name: [] for name in study.STUDY.metrics}
    for g in range(GAMES):
        intended = [respond(hunts[i][g], believed[i][g], believed[1 - i][g], 0.3) for i in range(2)]
        chosen = np.mean(intended, 0)
        rows["risk-dominant" if dilemma[g] else "bold"].append(chosen[HARE if dilemma[g] else STAG])
        plays = [
            0.9 * respond(tables[i][g], beliefs[i][g], beliefs[1 - i][g], 0.3) + 0.1 / study.ACTIONS for i in range(2)
        ]
        weight = np.outer(*plays)
        rows["crashes"].append((weight * crash[g]).sum())
        for points in (tables[0][g], tables[1][g].T):
            rows["points"].append((weight * points).sum())
            rows["variance"].append((weight * points**2).sum() - rows["points"][-1] ** 2)
    for name, values in rows.items():
        assert found[name].shape == (1,)
        np.testing.assert_allclose(found[name][0], np.mean(values), rtol=2e-3, err_msg=name)
    assert stag.min() >= 0.8 and 0 < dilemma.sum() < GAMES
