"""A run shows the same in every sink, and its own files have the same bits with any of them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util import tensor_util

from jaxmarl_llm.environments.classic.card_games import KuhnPoker
from jaxmarl_llm.runs import sinks
from jaxmarl_llm.runs.log import RunLog
from jaxmarl_llm.runs.sinks import SINKS
from jaxmarl_llm.studies.identity import describe
from jaxmarl_llm.training.recipe import Recipe


def write(directory, names):
    """Three steps of two seeds, continued after the second; what must not be shown in another form: markup, NaN."""
    with RunLog(directory, (3, 4), {"turns": 3}, lambda said: None, names) as log:
        log.truncate(0)
        for step in range(2):
            log.scalars(step, {"reward": np.array([1.0, 2.0]) * step, "entropy": np.array([np.nan, 0.5])})
    with RunLog(directory, (3, 4), {"turns": 3}, lambda said: None, names) as log:
        log.truncate(2)
        log.scalars(2, {"reward": np.array([2.0, 4.0]), "entropy": np.array([0.001, 0.5])})
        log.text(2, "transcript", "<script>alert(1)</script>", seed=4)
        log.histogram(2, "games/entropy/a", [0.1, np.nan, 0.2, 0.2], seed=4)
        log.histogram(2, "games/advantage/a", [np.inf], seed=4)


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return tmp_path


def test_files_have_the_same_bits_with_any_sink(offline):
    for names in ((), ("tensorboard",), tuple(SINKS)):
        write(offline / "study" / "-".join(names), names)
    folders = [offline / "study" / "-".join(names) for names in (("tensorboard",), tuple(SINKS))]
    for folder in folders:
        for file in ("metrics.jsonl", "health.jsonl", "config.json"):
            assert (folder / file).read_bytes() == (offline / "study" / file).read_bytes(), file
    assert not (offline / "study" / "tensorboard" / "wandb").exists()
    assert len(list((folders[1] / "wandb").glob("offline-run-*/run-*.wandb"))) == 4  # two seeds, begun and continued
    shown = [page.read_text() for page in (folders[1] / "wandb").glob("*/files/media/html/transcript*.html")]
    assert shown and all("&lt;script&gt;alert(1)&lt;/script&gt;" in page for page in shown)


def test_trackio_holds_what_was_logged(offline):
    from trackio.sqlite_storage import SQLiteStorage  # where it looks is read when it is imported

    from jaxmarl_llm.runs.sinks import PROJECT

    write(offline / "study" / "arm", ("trackio",))
    logs = {name: SQLiteStorage.get_logs(PROJECT, name) for name in SQLiteStorage.get_runs(PROJECT)}
    of = lambda name: [(row["step"], row["reward"]) for row in logs[name] if "reward" in row]
    assert of("study/arm/seed_4") == [(0, 0.0), (1, 2.0)] and of("study/arm/seed_4@2") == [(2, 4.0)]
    assert all("entropy" not in row for row in logs["study/arm/seed_3"])  # not finite
    assert json.dumps("<script>alert(1)</script>") in json.dumps(logs["study/arm/seed_4@2"])
    assert any("games/entropy/a" in row for row in logs["study/arm/seed_4@2"])


def test_tensorboard_shows_settings_and_histograms(tmp_path):
    recipe = describe(Recipe(KuhnPoker(), seats=(("a", "a"),), advantage=None, hparams={"learning_rate": 0.25}))
    with RunLog(tmp_path, (3,), recipe, lambda said: None) as log:
        log.histogram(7, "games/entropy/a", [0.1, np.nan, 0.2, 0.2], seed=3)
        log.histogram(7, "games/advantage/a", [np.nan], seed=3)
    reader = EventAccumulator(str(tmp_path / "tensorboard" / "seed_3")).Reload()
    content = HParamsPluginData.FromString(next(iter(reader.PluginTagToContent("hparams").values())))
    shown = dict(content.session_start_info.hparams)
    assert shown["learning_rate"].number_value == 0.25 and shown["seed"].number_value == 3
    assert shown["groups"].number_value == recipe["groups"] and "seats" not in shown
    assert reader.PluginTagToContent("histograms").keys() == {"games/entropy/a"}
    (event,) = reader.Tensors("games/entropy/a")
    buckets = tensor_util.make_ndarray(event.tensor_proto)  # left edge, right edge, count
    assert event.step == 7 and buckets[:, 2].sum() == 3 and (buckets[0, 0], buckets[-1, 1]) == (0.1, 0.2)


def test_a_log_that_is_none_gets_a_sentence(monkeypatch):
    with pytest.raises(ValueError, match="No log is called 'mlflow': possible are tensorboard, trackio, wandb"):
        sinks.check(("mlflow",))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="The log wandb needs its package: run `pip install wandb`"):
        sinks.check(("tensorboard", "wandb"))


@pytest.mark.commands
def test_wandb_without_a_login_is_refused_in_a_sentence(tmp_path):
    """In a process of its own: wandb keeps what it was told."""
    program = f"""
from pathlib import Path
from jaxmarl_llm.runs.sinks import Wandb

Wandb(Path({str(tmp_path)!r}), 0, {{}}).run
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    run = subprocess.run(
        [sys.executable, "-c", program], env={**kept, "HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert "ValueError: wandb refuses: No API key configured." in run.stderr and "WANDB_MODE=offline." in run.stderr
