"""A study from its games to its last update, by tiny policies of Qwen3.5's and of Gemma 4's kind."""

from unittest import mock

import jax
import numpy as np
import pytest

from experiments._template import BASE
from jaxmarl_llm.devices import sharding
from jaxmarl_llm.runs.checkpoint import Checkpoints
from jaxmarl_llm.runs.loop import resume
from jaxmarl_llm.training import setup
from jaxmarl_llm.training.trainer import Trainer
from tests.support.families import recurrent, sharing

pytestmark = pytest.mark.long
SIZES = {"qwen3.5": recurrent, "gemma4": sharing}


@pytest.fixture(scope="module", params=SIZES)
def trainer(request):
    with mock.patch.object(setup, "tiny", lambda vocabulary, _: SIZES[request.param](vocabulary)):
        trainer = Trainer(BASE, [BASE.all_hparams] * 2, [0, 1], quiet=True)
    types = {"qwen3.5": "qwen3_5_text", "gemma4": "gemma4_text"}
    assert all(x.config.model_type == types[request.param] for x in trainer.policy_sets.values())
    return trainer


def test_tiny_policies_learn_and_their_first_ratios_are_one(trainer):
    """Two policies, whose sums modulo 3 are right a third of the time at first; two seeds side by side."""
    state, success = trainer.init(), []
    for number in range(150):
        state, metrics = trainer.update(state, number)
        success.append(np.asarray(metrics["success"]))
        for name in ("ratio/first", "ratio/second"):
            np.testing.assert_allclose(metrics[name], 1, atol=1e-4)
        assert not np.asarray(metrics["skipped"]).any()
    assert (np.mean(success[:5], 0) < 0.5).all() and (np.mean(success[-5:], 0) > 0.8).all()


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_bits(trainer, tmp_path, monkeypatch):
    with sharding.use(trainer.mesh), Checkpoints(tmp_path, {}) as checkpoints:
        state, _ = trainer.update(trainer.init(), 0)
        checkpoints.save(1, state)
        checkpoints.wait()
        expected, metrics = trainer.update(state, 1)
        monkeypatch.setattr(trainer, "init", None)
        start, again = resume(trainer, checkpoints)
        found, same = trainer.update(again, start)
    for a, b in zip(jax.tree.leaves((expected, metrics)), jax.tree.leaves((found, same)), strict=True):
        np.testing.assert_array_equal(a, b)
