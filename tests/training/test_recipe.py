"""What makes two recipes share a program."""

import dataclasses
from functools import partial

import jax.numpy as jnp
import pytest

from jaxmarl_llm.environments.team_signals import SixTurns
from jaxmarl_llm.rl import advantages, losses
from jaxmarl_llm.rl.masked import Mean
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


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda total, metrics: total.value, "A loss returns"),
        (lambda total, metrics: total, "A loss returns"),
        (lambda total, metrics: (Mean(total.sum * jnp.ones(2), total.count), metrics), "A loss returns"),
        (lambda total, metrics: (total, {"mine": total.value}), "'mine' is none"),
    ],
)
def test_what_a_loss_returns_is_checked(returned, says):
    loss = lambda scores, batch, hparams: returned(*losses.ppo(scores, batch, hparams))  # noqa: E731
    trainer = Trainer(dataclasses.replace(RECIPE, groups=2, group_size=2, loss=loss), [RECIPE.all_hparams], [0])
    with pytest.raises(ValueError, match=says):
        trainer.update(trainer.abstract(), 0)


def test_a_misspelt_hparam_is_refused():
    with pytest.raises(ValueError, match="Nothing reads an hparam 'learningrate': did you mean 'learning_rate'"):
        dataclasses.replace(RECIPE, hparams={"learningrate": 1e-3}).check()
    dataclasses.replace(RECIPE, hparams={"learning_rate/a": 1e-3, "clip": 0.1}).check()
