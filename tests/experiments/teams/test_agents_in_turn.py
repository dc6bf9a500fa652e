"""Who learns from which batch.

The long case compiles whole updates; the short one follows the schedule of each arm.
"""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.teams.agents_in_turn import RATE, STUDY, TEAM
from jaxmarl_llm.training.trainer import Trainer


@pytest.mark.parametrize(
    ("arm", "interval", "rate"), [("each_1", 1, RATE), ("each_10", 10, RATE), ("each_1_fast", 1, 3 * RATE)]
)
def test_one_agent_at_a_time_and_all_of_them_in_turn(arm, interval, rate):
    hparams, waits = STUDY.arms[arm].all_hparams, []
    for number in range(40):
        rates = [hparams[f"learning_rate/{name}"][number] for name in TEAM]
        assert sorted(rates) == [0, 0, rate]
        waits.append(rates.index(rate))
    assert waits == [(number // interval) % 3 for number in range(40)]


@pytest.mark.long
def test_who_waits_stays_as_it_is():
    recipe = dataclasses.replace(STUDY.arms["each_1"], groups=2, group_size=4, updates=3, warm_start=())
    trainer = Trainer(recipe, [recipe.all_hparams], [0])
    state = trainer.init()
    for number in range(3):
        before = jax.tree.map(np.asarray, state.learners.weights)
        state, _ = trainer.update(state, number)
        same = {
            name: all(jax.tree.leaves(jax.tree.map(np.array_equal, before[name], state.learners.weights[name])))
            for name in TEAM
        }
        assert same == {name: at != number for at, name in enumerate(TEAM)}
