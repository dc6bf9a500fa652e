"""The command for questions of one's own: its words, its study, and a run that is stopped and goes on.

The long case compiles a run.
"""

import dataclasses
import io
import json
import threading
from pathlib import Path

import pytest
from rich.console import Console

from experiments import prompts
from experiments.prompts import Options, reward_of, study_of
from jaxmarl_llm.environments.bridges.prompt_rewards import Exact, Number, Pattern
from jaxmarl_llm.runs.checkpoint import Keep
from jaxmarl_llm.studies import program
from jaxmarl_llm.studies.settings import Settings
from jaxmarl_llm.training.setup import for_pretrained

MODULE = "def short(completions):\n    return [0.1 * (len(text) == 1) for text in completions]\n"


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "questions.jsonl"
    records = [{"prompt": f"{a}{b}", "answer": a} for a in "abcd" for b in "wxyz"]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file


def test_words_name_rewards(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rewards_of_a_test.py").write_text(MODULE)
    assert reward_of("exact") == ("exact", Exact(), "")
    assert reward_of("right=number:gold") == ("right", Number("gold"), "")
    assert reward_of("regex:a=(b|:c)") == ("regex", Pattern("a=(b|:c)"), "")
    name, reward, module = reward_of("rewards_of_a_test:short")
    assert (name, module, reward(["a", "bc"])) == ("short", "rewards_of_a_test", [0.1, 0.0])


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("exakt", "--reward takes exact, exact:FIELD, number, number:FIELD, regex:PATTERN or MODULE:FUNCTION"),
        ("exact:", "got 'exact:'"),
        ("regex:", "got 'regex:'"),
        ("a.py:f", "The module a.py of --reward cannot be imported: ModuleNotFoundError"),
        ("json:laods", "The module json has no laods. Did you mean load"),
        ("regex:(", "is no regular expression"),
    ],
)
def test_a_word_that_names_no_reward_is_refused(word, says):
    with pytest.raises(ValueError) as refused:
        reward_of(word)
    assert says in str(refused.value)


def test_the_study_holds_out_questions_and_evaluates_models_too(data):
    study = study_of(Options(data, ("exact", "number=exact"), run=Settings("prompts", seeds=1), held_out="0.25")).study
    study.check("prompts")
    recipe = study.recipes[prompts.ARM]
    assert len(recipe.game.testing) == 4 and recipe.game.components == ("exact", "number")
    assert study.metrics == ("return", "held_out/return", "held_out/exact", "held_out/number")
    assert for_pretrained(recipe).evaluate is recipe.evaluate is not None
    further = data.with_name("further.jsonl")
    further.write_text('{"prompt": "ee", "answer": "e"}')
    held = study_of(Options(data, ("exact",), held_out=str(further))).study
    assert len(held.recipes[prompts.ARM].game.testing) == 1 and held.metrics == ("return", "held_out/return")
    large = study_of(Options(data, ("exact",), slots=64, grad_accumulation=4)).study.recipes[prompts.ARM]
    assert large.game.slots == 64 and large.grad_accumulation == for_pretrained(large).grad_accumulation == 4
    none = study_of(Options(data, ("exact",), held_out="0")).study
    assert none.recipes[prompts.ARM].evaluate is None and none.metrics == ("return",)
    with pytest.raises(ValueError, match="Two rewards have one name: write NAME="):
        study_of(Options(data, ("exact", "exact:answer")))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"data": Path("nowhere.jsonl")}, "There is no file nowhere.jsonl."),
        ({"run": Settings("prompts", frozen=True)}, "These questions have no frozen table"),
        ({"run": Settings("mars")}, "The word 'mars' belongs to no option"),
        ({"reward": ("number",)}, "The reward 'number' raised ValueError: the field 'answer' holds no number: 'a'"),
        ({"reward": ("exact:anser",)}, r"there is no field 'anser' \(did you mean 'answer'\?\)"),
        ({"budget": 0}, "budget is a whole number of at least 2"),
        ({"run": Settings("prompts", mesh="dta=1")}, "A mesh is written as data=2"),
        ({"run": Settings("prompts", mesh="data=99")}, "A mesh of 99 devices was asked for"),
        ({"run": Settings("prompts", mesh="data=2", groups=7)}, "A batch of 7 prompts"),
        ({"run": Settings("prompts", rollout_mesh="data=1")}, "is played by one process, without a rollout mesh"),
        ({"run": Settings("prompts", group_size=1)}, "group_size must be at least 2"),
        ({"eval_every": 0}, "eval_every must be at least 1"),
        ({"entropy": -1.0}, "entropy must be finite and not negative, got -1.0"),
        ({"entropy": float("nan")}, "entropy must be finite and not negative, got nan"),
        ({"reward": ()}, "--reward takes exact, .* or MODULE:FUNCTION, and was given none"),
        ({"budget": 600}, "An answer of 600 tokens, the budget, leaves no room in the context of policy, 512 tokens"),
    ],
)
def test_a_run_that_cannot_work_ends_before_anything_compiles(data, tmp_path, options, says, compiled_programs):
    printed = io.StringIO()
    options = Options(**{"data": data, "reward": ("exact",), "run": Settings("prompts"), **options})
    run = dataclasses.replace(options.run, seeds=1, out=tmp_path / "out", log=())
    with pytest.raises(ValueError, match=says):
        prompts.run(dataclasses.replace(options, run=run), threading.Event(), Console(file=printed))
    assert not printed.getvalue() and not run.out.exists()
    small = {"jit(stage)", "jit(convert_element_type)"}  # the first state: milliseconds, or known from earlier tests
    assert not {*compiled_programs()} - small


def test_no_bonus_moves_a_model_that_earns_nothing(data):
    """Adam makes steps of full size of the gradient of an entropy bonus alone."""
    hparams = lambda **options: for_pretrained(
        study_of(Options(data, ("exact",), **options)).study.recipes[prompts.ARM]
    )
    assert hparams().all_hparams["entropy"] == 0 and hparams(entropy=0.01).all_hparams["entropy"] == 0.01


def test_settings_that_one_may_not_have_meant_are_told(data):
    recipe = study_of(Options(data, ("exact",))).study.recipes[prompts.ARM]
    tiny, repeated = prompts.cautions(Settings("prompts", groups=14), recipe)
    assert tiny.startswith("Note: without --model a tiny policy with random weights is trained")
    assert "an update asks 14 groups, and there are 13 questions to train on" in repeated
    assert prompts.cautions(Settings("prompts", groups=13, model="smollm2"), recipe) == []


def test_options_of_checkpoints_are_those_of_studies(capsys):
    with pytest.raises(SystemExit):
        prompts.command("experiments", ["--help"])
    printed = capsys.readouterr().out
    assert all(f"--keep.{field.name}" in printed for field in dataclasses.fields(Keep))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ([0, 0, 0, 0, 0], [1, 1, 0.5, 1, 1], "+0.90, 95% interval over questions +0.62 to +1.18. The reward rose."),
        ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], "95% interval over questions 0.00 to 0.00. No rise or fall is shown."),
        ([0, 0.25], [0.5, 0.75], "+0.50. Question by question: 0.00 to 0.50, 0.25 to 0.75; so few have no interval."),
    ],
)
def test_the_last_words_judge_the_held_out_questions(data, tmp_path, before, after, says):
    assert compared(data, tmp_path, [before], [after]).endswith(says)


def compared(data, out: Path, before, after, arms=("rloo",), sweep=None) -> str:
    """The last words of a run with these values [seeds, questions] of the held-out questions in every arm."""
    entry = study_of(Options(data, ("exact",), held_out=str(len(before[0]) / 16)))
    for arm in arms:
        (out / arm).mkdir()
        for file, values in (("before.json", before), ("after.json", after)):
            (out / arm / file).write_text(json.dumps({"held_out/return": values}))
    return prompts.compare(Settings("prompts", seeds=len(before), sweep=sweep), out, entry.study)


def test_the_last_words_of_a_sweep_are_of_every_arm(data, tmp_path):
    arms = ["rloo[entropy=0]", "rloo[entropy=0.1]"]
    first, *lines = compared(data, tmp_path, [[0, 0]], [[1, 1]], arms, ("entropy=0,0.1",)).splitlines()
    assert first.startswith("Held out: ") and len(lines) == len(arms)
    for arm, line in zip(arms, lines, strict=True):
        assert line.startswith(f"{arm}: Held-out return, mean of 2 questions with 4 answers each: 0.00 before")


@pytest.mark.parametrize(
    ("before", "after", "when"),
    [(None, None, ": nothing was measured"), (None, 1, " before training: nothing"), (1, None, " after training: no")],
)
def test_a_reward_that_fails_for_all_answers_ends_in_an_error(data, tmp_path, before, after, when, recwarn):
    with pytest.raises(ValueError, match=f"^The reward failed for all answers{when}"):
        compared(data, tmp_path, [[before] * 5], [[after] * 5])
    assert not recwarn.list


def test_a_question_whose_reward_failed_for_every_seed_is_no_warning(data, tmp_path, recwarn):
    seeds = [[None, 0, 0, 0, 0, 0], [None, 0, None, 0, 0, 0]], [[1, 1, 1, 1, 0.5, 1]] * 2
    said = compared(data, tmp_path, *seeds)
    assert "0.00 before training, 0.90 after; difference +0.90, 95%" in said and not recwarn.list


def test_without_held_out_questions_a_reward_that_fails_for_all_answers_is_an_error_too(data, tmp_path):
    study, out = study_of(Options(data, ("exact",), held_out="0")).study, tmp_path / "rloo"
    out.mkdir()
    lines = [{"step": step, "seed": 0, "return": None} for step in range(3)]
    settings = Settings("prompts", seeds=1, updates=3)
    (out / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(ValueError, match="The reward failed for all answers: nothing was measured"):
        prompts.compare(settings, tmp_path, study)
    lines[2]["return"] = 0.5
    (out / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert prompts.compare(settings, tmp_path, study).startswith("No question was held out")


def test_zero_has_no_sign():
    assert [prompts.with_sign(x) for x in (-0.004, 0.0, 0.004, -0.006, 0.07)] == ["0.00"] * 3 + ["-0.01", "+0.07"]


@pytest.mark.long
def test_a_run_that_is_stopped_goes_on_with_the_same_numbers(data, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rewards_of_a_run.py").write_text(MODULE)
    report = program.Training.report

    def run(out: str, stop_at: int = -1) -> tuple[bool, str]:
        """(whether it ended, what it printed); a signal comes after update `stop_at`."""
        stop, printed = threading.Event(), io.StringIO()

        def report_and_stop(training, number, metrics):
            report(training, number, metrics)
            if number == stop_at:
                stop.set()

        monkeypatch.setattr(program.Training, "report", report_and_stop)
        settings = Settings("prompts", seeds=1, groups=4, group_size=4, updates=6, checkpoint_every=2, log=())
        options = Options(
            data,
            ("exact", "rewards_of_a_run:short"),
            run=dataclasses.replace(settings, out=tmp_path / out),
            budget=3,
            eval_every=4,
        )
        return prompts.run(options, stop, Console(file=printed, width=200)), printed.getvalue()

    assert run("whole")[0]
    done, printed = run("parts", 2)
    assert not done and "the same command continues" in printed
    done, printed = run("parts")
    assert done and "Held-out return, mean of 3 questions with 4 answers each: " in printed
    assert printed.count("Claim") == 1  # no verdict, no claim at the end
    assert printed.count("questions.jsonl, line ") >= 3 and "Held out: " in printed
    assert "update 6 of 6" in printed and "update 1 of 6" not in printed
    texts = [(tmp_path / out / "rloo/metrics.jsonl").read_text() for out in ("whole", "parts")]
    lines = [[json.loads(line) for line in text.splitlines()] for text in texts]
    assert [{**line, "seconds": 0} for line in lines[0]] == [{**line, "seconds": 0} for line in lines[1]]
    assert sum("held_out/return" in line for line in lines[0]) == 2 and len(lines[0]) == 6
    for file in ("before.json", "after.json", "games.jsonl"):
        contents = [(tmp_path / out / "rloo" / file).read_bytes() for out in ("whole", "parts")]
        assert contents[0] == contents[1], file
    data.write_text(data.read_text() + '{"prompt": "ab", "answer": "a"}\n')
    with pytest.raises(ValueError, match=r"settings\.rloo\.game\.questions"):
        run("parts")
    data.write_text(data.read_text().rpartition('{"prompt": "ab"')[0])
    (tmp_path / "rewards_of_a_run.py").write_text(MODULE.replace("0.1", "0.2"))
    with pytest.raises(ValueError, match="holds a run of other code"):
        run("parts")
