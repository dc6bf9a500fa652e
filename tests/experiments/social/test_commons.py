"""A year of the commons against a loop with the same draws, and what an arm's customs do not do.

The long case compiles whole histories; the short ones check their years.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.social import commons as study


@cache
def program(options):
    """`study.a_year` for these options, compiled once for all years."""
    return jax.jit(lambda *given: study.a_year(*given[:3], {**given[3], **dict(options)}))


imitate = jax.jit(partial(study.imitation, intensity=2.0, noise=0.02))


def a_year(traits, stock, key, arm):
    """`study.a_year`, compiled for the options of the arm."""
    options = {name: arm[name] for name in study.CHOICES}
    numbers = {name: x for name, x in arm.items() if name not in options}
    return program(tuple(options.items()))(traits, stock, key, numbers)


@pytest.mark.parametrize("name", ["rich/selfish/both", "scarce/altruistic/fines", "rich/selfish/eager"])
def test_years_against_a_loop(name):
    """Who watches, whom, and who would copy whom is read from the same keys."""
    arm = study.SETTINGS[name]
    traits, stock, fines = study.first(jax.random.key(2), arm), jnp.float32(arm["stock"]), 0.0
    for number in range(4):
        key = jax.random.key(number)
        watch, whom, copy, turn = jax.random.split(key, 4)
        e, limit, w = (np.array(traits[name], np.float64) for name in ("effort", "limit", "watch"))
        watches = np.asarray(jax.random.bernoulli(watch, (arm["fines"] == "norm") * traits["watch"]))
        seen = (np.arange(10) + np.asarray(jax.random.randint(whom, (10,), 1, 10))) % 10
        norm, earned, new = np.median(limit), 0.1 * e * float(stock), e.copy()
        taken = earned.sum()
        after = float(stock) + arm["growth"] * float(stock) * (1 - float(stock) / 100) - taken
        for i in range(10):
            if watches[i] and e[seen[i]] > norm:
                earned[i], earned[seen[i]], new[seen[i]], fines = earned[i] - 1, earned[seen[i]] - 3, norm, fines + 1
        own = {"effort": new, "limit": np.clip(limit * after / float(stock), 0, 1), "watch": w}
        if arm["copying"]:
            given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (own, earned))
            copied, model = imitate(*given, copy)
            assert len(set(np.asarray(model).tolist())) < 10
            looks = np.asarray(jax.random.bernoulli(turn, arm["copying"], (10,)))
            own = {name: np.where(looks, np.clip(x, 0, 1), own[name]) for name, x in copied.items()}
        traits, stock, measured = a_year(traits, stock, key, arm)
        np.testing.assert_allclose(measured["harvest"], taken / (25 * arm["growth"]), rtol=1e-5)
        for name, x in own.items():
            np.testing.assert_allclose(traits[name], x, atol=1e-4)
        np.testing.assert_allclose(stock, after, rtol=1e-4)
    assert (fines > 0) == (arm["fines"] == "norm")


@pytest.mark.long
def test_without_customs_nothing_changes_and_copying_spreads_effort():
    settings = study.SETTINGS["rich/altruistic/neither"]
    run = lambda **changed: jax.jit(partial(study.history, arm=settings | changed))(jax.random.key(3))
    still = run()
    np.testing.assert_allclose(still["effort"], still["effort"][0], rtol=1e-6)
    assert not still["fines"].any() and still["alive"].all()
    copied = run(copying=0.5)
    assert copied["effort"].max() > 1.5 * copied["effort"][0]
