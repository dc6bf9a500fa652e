"""A model's tensors in safetensors files: names, checks of shapes, reading by slices, writing one at a time."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxmarl_llm.models.config import GLOBAL, OF_HEADS, OF_MLP, WIDE, Config
from jaxmarl_llm.models.decoder import shapes
from jaxmarl_llm.models.layers import BESIDE_NORMS
from jaxmarl_llm.text.refusals import join_problems, quote

HUGGING_FACE = {  # {leaf of the tree of weights: its module}, with {} for the layer, and a second {} for the expert
    "embed_tokens": "model.embed_tokens",
    "norm": "model.norm",
    "lm_head": "lm_head",
    **{name: f"model.layers.{{}}.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")},
    **{name: f"model.layers.{{}}.self_attn.{name}" for name in ("q_norm", "k_norm")},
    **{name: f"model.layers.{{}}.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")},
    **{
        name: f"model.layers.{{}}.{name}"
        for name in (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        )
    },
    **{
        name: f"model.layers.{{}}.linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
    },
    **{name: f"model.layers.{{}}.linear_attn.{name}" for name in ("out_proj", "conv1d", "A_log")},
    **{"linear_norm": "model.layers.{}.linear_attn.norm", "dt": "model.layers.{}.linear_attn.dt_bias"},
    **{name: f"model.{name}" for name in ("embed_tokens_per_layer", "per_layer_model_projection")},
    "per_layer_projection_norm": "model.per_layer_projection_norm",
    **{name: f"model.layers.{{}}.{name}" for name in ("per_layer_input_gate", "per_layer_projection")},
    **{name: f"model.layers.{{}}.{name}" for name in ("post_per_layer_input_norm", "layer_scalar")},
}
HUGGING_FACE |= {GLOBAL + name: HUGGING_FACE[name] for name in OF_HEADS}
HUGGING_FACE |= {WIDE + name: HUGGING_FACE[name] for name in OF_MLP}
BARE = "A_log", "dt", "layer_scalar", "router_scale", "expert_scale"  # leaves whose module is a parameter itself
EXPERTS = "gate", "up", "down"
OWN_MODULES = {  # {model_type: other modules}
    "mixtral": {
        "router": "model.layers.{}.block_sparse_moe.gate",
        **{
            f"experts_{name}": f"model.layers.{{}}.block_sparse_moe.experts.{{}}.{module}"
            for name, module in zip(EXPERTS, ("w1", "w3", "w2"), strict=True)
        },
    },
    "qwen3_moe": {
        "router": "model.layers.{}.mlp.gate",
        **{f"experts_{name}": f"model.layers.{{}}.mlp.experts.{{}}.{name}_proj" for name in EXPERTS},
    },
    "gemma4_text": {
        "router": "model.layers.{}.router.proj",
        "router_scale": "model.layers.{}.router.scale",
        "expert_scale": "model.layers.{}.router.per_expert_scale",
        **{f"experts_{name}": f"model.layers.{{}}.experts.{{}}.{name}_proj" for name in EXPERTS},
        **{name: f"model.layers.{{}}.{name}" for name in BESIDE_NORMS},
    },
}
JOINED = {  # {model_type: {module: the maps that it joins along the rows}}
    "phi3": {
        "model.layers.{}.self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "model.layers.{}.mlp.gate_up_proj": ("gate_proj", "up_proj"),
    }
}
JOINED_EXPERTS = {  # {model_type: {tensor [experts, rows, columns]: the maps of each expert that it joins}}
    "gemma4_text": {
        "model.layers.{}.experts.gate_up_proj": ("gate", "up"),
        "model.layers.{}.experts.down_proj": ("down",),
    }
}
FORMATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
BLOCK = 1 << 24  # bytes read at a time, which are in memory twice


class Slot(NamedTuple):
    """The place of a stored tensor: a leaf of the tree of weights, a layer of it, or an expert of a layer."""

    path: tuple[str, ...]
    at: tuple[int, ...]  # (), (place of the layer in the stack,) or (that, expert)
    shape: tuple[int, ...]


class Stored(NamedTuple):
    """A tensor in a file, not yet read; `read` takes a slice per axis."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[tuple[slice, ...]], np.ndarray]


class Tensor(NamedTuple):
    """A tensor to be written; `make` returns it in memory."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    make: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * jnp.dtype(self.dtype).itemsize


def modules(config: Config) -> Mapping[str, str]:
    """{leaf: module} in Hugging Face's layout, with joined maps separate."""
    return HUGGING_FACE | OWN_MODULES.get(config.model_type, {})


def slots(config: Config, modules: Mapping[str, str]) -> dict[str, Slot]:
    """{name: slot} of all tensors of a model of this configuration, with names by `modules`."""
    result: dict[str, Slot] = {}
    for keys, shape in jax.tree.leaves_with_path(shapes(config), is_leaf=lambda node: isinstance(node, tuple)):
        path = tuple(key.key for key in keys)
        name = modules[path[-1].removesuffix("_bias")]
        if path[-1] not in BARE:
            name += ".bias" if path[-1].endswith("_bias") else ".weight"
        layers = config.layers_with(path[-1])
        for at in np.ndindex(stack(path, shape)):
            number = (layers[at[0]], *at[1:]) if at else ()
            result[name.format(*number)] = Slot(path, at, shape[len(at) :])
    return result


def stack(path: Sequence[str], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the axes along which a leaf stacks tensors: layers and experts."""
    return shape[: (path[0] == "layers") + path[-1].startswith("experts_")]


def joined_tensors(config: Config) -> dict[str, tuple[str, ...]]:
    """{name of a joined tensor: the names in `slots` that it joins} of a model_type."""
    result = {}
    for module, names in JOINED.get(config.model_type, {}).items():
        for layer in range(config.num_hidden_layers):
            parts = tuple(f"{HUGGING_FACE[name]}.weight".format(layer) for name in names)
            result[f"{module}.weight".format(layer)] = parts
    return result


def joined_experts(config: Config) -> dict[str, tuple[str, ...]]:
    """{name of a tensor of all experts of a layer: the names in `slots` that it joins, expert by expert}."""
    result = {}
    for tensor, names in JOINED_EXPERTS.get(config.model_type, {}).items() if config.num_experts else ():
        where = [f"{modules(config)[f'experts_{name}']}.weight" for name in names]
        for layer in range(config.num_hidden_layers):
            parts = (name.format(layer, expert) for expert in range(config.num_experts) for name in where)
            result[tensor.format(layer)] = tuple(parts)
    return result


def split_joined(config: Config, stored: Mapping[str, Stored], wanted: Mapping[str, Slot]) -> dict[str, Stored]:
    """The stored tensors, with joined ones of the right shape split into their parts."""
    result = dict(stored)
    of_experts = joined_experts(config)
    for name, parts in (joined_tensors(config) | of_experts).items():
        experts = config.num_experts * (name in of_experts)
        rows = [wanted[part].shape[0] for part in parts]
        if name not in stored or stored[name].shape != joined_shape(experts, [wanted[part].shape for part in parts]):
            continue
        whole = result.pop(name)
        for part, count, end in zip(parts, rows, np.cumsum(rows).tolist(), strict=True):
            if part in stored:
                raise ValueError(f"{quote(part)} stands beside {quote(name)}: one of them must go.")
            read = partial(_rows, whole, end - count, count)
            result[part] = whole._replace(shape=(count, *whole.shape[-1:]), read=read)
    return result


def joined_shape(experts: int, parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of a joined tensor with parts of these shapes, [rows, columns] or [experts, rows, columns]."""
    rows, columns = sum(part[0] for part in parts), parts[0][1]
    return (experts, rows // experts, columns) if experts else (rows, columns)


def _rows(whole: Stored, first: int, count: int, index: tuple[slice, ...]) -> np.ndarray:
    start, stop, _ = index[0].indices(count)
    if len(whole.shape) == 2:
        return whole.read((slice(first + start, first + stop), *index[1:]))
    expert, first = divmod(first, whole.shape[1])
    return whole.read((slice(expert, expert + 1), slice(first + start, first + stop), *index[1:]))[0]


def check_fit(
    wanted: Mapping[str, Slot], stored: Mapping[str, Stored], spare: Callable[[str], Any] = lambda name: False
) -> None:
    """Raises ValueError that lists all missing, unexpected or misshapen tensors; `spare` ones may be left over."""
    problems = [f"{name} {slot.shape} is missing" for name, slot in wanted.items() if name not in stored]
    for name, tensor in stored.items():
        where = f"{quote(name, 100)[1:-1]} in {tensor.file.name}"
        if name not in wanted:
            problems += [] if spare(name) else [f"{where} is unexpected"]
        elif tensor.shape != wanted[name].shape:
            problems.append(f"{where} has shape {tensor.shape} instead of {wanted[name].shape}")
        elif tensor.dtype not in FORMATS:
            problems.append(f"{where} is stored as {tensor.dtype} instead of {', '.join(FORMATS)}")
    if problems:
        where = f" in {next(iter(stored.values())).file.parent}" if stored else ""
        raise ValueError(f"The stored weights{where} do not fit the configuration: {join_problems(problems)}.")


def open_tensors(stack: ExitStack, files: Sequence[Path]) -> dict[str, Stored]:
    """The tensors of safetensors files by name; the files stay mapped into memory until the stack closes.

    Raises ValueError for a file that is truncated or corrupt, and for a name in two files.
    """
    stored: dict[str, Stored] = {}
    for file in files:
        try:
            opened = stack.enter_context(safe_open(file, framework="numpy"))
        except (SafetensorError, OSError, ValueError, OverflowError) as error:
            raise ValueError(f"{file} is truncated or corrupt ({quote(str(error))}); fetch it again.") from error
        for name in opened.keys():  # noqa: SIM118 - not a mapping
            if name in stored:
                raise ValueError(
                    f"{quote(name)} stands in {stored[name].file} and in {file.name}: one of them must go."
                )
            view = opened.get_slice(name)
            stored[name] = Stored(file, tuple(view.get_shape()), view.get_dtype(), view.__getitem__)
    return stored


def part(
    tensors: Sequence[Stored], shape: tuple[int, ...], dtype: Any, stacked: int, index: tuple[slice, ...]
) -> np.ndarray:
    """The slice `index` of a leaf of this shape, in `dtype`; `tensors` are in the order of its first `stacked` axes.

    At most BLOCK bytes are in memory twice. The result is aligned, so that a CPU device takes it without a copy.
    """
    bounds = [slice(*cut.indices(size)) for cut, size in zip(index, shape, strict=True)]
    out = aligned_array(tuple(cut.stop - cut.start for cut in bounds), jnp.dtype(dtype))
    first, bounds = [cut.start for cut in bounds[:stacked]], bounds[stacked:]
    for place in np.ndindex(out.shape[:stacked]):
        target = out[place]
        tensor = tensors[int(np.ravel_multi_index(np.add(place, first).tolist(), shape[:stacked])) if stacked else 0]
        rows = max(1, BLOCK // max(1, target[:1].nbytes))
        for at in range(0, len(target), rows):
            block = target[at : at + rows]
            start = bounds[0].start + at
            block[...] = tensor.read((slice(start, start + len(block)), *bounds[1:]))
    return out


def aligned_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array whose address is a multiple of 64."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def to_host(leaf: Any, index: tuple[int, ...]) -> np.ndarray:
    """A leaf, or its part at `index` of the first axes, as a NumPy array.

    It is made of a copy, because a jax array keeps the result of np.asarray in memory.
    """
    if isinstance(leaf, np.ndarray):
        return leaf[index]
    if not index:
        return np.asarray(jnp.copy(leaf))
    rest = leaf.shape[len(index) :]
    start = (*index, *(0,) * len(rest))
    return np.asarray(jax.lax.dynamic_slice(leaf, start, (*(1,) * len(index), *rest)).reshape(rest))


def write_tensors(directory: Path, tensors: Sequence[Tensor], shard_bytes: float) -> None:
    """Writes model.safetensors, or shards of at most `shard_bytes` (or a single tensor) and their index.

    A single tensor is in memory at a time; safetensors' writer needs a whole file.
    """
    groups: list[list[Tensor]] = []
    room = 0.0
    for tensor in tensors:
        if not groups or tensor.nbytes > room:
            groups.append([])
            room = shard_bytes
        groups[-1].append(tensor)
        room -= tensor.nbytes
    names = ["model.safetensors"]
    if len(groups) > 1:
        names = [f"model-{i + 1:05}-of-{len(groups):05}.safetensors" for i in range(len(groups))]
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors)},
            "weight_map": {t.name: name for name, group in zip(names, groups, strict=True) for t in group},
        }
        write_json(directory / "model.safetensors.index.json", index)
    for name, group in zip(names, groups, strict=True):
        write_safetensors(directory / name, group)


def write_safetensors(path: Path, tensors: Sequence[Tensor]) -> None:
    """Writes the tensors, one in memory at a time, and checks the file by opening it again.

    Raises ValueError for a dtype that cannot be written, and if the file has other names, dtypes, shapes or sizes.
    """
    codes = {name: code for code, name in FORMATS.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers requires it
    at = 0
    for tensor in tensors:
        if tensor.dtype not in codes:
            raise ValueError(f"{tensor.name} is of {tensor.dtype}; what can be written is {', '.join(codes)}.")
        end = at + tensor.nbytes
        header[tensor.name] = {"dtype": codes[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            value = np.ascontiguousarray(tensor.make(), jnp.dtype(tensor.dtype))
            if value.shape != tensor.shape:
                raise ValueError(f"{tensor.name} has shape {value.shape} instead of {tensor.shape}.")
            file.write(value.reshape(-1).view(np.uint8).data)
    with ExitStack() as stack:
        stored = {name: (t.dtype, t.shape) for name, t in open_tensors(stack, [path]).items()}
    if stored != {tensor.name: (codes[tensor.dtype], tensor.shape) for tensor in tensors}:
        raise ValueError(f"{path} does not hold the tensors that were written to it.")


@contextmanager
def written_whole(directory: Path) -> Iterator[Path]:
    """A context with a temporary directory, which is renamed to `directory` if the block ends without an error.

    Raises ValueError if the directory exists or cannot be written.
    """
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


def sha256(*files: Path) -> str:
    """The SHA256 of the concatenated files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
