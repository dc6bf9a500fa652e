"""The equilibrium of a round against all strategies, and what the customs of an arm leave out.

The long case compiles a history of each custom; the short ones check the equilibrium and the names.
"""

from functools import partial
from itertools import product

import jax
import numpy as np
import pytest

from experiments.social import punishment as study


def customs(name):
    """The customs of an arm in numbers."""
    arm = study.STUDY.arms[name].hparams
    return study.Customs(*({"off": 0.0, "on": 1.0}.get(arm[field], arm[field]) for field in study.Customs._fields))


@pytest.mark.parametrize("name", [name for name in study.SETTINGS if not name.startswith("linear/")])
def test_the_equilibrium_is_the_best_of_all_strategies(name):
    """Backward: who may fine does what pays most; then (act, act) is an equilibrium if no other act pays more."""
    arm = customs(name)
    fine_of = lambda act: max((0, 1), key=lambda fine: fine * (arm.just if act else arm.unjust))
    pay = lambda own, other: float(study.PAYOFF[own, other]) - 3 * fine_of(own) * (arm.direct + arm.third)
    stable = [(a, b) for a, b in product((0, 1), repeat=2) if pay(a, b) >= pay(1 - a, b) and pay(b, a) >= pay(1 - b, a)]
    assert len(stable) == 1
    assert float(study.one_shot(arm)) == 1 - np.mean(stable[0])


def test_an_arm_is_named_by_its_customs():
    assert len(study.SETTINGS) == 48 and sum(customs("paid/bare")[:4]) == 0
    assert customs("costly/choose_third") == study.Customs(1.0, 0.0, 1.0, 0.0, -1.0, -1.0, 3.0)
    assert [name for name, arm in study.STUDY.arms.items() if arm.hparams["values"] == "linear"] == [
        name for name in study.SETTINGS if name.startswith("linear/")
    ]


@pytest.mark.long
def test_nobody_fines_without_the_custom_and_who_is_paid_learns_to():
    arms = (study.STUDY.arms[f"paid/{name}"].hparams for name in ("bare", "direct"))
    bare, direct = (jax.jit(partial(study.history, arm=arm))(jax.random.key(0)) for arm in arms)
    assert not np.asarray(bare["fines"]).any() and np.asarray(bare["cooperation"]).std() > 0
    np.testing.assert_array_equal(bare["distance"], bare["cooperation"])
    assert direct["fines"][0] > 0.2 and direct["cooperation"][-1] > bare["cooperation"][-1]
