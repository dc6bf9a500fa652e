"""Studies as their files tell of them."""

import subprocess
import sys

import pytest

from jaxmarl_llm.studies import commands
from jaxmarl_llm.studies.catalogue import Outline, outline

WITHOUT_JAX = """
import sys
from jaxmarl_llm.studies import commands

sys.argv[1:] = []
commands.main("experiments", {"plan": "jaxmarl_llm.planning.plan"})
sys.exit(any(name in sys.modules for name in ("jax", "numpy", "tyro", "transformers")))
"""


def test_the_list_imports_no_study():
    """It takes a quarter of a second; jax alone takes one."""
    run = subprocess.run([sys.executable, "-c", WITHOUT_JAX], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "\nmars " in run.stdout
    assert "Find some with `python -m experiments WORD`, also by a paper." in run.stdout
    assert run.stdout.endswith("run, pages, release, dialogues, plan.\n")


def test_constants_of_the_file_are_resolved_and_a_paper_may_be_missing(tmp_path):
    file = tmp_path / "study.py"
    file.write_text('NAME = "A (B), 1"\nSTUDY = Study(paper=Paper(NAME, url="u", year=2025), question="Why?")\n')
    assert outline(file) == Outline("Why?", "A (B), 1", "u", "2025", "") and outline(file).source == "A (B), 1, 2025: u"
    file.write_text('"""What."""\nASKED = compute()\nSTUDY = Study(question=ASKED, arms={})\n')
    assert outline(file) == Outline("", "", "", "", "What.") and outline(file).source == ""


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["SPEAR"], {"imitate_success"}),  # in the docstring
        (["2506.24119"], {"spiral", "scratchpad"}),  # in the address
        (["Dr.", "MAS"], {"dr_mas"}),
        (["risk", "aversion"], {"risk"}),  # of which the first alone is the name of a study
    ],
)
def test_a_study_is_found_by_its_paper(words, names, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experiments", *words])
    commands.main("experiments")
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1] if not line.startswith(" ")]
    assert names <= {*listed} and len(listed) < 12


@pytest.mark.parametrize("words", ["centred", "centred episode/pooled", "centred role", "centred --seeds 1"])
def test_arms_without_their_option_are_no_search(words, monkeypatch, capsys):
    words = words.split()
    monkeypatch.setattr(sys, "argv", ["experiments", "mars", *words])
    with pytest.raises(SystemExit) as end:
        commands.main("experiments")
    told, arms = capsys.readouterr(), " ".join(word for word in words if "/" in word or word == "centred")
    assert end.value.code == 2 and not told.out
    assert told.err.endswith(
        f"centred is an arm of mars, and arms are given by --arms: python -m experiments mars --arms {arms}.\n"
    )


@pytest.mark.parametrize("words", [["marz"], ["outlier"], ["SPEAR", "--seeds", "3"]])
def test_words_that_no_study_has_and_options_are_no_search(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experiments", *words])
    with pytest.raises(SystemExit) as end:
        commands.main("experiments")
    assert end.value.code == 2 and f"There is no study '{words[0]}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "word, hint",
    [("--lr", "Did you mean --learning-rate?"), ("--update", "Did you mean --updates?"), ("--qqq", None)],
)
def test_an_unknown_option_is_told_its_neighbour(word, hint, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experiments", "mars", word, "3"])
    with pytest.raises(SystemExit):
        commands.main("experiments")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: There is no option {word}. ") and (hint or "") in line
    assert ("Did you mean" in line) == (hint is not None)
