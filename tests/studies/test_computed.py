"""Computed arms: alone, and parts of one function that is computed once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rl.choices import select
from jaxmarl_llm.studies.computed import Computed, side_by_side
from jaxmarl_llm.studies.identity import describe


def test_parts_are_computed_once_and_are_what_each_alone_would_be():
    traced = []

    def of(key, hparams):
        traced.append(1)
        x = hparams["scale"] * jax.random.normal(key)
        return {"one": {"x": x}, "other": {"x": -x, "y": jnp.stack([x, 2 * x])}}

    numbers = {"scale": 3.0}
    one, other = (Computed(of, numbers, updates=2, part=part) for part in ("one", "other"))
    alone = Computed(lambda key, hparams: of(key, hparams)["one"], numbers, updates=2)
    first, second = one.curves([0, 1]), other.curves([0, 1])
    assert len(traced) == 1
    np.testing.assert_array_equal(first["x"], alone.curves([0, 1])["x"])
    np.testing.assert_array_equal(second["x"], -first["x"])
    np.testing.assert_array_equal(second["y"][:, 0], first["x"][:, 1])
    assert np.abs(one.curves([2])["x"][0, 1] - first["x"][0, 1]) > 0  # other seeds are other runs
    assert set(other.run_seed(jax.random.key(0))) == {"x", "y"}


def test_a_curve_of_another_length_is_refused():
    with pytest.raises(ValueError, match="3 updates are wanted"):
        Computed(lambda key, hparams: {"x": jnp.zeros(2)}, updates=3).curves([0])


def test_arms_side_by_side_are_what_each_alone_would_be():
    of = lambda key, hparams: {"x": hparams["scale"] * jax.random.normal(key, (3,))}
    arms = {name: {"scale": scale} for name, scale in (("one", 1.0), ("three", 3.0))}
    for name, arm in side_by_side(of, arms, 3).items():
        alone = Computed(of, arms[name], 3).curves([0, 1])["x"]
        np.testing.assert_allclose(arm.curves([0, 1])["x"], alone, rtol=1e-6)
        np.testing.assert_allclose(arm.run_seed(jax.random.key(0))["x"], alone[0], rtol=1e-6)
        assert describe(arm)["hparams"] == arms[name] and "beside" not in describe(arm)  # not all arms for each arm


def test_arms_side_by_side_may_take_different_options():
    choices = {"sign": ("plus", "minus")}

    def of(key, hparams):
        x = hparams["scale"] * jax.random.normal(key, (3,))
        return {"x": select(hparams, "sign", plus=x, minus=-x)}

    arms = {"one": {"scale": 1.0}, "other": {"scale": 2.0, "sign": "minus"}}
    found = side_by_side(of, arms, 3, choices)
    assert found["one"].hparams == {"scale": 1.0, "sign": "plus"}  # the default, by its name
    for arm in found.values():
        alone = Computed(of, arm.hparams, 3).curves([0, 1])["x"]
        np.testing.assert_allclose(arm.curves([0, 1])["x"], alone, rtol=1e-6)
    np.testing.assert_allclose(found["other"].curves([0])["x"], -2 * found["one"].curves([0])["x"], rtol=1e-6)
    with pytest.raises(ValueError, match="no option of 'sign' named 'mnus': did you mean 'minus'"):
        side_by_side(of, {"one": {"scale": 1.0, "sign": "mnus"}}, 3, choices)
    with pytest.raises(ValueError, match="no choice named 'sing': did you mean 'sign'"):
        side_by_side(of, {"one": {"scale": 1.0, "sing": "minus"}}, 3, choices)


def test_a_seed_has_the_same_bits_alone_and_beside_others():
    def of(key, hparams):
        x = jax.random.normal(key, (7, 7))
        step = lambda x, _: (jnp.sin(x @ x.T + hparams["scale"] * x),) * 2
        return {"x": jax.lax.scan(step, x, length=5)[1].mean((1, 2))}

    arm = Computed(of, {"scale": 0.7}, updates=5)
    alone, ten, more = (arm.curves(seeds)["x"] for seeds in ([3], [*range(10)], [*range(13)]))
    np.testing.assert_array_equal(alone[0], ten[3])
    np.testing.assert_array_equal(ten, more[:10])
    assert more.shape == (13, 5) and len({*more[:, -1]}) == 13
