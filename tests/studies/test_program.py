"""Programs of a study: which arms share one, which begin alike, and how their lanes are named."""

import dataclasses
import json
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from experiments.rewards.search_self_play import CO_TRAINED
from experiments.rewards.search_self_play import STUDY as SSP
from jaxmarl_llm.studies.lanes import Program, programs
from jaxmarl_llm.studies.program import Training, identity
from jaxmarl_llm.studies.settings import Settings
from jaxmarl_llm.training.recipe import DEFAULT_HPARAMS
from jaxmarl_llm.training.warm_start import warm_start_of
from jaxmarl_llm.view import page


def test_which_arms_of_a_study_share_one():
    arms = SSP.recipes
    plan = programs(arms, (0,), alone=False)
    assert [sorted(one.arms) for one in plan] == [["co_trained", "no_baseline"], ["frozen"], ["uniform"], ["no_gate"]]
    begins = {name: warm_start_of(arm) for name, arm in arms.items()}
    assert begins["frozen"] == begins["co_trained"] == warm_start_of(CO_TRAINED)
    assert begins["uniform"] != begins["co_trained"] != begins["no_gate"]  # another seat, another game


@pytest.mark.parametrize("arms", [("one",), ("one", "two")])
def test_a_warning_names_the_seed_and_of_several_arms_the_arm(tmp_path, arms):
    program = Program({arm: CO_TRAINED for arm in arms}, (7, 568406), alone=False)
    watch = SimpleNamespace(names=["seed 7", "seed 568406"])
    ready = SimpleNamespace(trainer=SimpleNamespace(watch=watch, on_host=False))
    Training(None, tmp_path, program, print, print, print, SimpleNamespace(prepare=lambda program: ready)).prepare()
    of_arms = [f"{arm}, seed {seed}" for arm in arms for seed in (7, 568406)]
    assert watch.names == (of_arms if len(arms) > 1 else ["seed 7", "seed 568406"])


def test_the_settings_of_an_arm_show_every_hparam_and_identify_as_before(tmp_path):
    """A run that was paused before they did goes on: a checkpoint holds what the recipe says alone."""
    recipe = dataclasses.replace(CO_TRAINED, hparams={"learning_rate": 1e-2})
    program = Program({"one": recipe}, (7,), alone=False)
    training = Training(Settings("study", log=()), tmp_path, program, print, print, print, None)
    training.trainer = SimpleNamespace(tiny=True)
    with ExitStack() as stack:
        training.open_logs(stack, 0)
    config = json.loads((tmp_path / program.names["one"] / "config.json").read_text())
    assert config["hparams"] == {**DEFAULT_HPARAMS, "learning_rate": 1e-2} and config["updates"] == recipe.updates
    assert identity(Settings("study"), program)["arms"]["one"]["hparams"] == {"learning_rate": 1e-2}


def test_other_files_of_a_frozen_policy_are_another_run(tmp_path):
    """A checkpoint of a line-up without frozen policies has the settings that it always had."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (first, *rest) = CO_TRAINED.seats[0]
    seated = dataclasses.replace(CO_TRAINED, seats=((first, *(f"policy/{tmp_path}" for _ in rest)),))
    plain, before = (
        identity(Settings("search_self_play"), Program({"one": recipe}, (0,), alone=False))
        for recipe in (CO_TRAINED, seated)
    )
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    after = identity(Settings("search_self_play"), Program({"one": seated}, (0,), alone=False))
    assert "frozen" not in plain and {*before["frozen"]} == {f"policy/{tmp_path}"}
    assert {name for name in before if before[name] != after[name]} == {"frozen"}


def test_games_in_between_are_recorded_and_an_interrupted_run_records_them_again(tmp_path):
    recipe = dataclasses.replace(CO_TRAINED, updates=4)
    program = Program({"one": recipe}, (7,), alone=False)
    settings = Settings("study", games=1, games_every=2)
    training = Training(settings, tmp_path, program, print, print, lambda names: None, None)
    (tmp_path / program.names["one"]).mkdir()
    training.trainer = SimpleNamespace(update=lambda state, number: (number + 1, {}))
    record = lambda state, runs, limit: [
        [{**about, "game": state, "member": 1, "seats": []} for about in runs.values()]
    ]
    training.ready = SimpleNamespace(record=record, evaluate=None)
    training.write_games(0, 0)
    for numbers in (range(4), range(1, 4)):  # a run that lost its last updates makes them again
        for number in numbers:
            training.step(number, number)
        games = page.read(tmp_path / program.names["one"] / page.GAMES)
        assert [(game["update"], game["game"]) for game in games] == [(0, 0), (2, 2)]
