"""Adapters in PEFT's format: opened by peft with our logits, read from peft, merged into the base, refused by name.

`python -m tests.models.test_peft_files` writes the golden file with what peft writes and computes; it needs both.

The long cases compile a model for each further form of an adapter; the short ones take the most frequent forms.
"""

import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxmarl_llm.models import loading, lora
from jaxmarl_llm.models.config import Config, plain
from jaxmarl_llm.models.decoder import append, empty_cache, forward, logits, prepare
from jaxmarl_llm.models.hf_config import canonical
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.models.peft_files import load_adapter, load_on, save_adapter
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.training.update import Optimiser, update
from tests.support.families import FAMILIES, by_their_name, in_transformers, random
from tests.support.families import weights as random_weights

LORA = Lora(3, 7.5, ("q_*", "v_*", "down_proj"))
CONFIG = canonical(FAMILIES["qwen3"])
IDS = np.arange(16)[None] * 7 % CONFIG.vocab_size


def random_adapter(config, settings: Lora, seed: int = 1) -> dict:
    """An adapter whose b is not zero."""
    shape = jax.eval_shape(lambda: lora.init(jax.random.key(0), random_weights(config), settings))
    return random(shape, seed)


@pytest.fixture
def adapter() -> dict:
    return random_adapter(CONFIG, LORA)


@pytest.fixture
def saved(tmp_path, adapter) -> Path:
    save_adapter(tmp_path / "adapter", CONFIG, LORA, adapter, "owner/base")
    return tmp_path / "adapter"


@jax.jit
def our_logits(params, adapter):
    hidden, _ = forward(CONFIG, params, jnp.asarray(IDS, jnp.int32), adapters=lora.concatenate([adapter], [LORA]))
    return logits(CONFIG, params, hidden)[0]


def their_logits(model) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.tensor(IDS)).logits[0].numpy()


def base_of(directory: Path):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def equal(left, right) -> bool:
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        jax.tree.leaves(jax.tree.map(np.array_equal, left, right))
    )


def test_parity_with_peft_after_a_step_of_rate_zero_and_merged(tmp_path, adapter):
    pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    params = random_weights(CONFIG)
    loading.save(tmp_path / "base", CONFIG, params)

    def loss(learners, batch):
        squares = sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(learners["us"]))
        return Mean(squares * batch.sum(), jnp.float32(1)), {}

    settings = Optimiser()
    step = jax.jit(partial(update, settings, loss), static_argnums=2)
    learners, _ = step(settings.init({"us": adapter}), jnp.ones(2), 2, 0.0, jax.random.key(0))
    save_adapter(tmp_path / "adapter", CONFIG, LORA, learners.weights["us"], str(tmp_path / "base"))
    plain = their_logits(base_of(tmp_path / "base"))
    theirs = their_logits(peft.PeftModel.from_pretrained(base_of(tmp_path / "base"), tmp_path / "adapter").eval())
    scale = theirs.std()
    assert np.abs(theirs - plain).max() > 0.1 * scale
    np.testing.assert_allclose(our_logits(params, adapter), theirs, atol=1e-4 * scale)

    loading.save(tmp_path / "merged", CONFIG, params, adapter=(LORA, adapter))
    np.testing.assert_allclose(their_logits(base_of(tmp_path / "merged")), theirs, atol=1e-4 * scale)


@pytest.mark.parametrize("family", ["llama3.1", "gemma3", "qwen3_5", "gemma4_shared"])
def test_what_peft_writes_is_read_and_written_again_bit_for_bit(tmp_path, family):
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    model = in_transformers(FAMILIES[family])
    names = ("o_proj", "gate_proj", *("in_proj_qkv", "in_proj_a", "out_proj") * (family == "qwen3_5"))
    targets = rf".*\.({'|'.join(names)})"
    settings = peft.LoraConfig(r=2, lora_alpha=5, target_modules=targets, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, settings)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "theirs")
    config = canonical(FAMILIES[family])
    lora, adapter = load_adapter(tmp_path / "theirs", config)
    assert lora == Lora(2, 5.0, names)
    assert {leaf.dtype for leaf in jax.tree.leaves(adapter)} == {jnp.dtype("float32")}
    save_adapter(tmp_path / "ours", config, lora, adapter)
    theirs, ours = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("theirs", "ours"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], value) for name, value in theirs.items())
    read = peft.LoraConfig.from_pretrained(tmp_path / "ours")
    assert (read.r, read.lora_alpha, read.target_modules) == (2, 5, set(names))


def test_save_and_load_return_the_same_adapter(saved, adapter):
    lora, again = load_adapter(saved, CONFIG)
    maps = tuple(dict.fromkeys(map(plain, lora.maps)))
    assert (lora.rank, lora.alpha, maps) == (LORA.rank, LORA.alpha, tuple(m for m in LORA.maps if m in adapter))
    assert equal(again, adapter)
    assert json.loads((saved / "adapter_config.json").read_text())["base_model_name_or_path"] == "owner/base"
    names = load_file(saved / "adapter_model.safetensors")
    key = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"
    np.testing.assert_array_equal(names[key], adapter["down_proj"]["b"][1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merging_adds_the_product_in_float32(tmp_path, adapter, dtype):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), random_weights(CONFIG))
    loading.save(tmp_path / "merged", CONFIG, params, adapter=(LORA, adapter))
    merged = loading.load(tmp_path / "merged", dtype=dtype).params
    for name, leaf in params["layers"].items():
        expected = np.asarray(leaf, np.float64)
        if name in adapter:
            a, b = (np.asarray(adapter[name][layout], np.float64) for layout in ("a", "b"))
            expected = expected + 2.5 * b @ a
        tolerance = 1e-6 if dtype == "float32" else 2**-8
        np.testing.assert_allclose(np.asarray(merged["layers"][name], np.float64), expected, tolerance, 1e-6)
    np.testing.assert_array_equal(merged["embed_tokens"], params["embed_tokens"])


REFUSED = [
    {"use_rslora": "yes"},
    {"use_dora": True},
    {"bias": "lora_only"},
    {"modules_to_save": "lm_head"},
    {"rank_pattern": {"q_proj": 0}},
    {"alpha_pattern": {"q_proj": "4"}},
    {"layers_to_transform": [-1]},
    {"target_parameters": ["mlp.experts.gate_up_proj"]},
    {"ensure_weight_tying": True},
    {"fan_in_fan_out": True},
    {"trainable_token_indices": [1]},
    {"layer_replication": [[0, 1]]},
    {"init_lora_weights": "pissa"},
    {"peft_type": "IA3"},
    {"r": 0},
    {"some_new_thing": 1},
]


@pytest.mark.parametrize("bad", REFUSED)
def test_settings_that_are_not_understood_are_refused_by_name(saved, bad):
    path = saved / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": False, "rank_pattern": {}} | bad))
    with pytest.raises(ValueError, match=rf"adapter_config\.json describes an adapter .*: {next(iter(bad))} "):
        load_adapter(saved, CONFIG)


def test_tensors_that_do_not_fit_are_named_together(saved):
    file = saved / "adapter_model.safetensors"
    tensors = load_file(file)
    name = "base_model.model.model.layers.{}.self_attn.{}.lora_A.weight".format
    del tensors[name(0, "v_proj")]
    tensors[name(1, "q_proj")] = np.zeros((4, 16), np.float32)
    tensors[name(7, "q_proj")] = np.zeros((3, 16), np.float32)
    save_file(tensors, file)
    with pytest.raises(ValueError) as error:
        load_adapter(saved, CONFIG)
    assert str(error.value).rstrip(".").split(": ", 1)[1].split("; ") == [
        f"{name(0, 'v_proj')} (3, 16) is missing",
        f"{name(1, 'q_proj')} in {file.name} has shape (4, 16) instead of (3, 16)",
        f"{name(7, 'q_proj')} in {file.name} is unexpected",
    ]
    for targets in ("model.embed", []):
        (saved / "adapter_config.json").write_text(
            json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 1} | {"target_modules": targets})
        )
        with pytest.raises(ValueError, match="adapts none of q_proj"):
            load_adapter(saved, CONFIG)
    file.unlink()
    with pytest.raises(ValueError, match="does not hold adapter_model"):
        load_adapter(saved, CONFIG)


def test_an_adapter_of_another_base_is_not_written(tmp_path, adapter):
    with pytest.raises(ValueError, match="are not those of its settings and the base"):
        save_adapter(tmp_path / "adapter", replace(CONFIG, hidden_size=8), LORA, adapter)
    with pytest.raises(ValueError, match="are not those of its settings and the base"):
        save_adapter(tmp_path / "adapter", CONFIG, replace(LORA, rank=4), adapter)
    with pytest.raises(ValueError, match="are not those of its settings and the base"):
        loading.save(tmp_path / "merged", CONFIG, random_weights(CONFIG), adapter=(replace(LORA, rank=4), adapter))
    assert not list(tmp_path.iterdir())


PLAIN = {"r": 2, "lora_alpha": 3, "task_type": "CAUSAL_LM"}
FORMS = {  # what peft is asked for, on a model
    "rslora": ("qwen3", {"use_rslora": True, "r": 3, "target_modules": ["q_proj", "down_proj"]}),
    "patterns": (
        "qwen3",
        {"target_modules": ["q_proj", "v_proj", "up_proj"]}
        | {"rank_pattern": {"q_proj": 4, "layers.1.*v_proj": 1}, "alpha_pattern": {"up_proj": 9}},
    ),
    "layers": (
        "gemma2",
        {"target_modules": ["k_proj", "o_proj"], "layers_to_transform": [0, 2], "layers_pattern": "layers"},
    ),
    "expression": (
        "llama3.1",
        {"target_modules": r".*\.(o|gate)_proj", "exclude_modules": ["model.layers.0.mlp.gate_proj"]},
    ),
    "saved": ("qwen3", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "input_layernorm"]}),
    "saved_tied": ("smollm2", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "embeddings": ("llama2", {"target_modules": ["embed_tokens", "lm_head", "gate_proj"], "use_rslora": True}),
    "embeddings_tied": ("gemma3", {"target_modules": ["embed_tokens", "v_proj"]}),
    "head_tied": ("smollm2", {"target_modules": ["lm_head"]}),
    "joined": (
        "phi3",
        {"target_modules": ["qkv_proj", "gate_up_proj", "down_proj"], "rank_pattern": {"gate_up_proj": 3}},
    ),
    "experts": ("qwen3_moe", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
    "two_heads": (
        "gemma4_shared",
        {"target_modules": ["q_proj", "v_proj", "down_proj", "per_layer_input_gate"], "rank_pattern": {"v_proj": 3}},
    ),
    "all_kinds": ("qwen3_5", {"target_modules": "all-linear", "rank_pattern": {"in_proj_qkv": 4}}),
}
SHORT = ("patterns", "embeddings_tied", "joined")
GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "adapters.npz"


def by_peft(form: str, directory: Path) -> dict[str, np.ndarray]:
    """Writes an adapter of peft, and returns its logits, what greedy play adds, and the gradients of all it trains."""
    import peft
    import torch

    family, settings = FORMS[form]
    model = in_transformers(FAMILIES[family])
    own = model.state_dict()
    with torch.no_grad():
        for name, value in by_their_name(FAMILIES[family], random_weights(FAMILIES[family])).items():
            own[name].copy_(torch.from_numpy(value.copy()))
    model = peft.get_peft_model(model, peft.LoraConfig(**PLAIN | settings)).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory)
    ids = torch.tensor(IDS)
    scores = model(ids).logits
    torch.nn.functional.cross_entropy(scores[0, :-1], ids[0, 1:]).backward()
    said = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6, pad_token_id=0
    )
    gradients = {
        name.replace(".default", ""): parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {"logits": scores[0].detach().numpy(), "greedy": said[0, 16:].numpy()} | gradients


def check_form(form: str, directory: Path, expected: dict[str, np.ndarray]) -> None:
    base = canonical(FAMILIES[FORMS[form][0]])
    config, params, own = load_on(directory, base, random_weights(base))
    changes = {"modules_to_save", "embed_tokens", "lm_head"} & {*FORMS[form][1], *FORMS[form][1]["target_modules"]}
    if changes:
        with pytest.raises(ValueError, match=r"changes weights of its base"):
            load_adapter(directory, base)
    tokens = jnp.asarray(IDS, jnp.int32)

    def loss(adapter, params):
        joined = lora.concatenate([adapter], [own[0]]) if own else None
        scores = logits(config, params, forward(config, params, tokens, adapters=joined)[0])[0]
        return -jnp.take_along_axis(jax.nn.log_softmax(scores[:-1]), tokens[0, 1:, None], -1).mean(), scores

    gradient, scores = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(own[1] if own else {}, params)
    scale = expected["logits"].std()
    np.testing.assert_allclose(scores, expected["logits"], atol=1e-4 * scale)

    @jax.jit
    def greedy(adapter):
        prepared = prepare(config, params, lora.concatenate([adapter], [own[0]]) if own else None)
        cache, _ = append(config, prepared, empty_cache(config, 1, 32), tokens, jnp.asarray([9]))

        def add(carry, first):
            cache, chunk, n = carry
            cache, hidden = append(config, prepared, cache, chunk, n)
            said = logits(config, params, hidden[0, n[0] - 1]).argmax(-1).astype(jnp.int32)
            return (cache, chunk.at[0, 0].set(said), jnp.ones(1, jnp.int32)), said

        return jax.lax.scan(add, (cache, jnp.roll(tokens, -9, 1)[:, :8], jnp.asarray([7])), length=6)[1]

    np.testing.assert_array_equal(greedy(own[1] if own else {}), expected["greedy"])
    stored = load_file(directory / "adapter_model.safetensors")
    settings = PLAIN | FORMS[form][1]
    of_base = by_their_name(config, gradient[1])
    for name in expected.keys() - {"logits", "greedy"}:
        path, theirs = name.removeprefix("base_model.model."), expected[name]
        if ".modules_to_save." in path:
            ours = of_base[path.replace(".modules_to_save.", ".")]
        elif path.startswith(("model.embed_tokens.", "lm_head.")):  # they are added to the base: the chain rule is left
            scale = settings["lora_alpha"] / settings["r"] ** (0.5 if settings.get("use_rslora") else 1)
            ours = of_base[path.split(".lora")[0] + ".weight"] * scale
            ours = ours.T if path.startswith("model") else ours
            ours = (
                ours @ stored[name.replace("_B", "_A")].T if "_B" in path else stored[name.replace("_A", "_B")].T @ ours
            )
        else:
            ours = of_map(base, own[1], gradient[0], path, stored[name])
        assert ours.shape == theirs.shape, name
        assert np.abs(ours - theirs).max() <= 1e-3 * np.abs(theirs).max() > 0, name


JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def of_map(base: Config, adapter: dict, gradient: dict, path: str, stored: np.ndarray) -> np.ndarray:
    """Our gradient of a matrix of peft's; a map that is joined there has the same a in all its parts."""
    module, side, number = path.split(".")[-3], path.split("lora_")[1][0], int(path.split(".")[2])
    names = [base.leaf_of(part, number) for part in JOINED.get(module, (module,))]
    layer = base.layers_with(names[0]).index(number)
    leaves = [(adapter[name], gradient[name]) for name in names]
    if side == "A":
        ours = sum(np.asarray(own["a"][layer]) for _, own in leaves)
        ours, rest = ours[: len(stored)], ours[len(stored) :]
    else:
        ours, b = (np.concatenate([np.asarray(leaf[i]["b"][layer]) for leaf in leaves]) for i in (1, 0))
        ours, rest, b = ours[:, : stored.shape[1]], ours[:, stored.shape[1] :], b[:, : stored.shape[1]]
        ours = ours * np.sqrt((b**2).sum() / (stored**2).sum())  # other scales are multiplied into b
    assert not rest.any()  # what is filled up stays zero
    return ours


@pytest.mark.parametrize(
    "form", [form if form in SHORT else pytest.param(form, marks=pytest.mark.long) for form in FORMS]
)
def test_parity_of_every_form_with_peft(tmp_path, form):
    """Against the golden file, and with torch and peft against peft itself, which reads what is saved again."""
    with np.load(GOLDEN) as golden:
        found = {k.partition("/")[2]: golden[k] for k in golden.files if k.partition("/")[0] == form}
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "adapter_config.json").write_text(str(found.pop("config")))
    tensors = {k.removeprefix("file/"): found.pop(k) for k in [*found] if k.startswith("file/")}
    save_file(tensors, tmp_path / "golden" / "adapter_model.safetensors")
    check_form(form, tmp_path / "golden", found)
    pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    expected = by_peft(form, tmp_path / "theirs")
    check_form(form, tmp_path / "theirs", expected)
    base = canonical(FAMILIES[FORMS[form][0]])
    config, params, own = load_on(tmp_path / "theirs", base, random_weights(base))
    loading.save(tmp_path / "base", config, params)
    about = tmp_path / "base" / "config.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"pad_token_id": None}))  # Phi 3's is past 19 tokens
    model = base_of(tmp_path / "base")
    if own:
        save_adapter(tmp_path / "ours", config, *own, str(tmp_path / "base"))
        again = load_adapter(tmp_path / "ours", config)
        assert again[0].maps == own[0].maps
        model = peft.PeftModel.from_pretrained(model, tmp_path / "ours").eval()
    np.testing.assert_allclose(their_logits(model), expected["logits"], atol=1e-4 * expected["logits"].std())


def test_adapters_of_joined_maps_are_saved_as_one(tmp_path):
    config, settings = canonical(FAMILIES["phi3"]), Lora(2, 3.0, ("q_proj", "v_proj", "up_proj", "down_proj"))
    adapter = random_adapter(config, settings)
    save_adapter(tmp_path / "adapter", config, settings, adapter)
    about = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert about["target_modules"] == ["down_proj", "qkv_proj", "gate_up_proj"]
    assert about["rank_pattern"] == {"qkv_proj": 4, "gate_up_proj": 2}
    again, read = load_adapter(tmp_path / "adapter", config)
    for name, sides in read.items():
        product = again.alpha / again.rank * np.asarray(sides["b"]) @ np.asarray(sides["a"])
        if name in adapter:
            product = product - 1.5 * np.asarray(adapter[name]["b"]) @ np.asarray(adapter[name]["a"])
        np.testing.assert_allclose(product, 0, atol=1e-6)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(.*)*q", "a*a*a*a*a*b", "(", "x" * 501, r"(q)\1"])
def test_patterns_that_could_run_on_are_refused(saved, pattern):
    path = saved / "adapter_config.json"
    about = json.loads(path.read_text())
    for change in ({"target_modules": pattern}, {"rank_pattern": {pattern: 2}}):
        path.write_text(json.dumps(about | change))
        with pytest.raises(ValueError, match=r"the pattern .* is not followed"):
            load_adapter(saved, CONFIG)


def test_what_the_settings_ask_for_must_be_there(saved):
    path = saved / "adapter_config.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"modules_to_save": ["norm"]}))
    with pytest.raises(ValueError, match=r"base_model\.model\.model\.norm\.weight \(16,\) is missing"):
        load_on(saved, CONFIG, random_weights(CONFIG))
    path.write_text(json.dumps(about | {"layers_to_transform": [0]}))
    with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn\.q_proj\.lora_A\.weight in .* is unexpected"):
        load_adapter(saved, CONFIG)


def write_golden() -> None:
    found = {}
    for form in FORMS:
        with tempfile.TemporaryDirectory() as directory:
            for name, value in by_peft(form, Path(directory)).items():
                found[f"{form}/{name}"] = value
            about = json.loads((Path(directory) / "adapter_config.json").read_text()) | {
                "base_model_name_or_path": None
            }
            found[f"{form}/config"] = np.array(json.dumps(about))
            tensors = load_file(Path(directory) / "adapter_model.safetensors")
            found |= {f"{form}/file/{name}": value for name, value in tensors.items()}
    np.savez_compressed(GOLDEN, **found)


if __name__ == "__main__":
    write_golden()
