"""What every study keeps to: it can be judged, two tiny updates of every arm run, its docstring and its page are there.

A study's own test is its formula against NumPy, nothing else.
"""

import dataclasses
import importlib
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.environments.extras import Extras
from jaxmarl_llm.models import decoder, loading
from jaxmarl_llm.rl.losses import Scores
from jaxmarl_llm.studies import catalogue, registry
from jaxmarl_llm.studies.computed import Computed
from jaxmarl_llm.studies.runner import check_metrics
from jaxmarl_llm.studies.study import ANY
from jaxmarl_llm.training import begin, past, step
from jaxmarl_llm.training.recipe import Parts, Recipe, no_state
from jaxmarl_llm.training.records import Snapshots
from jaxmarl_llm.training.setup import TINY, for_pretrained, setup
from jaxmarl_llm.training.trainer import Trainer

PACKAGE = "experiments"
MODULES = [*catalogue.find(PACKAGE).values(), f"{PACKAGE}._template"]
KEY = jax.random.key(0)
names = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.rpartition(".")[2])


@names
def test_a_study_can_be_judged_and_says_its_command_and_its_paper(module):
    name, _, study, _ = registry.load_module(module)
    told = catalogue.outline(Path(*module.split(".")).with_suffix(".py"))
    paper = (study.paper.title, study.paper.url, str(study.paper.year)) if study.paper else ("", "", "")
    assert told[:4] == (study.question, *paper)
    for recipe in study.recipes.values():
        recipe.check()
    text = importlib.import_module(module).__doc__
    assert f"python -m {PACKAGE} {'NAME' if name.startswith('_') else name} " in text
    assert paper[1] in text.replace("\n", "")
    assert len(study.question) < 100


@pytest.mark.parametrize("name", catalogue.find(PACKAGE))
def test_a_study_has_a_page(name):
    assert (catalogue.home(PACKAGE) / "results" / name / "README.md").exists()


def test_the_template_is_short():
    assert len((Path(catalogue.home(PACKAGE)) / "_template.py").read_text().splitlines()) <= 52


def small(recipe: Recipe) -> Recipe:
    """The same arm with a game a line-up and group, no imitation, one epoch."""
    period = Extras(recipe.game).group_period if len(set(recipe.seats)) > 1 else 1
    seats = tuple(line_up for line_up in dict.fromkeys(recipe.seats) for _ in range(period))
    groups = len(seats) if recipe.arrange is None else recipe.groups  # of which each is arranged
    fewest = {"groups": groups, "seats": seats, "group_size": 2}
    fewest |= {"epochs": 1, "minibatches": 1, "grad_accumulation": 1, "buckets": 1, "updates": 2}
    snapshots = recipe.snapshots and Snapshots(1, 1)
    numbers = {name: x for name, x in recipe.all_hparams.items() if name not in recipe.choices}
    return dataclasses.replace(recipe, **fewest, snapshots=snapshots, warm_start=(), hparams=numbers)


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@pytest.fixture
def no_layers(monkeypatch):
    """Transformers are their embeddings: to trace the layers, which no arm changes, is most of a step."""

    def append(config, prepared, cache, tokens, n, *_):
        return cache.replace(length=cache.length + n), decoder.embed(config, prepared, tokens)

    def forward(config, params, tokens, prompts=None, *_):
        before = None if prompts is None else decoder.embed(config, params, prompts.tokens)
        return decoder.embed(config, params, tokens), before

    monkeypatch.setattr(decoder, "append", append)
    monkeypatch.setattr(decoder, "forward", forward)


class Traced:
    """Steps of arms as shapes, neither mapped over runs nor compiled.

    Arms of a study mostly differ in their advantages: what such arms share is traced once.
    """

    def __init__(self):
        self.known: list[tuple[tuple, object]] = []

    def once(self, of: tuple, make):
        for key, value in self.known:
            if key == of:
                return value
        self.known.append((of, value := make()))
        return value

    def computed(self, arm: Computed) -> set[str]:
        """The names of what an arm without policies gives; arms that are computed together are traced once."""
        joined = arm.part and not arm.beside
        whole = dataclasses.replace(arm, part="") if joined else arm
        found = self.once((arm.compute, arm.hparams, whole.part), lambda: jax.eval_shape(lambda: whole.run_seed(KEY)))
        return set(found[arm.part] if joined else found)

    def metrics(self, arm: Recipe) -> set[str]:
        """The names of what a step of the arm measures; arms that share a program are traced once."""
        return self.once((arm.structure,), lambda: self.step(arm))

    def step(self, arm: Recipe) -> set[str]:
        """The names of what a step measures, traced."""
        hparams = first_hparams(arm)
        parts = setup(arm, "tiny", sharding.mesh(), loading.load)
        if arm.step is not None:
            run = jax.eval_shape(partial(begin.init_run, parts), KEY)
            after, metrics = jax.eval_shape(partial(arm.step, parts), run, hparams, KEY, jnp.int32(0))
            assert shapes(after) == shapes(run)
            return named(metrics, learns=arm.step is not step.only_play)
        common = dataclasses.replace(arm, advantage=None)
        if arm.arrange is None:  # what is played with depends on neither
            common = dataclasses.replace(common, init_state=no_state, hparams={}, choices={}, selection={})
        run, frozen, trajectory, experience = self.once((common,), lambda: played(parts))
        run = run.replace(state=jax.eval_shape(partial(arm.init_state, parts), KEY))

        def estimate(run, experience):
            def score(name, weights=None, rows=None, sampled=None):
                nothing = jnp.zeros(experience.sampled[name].mask.shape)
                return Scores(nothing, nothing)

            found = step.estimate(parts, run, hparams, experience._replace(groups=arm.groups, score=score))
            return found._replace(remember=None)  # no array

        advantages = jax.eval_shape(estimate, run, experience)
        assert shapes(advantages.state) == shapes(run.state)

        def update():
            def learn(run, trajectory, experience, advantages, frozen):
                experience = experience._replace(groups=arm.groups)
                return step.learn_from(parts, run, hparams, trajectory, experience, advantages, KEY, frozen)

            after, metrics = jax.eval_shape(learn, run, trajectory, experience, advantages, frozen)
            assert shapes(after) == shapes(run)
            return named(metrics)

        return self.once((common, shapes(advantages), sorted(hparams)), update)


def first_hparams(recipe: Recipe) -> dict:
    """The hparams of the first update."""
    return jax.tree.map(lambda x: x[0] if x.ndim else x, recipe.traced_hparams)


def played(parts: Parts):
    """(run before training, weights of who does not learn, games, experience)."""
    run = jax.eval_shape(partial(begin.init_run, parts), KEY)

    def play(run):
        frozen = past.weights(parts.recipe, run, jnp.int32(0))
        arranged = step.arrange(parts, run, first_hparams(parts.recipe), KEY, jnp.int32(0))
        trajectory = step.play(parts, run.learners.weights | frozen, KEY, arranged)
        experience = step.make_experience(parts, run, trajectory, KEY, frozen, arranged)
        return frozen, trajectory, experience._replace(groups=0, score=None)  # what is no array

    return run, *jax.eval_shape(play, run)


def named(metrics, learns: bool = True) -> set[str]:
    assert all(x.shape == () for x in metrics.values()) and ("loss" in metrics) == learns
    return set(metrics)


# Tracing compiles nothing but keys and constants: a study that compiles more in this test runs a step or an arm.
MOST_PROGRAMS = 24
# The trees of four games and of one are enumerated, a program for each operation.
MORE_PROGRAMS = {"known_credit": 200, "subgoals_exact": 100}
# Networks, copies, several games, all estimators: three to ten seconds of tracing.
LONG = (
    *("comas", "cory_kl", "discriminator", "families", "inverse", "known_credit", "lmrl"),
    *("merges", "merges_shared", "pipeline", "subgoals_exact"),
)


@pytest.mark.parametrize(
    "module",
    [pytest.param(x, marks=[pytest.mark.long] * x.endswith(LONG), id=x.rpartition(".")[2]) for x in MODULES],
)
@pytest.mark.usefixtures("no_layers")
def test_every_arm_is_a_step_that_measures_what_is_predicted(module, compiled_programs):
    entry, traced = registry.load_module(module), Traced()
    before = len(compiled_programs())
    about_model = entry.study.scope not in (TINY, ANY)
    for name, arm in entry.study.arms.items():
        trained = isinstance(arm, Recipe)
        evaluated = trained and (for_pretrained(arm) if about_model else arm).evaluate
        metrics = traced.metrics(small(arm)) if trained else traced.computed(arm)
        for prediction in (*entry.study.predictions, *entry.study.checks):
            if name in prediction.arms and not evaluated:
                assert prediction.metric in {*metrics, *entry.study.derived}
    most = MORE_PROGRAMS.get(module.rpartition(".")[2], MOST_PROGRAMS)
    assert len(compiled_programs()) - before <= most, compiled_programs()[before:]


def test_programs_are_counted(compiled_programs):
    """Each shape is a program; the same shape again is not."""
    double = jax.jit(lambda x: x + x)
    for size in (3, 5, 3):
        double(np.zeros(size))
    assert len(compiled_programs()) == 2


@pytest.mark.slow
@names
def test_two_updates_of_every_arm_measure_what_the_study_shows(module):
    entry = registry.load_module(module)
    known: dict[str, set[str]] = {}
    evaluated: dict[int, set[str]] = {}
    for name, arm in entry.study.arms.items():
        if not isinstance(arm, Recipe):
            known[name] = {*(curves := arm.curves([0, 1]))}
            assert all(np.isfinite(x[:, -1]).all() for x in curves.values())
            continue
        recipe = small(arm)
        trainer = Trainer(recipe, [recipe.all_hparams] * 2, [0, 1], "tiny")
        state, first = trainer.update(trainer.init(), 0)
        state, second = trainer.update(state, 1)
        curves = {metric: np.stack([first[metric], second[metric]], 1) for metric in first}  # [seeds, 2]
        learns = arm.step is not step.only_play
        assert np.isfinite(curves["loss"]).all() and (curves["skipped"] == 0).all() if learns else "loss" not in curves
        if recipe.evaluate is not None and id(recipe.evaluate) not in evaluated:
            values = recipe.evaluate(trainer.parts)(trainer.weights(state, 0), jax.random.key(0))
            assert all(np.isfinite(x).any() for x in values.values())  # NaN in games without the case
            evaluated[id(recipe.evaluate)] = set(values)
        extra = evaluated.get(id(recipe.evaluate), set())
        known[name] = {*curves, *extra}
        for derive in entry.study.derived.values():
            assert derive(curves | {metric: np.ones((2, 2)) for metric in extra}).shape == (2,)
    check_metrics(entry, entry.study.arms, known)
