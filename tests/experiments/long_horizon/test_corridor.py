"""EPO's penalty: as released it has no gradient and learns what the bonus learns; ours has one; its phases.

The long case compiles updates of three arms; the short one follows the phases.
"""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from experiments.long_horizon.corridor import LENGTH, STUDY, by_phase, epo
from jaxmarl_llm.training.trainer import Trainer

SMALL = {"group_size": 2, "updates": 3}
NARROW = {"low": 0.999, "high": 1.001}  # so that three updates leave the corridor


def learned(arms, **changes):
    """Weights of arms that learn side by side in one program, and what the last update measured, [arms, ...]."""
    recipes = [dataclasses.replace(STUDY.arms[arm], **SMALL, **changes).with_hparams(**NARROW) for arm in arms]
    trainer = Trainer(recipes[0], [recipe.all_hparams for recipe in recipes], [3] * len(arms))
    state = trainer.init()
    for number in range(3):
        state, metrics = trainer.update(state, number)
    weights = [jax.tree.leaves(trainer.weights(state, run)) for run in range(len(arms))]
    return weights, metrics, np.asarray(state.state)


@pytest.mark.slow
def test_as_released_is_the_bonus_bit_for_bit_and_ours_is_not():
    (bonus, as_released), metrics, running = learned(["bonus", "hinge"], loss=partial(epo, released=True))
    (_, ours), _, _ = learned(["bonus", "hinge"])
    assert metrics["outside/learner"][1] > 0  # there is something to be penalised
    assert all(np.array_equal(a, b) for a, b in zip(bonus, as_released, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(bonus, ours, strict=True))
    assert (running[0] > 0).any() and running[0].max() < np.log(4) + 1e-6  # four keys


def test_the_phases_of_the_release():
    assert by_phase(0) == 1
    assert by_phase(LENGTH // 2 - 1) == pytest.approx(0.827, abs=0.005)
    assert by_phase(LENGTH // 2) == pytest.approx(0.8)
    assert by_phase(LENGTH) == pytest.approx(0.04, abs=0.001)
