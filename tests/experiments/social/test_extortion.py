"""What is measured, and what could be had of a frozen table, against loops; what a learner of step 2 makes of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import extortion as study
from jaxmarl_llm.tabular import remembering as tables

PAYOFF = np.array(study.PAYOFF)


def test_what_is_measured():
    action = np.random.default_rng(0).integers(0, 2, (5, 7, 2))
    reward = np.array([[PAYOFF[tuple(moves)] for moves in game] for game in action])
    found = study.measure(tables.Played((), jnp.asarray(action), jnp.asarray(reward)))
    assert float(found["cooperation"]) == pytest.approx((action == 0).mean())
    rise = (action[:, [5, 6]] == 0).mean() - (action[:, [0, 1]] == 0).mean()
    assert float(found["rise"]) == pytest.approx(rise, abs=1e-6)
    own, other = reward[..., 0].mean(), reward[..., 1].mean()
    wanted = {"points": own, "other": other, "lead": own - other}
    assert {name: float(found[name]) for name in wanted} == pytest.approx(wanted, abs=1e-6)


def test_what_could_be_had_of_frozen_tables():
    """One that always cooperates is worth 2 a round to who always defects; of one that never does there is nothing."""
    logit = jnp.stack([jnp.full((tables.MEMORIES, tables.SITUATIONS), x) for x in (50.0, -50.0)])
    curves = {"points": jnp.linspace(-1, 0.5, study.UPDATES), "other": jnp.full(study.UPDATES, 0.1)}
    own = float(curves["points"][-study.TAIL :].mean())
    for frozen, best, share in ((logit[:1], 2.0, 2.0), (logit[1:], 0.0, np.nan), (logit, 1.0, 2.0)):
        found = study.exactly(curves, frozen, 6)
        assert float(found["distance"]) == pytest.approx(best - own, abs=1e-5)
        assert float(found["defection"]) == pytest.approx(best, abs=1e-5)
        assert float(found["best share"]) == pytest.approx(share, abs=1e-5, nan_ok=True)
        assert float(found["share"]) == pytest.approx(own / (own + 0.1), abs=1e-5)


def test_who_learns_in_which_step(monkeypatch):
    """Step 2 leaves the frozen pair as step 1 left it, and its fresh pair begins step 3."""
    seen = []

    def improve(key, start, meet, payoff, measure, **numbers):
        games, learns = meet(key)
        now = jax.tree.map(lambda x: x + len(seen) + 1, start)
        seen.append((games.learner[:2].tolist(), learns[:2].tolist(), float(start.logit.min()), float(now.logit.max())))
        return now, {name: jnp.zeros(study.UPDATES) for name in ("cooperation", "points", "other", "lead")}

    def train(*given, from_pairs, **numbers):
        logit = jnp.full((2, 2, tables.MEMORIES, tables.SITUATIONS), 20.0 if from_pairs else 10.0)
        return tables.Tables(logit, logit), {"points": jnp.zeros(study.UPDATES)}

    monkeypatch.setattr(tables, "improve", improve)
    monkeypatch.setattr(tables, "train", train)
    found = study.steps(jax.random.key(0), {**study.SHORT}, rounds=3)
    assert set(found) == set(study.ARMS)
    apart, one = [[2, 0], [3, 1]], [[True, False]] * 2
    together, both = [[0, 1]] * 2, [[True, True]] * 2
    assert seen[0] == (apart, one, 0.0, 11.0) and seen[1] == (apart, one, 0.0, 22.0)
    assert seen[2] == ([[0, -1], [1, -1]], one, 0.0, 3.0)
    starts = [begin for who, learns, begin, _ in seen[3:] if (who, learns) == (together, both)]
    assert starts == [0.0, 10.0, 1.0, 2.0]  # fresh, adaptive, and what the fresh of step 2 had become
