"""The index of a checkpoint, read back, and paths that orbax does not take for patterns."""

import os
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from jaxmarl_llm.runs.saved_arrays import array_shapes, check_stored, plain_path, stored_shapes
from tests.runs.test_checkpoint import make_state

LARGE = {"large": jax.random.normal(jax.random.key(0), (300, 40)), "count": 3}


@pytest.fixture
def saved(tmp_path):
    ocp.save(tmp_path / "state", LARGE)
    return tmp_path / "state"


@pytest.mark.parametrize(
    "make",  # in the test: a worker collects every file, and an array that JAX makes is a program for each shape
    [
        make_state,
        lambda: LARGE,
        lambda: {"a.b": jnp.ones(3), "a/c": jnp.ones((2, 2)), "é": {"in a row": [jnp.ones(1), 2.5]}},
        lambda: {"keys": jax.random.split(jax.random.key(3), 4), "small": jnp.ones(2, jnp.bfloat16)},
        lambda: jax.device_put([np.ones(size, np.float32) for size in range(1, 3000, 5)]),  # an index of several nodes
    ],
    ids=["training", "large", "names", "dtypes", "many"],
)
def test_the_index_holds_the_names_and_shapes_of_the_state(tmp_path, make):
    state = make()
    ocp.save(tmp_path / "state", state)
    assert stored_shapes(tmp_path / "state") == array_shapes(state)


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"two arrays of the state are named a\.b: rename one"):
        array_shapes({"a.b": 1, "a": {"b": 2}})


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"large": (300, 40)}, r"the index holds \(\) at count and not nothing"),
        ({"large": (300, 40), "count": (), "more": (2,)}, r"the index holds nothing at more and not \(2,\)"),
        ({"large": (40, 300), "count": ()}, r"the index holds \(300, 40\) at large and not \(40, 300\)"),
    ],
)
def test_another_index_is_said(saved, expected, message):
    with pytest.raises(ValueError, match=message):
        check_stored(saved, expected)


def test_a_file_that_ends_too_early_is_said(saved):
    check_stored(saved, array_shapes(LARGE))
    largest = max((path for path in saved.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    os.truncate(largest, 40_000)
    with pytest.raises(ValueError, match=rf"{largest.name} has 40000 of \d+ bytes"):
        check_stored(saved, array_shapes(LARGE))


def test_an_index_that_is_missing_is_said(saved):
    (saved / "state" / "manifest.ocdbt").unlink()
    with pytest.raises(ValueError, match="its index is missing"):
        stored_shapes(saved)


def test_a_path_without_special_characters_is_itself_and_another_one_a_link(tmp_path):
    with plain_path(tmp_path) as path:
        assert path == tmp_path
    (tmp_path / "[x]").mkdir()
    with plain_path(tmp_path / "[x]") as path:
        assert "[" not in str(path)
        (path / "file").touch()
    assert (tmp_path / "[x]" / "file").exists() and not path.exists()


def test_temporary_files_may_have_a_directory_with_special_characters(tmp_path, monkeypatch):
    (tmp_path / "[x]").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "[x]"))
    with plain_path(tmp_path / "[x]") as path:
        assert "[" not in str(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"needs a directory for temporary files: let TMPDIR name one"):
        plain_path(tmp_path / "[x]").__enter__()
