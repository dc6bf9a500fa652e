"""What makes two recipes share a program."""

import dataclasses
from functools import partial

from jaxmarl_llm.environments.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.training.recipe import Recipe, estimator

RECIPE = Recipe(SixTurns(turns=2), seats=(("a", "b"),), advantage=estimator(advantages.rloo, per_agent=True))


def test_structure_leaves_out_numbers_alone():
    assert dataclasses.replace(RECIPE, hparams={"learning_rate": 1.0}).structure == RECIPE.structure
    assert dataclasses.replace(RECIPE, group_size=4).structure != RECIPE.structure
    assert dataclasses.replace(RECIPE, loss=partial(losses.ppo)).structure != RECIPE.structure
