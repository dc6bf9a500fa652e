"""Logs for inspect-ai: read by the package itself where it is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxmarl_llm.view import inspect_logs, page
from tests.support import inspect_program
from tests.view.test_page import HOSTILE, game


def write_run(run: Path) -> list[dict]:
    """A run of two updates; the second one holds one game, whose other player is silent."""
    games = [game(0, said=HOSTILE), game(1), game(100)]
    games[2]["seats"][1] |= {"policy": "script", "messages": [], "turns": [], "answers": []}
    (run / "arm").mkdir(parents=True)
    (run / "arm" / page.GAMES).write_bytes(page.lines_of(games))
    return games


def test_the_command_writes_a_log_for_each_update(tmp_path):
    write_run(tmp_path)
    command = [sys.executable, "-m", "jaxmarl_llm.view.inspect_logs", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0 and "2 logs; show them with: inspect view --log-dir" in run.stdout, run.stderr
    files = sorted((tmp_path / inspect_logs.FOLDER).iterdir())
    assert [file.name.partition("_")[2] for file in files] == ["dilemma_method_0_0.json", "dilemma_method_0_8.json"]
    assert [len(json.loads(file.read_bytes())["samples"]) for file in files] == [4, 1]
    again = subprocess.run([*command[:-1], str(tmp_path / "none")], capture_output=True, text=True)
    assert again.returncode == 2 and "There is no games.jsonl with games below" in again.stderr


@pytest.mark.commands
@pytest.mark.skipif(not inspect_program.installed(), reason="inspect-ai is not installed")
def test_inspect_ai_reads_all_that_was_said_and_paid(tmp_path):
    games = write_run(tmp_path)
    files = inspect_logs.write_logs(tmp_path, tmp_path / "logs")
    logs = inspect_program.run("read", *map(str, files))
    assert [log["eval"]["task_args"]["update"] for log in logs] == [0, 8]
    assert [log["results"]["total_samples"] for log in logs] == [4, 1]
    seats = [(g, number) for g in games for number, seat in enumerate(g["seats"]) if seat["messages"]]
    samples = [sample for log in logs for sample in log["samples"]]
    assert len(seats) == len(samples) == 5
    for (g, number), sample in zip(seats, samples, strict=True):
        seat = g["seats"][number]
        said = [{"role": message["role"], "content": message["content"]} for message in sample["messages"]]
        assert said == seat["messages"]
        scores = {name: score["value"] for name, score in sample["scores"].items()}
        assert scores == {"reward": seat["reward"], **seat["components"]}
        tokens = sample["output"]["choices"][0]["logprobs"]["content"]
        assert [token["logprob"] for token in tokens] == [t.get("logp", 0.0) for t in seat["answers"][-1]["tokens"]]
        assert sample["messages"][2]["metadata"]["tokens"] == seat["answers"][0]["tokens"]
        assert sample["metadata"]["policy"] == seat["policy"] and sample["metadata"]["group"] == g["group"]
    means = {score["name"]: score["metrics"]["mean"]["value"] for score in logs[0]["results"]["scores"]}
    assert means == {"ours": (0.0 - 1.0 + 1.0) / 3, "other": -1.0}
