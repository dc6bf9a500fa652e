"""The arrays of a checkpoint as they lie on disk: a path that orbax takes for what it is, and the index read back."""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tensorstore import KvStore, ocdbt

PLAIN = re.compile(r"[\w./-]*", re.ASCII)
Shapes = dict[str, tuple[int, ...]]


@contextlib.contextmanager
def plain_path(directory: Path) -> Iterator[Path]:
    """A path to the directory without characters of a pattern, while the context lasts.

    orbax finds its files by `glob` on the whole path. A run in `[x]` then saves no index, and a run in `a*b` reads the
    files of a run in `acb`. So another path than one of letters, digits, dots, dashes and slashes is given as a link.
    Raises ValueError if no directory for the link can be written.
    """
    if PLAIN.fullmatch(str(directory)):
        yield directory
        return
    places = [place for place in (tempfile.gettempdir(), "/tmp", "/dev/shm") if PLAIN.fullmatch(place)]
    place = next((place for place in places if os.access(place, os.W_OK)), None)
    if place is None:
        raise ValueError(f"a run in {directory} needs a directory for temporary files: let TMPDIR name one")
    with tempfile.TemporaryDirectory(prefix="jaxmarl-", dir=place) as temporary:
        link = Path(temporary) / "checkpoints"
        link.symlink_to(directory, target_is_directory=True)
        yield link


def array_shapes(state: Any) -> Shapes:
    """{name in the index: shape} of each leaf of a state; a typed key has the shape of its data.

    Raises ValueError if two leaves have the same name there, as {"a.b": x, "a": {"b": y}} have.
    """
    shapes: Shapes = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in shapes:
            raise ValueError(f"two arrays of the state are named {name}: rename one")
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        shapes[name] = tuple(np.shape(leaf))
    return shapes


def stored_shapes(directory: Path) -> Shapes:
    """{name: shape} of each array in the index of a checkpoint that orbax wrote to a directory, opened anew.

    Raises ValueError if there is no index, or if a file ends before the data that the index places in it.
    """
    directory = next((file.parent for file in directory.glob("*/_METADATA")), directory)
    if not (directory / "manifest.ocdbt").is_file():
        raise ValueError("its index is missing")
    where = {"driver": "file", "path": f"{directory}/"}
    files = KvStore.open(where).result()
    newest = ocdbt.dump(files).result()["versions"][-1]
    index = KvStore.open({"driver": "ocdbt", "base": where}).result()
    shapes: Shapes = {}
    for entry in _entries(files, directory, newest["root"]["location"]):
        name, _, end = entry["key"].decode().rpartition("/")
        if end == "zarr.json":
            about = entry.get("inline_value") or index.read(entry["key"]).result().value
            shapes[name] = tuple(json.loads(about)["shape"])
    return shapes


def _entries(files: Any, directory: Path, node: str) -> Iterator[dict[str, Any]]:
    """The entries of all leaves below a node; each file reaches as far as the index says."""
    _check_extent(directory, node)
    for entry in ocdbt.dump(files, node).result()["entries"]:
        if "location" in entry:
            yield from _entries(files, directory, entry["location"])
        else:
            if "indirect_value" in entry:
                _check_extent(directory, entry["indirect_value"])
            yield entry


def _check_extent(directory: Path, place: str) -> None:
    """Raises ValueError unless a file holds the bytes of a place, "kind:base directory:file:start:length"."""
    _, base, file, start, length = place.split(":")
    path = directory / f"{base}{file}"
    size, end = path.stat().st_size if path.exists() else 0, int(start) + int(length)
    if size < end:
        raise ValueError(f"{path.relative_to(directory)} has {size} of {end} bytes")


def check_stored(directory: Path, expected: Shapes) -> None:
    """Raises ValueError unless the index of a checkpoint holds just these arrays, and the files all their data."""
    stored = stored_shapes(directory)
    for name in [*expected, *(name for name in stored if name not in expected)]:
        if stored.get(name) != expected.get(name):
            old, new = (shapes.get(name, "nothing") for shapes in (stored, expected))
            raise ValueError(f"the index holds {old} at {name or 'the root'} and not {new}")
