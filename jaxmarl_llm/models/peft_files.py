"""Adapters on disk, in PEFT's format: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import shapes
from jaxmarl_llm.models.lora import LINEAR, Adapter, Lora
from jaxmarl_llm.models.safetensors_files import (
    HUGGING_FACE,
    Slot,
    Tensor,
    check_fit,
    open_tensors,
    part,
    to_host,
    write_json,
    write_safetensors,
    written_whole,
)
from jaxmarl_llm.text.refusals import WORD, WORDS, either, listed, misfits, number, read_json, shown, whole

# Keys of adapter_config.json that are read, that say nothing of the numbers, or that only matter beside others.
KNOWN = (
    {"peft_type", "r", "lora_alpha", "bias", "init_lora_weights", "lora_dropout", "megatron_core", "qalora_group_size"}
    | {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "inference_mode", "task_type"}
    | {"base_model_name_or_path", "revision", "auto_mapping", "peft_version", "runtime_config"}
)
ONLY: dict[str, tuple] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),  # others change the base's weights too
}
KINDS = {
    **{"r": whole(1, 1 << 16), "lora_alpha": number(), "base_model_name_or_path": WORD, "task_type": WORD},
    **dict.fromkeys(("target_modules", "exclude_modules"), either(WORD, WORDS)),
}


def save_adapter(
    directory: str | Path, config: Config, lora: Lora, adapter: Adapter, base_name: str | None = None
) -> None:
    """Writes an adapter that peft.PeftModel.from_pretrained puts on the base, whose name or path is `base_name`.

    Raises ValueError if the directory exists or cannot be written, or if the adapter is not of this base.
    """
    check_adapter(config, lora, adapter)
    tensors = [
        Tensor(
            name,
            slot.shape,
            (leaf := adapter[slot.path[0]][slot.path[1]]).dtype.name,
            partial(to_host, leaf, slot.at),
        )
        for name, slot in adapter_slots(config, lora).items()
    ]
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(lora.maps),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with written_whole(Path(directory)) as unfinished:
        write_json(unfinished / "adapter_config.json", about)
        write_safetensors(unfinished / "adapter_model.safetensors", tensors)


def load_adapter(directory: str | Path, config: Config) -> tuple[Lora, Adapter]:
    """Settings and float32 adapter of a directory written by peft; which maps are adapted is read from its tensors.

    Raises ValueError that names what is not understood in its settings, or every tensor that does not fit the base.
    """
    directory = Path(directory)
    path, file = directory / "adapter_config.json", directory / "adapter_model.safetensors"
    about = read_json(path)
    problems = [
        f"{key} is {shown(about.get(key))} and must be {' or '.join(map(repr, possible))}"
        for key, possible in ONLY.items()
        if about.get(key) not in possible
    ]
    unknown = [(key, value) for key, value in about.items() if value and key not in KNOWN]
    problems += [f"{shown(key)[1:-1]} ({shown(value)}) is not known" for key, value in unknown]
    problems += [f"{key} is missing" for key in ("r", "lora_alpha") if about.get(key) is None]
    problems += misfits(about, KINDS)
    if problems:
        raise ValueError(f"{path} describes an adapter that is not computed here: {listed(problems)}.")
    if not file.is_file():
        raise ValueError(f"{directory} does not hold {file.name}: adapters are read in safetensors format only.")
    with ExitStack() as stack:
        stored = open_tensors(stack, [file])
        lora = Lora(about["r"], float(about["lora_alpha"]), adapted(stored, file))
        wanted = adapter_slots(config, lora)
        check_fit(wanted, stored)
        adapter: Adapter = {name: {} for name in adapter_shapes(config, lora)}
        for name, sides in adapter_shapes(config, lora).items():
            for side, shape in sides.items():
                tensors = [stored[key] for key, slot in wanted.items() if slot.path == (name, side)]
                leaf = part(tensors, shape, jnp.float32, 1, (slice(None),) * 3)
                adapter[name][side] = jax.device_put(leaf)
    return lora, adapter


def check_adapter(config: Config, lora: Lora, adapter: Adapter) -> None:
    """Raises ValueError unless the adapter has the shapes that its settings and the base give it."""
    expected = adapter_shapes(config, lora)
    given = {name: {side: tuple(leaf.shape) for side, leaf in ab.items()} for name, ab in adapter.items()}
    if given != expected:
        raise ValueError(f"The adapter's shapes {given} are not those of its settings and the base, {expected}.")


def adapter_shapes(config: Config, lora: Lora) -> dict[str, dict[str, tuple[int, ...]]]:
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    leaves = shapes(config)["layers"]
    for name in lora.maps:
        if name not in leaves:  # experts have no adapters
            continue
        layers, out, inner = leaves[name]
        found[name] = {"a": (layers, lora.rank, inner), "b": (layers, out, lora.rank)}
    return found


def adapter_slots(config: Config, lora: Lora) -> dict[str, Slot]:
    """Every tensor of an adapter, by the name that PEFT gives it."""
    return {
        f"base_model.model.{HUGGING_FACE[name].format(layer)}.lora_{side.upper()}.weight": Slot(
            (name, side), (layer,), shape[1:]
        )
        for name, sides in adapter_shapes(config, lora).items()
        for side, shape in sides.items()
        for layer in range(shape[0])
    }


def adapted(stored: Iterable[str], file: Path) -> tuple[str, ...]:
    """The linear maps that a file holds tensors for."""
    found = {match[1] for name in stored if (match := re.search(r"\.(\w+)\.lora_[AB]\.weight$", name))}
    maps = tuple(name for name in LINEAR if name in found)
    if not maps:
        raise ValueError(f"{file} adapts none of {', '.join(LINEAR)}.")
    return maps
