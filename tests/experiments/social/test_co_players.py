"""Whom the groups meet, what they are told, and what is measured, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import co_players as study


@pytest.mark.parametrize("identity", ["hidden", "told"])
def test_identity_tells_the_chances_or_that_it_is_a_learner(identity):
    hparams = {"coins": jnp.float32(0), "identity": identity}
    deal = study.arrange(hparams, (), jax.random.key(3), jnp.int32(0), pairs=2, others=3).deal
    wanted = np.full((5, 6), -1)
    if identity == "told":
        wanted[:2, 5], wanted[2:, :5] = 0, np.round(10 * np.asarray(deal.deal[2:]))
    np.testing.assert_array_equal(deal.told, wanted)


def test_what_is_measured():
    rng = np.random.default_rng(0)
    action, points = rng.integers(0, 2, (5, 7, 2)), rng.normal(size=(9, 7))
    found = {name: float(x) for name, x in study.measure(jnp.asarray(action), jnp.asarray(points)).items()}
    assert found["cooperation"] == pytest.approx((action == 0).mean())
    assert found["first third"] == pytest.approx((action[:, [0, 1]] == 0).mean())
    assert found["last third"] == pytest.approx((action[:, [5, 6]] == 0).mean())
    assert found["points"] == pytest.approx(points.mean(), abs=1e-6)
    assert found["rise"] == pytest.approx((points[:, [5, 6]] - points[:, [0, 1]]).mean(), abs=1e-6)
