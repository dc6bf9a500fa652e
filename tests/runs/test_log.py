"""What RunLog writes is read back with json and with TensorBoard's own reader."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jaxmarl_llm.runs.log import RunLog, run_directory
from jaxmarl_llm.training.watch import NonFiniteError


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def board(directory, seed):
    reader = EventAccumulator(str(directory / "tensorboard" / f"seed_{seed}"))
    return reader.Reload()


def test_each_seed_has_its_own_lines_and_its_own_board(tmp_path):
    with RunLog(tmp_path, range(2), config={}) as log:
        for step in range(3):
            log.scalars(
                step,
                {
                    "reward": jnp.array([0.5, -1.5]) + step,
                    "temperature": 0.7,
                    "tokens": np.int32(12),
                    "done": jnp.array(True),
                },
            )
    assert lines(tmp_path)[:2] == [
        {"step": 0, "seed": 0, "reward": 0.5, "temperature": 0.7, "tokens": 12, "done": True},
        {"step": 0, "seed": 1, "reward": -1.5, "temperature": 0.7, "tokens": 12, "done": True},
    ]
    assert len(lines(tmp_path)) == 6
    for seed, start in enumerate([0.5, -1.5]):
        assert [(e.step, e.value) for e in board(tmp_path, seed).Scalars("reward")] == [
            (step, start + step) for step in range(3)
        ]


def test_json_stays_valid_where_numbers_are_not_finite(tmp_path):
    with RunLog(tmp_path, range(3), config={}) as log:
        log.scalars(0, {"loss": np.array([np.nan, np.inf, 1.0])})
    text = (tmp_path / "metrics.jsonl").read_text()
    values = [json.loads(line, parse_constant=pytest.fail)["loss"] for line in text.splitlines()]
    assert values == [None, None, 1.0]


def test_transcripts_reach_the_text_tab(tmp_path):
    with RunLog(tmp_path, range(2), config={}) as log:
        log.text(4, "game", "**A**: I cooperate — é", seed=1)
    reader = board(tmp_path, 1)
    assert reader.PluginTagToContent("text").keys() == {"game"}
    (event,) = reader.Tensors("game")
    assert event.step == 4 and event.tensor_proto.string_val[0].decode() == "**A**: I cooperate — é"
    assert board(tmp_path, 0).Tags()["tensors"] == ["_hparams_/session_start_info"]


def test_a_continued_log_equals_an_unbroken_one(tmp_path):
    def write(log, start, stop):
        for step in range(start, stop):
            log.scalars(step, {"reward": np.array([1.0, 2.0]) * step})

    with RunLog(tmp_path / "whole", range(2), {}) as log:
        log.truncate(0)
        write(log, 0, 8)
    with RunLog(tmp_path / "broken", range(2), {}) as log:
        write(log, 0, 6)
    with (tmp_path / "broken" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "see')
    with RunLog(tmp_path / "broken", range(2), {}) as log:
        log.truncate(4)
        write(log, 4, 8)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert (whole / "metrics.jsonl").read_bytes() == (broken / "metrics.jsonl").read_bytes()
    assert [e.step for e in board(broken, 1).Scalars("reward")] == list(range(8))


def test_settings_and_versions_lie_beside(tmp_path):
    with RunLog(tmp_path, range(1), {"games": 32, "out": tmp_path}):
        pass
    assert json.loads((tmp_path / "config.json").read_text()) == {"games": 32, "out": str(tmp_path)}
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["packages"]["numpy"] == np.__version__ and {"python", "platform", "commit", "flags"} <= run.keys()
    assert run["templates"] == {"time": "2024-07-26T00:00:00", "random_seed": 0}
    assert run["hardware"] == {"devices": {jax.devices()[0].device_kind: 8}, "processes": 1}


def ended(directory):
    return json.loads((directory / "run.json").read_text())["ended"]


def test_a_run_says_how_it_ended(tmp_path):
    with RunLog(tmp_path / "a", range(1), {}) as log:
        log.scalars(4, {"loss": 1.0})
        assert ended(tmp_path / "a") is None
    assert ended(tmp_path / "a")["reason"] == "finished" and ended(tmp_path / "a")["steps"] == 5
    with RunLog(tmp_path / "b", range(1), {}) as log:
        log.end("stopped", "SIGTERM.")
    assert (ended(tmp_path / "b")["reason"], ended(tmp_path / "b")["sentence"]) == ("stopped", "SIGTERM.")
    for error, reason, sentence in (
        (OSError("disk full"), "error", "OSError: disk full"),
        (KeyboardInterrupt(), "interrupted", "A second SIGINT was not waited for."),
        (NonFiniteError(3, [1], None, 1), "not finite", "Up to step 3, updates of lanes [1] were skipped"),
    ):
        with pytest.raises(type(error)), RunLog(tmp_path / "b", range(1), {}):
            raise error
        assert ended(tmp_path / "b")["reason"] == reason and ended(tmp_path / "b")["sentence"].startswith(sentence)
    former = json.loads((tmp_path / "b" / "run.json").read_text())["former"]
    assert [one["ended"]["reason"] for one in former] == ["stopped", "error", "interrupted"]


def test_a_process_that_was_killed_is_noted_by_the_next(tmp_path):
    log = RunLog(tmp_path, range(1), {})  # never closed
    for step in range(7):
        log.scalars(step, {"loss": 1.0})
    (tmp_path / "metrics.jsonl").open("a").write('{"step": 7, "se')
    said = []
    with RunLog(tmp_path, range(1), {}, said.append) as log:
        log.truncate(5)
    assert said == ["The former process ended without saying why, after 7 steps were logged."]
    run = json.loads((tmp_path / "run.json").read_text())
    assert [one["ended"]["reason"] for one in run["former"]] == ["unknown"] and run["ended"]["steps"] == 5


@pytest.mark.parametrize("edit", [lambda x: x[1:], lambda x: [x[0], *x], lambda x: [*x[2:4], *x[:2], *x[4:]]])
def test_faults_in_a_log_are_found_before_it_is_continued(tmp_path, edit):
    with RunLog(tmp_path, range(2), {}) as log:
        for step in range(3):
            log.scalars(step, {"loss": np.array([1.0, 2.0])})
    lines = tmp_path / "metrics.jsonl"
    lines.write_text("".join(edit(lines.read_text().splitlines(keepends=True))))
    before = lines.read_bytes()
    with RunLog(tmp_path, range(2), {}) as log, pytest.raises(ValueError, match="does not hold 2 steps of every seed"):
        log.truncate(2)
    assert lines.read_bytes() == before


def test_a_continued_log_warns_as_an_unbroken_one(tmp_path):
    """Entropy falls to a tenth while the first process runs, and again after it has risen."""
    entropy = [1.0] * 4 + [0.05] * 6 + [1.0] * 10 + [0.02] * 6

    def write(log, start, stop):
        log.truncate(start)
        for step in range(start, stop):
            log.scalars(step, {"entropy/a": np.array([1.0, entropy[step]]), "skipped": 0})

    whole, broken = [], []
    with RunLog(tmp_path / "whole", range(2), {}, whole.append) as log:
        write(log, 0, len(entropy))
    for start, stop in ((0, 5), (5, 9), (8, 13), (13, len(entropy))):
        with RunLog(tmp_path / "broken", range(2), {}, broken.append) as log:
            write(log, start, stop)
    files = [(tmp_path / name / "health.jsonl").read_text() for name in ("whole", "broken")]
    assert files[0] == files[1] and whole == broken
    steps = [(line["step"], line["seed"], line["metric"]) for line in map(json.loads, files[0].splitlines())]
    assert steps == [(6, 1, "entropy/a"), (22, 1, "entropy/a")]
    (sentence,) = whole  # a cause is told once
    assert sentence.startswith(
        "Warning, update 7: entropy/a of seed 1 is 0.05 (utterances hardly vary any more). Nothing is wrong if"
    )


def test_a_wrong_shape_is_named(tmp_path):
    with RunLog(tmp_path, range(2), {}) as log, pytest.raises(ValueError, match=r"metric loss has shape \(3,\)"):
        log.scalars(0, {"reward": 1.0, "loss": np.zeros(3)})
    assert lines(tmp_path) == []


def test_an_unwritable_directory_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot write in the directory"):
        RunLog(tmp_path / "file" / "run", range(1), {})


@pytest.mark.parametrize(
    ("made", "error", "left"),
    [
        ((), ValueError, []),
        (("lock", "arm/metrics.jsonl"), ValueError, []),
        (("metrics.jsonl", "before"), ValueError, []),
        ((), KeyboardInterrupt, ["mine"]),
    ],
)
def test_a_refused_command_leaves_no_directory(tmp_path, made, error, left):
    with pytest.raises(error), run_directory(tmp_path / "runs" / "mine") as out:
        for name in made:
            (out / name).parent.mkdir(exist_ok=True)
            (out / name).touch()
        raise error("no")
    assert [path.name for path in (tmp_path / "runs").glob("*")] == left


def test_a_refused_command_keeps_what_others_made(tmp_path):
    (tmp_path / "old").mkdir()
    with pytest.raises(ValueError, match="no"), run_directory(tmp_path / "old" / "new"):
        (tmp_path / "old" / "another").mkdir()
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"), run_directory(tmp_path / "old"):
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"), run_directory(tmp_path / "ran") as out:
        (out / "metrics.jsonl").write_text("{}")
        raise ValueError("no")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["another", "metrics.jsonl", "old", "ran"]
