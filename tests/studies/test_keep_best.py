"""A metric of `--keep.best` that no update measures is refused, and named with those that are measured."""

import pytest

from jaxmarl_llm.studies.runner import check_best
from tests.support.recipe_plays import exit_status


def test_a_misspelt_metric_is_refused_with_the_nearest():
    check_best("right", {"right", "loss"})
    check_best("", {"right"})
    with pytest.raises(ValueError) as refused:
        check_best("wright", {"right", "loss"})
    assert str(refused.value) == "No update measures 'wright' of --keep.best. Did you mean right? Known: loss, right."


@pytest.mark.long
def test_a_run_ends_before_its_first_update(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    words = "mars", "--arms", "centred", "--seeds", "1", "--updates", "2", "--keep.best", "wright", "--out", out
    assert exit_status(*words, patch=monkeypatch) == 2
    assert "No update measures 'wright' of --keep.best. Did you mean right?" in capsys.readouterr().err
    assert not list(out.rglob("metrics.jsonl"))
