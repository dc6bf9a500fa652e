"""The command line of a package of studies: the words of its help."""

import pytest

from tests.support.recipe_plays import exit_status


def test_the_help_of_a_study_names_its_arms_and_policies(monkeypatch, capsys):
    assert exit_status("mars", "--help", patch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "Arms: episode/pooled, episode/role, to_go/pooled, " in text and "Policies that learn: learner." in text
    assert "Arm of the method: centred." in text and "Hparams of the method: learning_rate, entropy, " in text


@pytest.mark.parametrize("name", ["mars", "run", "publish", "plan"])
def test_a_default_is_told_once(name, monkeypatch, capsys):
    """A text that says the default has no second one of None or nothing beside it."""
    assert exit_status(name, "--help", patch=monkeypatch) == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "efault" in words
    for told in ("Default: all arms; ", "Default: runs/STUDY-MODEL.", "Default: this one's.", "else bfloat16."):
        _, _, rest = words.partition(told)
        assert not rest.partition(" --")[0].count("(default:")
