"""Programs of a study: arms that share a warm start are taught once, others each by themselves."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments.rewards.search_self_play import CO_TRAINED
from experiments.rewards.search_self_play import STUDY as SSP
from jaxmarl_llm.environments.card_games import KuhnPoker
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies.prepared import WarmStarts
from jaxmarl_llm.studies.program import programs
from jaxmarl_llm.training.recipe import Recipe, estimator
from jaxmarl_llm.training.trainer import Trainer
from jaxmarl_llm.training.warm_start import warm_start_of

RECIPE = Recipe(
    KuhnPoker(),
    seats=(("a", "b"),),
    advantage=estimator(advantages.rloo),
    warm_start=(("random", "random"),),
    warm_start_updates=2,
    budget=1,
    groups=2,
    group_size=2,
)


def trainer_of(recipe, seeds=(0, 1)):
    return Trainer(recipe, [recipe.all_hparams] * len(seeds), seeds)


def test_arms_with_one_warm_start_are_taught_once(monkeypatch):
    made = []
    monkeypatch.setattr(Trainer, "init_tiny", lambda self: made.append(self.recipe) or {})
    known = WarmStarts()
    later = [
        RECIPE,
        RECIPE.with_hparams(learning_rate=0.1),
        replace(RECIPE, updates=3, groups=4, advantage=estimator(advantages.rloo, per_agent=True)),
        replace(RECIPE, warm_start_updates=3),
        replace(RECIPE, seats=(("b", "a"),)),  # others in the seats
        replace(RECIPE, seats=(("a", "random"),)),
        RECIPE,
    ]
    found = [known.of(trainer_of(recipe)) for recipe in later]
    assert [id(x) for x in found[:3]] == [id(found[0])] * 3 and found[-1] is found[0]
    assert made == [later[0], *later[3:6]]
    assert known.of(trainer_of(replace(RECIPE, warm_start=()))) is None and len(made) == 4


@pytest.mark.long
def test_what_was_taught_once_is_what_every_arm_would_begin_with():
    """An arm that plays more groups begins with the same bits as by itself, which are not those of random weights."""
    one, other = trainer_of(RECIPE), trainer_of(replace(RECIPE, groups=4))
    shared, alone = other.init(tiny=WarmStarts().of(one)), other.init()
    jax.tree.map(np.testing.assert_array_equal, shared, alone)
    random = trainer_of(replace(RECIPE, warm_start=())).init()
    pairs = zip(*(jax.tree.leaves(state.learners.weights) for state in (alone, random)), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)


def test_which_arms_of_a_study_share_one():
    arms = SSP.recipes
    plan = programs(arms, (0,), alone=False)
    assert [sorted(one.arms) for one in plan] == [["co_trained", "no_baseline"], ["frozen"], ["uniform"], ["no_gate"]]
    begins = {name: warm_start_of(arm) for name, arm in arms.items()}
    assert begins["frozen"] == begins["co_trained"] == warm_start_of(CO_TRAINED)
    assert begins["uniform"] != begins["co_trained"] != begins["no_gate"]  # another seat, another game
