"""config.json to Config and back. Unknown keys that may change numbers are refused, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from jaxmarl_llm.models.config import ACTIVATIONS, FULL, SLIDING, Config, Dtypes, Rope
from jaxmarl_llm.models.config import FAMILIES as MODEL
from jaxmarl_llm.models.hf_families import (
    ALWAYS,
    ARCHITECTURES,
    EXPERTS,
    FAMILIES,
    IDS,
    IMAGE_ANGLES,
    KEYS,
    NULL,
    ONLY,
    OTHERS,
    OWN_NAMES,
    OWN_ONLY,
    ROPE,
    ROPE_KEYS,
    ROPE_REQUIRED,
    ROPES,
    SIZES,
    UNBOUNDED,
    WITHOUT_NUMBERS,
    WRAPPED,
    WRAPPER_KEYS,
)
from jaxmarl_llm.text.refusals import WORD, join_problems, misfits, quote, read_json


def read_config(path: Path, dtypes: Dtypes | None = None) -> Config:
    """The Config of a config.json. Raises ValueError for a file that is missing or no JSON object, for missing or
    unknown keys, and for values that `decoder.forward` does not support."""
    try:
        return from_json(read_json(path), dtypes or Dtypes())
    except Refused as error:
        raise ValueError(f"{path} describes a model that this decoder does not compute: {error}.") from error


class Refused(ValueError):
    """A configuration is not supported; the message does not name the file."""


def from_json(given: Mapping[str, Any], dtypes: Dtypes) -> Config:
    """The Config of a config.json's keys. Raises Refused with all problems.

    Long because all problems of a file are reported together.
    """
    family: Any = given.get("model_type")
    if WORD.fits(family) and family in WRAPPED:
        given = text_of(given, *WRAPPED[family], bounded=family not in UNBOUNDED)
        family = given["model_type"]
    if not WORD.fits(family) or family not in FAMILIES:
        raise Refused(f"model_type is {quote(family)} and must be one of {', '.join([*FAMILIES, *WRAPPED])}")
    defaults = FAMILIES[family]
    for name, other in (EXPERTS, EXPERTS[::-1]):
        if name in defaults and given.get(name) is None and other in given:  # transformers 5 accepts both names
            given = {name: given[other], **{key: value for key, value in given.items() if key not in EXPERTS}}
    known = {*SIZES, *defaults, "rope_scaling", "rope_parameters", *WITHOUT_NUMBERS}
    known |= {"per_layer_config"} if "global_head_dim" in defaults else set()
    only = ONLY | OWN_ONLY.get(family, {})
    problems = [f"{key} is missing" for key in SIZES if given.get(key) is None]
    wrong = misfits({key: given[key] for key in given if key in {*SIZES, *defaults, "eos_token_id"}}, KEYS)
    for key, value in given.items():
        if key in known:
            continue
        if key in only and value not in only[key]:
            problems.append(f"{key} is {quote(value)} and must be {' or '.join(map(repr, only[key]))}")
        elif key not in only:
            problems.append(f"{quote(key)[1:-1]} ({quote(value)}) is not known")
    if wrong:
        raise Refused(join_problems([*problems, *wrong]))
    values = {key: default for key, default in defaults.items() if key not in given or given[key] is None}
    values |= {key: given[key] for key in (*SIZES, *defaults) if given.get(key) is not None}
    values |= {key: None for key in NULL & given.keys() & defaults.keys() if given[key] is None}
    values |= ALWAYS.get(family, {})

    act = values.pop("hidden_activation", None) or values.pop("hidden_act")
    if act not in ACTIVATIONS:
        problems.append(f"hidden_act is {quote(act)} and must be {' or '.join(ACTIVATIONS)}")
    rope, rope_sliding = ropes(given, values, problems)
    if problems:
        raise Refused(join_problems(problems))
    heads, layers = values["num_attention_heads"], values["num_hidden_layers"]
    values["num_key_value_heads"] = values["num_key_value_heads"] or heads
    values["head_dim"] = values["head_dim"] or defaults["head_dim"] or values["hidden_size"] // heads
    if "enable_moe_block" in defaults:
        values |= experts_beside(values)
    else:
        values["intermediate_size"] = values.pop("moe_intermediate_size", values["intermediate_size"])
    values |= {field: values[name] for name, field in OWN_NAMES.items() if name in values}
    if "no_rope_layers" in values:
        interval = values["no_rope_layer_interval"]
        turned = [int((layer + 1) % interval != 0) for layer in range(layers)]
        if values["no_rope_layers"] is not None:
            turned = values["no_rope_layers"][:layers]  # the list may be longer, as in transformers
        if len(turned) < layers:
            raise Refused(f"no_rope_layers names {len(turned)} of {layers} layers")
        values["no_rope_layers"] = tuple(turned)
    kinds = layer_types(family, values, layers)
    if given.get("layer_types") is not None and len(kinds) != layers:
        raise Refused(f"layer_types names {len(kinds)} of {layers} layers")
    if "global_head_dim" in defaults:
        values |= global_heads(given, values, kinds)
    possible = MODEL[family].kinds
    if unknown := [kind for kind in kinds if kind not in possible]:
        raise Refused(f"layer_types holds {quote(unknown[0])} and must hold {' or '.join(possible)}")
    try:
        return canonical(
            Config(
                **{field.name: values[field.name] for field in fields(Config) if field.name in values},
                rope=rope,
                rope_sliding=rope_sliding,
                layer_types=kinds,
                model_type=family,
                hidden_act=act,
                dtypes=dtypes,
            )
        )
    except ValueError as error:
        raise Refused(str(error).rstrip(".")) from error


def text_of(
    given: Mapping[str, Any], family: str, sizes: Mapping[str, int], ties: bool, bounded: bool
) -> dict[str, Any]:
    """The text model's keys in the config.json of a model of text and images. Raises Refused with all problems.

    `sizes` and `ties`, if embeddings are tied to the head, are the defaults. Logits may be bounded only if `bounded`.
    """
    text = given.get("text_config")
    if not isinstance(text, Mapping):
        raise Refused(f"text_config is {quote(text)} and must be a table of settings")
    unknown = [key for key in given if key not in WRAPPER_KEYS | WITHOUT_NUMBERS]
    problems = [f"{quote(key)[1:-1]} ({quote(given[key])}) is not known" for key in unknown]
    if text.get("model_type", family) != family:
        problems.append(f"model_type of text_config is {quote(text['model_type'])} and must be {family}")
    tied = ties if given.get("tie_word_embeddings") is None else given["tie_word_embeddings"]
    if text.get("tie_word_embeddings") not in (None, tied):
        problems.append(f"tie_word_embeddings is {quote(tied)}, but not in text_config")
    if (
        text.get("final_logit_softcapping") is not None and not bounded
    ):  # transformers' model of text and images ignores it
        problems.append(f"final_logit_softcapping is {quote(text['final_logit_softcapping'])} and must be None here")
    if problems:
        raise Refused(join_problems(problems))
    settings = {key: value for key, value in text.items() if value is not None or key not in sizes}
    ends = {"eos_token_id": given["eos_token_id"]} if "eos_token_id" in given else {}
    return {**sizes, **settings, **ends, "model_type": family, "tie_word_embeddings": tied}


def experts_beside(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes of experts beside the MLPs, 0 without experts. Raises Refused for a missing one."""
    keys = "num_experts", "top_k_experts", "moe_intermediate_size"
    if not values["enable_moe_block"]:
        return {**dict.fromkeys(keys, 0), "norm_topk_prob": False}  # they may stand there, and are not read
    if missing := [key for key in keys if values[key] is None]:
        raise Refused(f"enable_moe_block is True, but {' and '.join(missing)} is missing")
    return {}


def global_heads(given: Mapping[str, Any], values: Mapping[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Sizes of the heads of full layers, by the layers of per_layer_config if it is given. Raises Refused."""
    sizes = {"head_dim": values["global_head_dim"], "num_key_value_heads": values["num_global_key_value_heads"]}
    if not values["attention_k_eq_v"]:
        sizes["num_key_value_heads"] = None  # as in transformers
    layers = given.get("per_layer_config")
    if layers is not None:
        if not isinstance(layers, Mapping):
            raise Refused(f"per_layer_config is {quote(layers)}, not a table of settings")
        base = {key: values[key] for key in sizes}
        by_kind: dict[str, dict[str, Any]] = {}
        for layer, kind in enumerate(kinds):
            changes: Any = layers.get(str(layer), {})
            if not isinstance(changes, Mapping) or changes.keys() - base.keys() or misfits(dict(changes), KEYS):
                raise Refused(
                    f"per_layer_config has {quote(changes)} for layer {layer}, not other sizes of heads alone"
                )
            changed = {**base, **changes}
            if by_kind.setdefault(kind, base if kind == SLIDING else changed) != changed:
                raise Refused(f"per_layer_config has {quote(changes)} for layer {layer}, unlike others of its kind")
        if unknown := layers.keys() - {str(layer) for layer in range(len(kinds))}:
            raise Refused(f"per_layer_config names {quote(min(map(str, unknown)))}, which is no layer")
        sizes = by_kind.get(FULL, sizes)
    if sizes["num_key_value_heads"] == values["num_key_value_heads"]:
        sizes["num_key_value_heads"] = None
    if sizes["num_key_value_heads"] and not values["attention_k_eq_v"]:  # no other key could say it in a saved file
        raise Refused(f"per_layer_config has {sizes['num_key_value_heads']} key-value heads without attention_k_eq_v")
    return {"global_head_dim": sizes["head_dim"], "num_global_key_value_heads": sizes["num_key_value_heads"]}


def layer_types(family: str, values: dict[str, Any], layers: int) -> tuple[str, ...]:
    """The type of every layer. Sets `sliding_window` in `values` to None if no layer uses it."""
    if not values.get("use_sliding_window", True):
        values["sliding_window"] = None
    given = values.pop("layer_types", None)
    if given is not None:
        return tuple(given)
    other = OTHERS.get(family)
    if other is None or ("sliding_window" in values and values["sliding_window"] is None and not windowed(family)):
        return ()
    _, kind = MODEL[family].kinds
    return tuple(kind if other(values, layer) else FULL for layer in range(layers))


def is_gemma(family: str) -> bool:
    """True if the configuration class has `query_pre_attn_scalar`."""
    return "query_pre_attn_scalar" in FAMILIES[family]


def windowed(family: str) -> bool:
    """True if the configuration class always has a sliding window."""
    return "final_logit_softcapping" in FAMILIES[family]


def ropes(given: Mapping[str, Any], values: dict[str, Any], problems: list[str]) -> tuple[Rope, Rope | None]:
    """The rotary embeddings of full layers and, for Gemma, of sliding layers; appends to `problems`.

    Up to version 4 transformers wrote rope_theta and rope_scaling; version 5 writes rope_parameters, for Gemma by layer
    type. Both are read. The bases are removed from `values`.
    """
    if default := ROPES.get(given["model_type"]):
        if given.get("rope_scaling") is not None:
            problems.append("rope_scaling is given, but this model_type has rope_parameters by type of layer")
        tables = table_in(given, "rope_parameters", problems)
        bases = {kind: table.get("rope_theta") for kind, table in tables.items() if isinstance(table, Mapping)}
        problems += [f"rope_theta of {quote(kind)[1:-1]} is missing" for kind, base in bases.items() if base is None]
        return ropes_by_kind(tables or default, default, values, problems)
    theta, local = values.pop("rope_theta"), values.pop("rope_local_base_freq", None)
    positions, partial = values["max_position_embeddings"], values.get("partial_rotary_factor")
    scaling, parameters = (table_in(given, key, problems) for key in ("rope_scaling", "rope_parameters"))
    if scaling and parameters:
        problems.append("rope_scaling and rope_parameters are both given")
    if "rope_theta" in given and parameters.get("rope_theta", theta) != theta:
        problems.append(f"rope_theta is {theta!r}, but {quote(parameters['rope_theta'])} in rope_parameters")
    if local is None:
        table = dict(parameters or scaling)
        if partial is not None:
            if wrong := misfits(table, ROPE):
                problems += wrong
                return Rope(), None
            partial = table.pop("partial_rotary_factor", None) or partial
            if "original_max_position_embeddings" not in values:  # Qwen 3.5
                table = {key: value for key, value in table.items() if key not in IMAGE_ANGLES}
            # Phi 3 also has these keys outside the table, and they take precedence
            elif table.get("rope_type", table.get("type")) in ("su", "longrope"):
                table |= {"rope_type": "longrope"}
                table["original_max_position_embeddings"] = values["original_max_position_embeddings"]
            elif table.get("rope_type", table.get("type", "default")) != "default":
                problems.append(f"rope_type is {quote(table.get('rope_type', table.get('type')))} and must be longrope")
                return Rope(), None
        rope = rope_of(table, theta, positions, problems)
        return (rope if partial is None else replace(rope, partial_rotary_factor=partial)), None
    tables = {FULL: {**scaling, "rope_theta": scaling.get("rope_theta", theta)}, SLIDING: {"rope_theta": local}}
    return ropes_by_kind(parameters, tables, values, problems)


def ropes_by_kind(
    parameters: Mapping[str, Any], default: Mapping[str, Mapping[str, Any]], values: dict[str, Any], problems: list[str]
) -> tuple[Rope, Rope]:
    """The rotary embeddings of (full, sliding) layers of rope_parameters by kind; appends to `problems`.

    The table of a kind that has none is the default's, and so is a base that a table does not name.
    """
    unknown = parameters.keys() - {FULL, SLIDING}
    problems += [f"rope_parameters holds {quote(key)[1:-1]}, not only {FULL} and {SLIDING}" for key in sorted(unknown)]
    positions, theta = values["max_position_embeddings"], {kind: default[kind]["rope_theta"] for kind in default}
    tables = {kind: table_in(parameters, kind, problems) or default[kind] for kind in (FULL, SLIDING)}
    full, sliding = (rope_of(tables[kind], theta[kind], positions, problems) for kind in (FULL, SLIDING))
    return full, sliding


def table_in(given: Mapping[str, Any], key: str, problems: list[str]) -> Mapping[str, Any]:
    """The table under a key, empty if absent; any other value is appended to `problems`."""
    value = given.get(key)
    if value is not None and not isinstance(value, Mapping):
        problems.append(f"{key} is {quote(value)}, not a table of settings")
    return value if isinstance(value, Mapping) else {}


def rope_of(given: Mapping[str, Any], theta: float, positions: int, problems: list[str]) -> Rope:
    kind: Any = given.get("rope_type", given.get("type", "default"))
    if not WORD.fits(kind) or kind not in ROPE_KEYS:
        problems.append(f"rope_type is {quote(kind)} and must be {' or '.join(ROPE_KEYS)}")
        return Rope()
    values = {key: value for key, value in given.items() if value is not None and key not in ("type", "rope_type")}
    theta = values.pop("rope_theta", theta)
    for key, value in values.items():
        if key in ROPE_KEYS[kind]:
            continue
        if key in ONLY and value not in ONLY[key]:
            problems.append(f"{key} is {quote(value)} and must be {' or '.join(map(repr, ONLY[key]))}")
        elif key not in ONLY:
            problems.append(f"{quote(key)[1:-1]} ({quote(value)}) is not known to rope_type {kind}")
    if wrong := misfits(given, ROPE):
        problems += wrong
        return Rope()
    missing = [key for key in ROPE_KEYS[kind] if key in ROPE_REQUIRED and key not in values]
    read = {key: values[key] for key in ROPE_KEYS[kind] if key in values}
    read |= {key: tuple(value) for key, value in read.items() if isinstance(value, list)}
    if "original_max_position_embeddings" in ROPE_KEYS[kind]:
        read.setdefault("original_max_position_embeddings", positions)
    if "factor" in missing and (kind == "longrope" or (kind == "yarn" and "factor" in given)):  # null for yarn
        missing.remove("factor")
        read["factor"] = positions / read["original_max_position_embeddings"]
    problems += [f"{key} of rope_type {kind} is missing" for key in missing]
    try:
        return Rope(rope_theta=theta, rope_type=kind, **read)
    except ValueError as error:
        problems.append(str(error).rstrip("."))
        return Rope()


def canonical(config: Config) -> Config:
    """The representative that `read_config` returns, of all Configs that compute the same numbers."""
    scalar = config.query_pre_attn_scalar
    if is_gemma(config.model_type):
        config = replace(config, query_pre_attn_scalar=scalar or config.head_dim)
    elif scalar == config.head_dim:
        config = replace(config, query_pre_attn_scalar=None)
    if all(config.no_rope_layers):
        config = replace(config, no_rope_layers=())
    if not config.hidden_size_per_layer_input:
        config = replace(config, vocab_size_per_layer_input=0)
    if config.num_global_key_value_heads == config.num_key_value_heads:
        config = replace(config, num_global_key_value_heads=None)
    if set(config.kinds) == {FULL}:
        config = replace(config, layer_types=())
    if not any(config.sliding):
        return replace(config, sliding_window=None, rope_sliding=None)
    return replace(config, rope_sliding=config.rope_sliding or config.rope) if local_rope(config) else config


def local_rope(config: Config) -> bool:
    """True if the family's sliding layers have another rotary embedding than its full layers."""
    return "rope_local_base_freq" in FAMILIES[config.model_type] or config.model_type in ROPES


def config_json(config: Config) -> dict[str, Any]:
    """The config.json of a Config, if possible in the layout that all versions of transformers read.

    Token ids are null, because a Config has none. Raises ValueError for a Config that the family's configuration class
    cannot describe.
    """
    config = canonical(config)
    family = FAMILIES[config.model_type]
    names = {field.name for field in fields(Config)}
    said: dict[str, Any] = {key: getattr(config, key) for key in names}
    said |= {"num_local_experts": config.num_experts, "moe_intermediate_size": config.intermediate_size}
    if "enable_moe_block" in family:
        said |= {"enable_moe_block": bool(config.num_experts), "num_experts": config.num_experts or None}
        said |= {"top_k_experts": config.num_experts_per_tok or None}
        said |= {"moe_intermediate_size": config.moe_intermediate_size or None}
    said |= {"no_rope_layers": list(config.no_rope_layers or (1,) * config.num_hidden_layers)}
    said |= {"partial_rotary_factor": config.rope.partial_rotary_factor}
    said |= {"layer_types": list(config.kinds)}
    said |= {"vocab_size_per_layer_input": config.vocab_size_per_layer_input or config.vocab_size}
    said |= {"use_sliding_window": any(config.sliding), "hidden_activation": config.hidden_act}
    said |= {"original_max_position_embeddings": config.rope.original_max_position_embeddings}
    value: dict[str, Any] = {key: said[key] for key in (*SIZES, *family) if key in said}
    if windowed(config.model_type) and not any(config.sliding):  # transformers needs a window even if no layer slides
        value["sliding_window"] = family["sliding_window"]
    local = config.rope_sliding or Rope()
    if local_rope(config) and (local.rope_type != "default" or config.model_type in ROPES):
        value["rope_parameters"] = {FULL: rope_json(config.rope), SLIDING: rope_json(local)}
    elif config.model_type == "qwen3_5_text":  # versions that know the family have the table
        value["rope_parameters"] = rope_json(config.rope) | {
            "partial_rotary_factor": value.pop("partial_rotary_factor")
        }
    else:
        scaling = rope_json(config.rope)
        value["rope_theta"] = scaling.pop("rope_theta")
        if config.model_type == "phi3" and config.rope.rope_type == "longrope":  # version 4 accepts just these three
            if scaling["factor"] == config.max_position_embeddings / scaling.pop("original_max_position_embeddings"):
                del scaling["factor"]
            scaling["type"] = scaling.pop("rope_type")
        value["rope_scaling"] = None if config.rope.rope_type == "default" else scaling
        if local_rope(config):
            value["rope_local_base_freq"] = local.rope_theta
    value = {"architectures": [ARCHITECTURES[config.model_type]], "model_type": config.model_type, **value}
    again = from_json(value, config.dtypes)
    lost = [name for name in sorted(names) if getattr(again, name) != getattr(config, name)]
    if lost:
        what = ", ".join(f"{name}={getattr(config, name)!r}" for name in lost)
        raise ValueError(f"The config.json of a {config.model_type} cannot say {what}.")
    return {**value, **dict.fromkeys(IDS), "dtype": config.dtypes.parameters}


def rope_json(rope: Rope) -> dict[str, Any]:
    said = {key: getattr(rope, key) for key in ROPE_KEYS[rope.rope_type]}
    said = {key: list(value) if isinstance(value, tuple) else value for key, value in said.items() if value is not None}
    return {"rope_theta": rope.rope_theta, "rope_type": rope.rope_type, **said}
