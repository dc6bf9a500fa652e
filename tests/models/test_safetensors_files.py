"""Tensors in files: dtypes, slices and shardings, shards and their index, what does not fit."""

import json
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from jaxmarl_llm.models import loading
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.hf_config import canonical
from jaxmarl_llm.models.safetensors_files import BLOCK, Stored, open_tensors, part
from tests.support.families import FAMILIES
from tests.support.families import weights as random_weights
from tests.support.model_files import CONFIG, edit, equal, stored


@pytest.mark.parametrize("stored_as", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_every_stored_dtype_is_read_as_any(tmp_path, params, stored_as, wanted):
    given = jax.tree.map(lambda leaf: np.asarray(leaf).astype(jnp.dtype(stored_as)), params)
    loading.save(tmp_path / "model", CONFIG, given)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == stored_as
    loaded = loading.load(tmp_path / "model", dtype=wanted)
    assert loaded.config == replace(CONFIG, dtypes=Dtypes(parameters=wanted))
    assert equal(loaded.params, jax.tree.map(lambda leaf: leaf.astype(jnp.dtype(wanted)), given))


def test_leaves_are_read_straight_into_their_shardings(tmp_path, params):
    loading.save(tmp_path / "model", CONFIG, params)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    specs = {
        "layers/q_proj": PartitionSpec(None, "a", "b"),
        "layers/k_proj": PartitionSpec("a"),
        "norm": PartitionSpec(("a", "b")),
    }
    loaded = loading.load(
        tmp_path / "model", sharding=lambda path, shape: NamedSharding(mesh, specs.get(path, PartitionSpec()))
    )
    assert equal(loaded.params, params)
    for path, spec in specs.items():
        assert loading.leaf_of(loaded.params, tuple(path.split("/"))).sharding == NamedSharding(mesh, spec)
    whole = loading.load(tmp_path / "model", sharding=NamedSharding(mesh, PartitionSpec()))
    assert equal(whole.params, params)
    assert whole.params["norm"].sharding.num_devices == 4
    loading.save(tmp_path / "again", CONFIG, loaded.params)
    assert stored(tmp_path / "again") == stored(tmp_path / "model")


def test_joined_maps_and_experts_are_read_by_slices(tmp_path):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    split = {"q_proj": (None, "a", "b"), "v_proj": (None, "b"), "up_proj": ("a", "b"), "experts_down": (None, "a", "b")}
    for name in ("phi3", "qwen3_moe"):
        config = canonical(FAMILIES[name])
        given = random_weights(config)
        loading.save(tmp_path / name, config, given)
        where = lambda path, _: NamedSharding(mesh, PartitionSpec(*split.get(path.rpartition("/")[2], ())))
        assert equal(loading.load(tmp_path / name, sharding=where).params, given)


def test_no_more_than_the_slice_asked_for_is_read_and_in_blocks():
    whole = [np.arange(24.0).reshape(6, 4) + 100 * layer for layer in range(3)]
    seen = []

    def read(layer, index):
        seen.append((layer, whole[layer][index].shape))
        return whole[layer][index]

    tensors = [Stored(Path(), (6, 4), "F32", partial(read, layer)) for layer in range(3)]
    got = part(tensors, (3, 6, 4), "float32", 1, (slice(1, 3), slice(2, None), slice(0, 3)))
    np.testing.assert_array_equal(got, np.stack(whole)[1:3, 2:, :3])
    assert seen == [(1, (4, 3)), (2, (4, 3))]
    assert got.ctypes.data % 64 == 0
    large = np.zeros((3, BLOCK // 4 // 2 + 1), np.float32)
    sizes = []

    def read_large(index):
        sizes.append(large[index].nbytes)
        return large[index]

    part([Stored(Path(), large.shape, "F32", read_large)], large.shape, "float32", 0, (slice(None),) * 2)
    assert len(sizes) == 3 and max(sizes) <= BLOCK


def test_arrays_that_took_the_memory_over_can_be_donated(tmp_path, params):
    loading.save(tmp_path / "model", CONFIG, params)
    loaded = loading.load(tmp_path / "model").params
    doubled = jax.jit(lambda tree: jax.tree.map(lambda leaf: 2 * leaf, tree), donate_argnums=0)(loaded)
    assert equal(doubled, jax.tree.map(lambda leaf: 2 * leaf, params))


@pytest.fixture
def sharded(tmp_path, params) -> Path:
    """A model whose tensors are dealt in turn to two files."""
    directory = tmp_path / "sharded"
    loading.save(directory, CONFIG, params)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names):
        save_file(dict(list(tensors.items())[i::2]), directory / name)
    index = {"weight_map": {tensor: names[i % 2] for i, tensor in enumerate(tensors)}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_sharded_weights(sharded, params):
    assert equal(loading.load(sharded).params, params)


def test_shards_are_no_larger_than_asked_and_indexed(tmp_path, params):
    loading.save(tmp_path / "one", CONFIG, params)
    loading.save(tmp_path / "many", CONFIG, params, shard_bytes=3000)
    assert [path.name for path in (tmp_path / "one").glob("*.safetensors*")] == ["model.safetensors"]
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == [file.name for file in files]
    assert index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    for file in files:
        tensors = load_file(file)
        assert sum(value.nbytes for value in tensors.values()) <= 3000
        assert {index["weight_map"][name] for name in tensors} == {file.name}
    assert stored(tmp_path / "many") == stored(tmp_path / "one")


def test_a_missing_or_cut_shard_is_named(sharded):
    second = sharded / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"model-00002-of-00002\.safetensors is truncated or corrupt .*fetch it again"):
        loading.load(sharded)
    second.unlink()
    with pytest.raises(ValueError, match=r"does not hold model-00002-of-00002\.safetensors"):
        loading.load(sharded)


def test_the_single_file_counts_beside_an_index(tmp_path, params):
    """transformers takes model.safetensors first."""
    loading.save(tmp_path / "model", CONFIG, params)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(loading.load(tmp_path / "model").params["norm"], params["norm"])


def test_a_tensor_in_two_shards_is_refused(sharded):
    first, second = sorted(sharded.glob("*.safetensors"))
    name = next(iter(load_file(first)))
    save_file(load_file(second) | {name: np.zeros_like(load_file(first)[name])}, second)
    with pytest.raises(ValueError, match=f"{name}' stands in .*{first.name} and in {second.name}: one of them must go"):
        loading.load(sharded)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "x.bin", 3]
)
def test_an_index_names_files_beside_it(sharded, name):
    edit(sharded / "model.safetensors.index.json", weight_map={"model.norm.weight": name})
    with pytest.raises(ValueError, match=r"index\.json (names|has no weight_map)"):
        loading.load(sharded)


def test_every_mismatch_is_reported_together(tmp_path):
    config = canonical(FAMILIES["qwen2"])
    loading.save(tmp_path / "model", config, random_weights(config))
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"], tensors["model.layers.1.self_attn.q_proj.bias"]
    tensors["model.layers.2.self_attn.k_proj.weight"] = np.zeros((8, 9), np.float32)
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].astype(np.int8)
    tensors["model.layers.3.mlp.up_proj.weight"] = np.zeros((12, 8), np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(2, np.float32)  # derived: not a problem
    save_file(tensors, file)
    with pytest.raises(ValueError) as error:
        loading.load(tmp_path / "model")
    start, problems = str(error.value).rstrip(".").split(": ", 1)
    assert start == f"The stored weights in {file.parent} do not fit the configuration"
    assert set(problems.split("; ")) == {
        "model.norm.weight (16,) is missing",
        "model.layers.1.self_attn.q_proj.bias (16,) is missing",
        f"model.layers.2.self_attn.k_proj.weight in {file.name} has shape (8, 9) instead of (8, 16)",
        f"model.layers.1.mlp.up_proj.weight in {file.name} is stored as I8 instead of F32, F16, BF16",
        f"model.layers.3.mlp.up_proj.weight in {file.name} is unexpected",
    }


def test_a_file_is_mapped_not_read(tmp_path, params):
    loading.save(tmp_path / "model", CONFIG, params)
    with ExitStack() as stack:
        found = open_tensors(stack, [tmp_path / "model" / "model.safetensors"])["model.norm.weight"]
        np.testing.assert_array_equal(found.read((slice(3, 7),)), params["norm"][3:7])
