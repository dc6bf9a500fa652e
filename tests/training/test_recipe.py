"""What makes two recipes share a program."""

import dataclasses
from functools import partial

import pytest

from jaxmarl_llm.environments.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.training.recipe import Recipe, estimator
from jaxmarl_llm.training.trainer import Trainer

RECIPE = Recipe(SixTurns(turns=2), seats=(("a", "b"),), advantage=estimator(advantages.rloo, per_agent=True))


def test_structure_leaves_out_numbers_alone():
    assert dataclasses.replace(RECIPE, hparams={"learning_rate": 1.0}).structure == RECIPE.structure
    assert dataclasses.replace(RECIPE, group_size=4).structure != RECIPE.structure
    assert dataclasses.replace(RECIPE, loss=partial(losses.ppo)).structure != RECIPE.structure


def test_an_option_that_an_estimator_does_not_take_is_named_at_once():
    with pytest.raises(ValueError, match=r"grpo has no option 'sclae': it takes .*scale"):
        estimator(advantages.grpo, sclae="none")
    with pytest.raises(ValueError, match="grpo has no option 'lam'"):
        estimator(advantages.grpo, hparams=("lam",))


def test_an_hparam_that_a_loss_or_an_estimator_lacks_is_named():
    def loss(scores, batch, hparams):
        return losses.ppo(scores, batch, {**hparams, "entropy": hparams["strength"]})

    def advantage(experience, hparams, state):
        return RECIPE.advantage(experience, hparams, state)._replace(state=hparams["decay"])

    for recipe, name in (
        (dataclasses.replace(RECIPE, loss=loss), "strength"),
        (dataclasses.replace(RECIPE, advantage=advantage), "decay"),
    ):
        trainer = Trainer(dataclasses.replace(recipe, groups=2, group_size=2), [recipe.all_hparams], [0])
        with pytest.raises(ValueError, match=rf"no hparam '{name}', but .*value: put it into Recipe.hparams"):
            trainer.update(trainer.abstract(), 0)
