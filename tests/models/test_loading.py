"""Hugging Face's layout both ways for every family, what a directory says beside numbers, sources that are refused."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import huggingface_hub.constants
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxmarl_llm.models import loading
from jaxmarl_llm.models.hf_config import canonical
from jaxmarl_llm.rl.masked import Mean
from jaxmarl_llm.rollout.policy_files import load_policy
from jaxmarl_llm.training.update import Optimiser, update
from tests.support.families import FAMILIES, ODD, by_their_name, in_transformers
from tests.support.families import weights as random_weights
from tests.support.model_files import CONFIG, bits, edit, equal, off, our_logits, stored, their_logits

NAMES = tuple(FAMILIES | ODD)


@pytest.mark.parametrize("name", NAMES)
def test_files_of_every_family_go_both_ways_parity_with_transformers(tmp_path, name):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    config = (FAMILIES | ODD)[name]
    torch.manual_seed(0)
    theirs = in_transformers(config)
    scalars = [buffer for name, buffer in theirs.named_buffers() if name.endswith("layer_scalar")]
    for parameter in (*theirs.parameters(), *scalars):
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    loaded = loading.load(tmp_path / "theirs")
    assert loaded.config == canonical(config)
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    ours = by_their_name(loaded.config, loaded.params)
    assert bits(ours) == bits({name: state[name] for name in ours})

    loading.save(tmp_path / "ours", loaded.config, loaded.params, shard_bytes=4000, like=tmp_path / "theirs")
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1
    assert stored(tmp_path / "ours") == stored(tmp_path / "theirs")
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for parameter in again.parameters():  # they lie in mapped files, and products round by the place in memory
        parameter.data = parameter.data.clone()
    ids = torch.arange(16)[None] * 7 % loaded.config.vocab_size
    with torch.no_grad():
        assert torch.equal(again(ids).logits, theirs(ids).logits)
    assert type(again) is type(theirs)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "phi3", "phi3_part", "olmo2", "smollm3", "granite", "gemma2"])
def test_what_is_saved_is_read_again_under_the_names_of_the_family(tmp_path, name):
    config = canonical((FAMILIES | ODD)[name])
    given = random_weights(config)
    loading.save(tmp_path / "model", config, given, shard_bytes=4000)
    loaded = loading.load(tmp_path / "model")
    assert loaded.config == config and equal(loaded.params, given)
    tensors = {k: v for file in (tmp_path / "model").glob("*.safetensors") for k, v in load_file(file).items()}
    layers = given["layers"]
    if name == "mixtral":
        own = "model.layers.1.block_sparse_moe.experts.4.w{}.weight"
        for i, leaf in ((1, "gate"), (2, "down"), (3, "up")):
            np.testing.assert_array_equal(tensors[own.format(i)], layers[f"experts_{leaf}"][1, 4])
        np.testing.assert_array_equal(tensors["model.layers.0.block_sparse_moe.gate.weight"], layers["router"][0])
    if name == "qwen3_moe":
        found = tensors["model.layers.0.mlp.experts.5.down_proj.weight"]
        np.testing.assert_array_equal(found, layers["experts_down"][0, 5])
    if name == "phi3":
        whole = np.concatenate([layers[f"{part}_proj"][1] for part in "qkv"])
        np.testing.assert_array_equal(tensors["model.layers.1.self_attn.qkv_proj.weight"], whole)
        assert not any("gate_proj" in key for key in tensors)


def test_a_joined_map_of_another_shape_or_beside_its_parts_is_refused(tmp_path):
    config = canonical(FAMILIES["phi3"])
    loading.save(tmp_path / "model", config, random_weights(config))
    file, name = tmp_path / "model" / "model.safetensors", "model.layers.0.self_attn.qkv_proj.weight"
    tensors = load_file(file)
    save_file(tensors | {name.replace("qkv", "q"): np.zeros((32, 32), np.float32)}, file)
    with pytest.raises(ValueError, match=r"q_proj\.weight' stands beside 'model.*qkv_proj"):
        loading.load(tmp_path / "model")
    save_file(tensors | {name: tensors[name][:-1]}, file)
    with pytest.raises(ValueError, match=r"q_proj\.weight \(32, 32\) is missing.*qkv_proj.* is unexpected"):
        loading.load(tmp_path / "model")


@pytest.mark.parametrize("layout", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_model_of_text_and_images(tmp_path, layout):
    """As published, and as transformers writes it since 4.52; what is saved is the text's model alone."""
    config = canonical(replace(FAMILIES["gemma3"], attention_bias=False, final_logit_softcapping=None))
    given = random_weights(config)
    loading.save(tmp_path / "text", config, given)
    about = json.loads((tmp_path / "text" / "config.json").read_text())
    tensors = load_file(tmp_path / "text" / "model.safetensors")
    tensors = {layout + name.removeprefix("model."): value for name, value in tensors.items()}
    image = "vision_tower.x.weight" if layout.startswith("l") else "model.multi_modal_projector.x"
    directory = tmp_path / "both"
    directory.mkdir()
    wrapper = {"model_type": "gemma3", "text_config": about | {"architectures": None}, "vision_config": {}}
    (directory / "config.json").write_text(json.dumps(wrapper))
    save_file(tensors | {image: np.zeros(3, np.float32)}, directory / "model.safetensors")
    loaded = loading.load(directory)
    assert loaded.config == config and equal(loaded.params, given)
    loading.save(tmp_path / "again", loaded.config, loaded.params, like=directory)
    assert stored(tmp_path / "again") == stored(tmp_path / "text")
    assert loading.load(tmp_path / "again").config == config
    save_file(tensors | {"model.norm.weight": np.zeros(16, np.float32)}, directory / "model.safetensors")
    with pytest.raises(ValueError, match=r"'model\.norm\.weight' stands in .* under two names"):
        loading.load(directory)


def test_images_and_further_heads_of_qwen3_5_are_not_read(tmp_path):
    config = canonical(FAMILIES["qwen3_5"])
    given = random_weights(config)
    loading.save(tmp_path / "text", config, given)
    about = json.loads((tmp_path / "text" / "config.json").read_text())
    wrapper = {"model_type": "qwen3_5", "text_config": about | {"architectures": None}, "vision_config": {}}
    tensors = {
        name.replace("model.", "model.language_model.", 1): value
        for name, value in load_file(tmp_path / "text" / "model.safetensors").items()
    }
    directory, spare = tmp_path / "both", np.zeros(3, np.float32)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(wrapper))
    save_file(
        tensors | {"model.visual.blocks.0.norm1.weight": spare, "mtp.fc.weight": spare}, directory / "model.safetensors"
    )
    loaded = loading.load(directory)
    assert loaded.config == config and equal(loaded.params, given)
    save_file(tensors | {"vision_tower.x.weight": spare}, directory / "model.safetensors")
    with pytest.raises(ValueError, match=r"vision_tower\.x\.weight in .* is unexpected"):
        loading.load(directory)


def test_keys_and_values_of_layers_that_read_those_of_others_are_not_read(tmp_path):
    """Published files of Gemma 4 hold them, and transformers ignores them."""
    config = canonical(FAMILIES["gemma4_shared"])
    given = random_weights(config)
    loading.save(tmp_path / "model", config, given)
    file, key = tmp_path / "model" / "model.safetensors", "model.layers.{}.self_attn.k_proj.weight"
    tensors = load_file(file)
    save_file(tensors | {key.format(5): np.zeros((12, 16), np.float32)}, file)
    assert equal(loading.load(tmp_path / "model").params, given)
    save_file({name: value for name, value in tensors.items() if name != key.format(2)}, file)
    with pytest.raises(ValueError, match=r"layers\.2\.self_attn\.k_proj\.weight \(12, 16\) is missing"):
        loading.load(tmp_path / "model")


@pytest.mark.parametrize("kind", ["Gemma3", "Qwen3_5", "Gemma4"])
def test_parity_with_transformers_of_the_text_of_a_model_of_text_and_images(tmp_path, kind):
    torch = pytest.importorskip("torch")
    import transformers

    config = canonical(FAMILIES["gemma4_shared" if kind == "Gemma4" else kind.lower()])
    if kind == "Gemma3":
        config = replace(config, final_logit_softcapping=None)
    text = in_transformers(config).config.to_dict() | {"eos_token_id": None}
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
    more: dict = {"mm_tokens_per_image": 4}
    if kind == "Qwen3_5":
        vision = {"hidden_size": 8, "intermediate_size": 8, "depth": 1, "num_heads": 2, "out_hidden_size": 16}
        vision |= {"model_type": "qwen3_5_vision", "patch_size": 2, "num_position_embeddings": 4}
        more = {"image_token_id": 18, "video_token_id": 18, "vision_start_token_id": 18, "vision_end_token_id": 18}
    if kind == "Gemma4":
        vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        vision |= {"num_key_value_heads": 2, "head_dim": 4, "patch_size": 2, "position_embedding_size": 4}
        more = {"image_token_id": 18, "video_token_id": 18, "audio_token_id": 18}
        more |= {"audio_config": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}}
        text["pad_token_id"] = 0
    settings = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **more)
    if kind == "Gemma3":
        settings.image_token_index = 18
    model = getattr(transformers, f"{kind}ForConditionalGeneration")
    theirs = model._from_config(settings, attn_implementation="eager").eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = loading.load(tmp_path / "theirs")
    assert loaded.config == config
    ids = np.arange(16) * 7 % 18
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    assert off(our_logits(loaded.config, loaded.params, ids), expected) < 1e-4
    loading.save(tmp_path / "ours", loaded.config, loaded.params)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    assert type(again).__name__ == f"{kind}ForCausalLM"
    assert off(their_logits(again, ids), expected) < 1e-5


@pytest.mark.parametrize("name", ["llama3.1", "gemma3"])
def test_bfloat16_shards_survive_a_step_of_rate_zero_bit_for_bit(tmp_path, name):
    torch = pytest.importorskip("torch")
    theirs = in_transformers(FAMILIES[name]).to(torch.bfloat16)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    loaded = loading.load(tmp_path / "theirs", dtype="bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(loaded.params)} == {"bfloat16"}

    def loss(learners, batch):
        squares = sum(jnp.square(leaf.astype(jnp.float32)).sum() for leaf in jax.tree.leaves(learners["us"]))
        return Mean(squares * batch.sum(), jnp.float32(1)), {}

    settings = Optimiser()
    step = jax.jit(partial(update, settings, loss), static_argnums=2, donate_argnums=0)
    learners, metrics = step(settings.init({"us": loaded.params}), jnp.ones(2), 2, 0.0, jax.random.key(0))
    assert metrics["gradient_norm/us"] > 0
    loading.save(tmp_path / "ours", loaded.config, learners.weights["us"], like=tmp_path / "theirs")
    assert stored(tmp_path / "ours") == stored(tmp_path / "theirs")
    assert (tmp_path / "ours" / "generation_config.json").is_file()


def test_a_wrong_rope_theta_changes_the_numbers(tmp_path, params):
    config = replace(CONFIG, num_hidden_layers=1)
    params = {**params, "layers": jax.tree.map(lambda leaf: leaf[:1], params["layers"])}
    loading.save(tmp_path / "model", config, params)
    ids = np.arange(16) % config.vocab_size
    right = our_logits(config, params, ids)
    edit(tmp_path / "model" / "config.json", rope_theta=500.0)
    wrong = loading.load(tmp_path / "model")
    assert wrong.config.rope.rope_theta == 500.0
    assert off(our_logits(wrong.config, wrong.params, ids), right) > 1e-2


def test_a_head_counts_where_it_is_not_the_embedding_and_an_untied_one_must_be_stored(tmp_path, params):
    """transformers does not tie what is stored with other numbers, whatever the configuration says."""
    loading.save(tmp_path / "untied", CONFIG, params)
    edit(tmp_path / "untied" / "config.json", tie_word_embeddings=True)
    loaded = loading.load(tmp_path / "untied")
    assert not loaded.config.tie_word_embeddings
    np.testing.assert_array_equal(loaded.params["lm_head"], params["lm_head"])
    loading.save(tmp_path / "same", CONFIG, params | {"lm_head": params["embed_tokens"]})
    edit(tmp_path / "same" / "config.json", tie_word_embeddings=True)
    loaded = loading.load(tmp_path / "same")
    assert loaded.config.tie_word_embeddings and "lm_head" not in loaded.params
    config = replace(CONFIG, tie_word_embeddings=True)
    loading.save(tmp_path / "tied", config, {name: leaf for name, leaf in params.items() if name != "lm_head"})
    edit(tmp_path / "tied" / "config.json", tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"lm_head\.weight \(19, 16\) is missing"):
        loading.load(tmp_path / "tied")


def test_what_the_directory_of_origin_says_beside_numbers_is_kept(tmp_path, params):
    loading.save(tmp_path / "origin", CONFIG, params)
    ids = {"eos_token_id": [2, 5], "pad_token_id": 0}
    edit(tmp_path / "origin" / "config.json", **ids, rope_theta=77.0, torch_dtype="float16")
    for name in ("tokenizer.json", "generation_config.json", "notes.txt"):
        (tmp_path / "origin" / name).write_text("{}")
    loading.save(tmp_path / "model", CONFIG, params, like=tmp_path / "origin")
    said = json.loads((tmp_path / "model" / "config.json").read_text())
    assert ids.items() <= said.items()
    assert (said["dtype"], said["rope_theta"]) == ("float32", 10000.0)
    assert "torch_dtype" not in said
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}


def test_unknown_sources_are_refused(tmp_path):
    what = "Unknown model 'smollm3': give smollm2, gemma3-270m, a directory, a .gguf file, or a hub id"
    with pytest.raises(ValueError, match=what):
        loading.load("smollm3")
    with pytest.raises(ValueError, match="Unknown model ''"):
        loading.load("")
    for source in ("absent.gguf", "owner/model.gguf", tmp_path / "absent.gguf"):
        with pytest.raises(ValueError, match=f"^There is no file '{source}'.$"):
            loading.load(source)
    for path in (tmp_path / "absent", "./absent", "../absent"):
        with pytest.raises(ValueError, match=f"There is no directory '{path}', and no .gguf file"):
            loading.load(path)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        loading.save(tmp_path / "file" / "model", CONFIG, random_weights(CONFIG))


@pytest.mark.parametrize("read", [loading.load, loading.locate, load_policy])
def test_a_short_name_stands_for_an_id_of_the_hub(read, monkeypatch):
    """Without a connection it is one sentence, which names both; a name that is nearly known is told."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"qwen3-1\.7b, the hub's Qwen/Qwen3-1\.7B, is no directory and could not be"):
        read("qwen3-1.7b")
    with pytest.raises(ValueError, match=r"Unknown model 'qwen3-1\.7': .* Did you mean qwen3-1\.7b\?$"):
        read("qwen3-1.7")


def test_a_directory_with_a_short_name_counts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-0.6b").mkdir()
    assert loading.locate("qwen3-0.6b") == Path("qwen3-0.6b")


def test_save_never_replaces_and_never_leaves_half(tmp_path, params):
    loading.save(tmp_path / "model", CONFIG, params)
    with pytest.raises(ValueError, match="exists already"):
        loading.save(tmp_path / "model", CONFIG, params)
    with pytest.raises(
        ValueError, match=r"lm_head has shape None instead of \(19, 16\); norm has shape \(3,\) instead"
    ):
        changed = {**params, "norm": jnp.zeros(3)}
        del changed["lm_head"]
        loading.save(tmp_path / "other", CONFIG, changed)
    strange = jax.tree.map(lambda leaf: np.asarray(leaf).astype(ml_dtypes.float8_e4m3fn), params)
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        loading.save(tmp_path / "other", CONFIG, strange)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
