"""Programs of a study made ready: a warm start is taught once, and the next program comes while one trains.

The long case compiles a warm start for three recipes; the short ones count how often it is taught.
"""

import threading
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.rl import advantages
from jaxmarl_llm.studies import prepared
from jaxmarl_llm.studies.lanes import Program
from jaxmarl_llm.studies.prepared import Preparation, WarmStarts
from jaxmarl_llm.training import begin
from jaxmarl_llm.training.estimator import estimator
from jaxmarl_llm.training.recipe import Recipe
from jaxmarl_llm.training.trainer import Trainer

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
    found = [known.get(trainer_of(recipe)) for recipe in later]
    assert [id(x) for x in found[:3]] == [id(found[0])] * 3 and found[-1] is found[0]
    assert made == [later[0], *later[3:6]]
    assert known.get(trainer_of(replace(RECIPE, warm_start=()))) is None and len(made) == 4


@pytest.mark.long
def test_what_was_taught_once_is_what_every_arm_would_begin_with(monkeypatch):
    """An arm with a long update begins with the same bits as by itself, which are not those of random weights."""
    larger = replace(RECIPE, groups=4)
    monkeypatch.setattr("jaxmarl_llm.training.trainer.LONG", begin.tokens_of(trainer_of(larger).parts))
    one, other = trainer_of(RECIPE), trainer_of(larger)
    shared, alone = other.init(tiny=WarmStarts().get(one)), other.init()
    jax.tree.map(np.testing.assert_array_equal, shared, alone)
    random = trainer_of(replace(RECIPE, warm_start=())).init()
    pairs = zip(*(jax.tree.leaves(state.learners.weights) for state in (alone, random)), strict=True)
    assert any(not np.array_equal(a, b) for a, b in pairs)


class Pretend:
    """A trainer that writes down what is asked of it; its warm start waits until it is let go."""

    def __init__(self, name, done, *, tiny=True, devices=1, error=None):
        self.name, self.done, self.error = name, done, error
        self.tiny, self.mesh, self.rollout_mesh = tiny, SimpleNamespace(size=devices), None
        self.recipe = SimpleNamespace(evaluate=self.evaluation, warm_start=())
        self.on_host, self.free, self.parts = False, threading.Event(), None

    def evaluation(self, parts):
        return lambda weights: self.done.append((self.name, "evaluate"))

    def compile_update(self):
        if self.error is not None:
            raise self.error

    def init(self, tiny):
        assert self.free.wait(20)
        self.done.append((self.name, "init"))
        return f"{self.name} before training"

    def weights(self, state, lane):
        return {}

    def examine(self, state, runs):
        self.done.append((self.name, "examine"))


@pytest.fixture
def made(monkeypatch):
    """(names, saved, stop, of each its options) -> a `Preparation`, its programs and trainers, and what is done."""
    monkeypatch.setattr(prepared.records, "recorder", lambda trainer: None)

    def make(names, saved=None, stop=False, **options):
        done, event = [], threading.Event()
        if stop:
            event.set()
        plan = [SimpleNamespace(name=name, recipe=SimpleNamespace(updates=5), display_lanes=(0,)) for name in names]
        trainers = {name: Pretend(name, done, **options.get(name, {})) for name in names}
        of = lambda one: (done.append((one.name, "made")), trainers[one.name])[1]
        return Preparation(plan, of, lambda one: (saved or {}).get(one.name, 0), event), plan, trainers, done

    return make


def test_the_next_program_is_made_ready_while_one_trains(made):
    preparation, plan, trainers, done = made("abc")
    trainers["a"].free.set()
    own = [(what, "init") for what in "ab"]
    with preparation:
        assert preparation.prepare(plan[0]).trainer is trainers["a"]
        assert own[1] not in done, "of does not wait for what comes next"
        assert done[:3] == [("a", "made"), ("a", "init"), ("a", "examine")]
        trainers["b"].free.set()
        ready = preparation.prepare(plan[1])
        assert ready.trainer is trainers["b"] and ready.state == "b before training" and own[1] in done
        trainers["c"].free.set()
        assert preparation.prepare(plan[2]).trainer is trainers["c"]
    assert sorted(done) == sorted((name, what) for name in "abc" for what in ("made", "init", "examine"))


def test_an_error_in_the_background_is_raised_by_the_program_that_has_it(made):
    preparation, plan, trainers, done = made("ab", b={"error": ValueError("no advantage")})
    for trainer in trainers.values():
        trainer.free.set()
    with preparation:
        preparation.prepare(plan[0])
        with pytest.raises(ValueError, match="no advantage"):
            preparation.prepare(plan[1])
    assert done.count(("b", "made")) == 1


def test_what_is_trained_is_not_made_ready_and_what_is_begun_is_not_taught(made):
    preparation, plan, _, done = made("abc", saved={"a": 2, "b": 5, "c": 1})
    with preparation:
        assert preparation.prepare(plan[0]).state is None
        preparation.prepare(plan[2])
    assert done == [("a", "made"), ("c", "made")]


def test_nothing_is_begun_after_a_stop(made):
    preparation, plan, _, done = made("ab", stop=True)
    with preparation:
        preparation.prepare(plan[0])
    assert {what for _, what in done} == {"made"}


@pytest.mark.parametrize("options", [{"tiny": False}, {"devices": 2}])
def test_pretrained_models_and_several_devices_take_one_program_at_a_time(made, options):
    preparation, plan, _, done = made("ab", a=options, b=options)
    with preparation:
        preparation.prepare(plan[0])
        assert done == [("a", "made")]
        preparation.prepare(plan[1])
    assert done == [("a", "made"), ("b", "made")]


def test_compiled_programs_are_forgotten_when_nothing_is_coming_and_never_are_many_kept(made, monkeypatch):
    forgotten, number = [], -1
    monkeypatch.setattr(jax, "clear_caches", lambda: forgotten.append(number))
    preparation, plan, trainers, _ = made([str(i) for i in range(2 * prepared.KEPT + 1)])
    for trainer in trainers.values():
        trainer.free.set()
    with preparation:
        for program in plan:
            number += 1
            preparation.prepare(program)
            preparation.forget()
    assert forgotten == [0, prepared.KEPT, 2 * prepared.KEPT]


def test_imitation_is_told_where_it_is_made():
    """Not where a checkpoint continues, and once for tiny policies that share it: the first that has to make it. Each
    pretrained model imitates."""
    other, none = replace(RECIPE, warm_start_updates=3), replace(RECIPE, warm_start=())
    plan = [Program({"arm": recipe}, (0, 1), False) for recipe in (RECIPE, RECIPE, other, none)]
    assert prepared.warm_starts(plan, [0, 0, 0, 0]) == [2, 0, 3, 0]
    assert prepared.warm_starts(plan, [5, 0, 1, 0]) == [0, 2, 0, 0]
    assert prepared.warm_starts([replace(part, alone=True) for part in plan], [0, 0, 0, 0]) == [2, 2, 3, 0]
