"""One update under the profiler: every part of it is found, and what TensorBoard opens is there.

The long case compiles and profiles an update in full; the short one runs the command on a small study.
"""

import io
import json

import jax
import pytest
from rich.console import Console

from jaxmarl_llm.runs.profile import ROWS
from jaxmarl_llm.studies.profiled import WARM, profile
from jaxmarl_llm.training.trainer import Trainer
from tests.support.dilemma import small_dilemma
from tests.support.recipe_plays import exit_status


@pytest.fixture(autouse=True)
def cached():
    yield
    jax.config.update("jax_compilation_cache_include_metadata_in_key", False)


@pytest.mark.long
def test_every_part_of_an_update_is_found(tmp_path):
    arm = small_dilemma(hparams={"kl": 0.1}, reference=True)
    console = Console(file=io.StringIO(), width=100)
    spent = profile(Trainer(arm, [arm.all_hparams], [0]), tmp_path, console)
    assert tuple(spent) == ROWS and min(spent.values()) > 0
    printed = console.file.getvalue()
    shown = [[cell.strip() for cell in line.split("│")[1:3]] for line in printed.splitlines() if line[:1] == "│"]
    assert [name for name, _ in shown] == [*ROWS, "wall time"]
    seconds = [float(number) for _, number in shown]
    assert sum(seconds[:-1]) == pytest.approx(seconds[-1], abs=1e-4 * len(ROWS))
    (trace,) = (tmp_path / "profile" / "plugins" / "profile").glob("*/*.xplane.pb")
    assert trace.stat().st_size > 10_000
    lines = [json.loads(line) for line in (tmp_path / "profile" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(WARM + 1))


@pytest.mark.parametrize("study", ["social_dilemma", "mars"])
def test_the_command_profiles_and_stops(study, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(
        "jaxmarl_llm.studies.runner.profile", lambda trainer, out, console: called.append((trainer, out))
    )
    assert exit_status(study, "--profile", "--out", tmp_path, patch=monkeypatch) == 0
    ((trainer, out),) = called
    assert len(trainer.keys) == 1 and out == tmp_path
    assert not list(tmp_path.iterdir())  # a run can still begin here
