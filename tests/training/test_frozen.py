"""Saved policies in line-ups: they play by the weights of their files, are never trained, and stand in no checkpoint.

The long cases compile updates, a slow one beside a whole policy; the short ones stop before any program.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.board_games import TicTacToe
from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.runs.checkpoint import Checkpoints
from jaxmarl_llm.studies import program
from jaxmarl_llm.studies.settings import Settings
from jaxmarl_llm.training import step, trainer
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import FROZEN, Recipe
from jaxmarl_llm.training.setup import Model
from jaxmarl_llm.training.trainer import Trainer
from tests.support.saved_policies import adapter_on, small_model, tiny_policy

GAME = KuhnPoker()
PLAIN = estimator(advantages.rloo, per_agent=True)


def with_target(experience, hparams, state):
    """An estimator for a critic."""
    return PLAIN(experience, hparams, state)._replace(value_target=experience.turn_value)


class Home(NamedTuple):
    path: Path
    whole: dict
    base: dict
    adapter: dict


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Home:
    """A tiny policy of Kuhn poker, one of another game, and an adapter on a small model; with their weights."""
    path = tmp_path_factory.mktemp("frozen")
    tiny_policy(path / "other", TicTacToe(), 0)
    whole, base = tiny_policy(path / "whole", GAME, 1), small_model(path / "base")
    return Home(path, whole, base, adapter_on(path / "base", path / "adapter"))


def recipe_of(directory: Path, **settings) -> Recipe:
    name = f"{FROZEN}/{directory}"
    return Recipe(
        GAME, (("me", name), (name, "me")), PLAIN, budget=8, groups=4,
        group_size=4, updates=4, **settings,
    )  # fmt: skip


def trainer_of(recipe: Recipe, **settings) -> Trainer:
    return Trainer(recipe, [recipe.all_hparams], [0], **settings)


def same(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for x, y in pairs)


def test_a_frozen_policy_has_a_set_and_weights_and_stands_in_no_state(home):
    recipe = recipe_of(home.path / "whole")
    name = f"policy/{home.path / 'whole'}"
    assert recipe.learners == ("me",) and recipe.frozen == {name: str(home.path / "whole")} and not recipe.past
    made = trainer_of(recipe)
    assert made.tiny and {*made.policy_sets} == {"me", name}
    assert same(made.parts.frozen[name]["policy"], home.whole)
    state = made.abstract()
    assert {*state.learners.weights} == {"me"} and not (state.initial or state.snapshots or state.averages)


def test_an_adapter_has_the_base_that_it_names(home):
    recipe = recipe_of(home.path / "adapter")
    name = f"policy/{home.path / 'adapter'}"
    made = trainer_of(recipe)
    assert made.tiny and made.policy_sets[name].loras[0].rank == 2
    assert same(made.base[name], home.base) and same(made.parts.frozen[name]["policy"], home.adapter)


def test_the_parts_beside_a_frozen_policy_are_checked_without_weights(home):
    """Before a study claims its directory."""
    for directory in ("whole", "adapter"):
        program.check(Settings("toy"), recipe_of(home.path / directory))
    with pytest.raises(ValueError, match="and there is no directory"):
        program.check(Settings("toy"), recipe_of(home.path / "nothing"))


@pytest.mark.parametrize(
    ("directory", "says"),
    [("other", "a tiny policy of another game"), ("nothing", "and there is no directory")],
)
def test_a_policy_that_cannot_play_is_one_sentence(home, directory, says):
    with pytest.raises(ValueError, match=says):
        trainer_of(recipe_of(home.path / directory))


@pytest.mark.long
@pytest.mark.parametrize("directory", [pytest.param("whole", marks=pytest.mark.slow), "adapter"])
def test_it_plays_by_its_file_and_only_the_learner_is_trained(home, directory):
    recipe = dataclasses.replace(recipe_of(home.path / directory, reference=True), advantage=with_target, critic=True)
    name, made = f"policy/{home.path / directory}", trainer_of(recipe)
    before = jax.tree.map(np.array, made.base)
    state, metrics = made.update(made.init(), 0)
    assert same(before, made.base)
    assert "gradient_norm/me" in metrics and f"gradient_norm/{name}" not in metrics
    run = jax.tree.map(lambda x: x[0], state)

    @jax.jit
    def look(run, base):
        parts = dataclasses.replace(made.parts, base=base)
        trajectory = step.play(parts, run.learners.weights, jax.random.key(0))
        experience = step.make_experience(parts, run, trajectory, jax.random.key(0))
        behaviour = experience.sampled[name].behaviour_logp
        scored, mine = (experience.score(name, weights=weights).logp for weights in ({}, run.learners.weights))
        return jnp.abs(scored - behaviour).max(), jnp.abs(mine - behaviour).max(), experience.learns

    scored, again, learns = look(run, made.base)
    assert float(scored) < 1e-5 and float(again) < 1e-5
    assert np.asarray(learns).reshape(4, 4, 2)[:, 0].tolist() == [[True, False], [False, True]] * 2


@pytest.mark.long
def test_a_run_beside_a_frozen_policy_resumes_with_the_same_bits(home, tmp_path):
    made = trainer_of(recipe_of(home.path / "whole"))
    state = made.init()
    for number in range(2):
        state, _ = made.update(state, number)
    with Checkpoints(tmp_path, {}) as checkpoints:
        checkpoints.save(2, state)
    again = trainer_of(recipe_of(home.path / "whole"))
    number, restored = Checkpoints(tmp_path, {}, resume=True).restore(again.abstract())
    assert number == 2
    for at in (2, 3):
        state, _ = made.update(state, at)
        restored, _ = again.update(restored, at)
    assert same(state, restored)


@pytest.mark.long
def test_an_adapter_on_the_learners_base_joins_its_set(home):
    recipe = recipe_of(home.path / "adapter")
    name, source = f"policy/{home.path / 'adapter'}", str(home.path / "base")
    made = trainer_of(recipe, models={"me": Model(source, Lora(3, 3.0))})
    assert made.policy_sets[source].policies == ("me", name) and {*made.base} == {source, FROZEN}
    state, metrics = made.update(made.init(), 0)
    assert np.isfinite(metrics["loss"]).all() and {*state.learners.weights} == {"me"}


@pytest.mark.long
def test_cores_that_share_runs_each_have_the_frozen_policy(home, monkeypatch):
    recipe = recipe_of(home.path / "whole")
    ends = []
    for shared in (10**9, 0):
        monkeypatch.setattr(trainer, "SHARED", shared)
        both = Trainer(recipe, [recipe.all_hparams] * 2, [0, 1])
        assert len(both.cores) == (0 if shared else 2)
        ends.append(both.update(both.init(), 0)[0].learners.weights)
    assert same(*ends)
