"""Policies recorded while a learner trains: their average, and of whom there is none."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker, LeducPoker
from jaxmarl_llm.evaluation.exact import solve
from jaxmarl_llm.evaluation.exact.past_policies import average, record

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
