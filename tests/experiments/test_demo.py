"""The demo says what will happen, shows the curve, and says what happened."""

import dataclasses
import io
import json
import threading

import pytest
from rich.console import Console

from experiments import demo
from tests.support.saved_policies import small_model


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.5] * 17 + [0.9, 0.0, 0.0], "Cooperation fell from 0.50 to 0.00"),  # the last tenth, as in the table
        ([0.5] * 3 + [0.25] * 2 + [0.0] * 3, "Cooperation fell from 0.50 to 0.00, and the points of both from 2.00"),
        ([0.5] * 8, "Cooperation hardly changed: from 0.50 to 0.50"),
        ([0.2] * 5 + [0.9] * 3, "Cooperation rose from 0.20 to 0.90"),
    ],
)
def test_the_last_sentence_says_what_happened(tmp_path, values, said):
    (tmp_path / "naive-7").mkdir()
    lines = [{"step": i, "seed": 7, "cooperation": x, "points": 1 + 2 * x} for i, x in enumerate(values)]
    (tmp_path / "naive-7/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    title, *plot, sentence = demo.tell(tmp_path, 7, len(values)).splitlines()
    assert title == "Cooperation by update" and len(plot) == 9
    assert sentence.startswith(said) and sentence.endswith(f"Games before and after: {tmp_path / 'games.html'}")


@pytest.mark.long
def test_the_demo_runs_and_goes_on(tmp_path, monkeypatch):
    """With a random model of one layer in place of SmolLM2, whose 20 updates take minutes."""
    small_model(tmp_path / "model")
    recipe = dataclasses.replace(
        demo.RECIPE, pretrained={**demo.RECIPE.pretrained, "updates": 3, "groups": 2, "group_size": 2}
    )
    monkeypatch.setattr(demo, "MODEL", str(tmp_path / "model"))
    monkeypatch.setattr(demo, "RECIPE", recipe)
    for again in range(2):
        printed = io.StringIO()
        assert demo.run(demo.Options(out=tmp_path / "demo"), threading.Event(), Console(file=printed, width=200))
        text = printed.getvalue()
        assert text.startswith(
            "SmolLM2-135M plays the prisoner's dilemma against itself, 64 games an update, 3 updates"
        )
        assert "Cooperation by update" in text and "not tested by this run" not in text
        assert ("update 3 of 3" in text) == (not again)
    assert (tmp_path / "demo/games.html").exists()
