"""The memory of imitate_success keeps what taught, and nothing of a skipped update.

The case is long, as it compiles whole updates; `test_contract` traces the study.
"""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.long_horizon.imitate_success import SPEAR
from jaxmarl_llm.environments.solo.lock_chain import LockChain
from jaxmarl_llm.training.trainer import Trainer
from tests.support.toys import Erratic

pytestmark = pytest.mark.long


def test_a_skipped_update_keeps_nothing_for_replay():
    game = Erratic(LockChain(2, 2, in_order=True), float("nan"))
    recipe = dataclasses.replace(SPEAR, game=game, groups=2, group_size=2, measure=lambda episodes: {}, arrange=None)
    trainer = Trainer(recipe, [recipe.all_hparams], [0], max_skipped=0)
    state = trainer.init()
    before = jax.device_get(state.state)
    after, metrics = trainer.update(state, 0)
    assert metrics["skipped"][0] == 1
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(after.state))
