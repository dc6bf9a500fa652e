"""What is restored has the bits that were saved, whatever happened to the directory in between."""

import json
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.runs.checkpoint import Checkpoints, ConfigMismatch, Keep


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


def save(directory, step, state, config=None):
    with Checkpoints(directory, config or {}) as checkpoints:
        checkpoints.save(step, state)


def test_restored_bits_are_the_saved_ones(tmp_path):
    save(tmp_path, 7, make_state(seed=1))
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
    save(tmp_path, 0, saved)
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


@pytest.mark.parametrize("devices", [1, 8])
def test_what_is_saved_is_the_state_before_the_next_step_overwrites_it(tmp_path, devices):
    """The step is given its buffers while the checkpoint is being written."""
    mesh = sharding.mesh(f"data={devices}")
    split = NamedSharding(mesh, PartitionSpec("data"))
    state = {
        "w": jax.device_put(jax.random.normal(jax.random.key(0), (8, 250_000)), split),
        "count": sharding.place(jnp.int32(0), mesh),
        "key": sharding.place(jax.random.key(3), mesh),
    }
    host = np.arange(1000.0)
    expected = jax.tree.map(jnp.copy, state) | {"host": host.copy()}

    @partial(jax.jit, donate_argnums=0)
    def step(state):
        keys = jax.random.wrap_key_data(jax.random.key_data(state["key"]) + 1)
        return {"w": state["w"] * 2 + 1, "count": state["count"] + 1, "key": keys}

    with Checkpoints(tmp_path, {}) as checkpoints:
        checkpoints.save(1, state | {"host": host})
        host[:] = -1
        for _ in range(30):
            state = step(state)
    assert_same(checkpoints.restore(expected), (1, expected))


def one_of(checkpoints, values, name="points"):
    """The steps that stay after those of {step: value}."""
    for step, value in values.items():
        checkpoints.save(step, {"w": jnp.float32(step)}, {name: np.array(value)})
    checkpoints.wait()
    return checkpoints.steps()


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        (Keep(), [6, 7]),
        (Keep(last=3), [5, 6, 7]),
        (Keep(last=1, best="points"), [3, 7]),
        (Keep(last=1, best="points", lowest=True), [2, 7]),
        (Keep(last=1, every=3), [3, 6, 7]),
        (Keep(last=2, best="points", lowest=True, every=5), [2, 5, 6, 7]),
    ],
)
def test_what_the_rules_name_is_kept(tmp_path, keep, steps):
    """The metric is the mean over seeds; one that is not finite is never the best, and of equals it is the oldest."""
    values = {
        1: np.nan, 2: [0.0, 0.5], 3: [1.0, 3.0], 4: [2.5, np.nan], 5: [2.0, 2.0], 6: np.inf, 7: 0.25,
    }  # fmt: skip
    checkpoints = Checkpoints(tmp_path, {}, keep)
    assert one_of(checkpoints, values) == steps
    best = {"": None}.get(keep.best, 2 if keep.lowest else 3)
    assert checkpoints.best() == best
    # a run that goes on knows what was best, and keeps it
    later = Checkpoints(tmp_path, {}, keep, resume=True)
    assert later.best() == best and set(one_of(later, {8: 1.0})) == ({*steps, 8} - {steps[-keep.last]}) | (
        {step for step in steps if keep.every and step % keep.every == 0}
    )


def test_a_metric_that_is_not_there_is_said(tmp_path):
    checkpoints = Checkpoints(tmp_path, {}, Keep(best="point"))
    with pytest.warns(UserWarning, match="without the metric 'point' is never the best: there are points"):
        assert one_of(checkpoints, {1: 1.0, 2: 0.0, 3: 0.0}) == [2, 3]


@pytest.mark.parametrize("keep", [Keep(last=0), Keep(every=-1)])
def test_rules_that_cannot_work_are_refused(tmp_path, keep):
    with pytest.raises(ValueError, match=r"keep\.(last=0|every=-1)"):
        Checkpoints(tmp_path, {}, keep)


def test_the_last_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, {})
    for step in (2, 9, 10, 100):
        checkpoints.save(step, make_state(step))
        checkpoints.wait()
        assert checkpoints.steps()[-1] == step
    assert checkpoints.steps() == [10, 100]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "100"]


def test_a_step_may_be_written_again(tmp_path):
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.save(3, make_state(0))
    checkpoints.save(3, make_state(1))
    assert_same(checkpoints.restore(make_state()), (3, make_state(1)))
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


CONFIG = {"games": 32, "model": {"name": "tiny", "width": 32}, "payoff": (3, 1), "steps": 10, "lr": float("nan")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"games": 64, "model": {"name": "big", "width": 32}}, "games=32, this run asks for games=64"),
        ({"model": {"name": "tiny", "width": 64}}, "model.width=32, this run asks for model.width=64"),
        ({"payoff": (3, 0)}, r"payoff=\[3, 1\], this run asks for payoff=\[3, 0\]"),
        ({"games": list(range(99))}, r"games=32, this run asks for games=\[0, 1, .{50}\.\.\.$"),
        ({"max_grad_norm": 0.2}, r"max_grad_norm=\(not set\), this run asks for max_grad_norm=0.2"),
    ],
)
def test_the_first_setting_that_differs_is_named_before_anything_is_built(tmp_path, change, message):
    save(tmp_path, 1, make_state(), CONFIG)
    with pytest.raises(ConfigMismatch, match=f"checkpoint in {tmp_path} was made with {message}"):
        Checkpoints(tmp_path, CONFIG | change, resume=True)


def test_a_setting_may_be_no_finite_number(tmp_path):
    settings = {"pays": float("nan"), "most": float("inf")}
    with Checkpoints(tmp_path, settings) as checkpoints:
        checkpoints.save(1, make_state())
    assert_same(Checkpoints(tmp_path, settings, resume=True).restore(make_state()), (1, make_state()))


def test_settings_that_change_no_result_may_differ(tmp_path):
    save(tmp_path, 1, make_state(), CONFIG)
    Checkpoints(tmp_path, json.loads(json.dumps(CONFIG)) | {"steps": 20, "resume": True, "keep": 9}, resume=True)
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
    save(tmp_path, 5, make_state())
    with pytest.raises(ValueError, match="holds a run at step 5: resume it, or name another directory"):
        Checkpoints(tmp_path, {})
