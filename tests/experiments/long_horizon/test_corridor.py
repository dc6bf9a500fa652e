"""EPO's penalty: as released it has no gradient and learns what the bonus learns; ours has one; its phases."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from experiments.long_horizon.corridor import LENGTH, STUDY, by_phase, epo
from jaxmarl_llm.training.trainer import Trainer

SMALL = {"group_size": 2, "updates": 3}
NARROW = {"low": 0.999, "high": 1.001}  # so that three updates leave the corridor


def learned(arm, **changes):
    recipe = dataclasses.replace(STUDY.arms[arm], **SMALL, **changes)
    recipe = recipe.with_hparams(**NARROW)
    trainer = Trainer(recipe, [recipe.all_hparams], [3])
    state = trainer.init()
    for number in range(3):
        state, metrics = trainer.update(state, number)
    return jax.tree.leaves(trainer.weights(state, 0)), metrics, np.asarray(state.state[0])


@pytest.mark.long
def test_as_released_is_the_bonus_and_ours_is_not():
    """Up to rounding: the weight of the corridor is a constant of the program, and with 0 there is less to fuse."""
    released = {"loss": partial(epo, released=True)}
    (bonus, _, running), (as_released, metrics, _) = learned("bonus", **released), learned("hinge", **released)
    ours, _, _ = learned("hinge")
    assert metrics["outside/learner"] > 0  # there is something to be penalised
    assert all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(bonus, as_released, strict=True))
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(bonus, ours, strict=True))
    assert (running > 0).any() and running.max() < np.log(4) + 1e-6  # four keys


def test_the_phases_of_the_release():
    assert by_phase(0) == 1
    assert by_phase(LENGTH // 2 - 1) == pytest.approx(0.827, abs=0.005)
    assert by_phase(LENGTH // 2) == pytest.approx(0.8)
    assert by_phase(LENGTH) == pytest.approx(0.04, abs=0.001)
