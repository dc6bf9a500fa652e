"""What a policy of `sizes` is paid, and what it is judged in."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.long_horizon.sizes import SIZES, STUDY, by_turn


@pytest.mark.parametrize("dense", [1.0, 0.0])
def test_points_on_the_way_or_the_last_thing_alone(dense):
    """Two things of two are taken in turns 0 and 2; with values of 0 and lambda 0.95 by hand."""
    points, won = jnp.array([0.5, 0.0, 0.5]), jnp.array([0.0, 0.0, 1.0])
    reward = jnp.stack([points, won], 1)[None, :, None]
    acted = jnp.ones((1, 3, 1), bool)
    experience = SimpleNamespace(
        episodes=SimpleNamespace(reward=reward, acted=acted), turn_value=jnp.zeros((1, 3, 1)), groups=1
    )
    paid = np.where(dense, points, won)
    by_hand = [sum(paid[t + k] * 0.95**k for k in range(3 - t)) for t in range(3)]
    np.testing.assert_allclose(by_turn(experience, {"dense": dense}, ()).advantage[0, :, 0], by_hand, rtol=1e-6)


def test_larger_sizes_differ_from_the_small_one_in_what_their_name_says():
    small = SIZES["small"]
    changed = {
        name: {key for key in ("rooms", "objects", "quest") if getattr(game, key) != getattr(small, key)}
        for name, game in SIZES.items()
    }
    assert changed == {
        "small": set(),
        "rooms": {"rooms"},
        "things": {"objects"},
        "quest": {"quest"},
        "large": {"rooms", "objects", "quest"},
    }
    assert {arm.game for name, arm in STUDY.arms.items() if name.startswith("dense/")} == {*SIZES.values()}
