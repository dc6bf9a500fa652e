"""Which pairs are decided: against scipy's intervals; a table without noise is ranked as it is."""

import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments.self_play import ranking as study


def test_pairs_are_decided_where_scipy_s_interval_excludes_one_half():
    rng = np.random.default_rng(0)
    played = rng.integers(1, 60, study.PAIRS)
    wins = rng.binomial(played, rng.uniform(0, 1, study.PAIRS))
    found = np.asarray(study.clopper(jnp.asarray(wins, jnp.float32), jnp.asarray(played, jnp.float32)))
    for k, n, decided in zip(wins, played, found, strict=True):
        low, high = stats.binomtest(int(k), int(n)).proportion_ci(1 - study.LEVEL, "exact")
        assert bool(decided) == (not low <= 0.5 <= high), (k, n)
    by_hand = np.abs(wins / played - 0.5) > np.sqrt(np.log(2 / study.LEVEL) / (2 * played))
    np.testing.assert_array_equal(study.hoeffding(jnp.asarray(wins), jnp.asarray(played)), by_hand)
    assert (found | ~by_hand).all()  # the exact interval is never wider
    assert not study.clopper(jnp.zeros(3), jnp.zeros(3)).any()


def test_who_beats_all_is_ranked_first():
    rates = jnp.where(study.FIRST == 4, 0.6, jnp.where(study.SECOND == 4, 0.4, 0.5))
    assert float(study.rank_policies(rates)[4]) > 0.99
