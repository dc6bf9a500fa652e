"""Damaged and hostile model files, made by seed, and what becomes of each in a process of its own.

  python -m tests.support.hostile KIND[,KIND...] FIRST COUNT DIRECTORY

makes cases FIRST to FIRST + COUNT - 1 of each kind and prints a JSON line for each: kind, case, whether it must be
refused, and the outcome. A process is forked for each, limited to 4 GB of address space and 20 seconds. Outcomes are
`refused` (a ValueError, with its text), `same` (what was loaded is what the undamaged files hold), `other` (it is
not), `crashed` (another exception) and `killed` (by a limit).
"""

import contextlib
import hashlib
import json
import logging
import os
import resource
import shutil
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

MEMORY, SECONDS = 4 << 30, 20
NAN, INFINITE = float("nan"), float("inf")
VALUES = ["x", -1, 0, 2.5, NAN, INFINITE, 10**30, True, [], {}, [1] * 9, "a" * 2_000_000, {"a": [{}]}, None, -0.0, [[]]]
NO_NUMBER = ["x", [], {}, NAN, -1, INFINITE, True, {"a": 1}, "a" * 2_000_000]
NUMBERS = {
    "llama": ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rope_theta", "rms_norm_eps"),
    "gemma3_text": ("query_pre_attn_scalar", "final_logit_softcapping", "sliding_window", "sliding_window_pattern"),
    "gemma2": ("query_pre_attn_scalar", "attn_logit_softcapping", "sliding_window"),
    "qwen3_moe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"),
    "phi3": ("partial_rotary_factor", "original_max_position_embeddings", "sliding_window"),
    "smollm3": ("no_rope_layers", "sliding_window"),
    "granite": ("attention_multiplier", "residual_multiplier", "embedding_multiplier", "logits_scaling"),
    "qwen3_5_text": ("linear_num_key_heads", "linear_num_value_heads", "linear_conv_kernel_dim", "layer_types"),
    "gemma4_text": ("global_head_dim", "num_kv_shared_layers", "hidden_size_per_layer_input", "top_k_experts"),
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = 1 %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ 'some words and more ' * 99 }}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{% set ns = namespace(s='ab') %}{% for a in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch pwned') }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ raise_exception('no ' * 99999) }}",
    "{{ 1 / 0 }}", "{{ messages[7]['content'] }}", "{{ messages.x.y }}", "{% if %}", "{{", "{% include 'etc' %}",
    "{% for m in messages | reverse %}{{ m['content'] * 500 }}{% endfor %}",
    "{% for m in messages %}{{ m['content'] }}{% endfor %}", "no messages at all", "{{ messages }}", "{{ none() }}",
    CHATML.replace("m['content']", "m['content'] | upper"), CHATML.replace("m['content']", "m['content'][:3]"),
    CHATML.replace("<|im_end|>", ""), "{% set x = 10 ** 10 ** 10 %}", "{{ messages | sort }}", "{{ 9 | list }}",
)  # fmt: skip


def bases(home: Path) -> None:
    """Undamaged files of every kind: model, shards, gguf, cache, adapter, other families."""
    import jax.numpy as jnp

    from jaxmarl_llm.models import loading
    from jaxmarl_llm.models.lora import Lora
    from jaxmarl_llm.models.peft_files import adapter_shapes, save_adapter
    from tests.models import test_gguf_files as ggufs
    from tests.support.families import CONFIG, FAMILIES, ODD, weights
    from tests.support.tokenizer_files import tiny

    config = replace(CONFIG, vocab_size=300)
    loading.save(home / "model", config, weights(config))
    tiny(home / "model", CHATML)
    loading.save(home / "shards", config, weights(config), shard_bytes=9000)
    for name in ("gemma3", "gemma2", "qwen3_moe", "phi3", "smollm3", "granite", "qwen3_5", "gemma4_moe_shared"):
        own = (FAMILIES | ODD)[name]
        loading.save(home / own.model_type, own, weights(own))
    lora = Lora(3, 6.0, ("q_proj", "up_proj"))
    adapter = {
        name: {
            side: jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32) for side, shape in ab.items()
        }
        for name, ab in adapter_shapes(config, lora).items()
    }
    save_adapter(home / "adapter", config, lora, adapter)
    own = ggufs.MODELS["llama"]
    path = ggufs.write(home / "tiny.gguf", own, ggufs.as_llama_cpp(own, weights(own)))
    os.environ["JAXMARL_LLM_CACHE"] = str(home / "cache")
    loading.load(path)


def digest(found: object) -> str:
    import jax

    text = hashlib.sha256(repr(jax.tree.map(lambda x: None if hasattr(x, "shape") else x, found)).encode())
    for leaf in jax.tree.leaves(found):
        text.update(np.asarray(leaf).tobytes() if hasattr(leaf, "shape") else b"")
    return text.hexdigest()


# what a kind of case is loaded with


def load_model(home: Path) -> str:
    from jaxmarl_llm.models import loading

    loaded = loading.load(home / "model")
    return digest((repr(loaded.config), loaded.params))


def load_gguf(home: Path) -> str:
    from jaxmarl_llm.models import loading

    os.environ["JAXMARL_LLM_CACHE"] = str(home / "cache")
    try:
        loaded = loading.load(home / "tiny.gguf")
    except ValueError:
        left = [path.name for path in (home / "cache").glob("*") if "tiny" in path.name and "kept" not in path.name]
        assert not left or (home / "kept").exists(), f"half-converted: {left}"
        raise
    return digest((repr(loaded.config), loaded.params))


def load_adapter(home: Path) -> str:
    from jaxmarl_llm.models import peft_files
    from tests.support.families import CONFIG

    return digest(peft_files.load_adapter(home / "adapter", replace(CONFIG, vocab_size=300)))


def load_tokenizer(home: Path) -> str:
    from jaxmarl_llm.text.tokenizers import HFTokenizer

    tokenizer, text = HFTokenizer(home / "model", 300), "a word and <|im_end|> a sign"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    return digest((tokenizer.encode(text), tokenizer.markers, tokenizer.end, tokenizer.token_bytes))


# how files are damaged: each takes the directory and a generator, and returns whether it must be refused


def edit_json(path: Path, change: Callable[[dict], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def odd_text(path: Path, rng: np.random.Generator) -> bool:
    """A file that is no JSON object of the wanted kind, cut, deep, long, a pipe, a directory or absent."""
    data = path.read_bytes()
    which = int(rng.integers(9))
    if which == 0:
        path.write_bytes(data[: int(len(data) * rng.uniform(0, 0.99))])
    elif which == 1:
        path.write_text("[" * 5000 + "]" * 5000)
    elif which == 2:
        path.write_text('{"a":' * 5000 + "1" + "}" * 5000)
    elif which == 3:
        path.write_bytes(rng.bytes(200))
    elif which == 4:
        path.unlink()
        os.mkfifo(path)
    elif which == 5:
        path.unlink()
        path.mkdir()
    elif which == 6:
        path.write_text(json.dumps([json.loads(data)]))
    elif which == 7:
        path.write_text('{"model_type": ' + "9" * 5000 + "}")
    else:
        path.write_text("{}")
    return True


def config(home: Path, rng: np.random.Generator) -> bool:
    family = list(NUMBERS)[int(rng.integers(len(NUMBERS)))]
    if family != "llama":
        shutil.rmtree(home / "model")
        shutil.copytree(home / family, home / "model")
    path = home / "model" / "config.json"
    if rng.random() < 0.25:
        return odd_text(path, rng)
    must = rng.random() < 0.5
    keys = [*json.loads(path.read_text()), "rope_scaling", "layer_types", "made_up"]
    key = str(rng.choice(NUMBERS[family] if must else keys))
    values = NO_NUMBER if must else [*VALUES, 10**5, 2**31, {"rope_type": "yarn", "factor": NAN}, {"full_attention": 3}]
    value = values[int(rng.integers(len(values)))]
    if key == "num_hidden_layers" and rng.random() < 0.5:
        value = int(rng.choice([10**5, 2**31, 2**62]))
    edit_json(path, lambda given: given.update({key: value}))
    return must


def safetensors(home: Path, rng: np.random.Generator, path: Path | None = None) -> bool:
    path = path or home / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    name, other = (str(x) for x in rng.choice(names, 2, replace=len(names) < 2))
    which = int(rng.integers(12))
    if which == 0:
        path.write_bytes(data[: int(len(data) * rng.uniform(0, 0.999))])
        return True
    if which == 1:
        data[:8] = struct.pack("<Q", int(rng.choice([0, 1, 2**20, 2**40, 2**63, size - 1, size + 1])))
    elif which == 2:
        data[8 + int(rng.integers(size))] ^= 1 << int(rng.integers(7))
        path.write_bytes(data)
        return False
    elif which == 3:
        path.unlink()
        os.mkfifo(path)
        return True
    elif which == 4:
        data = data[:8] + b"[" * size + data[8 + size :]
    else:
        own = header[name]
        begin, end = own["data_offsets"]
        if which == 5:
            own["data_offsets"] = [begin + 4, end + 4]
        elif which == 6:
            own["data_offsets"] = header[other]["data_offsets"] if other != name else [4, 8]
        elif which == 7:
            own["data_offsets"] = [begin, 2**62]
        elif which == 8:
            own["shape"] = [int(x) for x in rng.choice([0, 1, 7, 2**40, 2**62], 2)]
        elif which == 9:
            own["dtype"] = str(rng.choice(["F16", "I8", "F64", "X", "BOOL"]))
        elif which == 10:
            header["a" * 100_000] = header.pop(name)
        else:
            header[name] = VALUES[int(rng.integers(len(VALUES)))]
        text = json.dumps(header).encode()
        data = bytearray(struct.pack("<Q", len(text)) + text + data[8 + size :])
    path.write_bytes(data)
    return True


def index(home: Path, rng: np.random.Generator) -> bool:
    shutil.rmtree(home / "model")
    shutil.copytree(home / "shards", home / "model")
    path = home / "model" / "model.safetensors.index.json"
    which = int(rng.integers(6))
    if which == 0:
        return odd_text(path, rng)
    shards = sorted((home / "model").glob("*.safetensors"))
    if which == 1:
        bad = ["../model.safetensors", "/etc/passwd", "sub/x.safetensors", "", ".", "x.bin", 3, None, [], "a" * 9999]
        value = bad[int(rng.integers(len(bad)))]
        edit_json(path, lambda given: given["weight_map"].update({"model.norm.weight": value}))
    elif which == 2:
        value = VALUES[int(rng.integers(len(VALUES)))]
        edit_json(path, lambda given: given.update({"weight_map": value}))
    elif which == 3:
        shards[int(rng.integers(len(shards)))].unlink()
    elif which == 4:
        from safetensors.numpy import load_file, save_file

        first, second = shards[:2]
        tensors = load_file(first)
        save_file(load_file(second) | {name: x + 1 for name, x in list(tensors.items())[:1]}, second)
    else:
        return safetensors(home, rng, shards[int(rng.integers(len(shards)))])
    return True


def tokenizer(home: Path, rng: np.random.Generator) -> bool:
    name = str(rng.choice(["tokenizer.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]))
    path = home / "model" / name
    if name == "special_tokens_map.json":
        path.write_text(json.dumps({"eos_token": "<|im_end|>"}))
    if rng.random() < 0.4:
        odd_text(path, rng)
        return name == "tokenizer.json"
    value = VALUES[int(rng.integers(len(VALUES)))]
    if name != "tokenizer.json":
        key = str(rng.choice(["eos_token", "bos_token", "chat_template", "tokenizer_class", "added_tokens_decoder"]))
        edit_json(path, lambda given: given.update({key: value}))
        return False
    tree = json.loads(path.read_text())
    if rng.random() < 0.2:
        tree["added_tokens"].append(dict(tree["added_tokens"][0], id=10**8, content="far"))
        tree["model"]["vocab"]["far"] = 10**8
        path.write_text(json.dumps(tree))
        return True
    node = tree
    while True:  # somewhere in the tree
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[int(rng.integers(len(keys)))]
        if not isinstance(node[key], dict | list) or not node[key] or rng.random() < 0.4:
            break
        node = node[key]
    node[key] = value
    path.write_text(json.dumps(tree))
    return False


def template(home: Path, rng: np.random.Generator) -> bool:
    text = (
        TEMPLATES[int(rng.integers(len(TEMPLATES)))] if rng.random() < 0.7 else CHATML[: int(rng.integers(len(CHATML)))]
    )
    if rng.random() < 0.5:
        (home / "model" / "chat_template.jinja").write_text(text)
    else:
        edit_json(home / "model" / "tokenizer_config.json", lambda given: given.update(chat_template=text))
    return text in TEMPLATES


def adapter(home: Path, rng: np.random.Generator) -> bool:
    path = home / "adapter" / "adapter_config.json"
    which = int(rng.integers(4))
    if which == 0:
        return odd_text(path, rng)
    if which == 1:
        return safetensors(home, rng, home / "adapter" / "adapter_model.safetensors")
    must = which == 2
    keys = [*json.loads(path.read_text()), "use_dora", "made_up", "rank_pattern", "layers_to_transform"]
    keys += ["use_rslora", "alpha_pattern", "modules_to_save", "layers_pattern", "exclude_modules", "target_modules"]
    key = str(rng.choice(["r", "lora_alpha"] if must else keys))
    values = NO_NUMBER if must else VALUES
    value = values[int(rng.integers(len(values)))]
    if key.endswith(("_pattern", "_modules")) and rng.random() < 0.5:
        value = str(rng.choice(["(a+)+$", "(.*)*" * 9, "(?:.|.)*" * 9, "x" * 9999, "(", ".*" * 99]))
        value = {value: 2} if key in ("rank_pattern", "alpha_pattern") else value
    edit_json(path, lambda given: given.update({key: value}))
    return must


def cache(home: Path, rng: np.random.Generator) -> bool:
    (home / "kept").touch()  # the directory was converted before, whole
    (directory,) = (path for path in (home / "cache").iterdir() if path.is_dir())
    path = directory / str(rng.choice([file.name for file in directory.iterdir()]))
    if path.name == "checksums.json" and rng.random() < 0.7:
        value = VALUES[int(rng.integers(len(VALUES)))]
        edit_json(path, lambda given: given.update({"files": value}))
        return True
    if path.suffix == ".json":
        return odd_text(path, rng)
    data = bytearray(path.read_bytes())
    data[int(rng.integers(len(data)))] ^= 1
    path.write_bytes(data)
    return True


def gguf(home: Path, rng: np.random.Generator) -> bool:
    shutil.rmtree(home / "cache")
    path = home / "tiny.gguf"
    data = bytearray(path.read_bytes())
    which = int(rng.integers(11))
    tensor = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight")  # axes, two of them, type, offset
    key = b"llama.block_count"
    value = data.index(key) + len(key)  # type, number
    array = data.index(b"tokenizer.ggml.token_type") + len(b"tokenizer.ggml.token_type") + 4  # inner type, length
    huge = [0, 2**31, 2**40, 2**62, 2**64 - 1]
    if which == 0:
        data = data[: int(len(data) * rng.uniform(0, 0.999))]
    elif which == 1:
        at = 8 + 8 * int(rng.integers(2))
        data[at : at + 8] = struct.pack("<Q", int(rng.choice(np.array(huge, np.uint64))))
    elif which == 2:
        data[array : array + 12] = struct.pack("<IQ", int(rng.choice([0, 5, 8, 9, 77])), huge[1 + int(rng.integers(4))])
    elif which == 3:
        data[tensor : tensor + 4] = struct.pack("<I", int(rng.choice([0, 1, 3, 4, 5, 2**31])))
    elif which == 4:
        at = tensor + 4 + 8 * int(rng.integers(2))
        data[at : at + 8] = struct.pack("<Q", huge[int(rng.integers(5))])
    elif which == 5:  # another type: F16, BF16, quantised, unknown
        data[tensor + 20 : tensor + 24] = struct.pack("<I", int(rng.choice([1, 30, 8, 2, 12, 99, 2**31])))
    elif which == 6:  # offsets that overlap, are unaligned, lie past the end
        (now,) = struct.unpack("<Q", data[tensor + 24 : tensor + 32])
        to = [0, now + 4, now + 32, now - 32 if now else 32, len(data), 2**62][int(rng.integers(6))]
        data[tensor + 24 : tensor + 32] = struct.pack("<Q", to if to != now else now + 64)
    elif which == 7:
        number = [0, 3, 10**5, 2**31, 2**32 - 1][int(rng.integers(5))]
        data[value + 4 : value + 8] = struct.pack("<I", number)
    elif which == 8:
        data[value : value + 4] = struct.pack("<I", int(rng.choice([8, 9, 12, 13, 2**31])))
    elif which == 9:  # alignment 1, or none: a key more, with the offsets as they were
        added = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, int(rng.choice([0, 1, 3, 2**31])))
        data[24:24] = added
        data[16:24] = struct.pack("<Q", struct.unpack("<Q", data[16:24])[0] + 1)
    else:
        data[4:8] = struct.pack("<I", int(rng.choice([0, 1, 4, 3 << 24, 2**32 - 1])))
    path.write_bytes(data)
    return True


def tables(home: Path, rng: np.random.Generator) -> bool:
    """A GGUF, well-formed, whose token tables, ids or rotary settings hold what does not belong there."""
    from tests.models import test_gguf_files as ggufs
    from tests.support.families import weights

    shutil.rmtree(home / "cache")
    tables = ("tokens", "token_type", "merges", "model", "pre")
    ids = ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")
    keys = [f"tokenizer.ggml.{name}" for name in (*tables, *ids, "add_bos_token", "add_space_prefix")]
    keys += ["tokenizer.chat_template", "llama.rope.freq_base", "llama.rope.scaling.type"]
    key = str(rng.choice(keys))
    values = [-1, 2.5, NAN, [2.5] * 19, [True] * 19, ["x"] * 19, [7] * 19, [1], ["a b", "x y"]]
    values += ["x"] if key != "tokenizer.chat_template" else []
    values += [10**9, 19] if key.endswith("_id") else []
    values = [x for x in values if not (key.endswith("freq_base") and x == 2.5)]
    value = values[int(rng.integers(len(values)))]

    def write() -> str:
        logging.getLogger("gguf").setLevel(logging.ERROR)  # it says that the key was there
        own = ggufs.MODELS["llama"]
        return str(ggufs.write(home / "tiny.gguf", own, ggufs.as_llama_cpp(own, weights(own)), **{key: value}))

    in_a_process(write)
    return True


KINDS = {
    "config": (config, load_model),
    "safetensors": (safetensors, load_model),
    "index": (index, load_model),
    "tokenizer": (tokenizer, load_tokenizer),
    "template": (template, load_tokenizer),
    "adapter": (adapter, load_adapter),
    "cache": (cache, load_gguf),
    "gguf": (gguf, load_gguf),
    "tables": (tables, load_gguf),
}


def outcome(load: Callable[[Path], str], home: Path, wanted: str) -> tuple[str, str]:
    """In a process of its own: what loading ends with, and its text."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with contextlib.suppress(BaseException):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.chdir(home)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            signal.alarm(SECONDS)
            try:
                found = load(home)
                said = ["same" if found == wanted else "other", ""]
            except ValueError as error:
                said = ["refused", str(error)]
            except BaseException as error:
                said = ["crashed", f"{type(error).__name__}: {str(error)[:300]}"]
            os.write(write, json.dumps([said[0], said[1][:4000]]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return tuple(json.loads(text)) if text else ("killed", f"status {status}")


def main(kinds: list[str], first: int, count: int, directory: Path) -> None:
    import gguf  # noqa: F401 - imported once, before any fork
    from jinja2 import sandbox  # noqa: F401
    from transformers import PreTrainedTokenizerFast  # noqa: F401

    from jaxmarl_llm.models import loading, peft_files  # noqa: F401
    from jaxmarl_llm.text import tokenizers  # noqa: F401
    from tests.support import families  # noqa: F401

    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # no thread runs yet
    for kind in kinds:
        make_cases(kind, first, count, directory / kind)


def make_cases(kind: str, first: int, count: int, directory: Path) -> None:
    damage, load = KINDS[kind]
    base = directory / "base"
    if not base.exists():
        base.mkdir(parents=True)
        in_a_process(lambda: bases(base) or "")
    home = directory / "case"
    shutil.copytree(base, home, dirs_exist_ok=True)
    found, wanted = outcome(load, home, "")
    assert found == "other", (found, wanted)  # undamaged files load
    wanted = in_a_process(lambda: load(home))
    for number in range(first, first + count):
        shutil.rmtree(home)
        shutil.copytree(base, home)
        must = damage(home, np.random.default_rng((list(KINDS).index(kind), number)))
        began = time.monotonic()
        what, text = outcome(load, home, wanted)
        clean = not (home / "pwned").exists()
        case = {"kind": kind, "case": number, "must": must, "outcome": what if clean else "ran code", "text": text}
        print(json.dumps(case | {"seconds": round(time.monotonic() - began, 2)}), flush=True)
    shutil.rmtree(home)


def in_a_process(make: Callable[[], str]) -> str:
    """A text made in a process of its own, so that this one starts no threads before it forks."""
    read, write = os.pipe()
    if not os.fork():
        os.write(write, make().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    os.wait()
    return text


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
