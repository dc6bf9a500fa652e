"""What is restored has the bits that were saved, whatever happened to the directory in between."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxmarl_llm.checkpoint import Checkpoints, ConfigMismatch

ROOT = Path(__file__).parent.parent


@struct.dataclass
class Memory:
    baseline: jax.Array
    key: jax.Array


class Moments(NamedTuple):
    mu: dict
    count: jax.Array


def make_state(seed=0):
    key = jax.random.key(seed)
    w = jax.random.normal(key, (4, 3))
    return {
        "params": {"a.b/c": w, "half": w.astype(jnp.bfloat16), "flags": w > 0, "nan": w.at[0, 0].set(jnp.nan)},
        "optimiser": (Moments({"w": w * 2}, jnp.int32(seed)), ()),
        "memory": Memory(jnp.float32(0.1), jax.random.split(jax.random.key(seed, impl="rbg"), 3)),
        "pool": [{0: w, 10: None}],
        "host": np.arange(3, dtype=np.float64),
        "tokens": 2**40 + seed,
    }


def bits(leaf):
    if hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert getattr(x, "dtype", type(x)) == getattr(y, "dtype", type(y)) and np.shape(x) == np.shape(y)
        assert bits(x) == bits(y)


def files_of(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)


def test_restored_bits_are_the_saved_ones(tmp_path):
    Checkpoints(tmp_path, {}).save(7, make_state(seed=1))
    step, state = Checkpoints(tmp_path, {}, resume=True).restore(make_state(seed=2))
    assert step == 7
    assert_same(state, make_state(seed=1))


def test_an_empty_directory_restores_nothing(tmp_path):
    assert Checkpoints(tmp_path / "new", {}, resume=True).restore(make_state()) is None


def test_shardings_are_the_examples(tmp_path):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    split, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
    w = jax.random.normal(jax.random.key(0), (16, 2))
    saved = {"split": jax.device_put(w, split), "whole": jax.device_put(w, whole), "free": w, "key": jax.random.key(1)}
    Checkpoints(tmp_path, {}).save(0, saved)
    example = {
        "split": jax.device_put(w, whole),
        "whole": jax.device_put(w, split),
        "free": w,
        "key": jax.random.key(0),
    }
    _, state = Checkpoints(tmp_path, {}, resume=True).restore(example)
    assert_same(state, saved)
    for name, leaf in state.items():
        assert leaf.sharding == example[name].sharding and leaf.committed == example[name].committed
    # A leaf that was free to move still is: with a committed one, jit would refuse the mixture of devices.
    assert jnp.array_equal(state["split"] + state["free"], w + w)


def test_the_last_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, {})
    for step in (2, 9, 10, 100):
        checkpoints.save(step, make_state(step))
        assert checkpoints.steps()[-1] == step
    assert checkpoints.steps() == [10, 100]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "100"]


def test_a_step_may_be_written_again(tmp_path):
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.save(3, make_state(0))
    checkpoints.save(3, make_state(1))
    assert_same(checkpoints.restore(make_state()), (3, make_state(1)))
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["delete", "truncate", "flip"])
def test_damage_to_any_file_is_noticed_and_the_one_before_is_taken(tmp_path, how):
    checkpoints = Checkpoints(tmp_path / "whole", {})
    for step in (1, 2):
        checkpoints.save(step, make_state(step))
    for path in files_of(tmp_path / "whole" / ("2/state" if how == "flip" else "2")):
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
    (tmp_path / "1" / "checkpoint.json").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole \(step 1: checkpoint.json cannot be read\)"):
        Checkpoints(tmp_path, {}, resume=True).restore(make_state())
    assert (tmp_path / "1").exists()


KILLED = """
import os, signal, sys, threading
import jax.numpy as jnp
from jaxmarl_llm.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1], {})
checkpoints.save(1, {"w": jnp.full(2_000_000, 1.0)})
def kill():
    while not any("state" in name for name, *_ in os.walk(sys.argv[1]) if "2.partial" in name):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill, daemon=True).start()
checkpoints.save(2, {"w": jnp.full(2_000_000, 2.0)})
"""


def test_a_kill_in_mid_write_leaves_the_one_before(tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    assert run.returncode == -signal.SIGKILL
    assert (tmp_path / "2.partial").exists()
    checkpoints = Checkpoints(tmp_path, {}, resume=True)
    step, state = checkpoints.restore({"w": jnp.zeros(2_000_000)})
    assert step == 1 and (state["w"] == 1.0).all()
    checkpoints.save(3, state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


CONFIG = {"games": 32, "model": {"name": "tiny", "width": 32}, "payoff": (3, 1), "steps": 10, "lr": float("nan")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"games": 64, "model": {"name": "big", "width": 32}}, "games=32, this run asks for games=64"),
        ({"model": {"name": "tiny", "width": 64}}, "model.width=32, this run asks for model.width=64"),
        ({"payoff": (3, 0)}, r"payoff=\[3, 1\], this run asks for payoff=\[3, 0\]"),
        ({"clip": 0.2}, r"clip=\(not set\), this run asks for clip=0.2"),
    ],
)
def test_the_first_setting_that_differs_is_named_before_anything_is_built(tmp_path, change, message):
    Checkpoints(tmp_path, CONFIG).save(1, make_state())
    with pytest.raises(ConfigMismatch, match=f"checkpoint in {tmp_path} was made with {message}"):
        Checkpoints(tmp_path, CONFIG | change, resume=True)


def test_settings_that_change_no_result_may_differ(tmp_path):
    Checkpoints(tmp_path, CONFIG).save(1, make_state())
    Checkpoints(tmp_path, json.loads(json.dumps(CONFIG)) | {"steps": 20, "resume": True}, resume=True)
    Checkpoints(tmp_path, CONFIG | {"model": {}}, resume=True, may_differ=["model"])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"w": jnp.zeros((2, 4))}, r"holds float32\[2, 3\] at \['w'\], this run has float32\[2, 4\] there"),
        ({"w": jnp.zeros((2, 3), jnp.bfloat16)}, r"at \['w'\], this run has bfloat16\[2, 3\] there"),
        ({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}, r"holds nothing at \['b'\], this run has float32\[3\] there"),
        ({}, r"holds float32\[2, 3\] at \['w'\], this run has nothing there"),
    ],
)
def test_another_tree_is_one_sentence(tmp_path, params, message):
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.save(1, {"w": jnp.zeros((2, 3))})
    with pytest.raises(ValueError, match=message):
        checkpoints.restore(params)


def test_a_new_run_does_not_walk_over_an_old_one(tmp_path):
    Checkpoints(tmp_path, {}).save(5, make_state())
    with pytest.raises(ValueError, match="holds a run at step 5: resume it, or name another directory"):
        Checkpoints(tmp_path, {})


def test_an_unwritable_directory_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot write in the directory"):
        Checkpoints(tmp_path / "file" / "run", {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="Permission denied"):
        Checkpoints(tmp_path, {})
