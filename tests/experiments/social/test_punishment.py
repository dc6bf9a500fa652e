"""The equilibrium of a round against all strategies, and what the customs of an arm leave out."""

from itertools import product

import jax
import numpy as np
import pytest

from experiments.social import punishment as study


@pytest.mark.parametrize("name", study.CUSTOMS)
def test_the_equilibrium_is_the_best_of_all_strategies(name):
    """Backward: who may fine does what pays most; then (act, act) is an equilibrium if no other act pays more."""
    arm = study.CUSTOMS[name]
    fine_of = lambda act: max((0, 1), key=lambda fine: fine * (arm.just if act else arm.unjust))  # noqa: E731
    pay = lambda own, other: float(study.PAYOFF[own, other]) - 3 * fine_of(own) * (arm.direct + arm.third)  # noqa: E731
    stable = [(a, b) for a, b in product((0, 1), repeat=2) if pay(a, b) >= pay(1 - a, b) and pay(b, a) >= pay(1 - b, a)]
    assert len(stable) == 1
    assert float(study.one_shot(arm)) == 1 - np.mean(stable[0])


def test_an_arm_is_named_by_its_customs():
    assert len(study.CUSTOMS) == 32 and sum(study.CUSTOMS["paid/bare"][:4]) == 0
    assert study.CUSTOMS["costly/choose_third"] == study.Customs(1.0, 0.0, 1.0, 0.0, -1.0, -1.0, 3.0)


@pytest.mark.long
def test_nobody_fines_without_the_custom_and_who_is_paid_learns_to():
    run = jax.jit(study.history)
    bare, direct = (run(jax.random.key(0), study.SETTINGS[f"paid/{name}"]) for name in ("bare", "direct"))
    assert not np.asarray(bare["fines"]).any() and np.asarray(bare["cooperation"]).std() > 0
    np.testing.assert_array_equal(bare["distance"], bare["cooperation"])
    assert direct["fines"][0] > 0.2 and direct["cooperation"][-1] > bare["cooperation"][-1]
