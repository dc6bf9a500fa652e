"""The size of tiny policies: the recipe's or a model's, what shares it, and sizes that cannot work."""

import dataclasses
import json

import jax
import pytest

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.models import loading
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.rollout.policy_files import load_policy, save_policy
from jaxmarl_llm.studies.program import describe
from jaxmarl_llm.training import begin
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.records import TinySize
from jaxmarl_llm.training.setup import TINY_BASE, Model, setup, tiny
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.warm_start import warm_start_of

RECIPE = Recipe(KuhnPoker(), seats=(("a", "b"),), advantage=estimator(advantages.rloo), groups=2, group_size=2)
LARGE = dataclasses.replace(RECIPE, size=TinySize(64, layers=3))


def parts_of(recipe, models="tiny"):
    return setup(recipe, models, sharding.mesh(), loading.load)


def sizes(parts) -> dict[str, tuple[int, int]]:
    configs = {name: x.config for name, x in parts.policy_sets.items()}
    return {name: (x.hidden_size, x.num_hidden_layers) for name, x in configs.items()}


def test_a_recipe_and_a_model_set_the_size():
    assert sizes(parts_of(RECIPE)) == {"a": (32, 2), "b": (32, 2)}
    assert sizes(parts_of(LARGE)) == {"a": (64, 3), "b": (64, 3)}
    models = {"a": Model(), "b": Model(size=TinySize(16, 1))}
    assert sizes(parts_of(LARGE, models)) == {"a": (64, 3), "b": (16, 1)}
    base = dict.fromkeys("ab", Model(TINY_BASE, Lora(2, 4.0, ("*",))))
    assert sizes(parts_of(LARGE, base)) == {TINY_BASE: (64, 3)}


def test_an_update_of_another_size_keeps_it():
    trainer = Trainer(LARGE, [LARGE.all_hparams], [0])
    state = jax.eval_shape(trainer.functions.init, trainer.base, trainer.keys, trainer._tiny_shape)
    after, _ = jax.eval_shape(
        trainer.functions.update, trainer.base, trainer.keys, trainer.hparams_at(0), state, jax.numpy.int32(0)
    )
    assert after.learners.weights["a"]["policy"]["layers"]["q_proj"].shape == (1, 3, 64, 64)


def test_settings_name_the_size_if_it_is_another():
    """Settings of published results stay as they are."""
    assert "size" not in describe(RECIPE) and "size" not in describe(Model())
    assert describe(LARGE)["size"] == {"kind": "TinySize", "width": 64, "layers": 3}
    assert RECIPE.structure != LARGE.structure and warm_start_of(RECIPE) != warm_start_of(LARGE)


def test_a_saved_policy_has_its_size(tmp_path):
    parts = parts_of(dataclasses.replace(RECIPE, size=TinySize(16, 1)))
    save_policy(tmp_path / "a", parts.policy_sets["a"], 0, begin.init_tiny(parts, jax.random.key(0))["a"], "")
    assert load_policy(tmp_path / "a").model.config == parts.policy_sets["a"].config
    assert json.loads((tmp_path / "a/config.json").read_text())["hidden_size"] == 16


@pytest.mark.parametrize("size", [{"width": 30}, {"width": 0}, {"layers": 0}, {"width": 2048}, {"layers": 2.5}])
def test_a_wrong_size_is_one_sentence(size):
    with pytest.raises(ValueError, match="A tiny policy has a width of 8 to 1024, a multiple of 8, and 1 to 32 layers"):
        TinySize(**size)


def test_sizes_that_cannot_meet_are_one_sentence():
    models = {"a": Model(), "b": Model(size=TinySize(16))}
    imitating = dataclasses.replace(RECIPE, warm_start=(("random", "random"),))
    with pytest.raises(ValueError, match="imitate as one policy of one size"):
        parts_of(imitating, models)
    on_one = {name: dataclasses.replace(x, source=TINY_BASE, lora=Lora(2, 4.0, ("*",))) for name, x in models.items()}
    with pytest.raises(ValueError, match="share its weights: give them one dtype, attention and size"):
        parts_of(RECIPE, on_one)
    with pytest.raises(ValueError, match="size is of tiny policies, and smollm2 has its own"):
        Model("smollm2", size=TinySize())


def test_every_size_has_whole_heads_of_even_width():
    for width in (8, 24, 1024):
        config = tiny(5, TinySize(width))
        assert config.head_dim * config.num_attention_heads == width and config.head_dim % 2 == 0
