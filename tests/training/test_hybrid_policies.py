"""A study from its games to its last update, by tiny policies with linear_attention."""

from unittest import mock

import numpy as np
import pytest

from experiments._template import BASE
from jaxmarl_llm.training import setup
from jaxmarl_llm.training.trainer import Trainer
from tests.support.families import recurrent


@pytest.mark.long
def test_tiny_policies_with_a_state_learn_and_their_first_ratios_are_one():
    """Two policies, whose sums modulo 3 are right a third of the time at first; two seeds side by side."""
    with mock.patch.object(setup, "tiny", lambda vocabulary, _: recurrent(vocabulary)):
        trainer = Trainer(BASE, [BASE.all_hparams] * 2, [0, 1], quiet=True)
    assert all(x.config.recurrent for x in trainer.policy_sets.values())
    state, success = trainer.init(), []
    for number in range(150):
        state, metrics = trainer.update(state, number)
        success.append(np.asarray(metrics["success"]))
        for name in ("ratio/first", "ratio/second"):
            np.testing.assert_allclose(metrics[name], 1, atol=1e-4)
        assert not np.asarray(metrics["skipped"]).any()
    assert (np.mean(success[:5], 0) < 0.5).all() and (np.mean(success[-5:], 0) > 0.8).all()
