"""Small models of every family, written without one to be like: transformers reads the same settings and numbers."""

from dataclasses import replace

import numpy as np
import pytest
import transformers

from jaxmarl_llm.models import loading
from jaxmarl_llm.models.hf_config import canonical, read_config
from jaxmarl_llm.models.hf_families import ARCHITECTURES
from tests.support.families import FAMILIES, ODD, weights
from tests.support.model_files import off, our_logits

CONFIGS = {name: canonical(config) for name, config in (FAMILIES | ODD).items()}
CONFIGS |= {
    f"{name}_of_two_tokens": replace(CONFIGS[name], vocab_size=2) for name in ("phi3", "smollm3", "gemma3", "olmo2")
}


def test_every_family_is_among_them():
    assert {config.model_type for config in CONFIGS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_reads_what_was_written_and_fills_in_nothing(tmp_path, name):
    config = CONFIGS[name]
    loading.save(tmp_path / "model", config, weights(config))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    ids = {key: value for key, value in theirs.to_dict().items() if key.endswith("_token_id")}
    assert {"bos_token_id", "eos_token_id", "pad_token_id"} <= ids.keys() and set(ids.values()) == {None}
    theirs.save_pretrained(tmp_path / "theirs")
    assert read_config(tmp_path / "theirs" / "config.json") == config


@pytest.mark.parametrize("name", CONFIGS)
def test_parity_of_logits_with_transformers(tmp_path, name):
    torch = pytest.importorskip("torch")
    config = CONFIGS[name]
    params = weights(config)
    loading.save(tmp_path / "model", config, params)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = np.arange(12) * 7 % config.vocab_size
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    assert off(our_logits(config, params, ids), expected) < 1e-4


def test_a_model_that_is_like_another_has_its_ids_and_no_others(tmp_path):
    config = CONFIGS["phi3"]
    loading.save(tmp_path / "first", config, weights(config))
    (tmp_path / "first" / "config.json").write_text(
        (tmp_path / "first" / "config.json").read_text().replace('"eos_token_id": null', '"eos_token_id": [3, 4]')
    )
    loading.save(tmp_path / "second", config, weights(config), like=tmp_path / "first")
    theirs = transformers.AutoConfig.from_pretrained(tmp_path / "second")
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.bos_token_id) == ([3, 4], None, None)
