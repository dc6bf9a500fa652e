"""What may befall a run: kills at any moment, a full disk, directories that cannot be written, damaged checkpoints.

A run that goes on afterwards ends as one that nothing befell, bit for bit.

The long cases damage each file of a checkpoint or fill a disk; the short ones damage all checkpoints, and fail one
write.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.runs.checkpoint import CheckpointError, Checkpoints, Keep
from jaxmarl_llm.runs.saved_arrays import check_stored
from jaxmarl_llm.studies.cli import STOPPED, execute
from jaxmarl_llm.training.trainer import Trainer
from tests.runs.test_checkpoint import assert_same, make_state
from tests.runs.test_loop import make_state as training_state
from tests.runs.test_loop import run
from tests.support.dilemma import small_dilemma

ROOT = Path(__file__).parents[2]


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)


@pytest.mark.long
@pytest.mark.parametrize("how", ["delete", "truncate", "flip"])
def test_damage_to_any_file_is_noticed_and_the_one_before_is_taken(tmp_path, how):
    checkpoints = Checkpoints(tmp_path / "whole", {})
    for step in (1, 2):
        checkpoints.save(step, make_state(step))
    checkpoints.wait()
    for path in files_of(tmp_path / "whole" / "2"):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", copy)
        damage(copy / path.relative_to(tmp_path / "whole"), how)
        checkpoints = Checkpoints(copy, {}, resume=True)
        with pytest.warns(UserWarning, match="checkpoint 2 in .* is damaged .* continuing from step 1"):
            restored = checkpoints.restore(make_state())
        assert_same(restored, (1, make_state(1)))
        checkpoints.save(2, make_state(5))
        assert_same(checkpoints.restore(make_state()), (2, make_state(5)))


def test_when_all_are_damaged_nothing_starts_over_in_silence(tmp_path):
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.save(1, make_state())
    checkpoints.wait()
    (tmp_path / "1" / "checkpoint.json").unlink()
    with pytest.raises(
        ValueError, match=r"no checkpoint in .* is whole \(step 1: checkpoint.json is missing or has changed\)"
    ):
        Checkpoints(tmp_path, {}, resume=True).restore(make_state())
    assert (tmp_path / "1").exists()


KILLED = """
import os, signal, sys, threading
import jax.numpy as jnp
from jaxmarl_llm.runs.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1], {})
checkpoints.save(1, {"w": jnp.full(2_000_000, 1.0)})
def kill():
    while not any("state" in name for name, *_ in os.walk(sys.argv[1]) if "2.partial" in name):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill, daemon=True).start()
checkpoints.save(2, {"w": jnp.full(2_000_000, 2.0)})
checkpoints.wait()
"""


def test_a_kill_in_mid_write_leaves_the_one_before(tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    assert run.returncode == -signal.SIGKILL
    assert (tmp_path / "2.partial").exists()
    checkpoints = Checkpoints(tmp_path, {}, resume=True)
    step, state = checkpoints.restore({"w": jnp.zeros(2_000_000)})
    assert step == 1 and (state["w"] == 1.0).all()
    checkpoints.save(3, state)
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


BEFORE_READING_BACK = """
import os, signal, sys
import jax.numpy as jnp
from jaxmarl_llm.runs import checkpoint
checkpoints = checkpoint.Checkpoints(sys.argv[1], {})
checkpoints.save(1, {"w": jnp.full(2_000, 1.0)})
checkpoints.wait()
checkpoint.check_stored = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
checkpoints.save(2, {"w": jnp.full(2_000, 2.0)})
checkpoints.wait()
"""


def test_a_kill_between_write_and_read_back_leaves_the_one_before(tmp_path):
    run = subprocess.run([sys.executable, "-c", BEFORE_READING_BACK, str(tmp_path)], cwd=ROOT)
    assert run.returncode == -signal.SIGKILL
    assert (tmp_path / "2.partial" / "state").exists()
    step, state = Checkpoints(tmp_path, {}, resume=True).restore({"w": jnp.zeros(2_000)})
    assert step == 1 and (state["w"] == 1.0).all()


@pytest.mark.parametrize("how", ["delete", "truncate"])
@pytest.mark.parametrize("name", ["manifest.ocdbt", "d/*", "ocdbt.process_0/d/*"])
def test_a_write_that_cannot_be_read_back_is_no_checkpoint_and_costs_no_older_one(tmp_path, monkeypatch, how, name):
    checkpoints = Checkpoints(tmp_path, {}, Keep(last=1))
    state = {"w": jax.random.normal(jax.random.key(0), (200, 50))}
    checkpoints.save(1, state)
    checkpoints.wait()

    def damage_and_check(directory, shapes):
        for file in directory.glob(f"state/{name}"):
            damage(file, how)
        check_stored(directory, shapes)

    monkeypatch.setattr("jaxmarl_llm.runs.checkpoint.check_stored", damage_and_check)
    checkpoints.save(2, state)
    with pytest.raises(CheckpointError, match=r"checkpoint 2 cannot be written .*: the last whole one is 1"):
        checkpoints.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert checkpoints.restore(state)[0] == 1


PATHS = (
    "[x]",
    "[!a]",
    "runs [lr=1e-3]",
    "{a,b}",
    "a*b",
    "**",
    "what?",
    "!a",
    "-dash",
    " spaces ",
    "x" * 200,
    "é" * 100,
)
PATHS += ("日本", "two\nlines", "back\\slash", "%41", "#part", "gs:x", "~", "$HOME", "'quoted\"", "parent/../[x]")


@pytest.mark.parametrize("start", ["relative", "through a link"])
def test_a_path_that_goes_up_is_a_path(tmp_path, monkeypatch, start):
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "here", target_is_directory=True)
    monkeypatch.chdir(tmp_path / "here")
    directory = Path("../runs") if start == "relative" else tmp_path / "link" / ".." / "runs"
    with Checkpoints(directory, {}) as checkpoints:
        checkpoints.save(1, {"w": jnp.arange(4.0)})
    assert Checkpoints(tmp_path / "runs", {}, resume=True).restore({"w": jnp.zeros(4)})[0] == 1


def test_names_that_are_no_steps_are_left_alone(tmp_path):
    for name in ("²", "007", "-1", "1.partial.txt", "٣"):
        (tmp_path / name).mkdir()
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.save(1, {"w": jnp.arange(4.0)})
    assert checkpoints.restore({"w": jnp.zeros(4)})[0] == 1 and checkpoints.steps() == [1]


@pytest.mark.parametrize("name", PATHS)
def test_any_legal_path_takes_checkpoints(tmp_path, name):
    checkpoints = Checkpoints(tmp_path / name / "checkpoints", {}, Keep(last=1))
    for step in (1, 2):
        checkpoints.save(step, {"w": jnp.arange(4.0) + step})
    checkpoints.wait()
    step, state = Checkpoints(tmp_path / name / "checkpoints", {}, resume=True).restore({"w": jnp.zeros(4)})
    assert step == 2 and (state["w"] == jnp.arange(4.0) + 2).all()


def test_a_path_that_would_match_another_as_a_pattern_keeps_to_itself(tmp_path, monkeypatch):
    (tmp_path / "links").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "links"))
    for offset, name in enumerate(("acb", "a*b", "a?b", "a[bc]b")):
        with Checkpoints(tmp_path / name, {}) as checkpoints:
            checkpoints.save(1, {"w": jnp.arange(4.0) + offset, f"of {name}": offset})
    for offset, name in enumerate(("acb", "a*b", "a?b", "a[bc]b")):
        example = {"w": jnp.zeros(4), f"of {name}": 0}
        assert Checkpoints(tmp_path / name, {}, resume=True).restore(example)[1]["w"][0] == offset
    assert not list((tmp_path / "links").iterdir())


# A run, killed again and again. Each start tells at which step it goes on.

RUN = """
import pathlib, sys
from tests.runs.test_loop import run, step_fn
from jaxmarl_llm.runs.checkpoint import Keep

def told(step, state):
    if told.first:
        print(step, flush=True)
        told.first = False
    return step_fn(step, state)

told.first = True
run(pathlib.Path(sys.argv[1]), int(sys.argv[2]), told, Keep(wait=sys.argv[3] == "wait"), every=1)
"""


def killed(command: list[str], directory: Path, when: str, dice: random.Random) -> bool:
    """Starts a command and kills it: at any moment, while it trains, or while it saves; whether a save was cut short.

    `directory` is that of its checkpoints.
    """
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    if when == "any":
        time.sleep(dice.uniform(0, 6))
    else:
        old = {path.name for path in directory.glob("*")}
        wanted, seen = dice.randint(1, 12 if when == "train" else 5), set()
        while process.poll() is None and len(seen) < wanted:
            seen |= {path.name for path in directory.glob("*.partial")} - old
            time.sleep(0.002)
        time.sleep(dice.uniform(0, 0.1) if when == "train" else dice.choice([0, 0, 0.005, 0.02]))
    process.kill()
    assert process.wait(60) == -signal.SIGKILL, "it came to its end before the kill: give it more steps"
    return any(directory.glob("*.partial"))


def steps_told(metrics: Path) -> int:
    return metrics.read_text().count("\n") if metrics.exists() else 0


@pytest.mark.parametrize(
    ("how", "most"),
    [pytest.param("wait", 1, marks=pytest.mark.slow), pytest.param("meanwhile", 2, marks=pytest.mark.commands)],
)
def test_kills_at_random_moments_change_nothing(tmp_path, how, most):
    """With a checkpoint after every step, a kill costs what is not yet on disk: the step in flight, from its beginning
    to the end of its checkpoint, and if that is not waited for the step before."""
    steps, dice, cut = 80, random.Random(0), False
    command = [sys.executable, "-c", RUN, str(tmp_path / "killed"), str(steps), how]
    checkpoints = tmp_path / "killed"
    for attempt in range(9):
        cut = killed(command, checkpoints, "save" if attempt else "train", dice)
        saved = Checkpoints(checkpoints, {}, resume=True).steps()
        assert saved and steps_told(checkpoints / "metrics.jsonl") // 2 - saved[-1] <= most
        if attempt and cut:  # a fast save ends before the kill arrives: the next is tried
            break
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == saved[-1] and cut
    run(tmp_path / "whole", steps, every=1)
    restored = [Checkpoints(tmp_path / name, {}, resume=True).restore(training_state()) for name in ("killed", "whole")]
    assert restored[0][0] == steps
    assert_same(*restored)
    assert len({(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("killed", "whole")}) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_of_a_command_change_nothing(tmp_path):
    steps, dice, cut = 300, random.Random(1), 0
    command = [
        sys.executable, "-m", "experiments", "social_dilemma", "--arms", "naive", "--seeds", "1",
        "--group-size", "2",
        "--updates", str(steps), "--checkpoint-every", "1",
        "--keep.best", "points", "--keep.every", "100", "--keep.wait", "--out",
    ]  # fmt: skip
    checkpoints, last = tmp_path / "killed" / "checkpoints" / "naive", 0
    for i in range(20):
        cut += killed([*command, str(tmp_path / "killed")], checkpoints, ("any", "train", "save")[i % 3], dice)
        now = max((int(path.name) for path in checkpoints.glob("*") if path.name.isdigit()), default=0)
        assert (
            now >= last and steps_told(tmp_path / "killed" / "naive" / "metrics.jsonl") - now <= 1
        )  # the step in flight
        last = now
    assert cut >= 5 and last >= 20
    for name in ("killed", "whole"):
        done = subprocess.run([*command, str(tmp_path / name)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    homes = [tmp_path / name / "naive" for name in ("killed", "whole")]
    for name in ("before.json", "after.json", "transcript.md", "games.jsonl"):
        assert homes[0].joinpath(name).read_bytes() == homes[1].joinpath(name).read_bytes(), name
    logs = [(home / "metrics.jsonl").read_text().splitlines() for home in homes]
    killed_lines, whole_lines = ([{**json.loads(line), "seconds": None} for line in log] for log in logs)
    assert killed_lines == whole_lines
    folders = [tmp_path / name / "checkpoints" / "naive" for name in ("killed", "whole")]
    kept = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert kept[0] == kept[1] and {"100", "200", "299", "300"} <= set(kept[0])
    for step in kept[0]:
        states = [jax.tree.leaves(ocp.load(folder / step / "state")) for folder in folders]
        assert len(states[0]) > 20
        assert_same(*states)


# Checkpoints of another mesh


def laid_out(state: dict, devices: int) -> dict:
    """On a mesh, matrices split over it and the rest on every device."""
    mesh = sharding.mesh(f"data={devices}")
    split = NamedSharding(mesh, PartitionSpec(None, "data"))
    return jax.tree.map(lambda x: jax.device_put(x, split) if x.ndim == 2 else sharding.place(x, mesh), state)


@pytest.mark.parametrize("devices", [1, 4])
def test_split_leaves_saved_on_eight_devices_go_on_on_fewer(tmp_path, devices):
    """What is restored lies as the example does, holds what was saved, and its next step is that of the whole."""
    w = jax.random.normal(jax.random.key(0), (3, 16))
    state = {"w": w, "moments": optax.adam(0.1).init({"w": w}), "key": jax.random.key(5)}

    @jax.jit
    def step(state):
        noise = jax.random.normal(state["key"], (3, 16))
        gradient = jax.grad(lambda w: ((w @ w.T) ** 2).sum() + (w * noise).sum())(state["w"])
        change, moments = optax.adam(0.1).update({"w": gradient}, state["moments"])
        return {"w": state["w"] + change["w"], "moments": moments, "key": jax.random.split(state["key"])[0]}

    with Checkpoints(tmp_path, {}) as checkpoints:
        checkpoints.save(1, laid_out(step(state), 8))
    example = laid_out(state, devices)
    _, restored = Checkpoints(tmp_path, {}, resume=True).restore(example)
    assert_same(restored, step(state))
    for leaf, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(example), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim) and leaf.committed
        assert len(leaf.sharding.device_set) == devices
    assert_same(step(restored), step(laid_out(step(state), devices)))
    np.testing.assert_allclose(step(restored)["w"], step(step(state))["w"], rtol=1e-5)


@pytest.mark.parametrize(
    "axes", [pytest.param("", marks=pytest.mark.commands), pytest.param("fsdp=2,tensor=2", marks=pytest.mark.slow)]
)
def test_a_run_of_eight_devices_goes_on_on_fewer(tmp_path, axes):
    """A step of training after the restored state is that after the state itself, and nearly that on eight devices."""
    arm = small_dilemma()

    def training(axes: str) -> Trainer:
        return Trainer(arm, [arm.all_hparams], [0], "tiny", axes)

    trainer = training("data=2,fsdp=4")
    with sharding.use(trainer.mesh), Checkpoints(tmp_path, {}) as checkpoints:
        state, _ = trainer.update(trainer.init(), 0)
        saved = jax.tree.map(np.array, state)
        checkpoints.save(1, state)
        state, _ = trainer.update(state, 1)
    weights = jax.tree.map(np.array, state.learners.weights)
    trainer = training(axes)
    with sharding.use(trainer.mesh):
        step, state = Checkpoints(tmp_path, {}, resume=True).restore(trainer.init())
        assert step == 1 and {len(x.sharding.device_set) for x in jax.tree.leaves(state)} == {trainer.mesh.size}
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.array, state), saved)
        after, _ = trainer.update(state, 1)
        expected, _ = trainer.update(sharding.place(saved, trainer.mesh), 1)
    assert_same(after, expected)
    for a, b in zip(jax.tree.leaves(after.learners.weights), jax.tree.leaves(weights), strict=True):
        assert abs(np.asarray(a) - b).mean() < 1e-5  # Adam makes a step of full length of a rounding


# A disk that is full


@pytest.fixture
def files_of_at_most():
    """Sets the size beyond which this process can write no file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_is_one_sentence_at_the_next_call_and_leaves_the_one_before(tmp_path, files_of_at_most):
    state = {"w": jax.random.normal(jax.random.key(0), (250_000,))}
    checkpoints = Checkpoints(tmp_path, {}, resume=True)
    checkpoints.save(1, state)
    checkpoints.wait()
    for fails in (lambda: checkpoints.save(3, state), checkpoints.wait):
        files_of_at_most(100_000)
        checkpoints.save(2, state)
        with pytest.raises(
            CheckpointError, match=r"^checkpoint 2 cannot be written in .* \(.*\): the last whole one is 1$"
        ):
            fails()
        assert [path.name for path in tmp_path.iterdir()] == ["1"]
        files_of_at_most(resource.RLIM_INFINITY)
    assert_same(checkpoints.restore(state), (1, state))
    checkpoints.save(2, state)
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2]


def test_a_directory_that_is_gone_is_one_sentence(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run", {})
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"^checkpoint 1 .* \(No such file or directory\): there is none before it$"
    ):
        checkpoints.save(1, make_state())


def test_a_command_says_in_one_sentence_that_it_could_not_save(capsys):
    def run(stop, console):
        raise CheckpointError(
            "checkpoint 2 cannot be written in runs (No space left on device): the last whole one is 1"
        )

    with pytest.raises(SystemExit) as end:
        execute(run)
    assert end.value.code == 1
    assert capsys.readouterr().err == (
        "error: checkpoint 2 cannot be written in runs (No space left on device): the last whole one is 1\n"
    )


@pytest.mark.parametrize(("end", "code"), [(True, 0), (None, 0), (False, STOPPED)])
def test_a_command_that_was_stopped_is_to_be_tried_again(end, code):
    try:
        execute(lambda stop, console: end)
    except SystemExit as ended:
        assert ended.code == code == STOPPED
    else:
        assert code == 0


FULL = """
import contextlib, pathlib, sys
from tests.runs.test_loop import make_state, step_fn
from jaxmarl_llm.runs.checkpoint import Checkpoints, CheckpointError
from jaxmarl_llm.runs.loop import train

disk, other = map(pathlib.Path, sys.argv[1:])
ballast = disk / "ballast"

def filling(step, state):
    if step == 5:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    return step_fn(step, state)

def go(directory, step_fn):
    checkpoints = Checkpoints(directory, {}, resume=True)
    start, state = checkpoints.restore(make_state()) or (0, make_state())
    print(start)
    return train(step_fn, state, start=start, steps=9, checkpoints=checkpoints, every=2)[0]

try:
    go(disk / "run", filling)
except CheckpointError as error:
    print(error)
ballast.unlink()
ends = go(disk / "run", step_fn), go(other, step_fn)
for end in ends:
    print(end["params"]["w"].tobytes().hex())
"""


def in_a_small_disk(options: str, script: str, *arguments: Path) -> subprocess.CompletedProcess:
    """Runs a Python script for which arguments[0] is a disk of its own; skips where the system lets no one mount it."""
    mount = f'mount -t tmpfs -o {options} tmpfs "$1" || exit 99; exec "$0" -c "$@"'
    command = ["unshare", "-rm", "sh", "-c", mount.replace('"$@"', f"'{script}' \"$@\""), sys.executable]
    done = subprocess.run([*command, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("this user cannot mount a disk of their own")
    return done


@pytest.mark.long
@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_a_full_disk_ends_the_run_in_one_sentence_and_with_room_it_goes_on(tmp_path):
    """Also this run ends as one that had room."""
    (tmp_path / "disk").mkdir()
    done = in_a_small_disk("size=4m", FULL, tmp_path / "disk", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    said = re.fullmatch(r"checkpoint (\d) cannot be written in .* \((.*)\): the last whole one is (\d)", lines[1])
    assert said and "No space left on device" in said[2] and int(said[1]) == int(said[3]) + 2, lines
    assert [lines[0], *lines[2:4]] == ["0", said[3], "0"]
    assert lines[4] == lines[5] and len(lines) == 6


READ_ONLY = """
import sys
from jaxmarl_llm.runs.checkpoint import Checkpoints
try:
    Checkpoints(sys.argv[1], {})
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_a_read_only_disk_is_one_sentence(tmp_path):
    """Root too cannot write in it."""
    done = in_a_small_disk("ro", READ_ONLY, tmp_path)
    assert done.stdout == (
        f"cannot write in the directory {tmp_path} (Read-only file system): name one that can be written\n"
    ), done.stderr


def test_an_unwritable_directory_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot write in the directory"):
        Checkpoints(tmp_path / "file" / "run", {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="Permission denied"):
        Checkpoints(tmp_path, {})
