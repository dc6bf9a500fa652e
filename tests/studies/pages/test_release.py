"""Policies of runs in a folder to ship: tiny ones as they are, adapters rounded, each played by its name."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from safetensors.flax import load_file

from jaxmarl_llm.models import loading, lora
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.rollout.policy_files import load_policy, save_policy
from jaxmarl_llm.rollout.team import PolicySet
from jaxmarl_llm.studies import catalogue
from jaxmarl_llm.studies.pages import release
from jaxmarl_llm.text.tokenizers import SymbolTokenizer
from tests.support.families import CONFIG, weights


def released(*runs: Path, out: Path, **options) -> str:
    release.run(release.Options(tuple(runs), out, **options), Console())
    return (out / "README.md").read_text()


@pytest.fixture
def finished(tmp_path):
    """A run of a pretrained model as it lies there when it is over, with an adapter on a model of the test."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(catalogue.home("experiments") / "results/exploitability/results.json", run)
    told = json.loads((run / "results.json").read_text()) | {"model": "small", "seeds": [3, 4]}
    (run / "results.json").write_text(json.dumps(told))
    tokenizer, own = SymbolTokenizer(["x"]), Lora(2, 4.0, ("*",))
    loading.save(tmp_path / "base", CONFIG, weights(CONFIG))
    (tmp_path / "base/symbols.json").write_text(json.dumps({"symbols": ["x"], "heard": [], "ends": False}))
    adapter = jax.tree.map(lambda x: x + 0.3, lora.init(jax.random.key(1), weights(CONFIG), own))
    to = run / "rloo-3/policies/learner"
    to.parent.mkdir(parents=True)
    save_policy(to, PolicySet(tokenizer, ("learner",), CONFIG, (own,)), 0, adapter, str(tmp_path / "base"))
    return run, adapter


def test_an_adapter_is_rounded_to_two_bytes_and_loads(finished, tmp_path):
    run, adapter = finished
    text = released(run, out=tmp_path / "out")
    read = load_policy(tmp_path / "out/exploitability-rloo-learner")
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), adapter)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), read.adapter[1], rounded)
    stored = load_file(tmp_path / "out/exploitability-rloo-learner" / release.TENSORS)
    assert {leaf.dtype for leaf in stored.values()} == {jnp.bfloat16.dtype}
    assert "| `exploitability-rloo-learner` | exploitability | rloo | small | KuhnPoker |" in text
    assert "nash_conv 0." in text and " → " in text


def test_what_cannot_be_released_is_one_sentence_and_nothing_is_written(finished, tmp_path):
    run, _ = finished
    with pytest.raises(ValueError, match="are both called exploitability-rloo-learner"):
        released(run, run, out=tmp_path / "out")
    with pytest.raises(ValueError, match=r"exploitability-rloo-learner have 0\.\d MB, more than 0\.001: release fewer"):
        released(run, out=tmp_path / "out", megabytes=0.001)
    assert "exploitability-rloo-learner" in released(run, out=tmp_path / "one", arms=("rloo",))
    with pytest.raises(ValueError, match="run has no arm 'rlo': its arms are "):
        released(run, out=tmp_path / "out", arms=("rlo",))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/README.md").write_text("mine")
    with pytest.raises(ValueError, match="kept holds files already, which --out would overwrite"):
        released(run, out=tmp_path / "kept")
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["README.md"]
    with pytest.raises(ValueError, match="cannot read"):
        released(tmp_path, out=tmp_path / "out")
    shutil.rmtree(run / "rloo-3")
    with pytest.raises(ValueError, match="There are no policies in"):
        released(run, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
