"""Adapters in PEFT's format: opened by peft with our logits, read from peft, merged into the base, refused by name."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxmarl_llm.models import loading, lora
from jaxmarl_llm.models.decoder import forward, logits
from jaxmarl_llm.models.hf_config import canonical
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.models.peft_files import load_adapter, save_adapter
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.training.update import Optimiser, update
from tests.support.families import FAMILIES, in_transformers, random
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


@pytest.mark.parametrize("family", ["llama3.1", "gemma3"])
def test_what_peft_writes_is_read_and_written_again_bit_for_bit(tmp_path, family):
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    model = in_transformers(FAMILIES[family])
    settings = peft.LoraConfig(r=2, lora_alpha=5, target_modules=r".*\.(o|gate)_proj", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, settings)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "theirs")
    config = canonical(FAMILIES[family])
    lora, adapter = load_adapter(tmp_path / "theirs", config)
    assert lora == Lora(2, 5.0, ("o_proj", "gate_proj"))
    assert {leaf.dtype for leaf in jax.tree.leaves(adapter)} == {jnp.dtype("float32")}
    save_adapter(tmp_path / "ours", config, lora, adapter)
    theirs, ours = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("theirs", "ours"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], value) for name, value in theirs.items())
    read = peft.LoraConfig.from_pretrained(tmp_path / "ours")
    assert (read.r, read.lora_alpha, read.target_modules) == (2, 5, {"o_proj", "gate_proj"})


def test_save_and_load_return_the_same_adapter(saved, adapter):
    lora, again = load_adapter(saved, CONFIG)
    assert (lora.rank, lora.alpha, lora.maps) == (LORA.rank, LORA.alpha, LORA.maps)
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
    {"use_rslora": True},
    {"use_dora": True},
    {"bias": "lora_only"},
    {"modules_to_save": ["lm_head"]},
    {"rank_pattern": {"q_proj": 4}},
    {"alpha_pattern": {"q_proj": 4}},
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
    save_file({"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((3, 16), np.float32)}, file)
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
