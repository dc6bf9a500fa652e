"""A sweep: its arms, its one program, its results, the choice, and the words that it refuses."""

import json
import threading
from dataclasses import replace

import pytest
from rich.console import Console

from experiments._template import STUDY
from jaxmarl_llm.studies import registry, runner, sweep
from jaxmarl_llm.studies.lanes import programs
from jaxmarl_llm.studies.pages import report
from jaxmarl_llm.studies.settings import Settings, select_arms
from jaxmarl_llm.training.trainer import Trainer
from tests.support.recipe_plays import exit_status

ENTRY = registry.load_module("experiments._template")
WORDS = ("learning_rate=1e-3,0.003", "entropy=0")


def test_every_value_is_an_arm_of_one_program():
    arms = select_arms(Settings("toy", sweep=(*WORDS, "value=.5,1,2")), STUDY)
    assert [*arms][:2] == ["per_agent[learning_rate=0.001,entropy=0,value=0.5]",
                           "per_agent[learning_rate=0.001,entropy=0,value=1]"]  # fmt: skip
    assert [(x.hparams["learning_rate"], x.hparams["value"]) for x in arms.values()] == [
        (rate, value) for rate in (0.001, 0.003) for value in (0.5, 1, 2)
    ]
    assert len(programs(arms, (0, 1), alone=False)) == 1


def test_both_arms_of_a_study_share_the_program_of_a_sweep():
    arms = select_arms(Settings("toy", arms=("joint", "per_agent"), sweep=WORDS), STUDY)
    assert len(arms) == 4 and len(programs(arms, (0,), alone=False)) == 1
    assert {arm.partition("[")[0]: x.all_choices["baseline"] for arm, x in arms.items()} == {
        "joint": "joint", "per_agent": "per_agent",
    }  # fmt: skip


def test_a_swept_rate_takes_the_place_of_single_policies_rates():
    base = STUDY.recipes["per_agent"].with_hparams(**{"learning_rate/first": 0.5})
    common, single = (
        sweep.sweep_arms({"a": base}, {name: (0.1,)}) for name in ("learning_rate", "learning_rate/first")
    )
    assert "learning_rate/first" not in common["a[learning_rate=0.1]"].hparams
    assert single["a[learning_rate/first=0.1]"].hparams["learning_rate/first"] == 0.1


def test_names_of_arms_keep_every_digit():
    recipe = STUDY.recipes["joint"]
    assert [*sweep.sweep_arms({"a": recipe}, {"entropy": (1e-5, 3.0, 0.12345678)})] == [
        "a[entropy=1e-05]", "a[entropy=3]", "a[entropy=0.12345678]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--sweep", "learning_rte=1"),
            "no hparam 'learning_rte'. Did you mean learning_rate? There are learning_rate",
        ),
        (("--sweep", "learning_rate"), "--sweep takes NAME=NUMBER,NUMBER,... for each hparam, got 'learning_rate'"),
        (("--sweep", "learning_rate=1e-3,fast"), "--sweep takes NAME=NUMBER"),
        (("--sweep", "learning_rate=1e-3,nan"), "--sweep takes NAME=NUMBER"),
        (("--sweep", "learning_rate=0,1"), "learning_rate must be a positive number, got 0"),
        (("--sweep", "entropy=-1,0"), "entropy must not be negative, got -1"),
        (("--sweep",), "--sweep takes NAME=NUMBER,NUMBER,... for each hparam, and was given none"),
        (("--sweep", "entropy=1,1.0"), "names a value of entropy twice"),
        (("--sweep", "entropy=1", "entropy=2"), "--sweep names entropy twice"),
        (("--sweep", "entropy=1", "--frozen"), "--frozen runs the frozen table as it is: leave out --sweep"),
        (("--sweep", "entropy=1", "--profile"), "leave out --sweep"),
        (("--sweep", "learning_rate=1", "--learning-rate", "2"), "both give the learning rate"),
    ],
)
def test_a_wrong_sweep_is_one_sentence(options, says, tmp_path, monkeypatch, capsys):
    assert exit_status("mars", *options, "--out", tmp_path, patch=monkeypatch) == 2
    assert says in capsys.readouterr().err and not [*tmp_path.iterdir()]


def test_an_option_of_a_choice_is_no_number():
    with pytest.raises(ValueError, match="'baseline' of the arm joint is a choice, not a number"):
        sweep.sweep_arms({"joint": STUDY.recipes["joint"]}, {"baseline": (1.0,)})


def test_a_computed_arm_has_no_sweep(tmp_path, monkeypatch, capsys):
    assert exit_status("cliff", "--sweep", "entropy=1", "--out", tmp_path, patch=monkeypatch) == 2
    assert "--sweep takes arms that train" in capsys.readouterr().err


def test_progress_says_which_value_leads():
    arms = [*sweep.sweep_arms({"a": STUDY.recipes["joint"]}, {"entropy": (0.0, 0.01, 0.1)})]
    assert sweep.title(arms) == "a, 3 values of entropy"
    assert sweep.standing(arms, "points", [0.1, 0.3, 0.2]) == "points by value 0.01: 0.300, 0.1: 0.200, 0: 0.100"
    assert sweep.standing(arms, "points", [0.1, float("nan"), 0.2]).endswith("0: 0.100, 0.01: nan")
    grid = [*sweep.sweep_arms({"a": STUDY.recipes["joint"]}, {"entropy": (0.0, 1.0), "value": (1, 2, 3, 4)})]
    assert sweep.title(grid) == "a, 8 values of entropy, value"
    told = sweep.standing(grid, "points", [*range(8)])
    assert told.startswith("points by value entropy=1,value=4: 7.000, ") and told.endswith(
        "lowest entropy=0,value=1: 0.000"
    )
    assert told.count(": ") == sweep.LEADING + 1
    two = [*sweep.sweep_arms({"a": STUDY.recipes["joint"], "b": STUDY.recipes["joint"]}, {"entropy": (1.0,)})]
    assert sweep.title(two) == "a and b, 2 values of entropy" and sweep.labels(two) == two


def result(best: str, **means: float | None) -> dict:
    cell = lambda x: {"mean": x, "low": None if x is None else x - 1, "high": None if x is None else x + 1}
    arms = {arm: {"points": cell(x)} for arm, x in means.items()}
    return {"metrics": ["points"], "seeds": [0, 1], "arms": arms, "sweep": {"best": best}}


@pytest.mark.parametrize(
    ("best", "means", "says"),
    [
        (
            "highest",
            {"a": 2, "b": 3},
            "Highest points: b, 3.00 [2.00, 4.00] (mean and 95% interval over 2 seeds). This",
        ),
        ("lowest", {"a": 2, "b": 3, "c": None}, "Lowest points: a, 2.00 [1.00, 3.00] (mean"),
        ("", {"a": 2, "b": 3}, "Highest points: b, 3.00 [2.00, 4.00]; lowest points: a, 2.00 [1.00, 3.00] ("),
        ("highest", {"a": 3, "b": 3, "c": 1}, "Highest points: a and b, 3.00"),
        ("highest", {"a": 3, "b": 3}, "points is 3.00 [2.00, 4.00] in every arm of the sweep: it chooses none."),
        ("highest", {"a": None}, "No arm of the sweep measured points"),
    ],
)
def test_the_choice_is_a_sentence_with_an_interval(best, means, says):
    assert sweep.choose(result(best, **means)).startswith(says)


def test_metrics_that_may_choose_are_named_where_the_first_chooses_none():
    equal = result("highest", a=3, b=3) | {"metrics": ["points", "wins", "length"]}
    assert sweep.choose(equal).endswith("it chooses none; the table also has wins, length.")


def test_what_no_arm_reached_chooses_none():
    """A value at the limit says that it was not reached; one seed below it is a value."""
    censored = {"censored": {"points": 2}, "counts": {"points": "share"}}
    cells = lambda per_seed: {"a": {"points": {"mean": 2.0, "low": 2.0, "high": 2.0, "per_seed": per_seed}}}
    never, once = (result("lowest", a=2) | censored | {"arms": cells(values)} for values in ([2, 2], [1, 2]))
    assert sweep.choose(never).startswith("No arm of the sweep reached what 'points' counts")
    assert sweep.choose(once).startswith("Lowest points: a")


@pytest.mark.parametrize(
    ("name", "end"), [("mars", "lowest"), ("social_dilemma", "highest"), ("durations", "highest"), ("cory", "")]
)
def test_the_better_end_follows_from_predictions(name, end):
    """A censored metric, comparisons with the method, a comparison of another arm with it, and none."""
    assert sweep.best_end(registry.load("experiments", name).study) == end


@pytest.mark.long
def test_a_run_of_a_sweep(tmp_path, monkeypatch, compiled_programs):
    """Its three values are lanes of one program; the same command reads the finished run again."""
    few = {"seats": (("first", "first"),), "groups": 1, "group_size": 2, "updates": 2}
    arms = {name: replace(arm, **few) for name, arm in STUDY.arms.items()}
    entry = ENTRY._replace(study=replace(STUDY, arms=arms))
    settings = Settings("_template", seeds=2, sweep=("learning_rate=1e-3,3e-3,1e-2",), out=tmp_path)
    made: list[int] = []
    monkeypatch.setattr(Trainer, "init", lambda *x, f=Trainer.init, **y: made.append(len(x[0].seeds)) or f(*x, **y))
    with Console(quiet=False, width=200, record=True) as console:
        for _ in range(2):
            assert runner.run(entry, settings, threading.Event(), console)
    assert made == [6] and sum("update" in name for name in compiled_programs()) == 1
    results = json.loads((tmp_path / "results.json").read_text())
    names = [f"per_agent[learning_rate={rate}]" for rate in (0.001, 0.003, 0.01)]
    assert [*results["arms"]] == [*results["curves"]] == names and results["sweep"]["best"] == "highest"
    rates = [results["settings"][name]["hparams"]["learning_rate"] for name in names]
    assert rates == [0.001, 0.003, 0.01] and not results["predictions"]
    text = console.export_text()
    assert "a sweep: no prediction is judged" in text and "confirm it on others." in report.verdicts(results)[-1]
    assert names[2] in (tmp_path / "curves.svg").read_text()
