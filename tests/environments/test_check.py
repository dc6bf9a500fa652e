"""A game that breaks the contract is told so in a sentence, before anything compiles."""

import jax.numpy as jnp
import pytest

from jaxmarl_llm.environments import REGISTRY
from jaxmarl_llm.environments.card_games import KuhnPoker
from jaxmarl_llm.environments.check import check_game
from jaxmarl_llm.environments.table import Table
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.training.recipe import Recipe, estimator
from jaxmarl_llm.training.trainer import Trainer


@pytest.mark.parametrize("name", REGISTRY)
def test_every_game_of_the_package_passes(name):
    check_game(REGISTRY[name]())


class Broken(KuhnPoker):
    """Kuhn poker, of which one function's result is changed."""

    def step(self, state, action, key):
        state, view, reward = super().step(state, action, key)
        return self.changed(state, view, reward)


def of(changed):
    return type("Spoilt", (Broken,), {"changed": lambda self, *result: changed(*result)})()


@pytest.mark.parametrize(
    ("game", "says"),
    [
        (of(lambda s, v, r: (s.replace(history=s.history * 1.0), v, r)), r"\.history as float32\[\], and reset"),
        (of(lambda s, v, r: (s.replace(cards=s.cards[:1]), v, r)), r"\.cards as int32\[1\], and reset gave"),
        (of(lambda s, v, r: ((s, 0), v, r)), "built otherwise"),
        (of(lambda s, v, r: (s, v.replace(legal=v.legal[:, :1]), r)), r"view.legal bool\[2, 1\]: \(2, 2\) is wanted"),
        (of(lambda s, v, r: (s, v, r[:, 0])), r"reward of shape \(2,\): \(2, 1\) is wanted"),
        (type("Spoilt", (KuhnPoker,), {"prompt": lambda self, state: jnp.zeros((2, 5), jnp.int32)})(), "Spoilt.prompt"),
        (object(), "object has no agents"),
    ],
)  # fmt: skip
def test_a_broken_game_is_named_with_what_is_wrong(game, says):
    with pytest.raises(ValueError, match=says):
        check_game(game)
    with pytest.raises(ValueError, match=says):
        Table(game, 0)


def test_a_trainer_checks_its_game():
    game = of(lambda s, v, r: (s.replace(history=s.history * 1.0), v, r))
    recipe = Recipe(game, seats=(("a", "a"),), advantage=estimator(advantages.rloo, per_agent=True))
    with pytest.raises(ValueError, match=r"Spoilt.step returns the state's \.history as float32"):
        Trainer(recipe, [recipe.all_hparams], [0])


def test_a_phrase_that_is_not_in_the_table_is_named():
    game = of(lambda s, v, r: (s, v.replace(phrases=v.phrases + 40), r))
    table = Table(game, 0)
    with pytest.raises(ValueError, match=r"Spoilt tells phrase \d+ of field 0 of its observation, which has \d+"):
        table.play(jnp.ones(2, jnp.int32), {})
