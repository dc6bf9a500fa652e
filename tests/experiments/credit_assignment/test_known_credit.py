"""An estimator that is put into the registry is in the table, without a change of the study.

The long case enumerates the trees of four games; the short one names every estimator.
"""

import importlib

import jax
import pytest

from experiments.credit_assignment import known_credit as study
from jaxmarl_llm.evaluation.exact.estimators import METRICS
from jaxmarl_llm.rl.advantages.registry import ESTIMATORS


@pytest.fixture
def reloaded(monkeypatch):
    """The study as it is with two estimators, of which one is new."""
    kept = ESTIMATORS["rloo"]
    with monkeypatch.context() as change:
        for name in list(ESTIMATORS):
            change.delitem(ESTIMATORS, name)
        change.setitem(ESTIMATORS, "rloo", kept)
        change.setitem(ESTIMATORS, "mine", lambda reward, value, acted: reward - value)
        yield importlib.reload(study)
    importlib.reload(study)


@pytest.mark.long
def test_a_new_estimator_is_in_the_table(reloaded):
    assert set(reloaded.STUDY.arms) == {"rloo", "mine", "mine/wrong_value"}
    found = jax.eval_shape(reloaded.STUDY.arms["mine/wrong_value"].run_seed, jax.random.key(0))
    assert (
        set(found) == {f"{metric}, {name}" for metric in METRICS for name in reloaded.GAMES} == {*study.STUDY.metrics}
    )


def test_every_registered_estimator_is_an_arm():
    assert set(ESTIMATORS) < set(study.STUDY.arms)
    study.STUDY.check("known_credit")
