"""What every study keeps to: it can be judged, two tiny updates of every arm run, its docstring and its page are there.

A study's own test is its formula against NumPy, nothing else.
"""

import dataclasses
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.rollout.trajectory import per_token
from jaxmarl_llm.studies import registry
from jaxmarl_llm.studies.runner import check_metrics
from jaxmarl_llm.training.recipe import Advantages, Experience, Recipe
from jaxmarl_llm.training.trainer import Trainer

PACKAGE = "experiments"
MODULES = [*registry.find(PACKAGE).values(), f"{PACKAGE}._template"]
names = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.rpartition(".")[2])


@names
def test_a_study_can_be_judged_and_says_its_command_and_its_paper(module):
    name, _, study = registry.load_module(module)
    for recipe in study.arms.values():
        recipe.check()
    text = importlib.import_module(module).__doc__
    assert f"python -m {PACKAGE} {'NAME' if name.startswith('_') else name} " in text
    assert study.paper.url in text.replace("\n", "")
    assert len(study.question) < 100


@pytest.mark.parametrize("name", registry.find(PACKAGE))
def test_a_study_has_a_page(name):
    assert (registry.home(PACKAGE) / "results" / name / "README.md").exists()


def test_the_template_is_short():
    assert len((Path(registry.home(PACKAGE)) / "_template.py").read_text().splitlines()) <= 52


def small(recipe: Recipe) -> Recipe:
    """The same arm with a game a line-up and group, no imitation, one epoch."""
    fewest = {"groups": len(set(recipe.seats)), "seats": tuple(dict.fromkeys(recipe.seats)), "group_size": 2}
    fewest |= {"epochs": 1, "minibatches": 1, "grad_accumulation": 1, "buckets": 1, "updates": 2}
    snapshots = {"snapshots": min(recipe.snapshots, 1), "snapshot_every": 1}
    return dataclasses.replace(recipe, **fewest, **snapshots, warm_start=(), hparams=recipe.all_hparams)


def together(arms: dict[str, Recipe]) -> list[tuple[Recipe, dict[str, dict[str, float]]]]:
    """(recipe, {arm: its numbers}): arms that differ in numbers and advantages alone share a compiled program.

    The number `arm` chooses between the advantages.
    """
    found: list[tuple[Recipe, dict[str, Recipe]]] = []
    for name, arm in arms.items():
        bare = dataclasses.replace(arm.structure, advantage=len)
        same = [group for other, group in found if other == bare]
        if same:
            same[0][name] = arm
        else:
            found.append((bare, {name: arm}))
    programs = []
    for bare, group in found:
        ways: list = []
        for arm in group.values():
            if arm.advantage not in ways:
                ways.append(arm.advantage)
        lanes = {name: {**arm.all_hparams, "arm": float(ways.index(arm.advantage))} for name, arm in group.items()}
        shared = dataclasses.replace(bare, advantage=chosen(ways), hparams={**bare.hparams, "arm": 0.0})
        programs.append((shared, lanes))
    return programs


def chosen(ways: list):
    def advantage(experience: Experience, hparams, state) -> Advantages:
        found = [way(experience, hparams, state) for way in ways]
        if len({jax.tree.structure(one) for one in found}) > 1:
            found = [token_by_token(experience, one) for one in found]
        return jax.tree.map(lambda *x: jnp.stack(x)[hparams["arm"].astype(int)], *found)

    return advantage


def token_by_token(experience: Experience, found: Advantages) -> Advantages:
    def spread(x):
        if isinstance(x, dict):
            return x
        return {name: per_token(x, rows, experience.sampled[name]) for name, rows in experience.rows.items()}

    target = experience.token_value if found.value_target is None else spread(found.value_target)
    return Advantages(spread(found.advantage), target, found.state)


@names
def test_every_arm_is_a_program_that_measures_what_is_predicted(module):
    """Traced, not compiled, which takes a second; an evaluation on the host is run by the slow test alone."""
    entry = registry.load_module(module)
    arms = {name: small(recipe) for name, recipe in entry.study.arms.items()}
    for recipe, lanes in together(arms):
        trainer = Trainer(recipe, list(lanes.values()), [0] * len(lanes), "tiny")
        update = lambda base, state, trainer=trainer: trainer._update(base, state, jnp.int32(0))  # noqa: E731
        state, metrics = jax.eval_shape(update, trainer.base, before := trainer.abstract())
        assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), before)
        assert all(x.shape == (len(lanes),) for x in metrics.values()) and "loss" in metrics
        for prediction in entry.study.predictions:
            if recipe.evaluate is None and set(prediction.arms) & set(lanes):
                assert prediction.metric in {*metrics, *entry.study.derived}


@pytest.mark.slow
@names
def test_two_updates_of_every_arm_measure_what_the_study_shows(module):
    entry = registry.load_module(module)
    arms = {name: small(recipe) for name, recipe in entry.study.arms.items()}
    known: dict[str, set[str]] = {}
    evaluated: dict[int, set[str]] = {}
    for recipe, lanes in together(arms):
        trainer = Trainer(recipe, list(lanes.values()), [0] * len(lanes), "tiny")
        state, first = trainer.update(trainer.init(), 0)
        state, second = trainer.update(state, 1)
        curves = {name: np.stack([first[name], second[name]], 1) for name in first}  # [lanes, 2]
        assert np.isfinite(curves["loss"]).all()
        assert (curves["skipped"] == 0).all()
        if recipe.evaluate is not None and id(recipe.evaluate) not in evaluated:
            values = recipe.evaluate(trainer)(trainer.weights(state, 0))
            assert all(np.isfinite(x).any() for x in values.values())  # NaN in games without the case
            evaluated[id(recipe.evaluate)] = set(values)
        extra = evaluated.get(id(recipe.evaluate), set())
        for lane, arm in enumerate(lanes):
            known[arm] = {*curves, *extra}
            for derive in entry.study.derived.values():
                of = {name: x[lane : lane + 1] for name, x in curves.items()}
                assert derive(of | {name: np.ones((1, 2)) for name in extra}).shape == (1,)
    check_metrics(entry, arms, known)
