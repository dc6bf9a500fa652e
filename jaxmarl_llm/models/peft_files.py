"""Adapters on disk in PEFT's format: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.models.config import Config, plain
from jaxmarl_llm.models.decoder import shapes
from jaxmarl_llm.models.lora import MAPS, TARGETS, Adapter, Lora
from jaxmarl_llm.models.safetensors_files import (
    HUGGING_FACE,
    Slot,
    Stored,
    Tensor,
    aligned_array,
    check_fit,
    joined_tensors,
    modules,
    open_tensors,
    slots,
    to_host,
    write_json,
    write_safetensors,
    written_whole,
)
from jaxmarl_llm.text.refusals import (
    FLAG,
    WORD,
    WORDS,
    either,
    join_problems,
    list_of,
    misfits,
    number,
    quote,
    read_json,
    table_of,
    whole,
)

PREFIX = "base_model.model."  # starts every name in an adapter's file
EMBED, HEAD = "model.embed_tokens", "lm_head"
# Keys of adapter_config.json that are read, change no numbers, or only matter beside other keys.
KNOWN = (
    {"peft_type", "r", "lora_alpha", "bias", "init_lora_weights", "lora_dropout", "megatron_core", "qalora_group_size"}
    | {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "inference_mode", "task_type"}
    | {"base_model_name_or_path", "revision", "auto_mapping", "peft_version", "runtime_config"}
    | {"use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save"}
)
ONLY: dict[str, tuple] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),  # others change the base's weights too
}
RANK = whole(1, 1 << 16)
LAYER = whole(0, 1 << 16)
KINDS = {
    **{"r": RANK, "lora_alpha": number(), "base_model_name_or_path": WORD, "task_type": WORD, "use_rslora": FLAG},
    **dict.fromkeys(("target_modules", "exclude_modules", "layers_pattern"), either(WORD, WORDS)),
    **{"layers_to_transform": either(LAYER, list_of(LAYER, "a list of them")), "modules_to_save": WORDS},
    **{"rank_pattern": table_of(RANK), "alpha_pattern": table_of(number())},
}


class Side(NamedTuple):
    """The adapter of a module: its rank, the factor `scale` of B A, and both matrices."""

    rank: int
    scale: float
    a: Stored
    b: Stored


def save_adapter(
    directory: str | Path, config: Config, lora: Lora, adapter: Adapter, base_name: str | None = None
) -> None:
    """Writes an adapter for peft.PeftModel.from_pretrained; `base_name` is the name or path of the base.

    Raises ValueError if the directory exists or cannot be written, or if the adapter does not fit the base.
    """
    check_adapter(config, lora, adapter)
    tensors: dict[str, Tensor] = {}
    for name, slot in adapter_slots(config, lora).items():
        leaf = adapter[slot.path[0]][slot.path[1]]
        tensors[name] = Tensor(name, slot.shape, leaf.dtype.name, partial(to_host, leaf, slot.at))
    patterns: dict[str, int] = {}  # {joined map: number of adapters in it}
    for whole_name, parts in joined_tensors(config).items():
        module, ends = whole_name.removesuffix(".weight"), [part.split(".")[-2] for part in parts]
        sides = {side: [tensors.pop(_side(part, side), None) for part in parts] for side in "AB"}
        if not any(sides["A"]):
            continue
        patterns[module.rpartition(".")[2]] = sum(side is not None for side in sides["A"])
        heights = [shapes(config)["layers"][end][1] for end in ends]
        for tensor in _join_adapters(f"{PREFIX}{module}", sides["A"], sides["B"], heights):
            tensors[tensor.name] = tensor
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({name.split(".")[-3] for name in tensors}, key=[*TARGETS, *patterns].index),
        "rank_pattern": {name: lora.rank * count for name, count in patterns.items()},
        "alpha_pattern": {name: lora.alpha * count for name, count in patterns.items()},
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with written_whole(Path(directory)) as unfinished:
        write_json(unfinished / "adapter_config.json", about)
        write_safetensors(unfinished / "adapter_model.safetensors", list(tensors.values()))


def load_adapter(directory: str | Path, config: Config) -> tuple[Lora, Adapter]:
    """(settings, float32 adapter of the linear maps) of a directory written by PEFT.

    The result has a single rank and scale. Smaller ranks, and layers without an adapter, are filled with zeros, which
    no gradient changes. Other scales are multiplied into b.

    Raises ValueError that names all unknown settings or all tensors that do not fit the base. An adapter that changes
    the base's own weights is refused too; `load_on` takes it.
    """
    _, _, adapter = load_on(directory, config, None)
    if adapter is None:
        raise ValueError(f"{directory} adapts none of {', '.join(TARGETS)}.")
    return adapter


def load_on(directory: str | Path, config: Config, params: Any) -> tuple[Config, Any, tuple[Lora, Adapter] | None]:
    """(config, params, adapter) of a base with an adapter's changes of its weights, and the adapter of its linear maps.

    Adapters of the embeddings and the head are added to these, in float32. Modules that were saved whole replace the
    base's. If only the head or only the embeddings change, they are no longer tied. Without `params` such an adapter
    is refused. Raises ValueError as `load_adapter` does.
    """
    directory = Path(directory)
    path, file = directory / "adapter_config.json", directory / "adapter_model.safetensors"
    about = read_settings(path)
    if not file.is_file():
        raise ValueError(f"{directory} does not hold {file.name}: adapters are read in safetensors format only.")
    with ExitStack() as stack:
        stored = open_tensors(stack, [file])
        sides, saved = sort_tensors(about, config, stored, file, path)
        of_base = [module for module in (EMBED, HEAD) if module in sides] + list(saved)
        if of_base and params is None:
            raise ValueError(
                f"{directory} changes weights of its base, not only its linear maps: {join_problems(of_base)}."
            )
        linear = {module: side for module, side in sides.items() if module not in (EMBED, HEAD)}
        adapter = stack_adapters(config, linear, float(about["lora_alpha"])) if linear else None
        if of_base:
            config, params = change_base(config, params, sides, saved)
    return config, params, adapter


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of an adapter. Raises ValueError for settings that are not supported."""
    about = read_json(path)
    problems = [
        f"{key} is {quote(about.get(key))} and must be {' or '.join(map(repr, possible))}"
        for key, possible in ONLY.items()
        if about.get(key) not in possible
    ]
    unknown = [(key, value) for key, value in about.items() if value and key not in KNOWN]
    problems += [f"{quote(key)[1:-1]} ({quote(value)}) is not known" for key, value in unknown]
    problems += [f"{key} is missing" for key in ("r", "lora_alpha") if about.get(key) is None]
    wrong = misfits(about, KINDS)
    if not wrong:
        texts = [value for key in ("target_modules", "exclude_modules") if isinstance(value := about.get(key), str)]
        texts += [key for name in ("rank_pattern", "alpha_pattern") for key in about.get(name) or ()]
        problems += [f"the pattern {quote(text)} is not followed" for text in texts if not followed(text)]
    if problems or wrong:
        raise ValueError(
            f"{path} describes an adapter that is not computed here: {join_problems([*problems, *wrong])}."
        )
    return about


def followed(pattern: str) -> bool:
    """True if a regular expression from a file matches in bounded time: few repetitions, and none of a group."""
    if (
        len(pattern) > 500
        or len(re.findall(r"[*+?{]", pattern.replace("(?:", "("))) > 4
        or re.search(r"\)[*+?{]", pattern)
    ):
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return not re.search(r"\\\d", pattern)


def targeted(about: Mapping[str, Any], module: str) -> bool:
    """True if PEFT puts an adapter on the module with these settings."""
    among = lambda names: any(module == name or module.endswith(f".{name}") for name in names)
    without, targets = about.get("exclude_modules") or [], about.get("target_modules") or []
    if re.fullmatch(without, module) if isinstance(without, str) else among(without):
        return False
    if any(f".{name}." in f".{module}." for name in about.get("modules_to_save") or ()):
        return False
    if targets == "all-linear":
        return module not in (EMBED, HEAD)
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    layers, place = about.get("layers_to_transform"), re.match(r"model\.(layers)\.(\d+)\.", module)
    if not among(targets) or layers in (None, []):
        return among(targets)
    names = about.get("layers_pattern") or "layers"
    known = place is not None and place[1] in ([names] if isinstance(names, str) else names)
    return known and int(place[2]) in ([layers] if isinstance(layers, int) else layers)  # type: ignore[index]


def sort_tensors(
    about: Mapping[str, Any], config: Config, stored: Mapping[str, Stored], file: Path, path: Path
) -> tuple[dict[str, Side], dict[str, Stored]]:
    """({module: adapter}, {name: tensor of the base}) in an adapter's file.

    Raises ValueError that lists all missing, unexpected and misshapen tensors.
    """
    whole = slots(replace(config, tie_word_embeddings=False), modules(config))
    joins = joined_tensors(config)
    parts = {part for names in joins.values() for part in names}
    sizes = {
        name: (sum(whole[part].shape[0] for part in names), whole[names[0]].shape[1]) for name, names in joins.items()
    }
    sizes |= {name: slot.shape for name, slot in whole.items() if slot.path[-1] in MAPS and name not in parts}  # type: ignore[misc]
    sizes = {name.removesuffix(".weight"): shape for name, shape in sizes.items()}
    sizes |= {name: (config.vocab_size, config.hidden_size) for name in (EMBED, HEAD)}

    wanted: dict[str, Slot] = {}
    settings: dict[str, tuple[int, float, tuple[str, str]]] = {}
    for module, (out, into) in sizes.items():
        if not targeted(about, module):
            continue
        rank, alpha = (
            next(
                (value for key, value in (about.get(pattern) or {}).items() if re.match(rf"(.*\.)?({key})$", module)),
                about[default],
            )
            for pattern, default in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
        )
        if module == EMBED:
            names = (f"{PREFIX}{module}.lora_embedding_A", f"{PREFIX}{module}.lora_embedding_B")
            into, out = out, into
        else:
            names = (_side(module, "A"), _side(module, "B"))
        settings[module] = rank, alpha / (rank**0.5 if about.get("use_rslora") else rank), names
        wanted |= {names[0]: Slot((module,), (), (rank, into)), names[1]: Slot((module,), (), (out, rank))}
    kept = about.get("modules_to_save") or ()
    saved = {name: slot for name, slot in whole.items() if any(f".{module}." in f".{name}" for module in kept)}
    saved |= {f"{side}.base_layer.weight": whole[f"{side}.weight"] for side in (EMBED, HEAD) if side in settings and
              f"{PREFIX}{side}.base_layer.weight" in stored}  # fmt: skip
    wanted |= {f"{PREFIX}{name}": slot for name, slot in saved.items()}
    if not wanted:
        raise ValueError(f"{path} adapts none of {', '.join(TARGETS)}.")
    check_fit(wanted, stored)
    adapters = {module: Side(rank, scale, stored[a], stored[b]) for module, (rank, scale, (a, b)) in settings.items()}
    return adapters, {name.replace(".base_layer", ""): stored[f"{PREFIX}{name}"] for name in saved}


def stack_adapters(config: Config, sides: Mapping[str, Side], alpha: float) -> tuple[Lora, Adapter]:
    """(`Lora` settings, weights): the adapters of all linear maps as one, with the largest rank and the first scale."""
    joins = {name.removesuffix(".weight"): parts for name, parts in joined_tensors(config).items()}
    first, rank = next(iter(sides.values())), max(side.rank for side in sides.values())
    alpha = alpha if first.scale == alpha / rank else first.scale * rank
    where = slots(config, modules(config))
    leaves = shapes(config)["layers"]
    host: dict[str, dict[str, np.ndarray]] = {}
    for module, side in sides.items():
        a, b = (read_whole(tensor) for tensor in (side.a, side.b))
        if side.scale != first.scale:
            b = b * np.float32(side.scale / first.scale)
        start = 0
        for name in joins.get(module, (f"{module}.weight",)):
            (_, leaf), (place,), (out, into) = where[name]
            layers = leaves[leaf][0]
            if leaf not in host:
                host[leaf] = {
                    "a": aligned_array((layers, rank, into), np.dtype(np.float32)),
                    "b": aligned_array((layers, out, rank), np.dtype(np.float32)),
                }
                for array in host[leaf].values():
                    array[...] = 0
            host[leaf]["a"][place, : side.rank] = a
            host[leaf]["b"][place, :, : side.rank] = b[start : start + out]
            start += out
    adapted = {plain(leaf) for leaf in host}
    lora = Lora(rank, alpha, tuple(name for name in TARGETS if name in adapted))
    for name, ab in adapter_shapes(config, lora).items():  # a leaf of layers without an adapter
        host.setdefault(name, {side: np.zeros(shape, np.float32) for side, shape in ab.items()})
    return lora, {name: jax.device_put(host[name]) for name in lora.maps if name in host}


def change_base(
    config: Config, params: Any, sides: Mapping[str, Side], saved: Mapping[str, Stored]
) -> tuple[Config, Any]:
    """(config, params) of the base with the saved modules, and with the adapters of embeddings and head added."""
    where = slots(replace(config, tie_word_embeddings=False), modules(config))
    both = {EMBED: params["embed_tokens"], HEAD: params.get("lm_head", params["embed_tokens"])}
    tied, layers = config.tie_word_embeddings, dict(params["layers"])
    rest = {name: leaf for name, leaf in params.items() if name not in ("embed_tokens", "lm_head", "layers")}
    for name, tensor in saved.items():
        module, slot, value = name.removesuffix(".weight"), where[name], read_whole(tensor)
        if module in both:
            both[module] = jnp.asarray(value, both[module].dtype)
        elif slot.at:
            leaf = layers[slot.path[-1]]
            layers[slot.path[-1]] = leaf.at[slot.at].set(value.astype(leaf.dtype))
        else:
            rest[slot.path[0]] = jnp.asarray(value, rest[slot.path[0]].dtype)
    for module in both:
        if module in sides:
            side, old = sides[module], both[module]
            product = side.scale * (read_whole(side.b) @ read_whole(side.a))
            product = product.T if module == EMBED else product
            both[module] = (old.astype(jnp.float32) + product).astype(old.dtype)
    tied = tied and both[EMBED] is both[HEAD]
    tree = {"embed_tokens": both[EMBED], "layers": layers, **rest}
    config = replace(config, tie_word_embeddings=tied)
    return config, tree if tied else {**tree, "lm_head": both[HEAD]}


def read_whole(tensor: Stored) -> np.ndarray:
    return tensor.read((slice(None),) * len(tensor.shape)).astype(np.float32)


def _side(module: str, side: str) -> str:
    return f"{PREFIX}{module.removesuffix('.weight')}.lora_{side}.weight"


def _join_adapters(
    module: str, a: Sequence[Tensor | None], b: Sequence[Tensor | None], heights: Sequence[int]
) -> list[Tensor]:
    """The adapter of a joined map: its parts' a's below each other, their b's as a block diagonal."""
    there = [tensor for tensor in a if tensor is not None]
    rank, into = there[0].shape

    def blocks() -> np.ndarray:
        made = np.zeros((sum(heights), rank * len(there)), jnp.dtype(there[0].dtype))
        start, at = 0, 0
        for tensor, height in zip(b, heights, strict=True):
            if tensor is not None:
                made[start : start + height, at : at + rank] = tensor.make()
                at += rank
            start += height
        return made

    over = partial(np.concatenate, axis=0)
    return [
        Tensor(
            f"{module}.lora_A.weight",
            (rank * len(there), into),
            there[0].dtype,
            lambda: over([t.make() for t in there]),
        ),
        Tensor(f"{module}.lora_B.weight", (sum(heights), rank * len(there)), there[0].dtype, blocks),
    ]


def check_adapter(config: Config, lora: Lora, adapter: Adapter) -> None:
    """Raises ValueError unless the adapter has the shapes of its settings and the base."""
    expected = adapter_shapes(config, lora)
    given = {name: {side: tuple(leaf.shape) for side, leaf in ab.items()} for name, ab in adapter.items()}
    if given != expected:
        raise ValueError(f"The adapter's shapes {given} are not those of its settings and the base, {expected}.")


def adapter_shapes(config: Config, lora: Lora) -> dict[str, dict[str, tuple[int, ...]]]:
    result: dict[str, dict[str, tuple[int, ...]]] = {}
    leaves = shapes(config)["layers"]
    for name in lora.maps:
        if name not in leaves:  # experts have no adapters
            continue
        layers, out, inner = leaves[name]
        result[name] = {"a": (layers, lora.rank, inner), "b": (layers, out, lora.rank)}
    return result


def adapter_slots(config: Config, lora: Lora) -> dict[str, Slot]:
    """{PEFT's name: slot} of all tensors of an adapter."""
    return {
        f"base_model.model.{HUGGING_FACE[name].format(layer)}.lora_{side.upper()}.weight": Slot(
            (name, side), (place,), shape[1:]
        )
        for name, sides in adapter_shapes(config, lora).items()
        for side, shape in sides.items()
        for place, layer in enumerate(config.layers_with(name))
    }
