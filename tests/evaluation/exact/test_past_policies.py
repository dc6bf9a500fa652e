"""Policies recorded while a learner trains: their average, and of whom there is none."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.self_play.exploitability import RLOO
from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.past_policies import average, record
from jaxmarl_llm.evaluation.exact.policy_table import tabulate
from jaxmarl_llm.training.setup import LORA, Model, for_pretrained
from jaxmarl_llm.training.trainer import Trainer
from tests.support.saved_policies import small_model

GAME = KuhnPoker()


def test_the_average_earns_what_its_policies_earn_on_average():
    """Against anybody: it plays as one of them, drawn before the game."""
    tree, rng = solve.tree(GAME), np.random.default_rng(0)
    tables = rng.dirichlet(np.full(tree.legal.shape[1], 0.5), (4, len(tree.owner))) * tree.legal
    *snapshots, other = tables / tables.sum(-1, keepdims=True)
    for seat in range(2):
        against = lambda table, seat=seat: np.where(tree.owner[:, None] == seat, table, other)
        values = [solve.expected_value(tree, against(table)) for table in snapshots]
        np.testing.assert_allclose(
            solve.expected_value(tree, against(average(tree, snapshots))), np.mean(values, 0), atol=1e-12
        )
    assert not np.allclose(average(tree, snapshots), np.mean(snapshots, 0), atol=1e-2)


def test_of_two_learners_and_of_three_actions_nothing_is_recorded():
    for game, learners in ((GAME, ("one", "other")), (LeducPoker(), ("one",))):
        with pytest.raises(ValueError, match="one learner is recorded, in a game of two actions"):
            record(SimpleNamespace(recipe=SimpleNamespace(game=game), learners=learners))


@pytest.mark.long
def test_an_adapter_on_a_pretrained_model_is_recorded_under_the_models_name(tmp_path):
    """Its policies share a set, which is not called as the learner is."""
    small_model(tmp_path / "model")
    trainer = Trainer(for_pretrained(RLOO), [RLOO.all_hparams], [0], {"learner": Model(str(tmp_path / "model"), LORA)})
    assert "learner" not in trainer.parts.policy_sets
    weights = trainer.weights(trainer.init(), 0)
    recorded, tree = record(trainer.parts)(weights, jax.random.key(0)), solve.tree(GAME)
    ((home, policy_set),) = trainer.parts.policy_sets.items()
    table = tabulate(tree, policy_set, 0, trainer.parts.recipe.budget)(weights[home])
    np.testing.assert_allclose(recorded["nash_conv"], solve.nash_conv(tree, table), rtol=1e-6)
