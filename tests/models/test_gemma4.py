"""Gemma 4: long rows beyond every window, bfloat16, meshes, merged adapters and slots.

`python -m tests.models.test_gemma4` writes the golden file from what transformers computes; it needs torch.
"""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import decoder, loading, lora
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.models.hf_config import canonical
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.serving import slots
from tests.support.families import FAMILIES, ODD, by_their_name, close, in_transformers, random, read_golden, weights

GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "gemma4.npz"
CONFIG = FAMILIES["gemma4_shared"]
MIXED = ODD["gemma4_moe_shared"]  # with experts too
SHORT = replace(MIXED, num_hidden_layers=4, layer_types=MIXED.layer_types[:2] * 2, num_kv_shared_layers=2)
LORA = Lora(3, 6.0)
LENGTH = 300  # tokens, of which full layers read all and sliding ones 4; a cache of as many is read in blocks
append = jax.jit(decoder.append, static_argnums=0)


def tokens_of(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, CONFIG.vocab_size, shape), jnp.int32)


def loss(config, params, tokens):
    scores = decoder.logits(config, params, decoder.forward(config, params, tokens)[0])
    logp = jax.nn.log_softmax(scores[:, :-1])
    return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean(), scores


def theirs_of(config, dtype: str, length: int, rows: int = 1) -> dict[str, np.ndarray]:
    """Logits of a row, and the gradient of its loss by the weights of attention, as transformers computes them."""
    import torch

    model, ours = in_transformers(config), by_their_name(config, weights(config))
    copied = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, value in ours.items():
            copied[name].copy_(torch.from_numpy(value.copy()))
    model = model.to(getattr(torch, dtype))
    tokens = torch.from_numpy(np.array(tokens_of(1, rows, length), np.int64))
    scores = model(tokens).logits.float()
    torch.nn.functional.cross_entropy(scores[0, :-1], tokens[0, 1:]).backward()
    wanted = [name for name in copied if ".self_attn." in name or "per_layer_model" in name]
    found = {name: copied[name].grad.float().numpy() for name in wanted if dtype == "float32"}
    return {"logits": scores.detach().numpy()} | found


golden = partial(read_golden, GOLDEN)


@pytest.mark.long
def test_parity_of_rows_beyond_every_window_with_transformers():
    gradient, scores = jax.jit(jax.grad(lambda params: loss(CONFIG, params, tokens_of(1, 1, LENGTH)), has_aux=True))(
        weights(CONFIG)
    )
    ours, expected = by_their_name(CONFIG, gradient) | {"logits": np.asarray(scores)}, golden("long")
    assert len(expected) == 1 + 1 + 7 * 3 + 4 * 3  # q, o and q_norm of all layers; k, v and k_norm of four
    for name, theirs in expected.items():
        assert np.abs(ours[name] - theirs).max() <= 1e-3 * np.abs(theirs).max() > 0, name


@pytest.mark.long
def test_a_long_row_in_chunks_of_any_width_is_the_row():
    """The cache of full layers is read in blocks, and layers without keys read those of two others."""
    params, tokens = weights(CONFIG), tokens_of(1, 2, LENGTH)
    expected = jax.jit(lambda params: decoder.forward(CONFIG, params, tokens)[0])(params)
    prepared, filled, found = decoder.prepare(CONFIG, params), decoder.empty_cache(CONFIG, 2, LENGTH + 80), []
    assert len(filled.keys) == 4 and {x.shape[1:3] for x in filled.keys} == {(2, 6), (2, 16)}
    for start, end in ((0, 80), (80, 81), (81, 161), (161, 241), (241, LENGTH)):
        filled, hidden = append(CONFIG, prepared, filled, tokens[:, start:end], jnp.full(2, end - start))
        found.append(hidden)
    close(jnp.concatenate(found, 1), expected, 5e-5)


@pytest.mark.long
def test_a_window_of_one_token_decodes_like_whole_rows():
    """transformers is no yardstick here: its greedy play with a cache then differs from that without one."""
    config, tokens = replace(ODD["gemma4_narrow"], sliding_window=1), tokens_of(5, 2, 10)
    params = weights(config)
    expected, wider = (
        jax.jit(lambda params, x=x: decoder.forward(x, params, tokens)[0])(params)
        for x in (config, replace(config, sliding_window=2))
    )
    prepared, filled, found = decoder.prepare(config, params), decoder.empty_cache(config, 2, 16), []
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 10)):
        filled, hidden = append(config, prepared, filled, tokens[:, start:end], jnp.full(2, end - start))
        found.append(hidden)
    close(jnp.concatenate(found, 1), expected)
    assert np.abs(wider - expected).max() > 0.1


@pytest.mark.parametrize(("name", "rows"), [("half", 1), pytest.param("half_experts", 16, marks=pytest.mark.long)])
def test_parity_in_bfloat16_is_about_as_close_to_float32_as_transformers(name, rows):
    """The yardstick is the error of transformers' own bfloat16: ours is at most 1.5 times as large.

    It is 0.90 times as large, and 0.97 times with experts. There it is of 16 texts: a rounding may change which expert
    a token takes, so that the errors of single texts differ by a factor of two and more.
    """
    config, tokens = MIXED if name == "half_experts" else CONFIG, tokens_of(1, rows, 30)
    params = weights(config)
    exact = np.asarray(loss(config, params, tokens)[1])
    half = replace(config, dtypes=Dtypes("bfloat16", "bfloat16", "bfloat16"))
    rough = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    ours = np.asarray(jax.jit(lambda params: loss(half, params, tokens)[1])(rough))
    theirs = golden(name)["logits"]
    error = lambda scores: np.sqrt(np.square(scores - exact).mean()) / exact.std()
    assert 0 < error(ours) < 1.5 * error(theirs) < 0.1


@cache
def on_one_device():
    """A program with prompts, ragged chunks, adapters and a gradient, its arguments and what it returns."""
    params, tokens = weights(SHORT), tokens_of(3, 4, 9)
    adapters = [random(jax.eval_shape(lambda: lora.init(jax.random.key(0), params, LORA)), i) for i in (1, 2)]
    policy, prompts = np.array([0, 0, 1, 1]), Prompts(tokens_of(4, 4, 5), jnp.asarray([4, 3, 5, 4]))

    def run(tree):
        params, adapters = tree["params"], lora.concatenate(tree["adapters"], (LORA, LORA))
        prepared, n = decoder.prepare(SHORT, params, adapters), jnp.asarray([9, 5, 0, 7])
        empty = jax.tree.map(sharding.split_cache, decoder.empty_cache(SHORT, 4, 5))
        prompt, _ = decoder.append(SHORT, prepared, empty, prompts.tokens, prompts.length, policy)
        filled = jax.tree.map(sharding.split_cache, decoder.empty_cache(SHORT, 4, 16, prompt))
        _, hidden = decoder.append(SHORT, prepared, filled, tokens, n, policy)

        def loss(tree):
            adapters = lora.concatenate(tree["adapters"], (LORA, LORA))
            return (decoder.forward(SHORT, tree["params"], tokens, prompts, adapters, policy, "full")[0] ** 3).sum()

        return jnp.where((jnp.arange(9)[None] < n[:, None])[..., None], hidden, 0), jax.grad(loss)(tree)

    tree = {"params": params, "adapters": adapters}
    return run, tree, jax.jit(run)(tree)


@pytest.mark.long
@pytest.mark.parametrize(
    "axes", ["data=4", pytest.param("fsdp=2,tensor=2", marks=pytest.mark.slow), "fsdp=4", "tensor=2"]
)
def test_a_model_on_several_devices_is_that_on_one(axes):
    run, tree, expected = on_one_device()
    mesh = sharding.mesh(axes)
    placed = sharding.place(tree, mesh)
    if axes == "tensor=2":
        layers = placed["params"]["layers"]
        assert layers["global_q_proj"].sharding.shard_shape((2, 64, 16)) == (2, 32, 16)
        assert layers["wide_up_proj"].sharding.shard_shape((2, 48, 16)) == (2, 24, 16)
        assert layers["per_layer_input_gate"].sharding.shard_shape((4, 4, 16)) == (4, 2, 16)
        assert layers["experts_up"].sharding.shard_shape((4, 4, 8, 16)) == (4, 2, 8, 16)
    with sharding.use(mesh):
        hidden, gradient = jax.jit(run)(placed)
    close(hidden, expected[0], 1e-4)
    close(gradient, expected[1], 1e-4)


@pytest.mark.long
def test_a_merged_adapter_decodes_and_is_saved_like_the_unmerged(tmp_path):
    params, tokens = weights(MIXED), tokens_of(8, 2, 7)
    adapter = random(jax.eval_shape(lambda: lora.init(jax.random.key(0), params, LORA)), 3)
    assert {"global_q_proj", "wide_up_proj", "per_layer_input_gate"} < set(adapter)
    joined = lora.concatenate([adapter], [LORA])
    loading.save(tmp_path / "merged", canonical(MIXED), params, adapter=(LORA, adapter))
    config, merged, _ = loading.load(tmp_path / "merged")
    run = lambda prepared: append(MIXED, prepared, decoder.empty_cache(MIXED, 2, 8), tokens, jnp.array([7, 4]))[1]
    expected = run(decoder.prepare(MIXED, params, joined))
    for prepared in (decoder.prepare(MIXED, params, joined, merged=True), decoder.prepare(config, merged)):
        close(run(prepared), expected, 2e-5)


@pytest.mark.long
def test_an_update_with_frozen_weights_keeps_no_copy_of_them():
    """Its loop takes two layers at a time, of which the backward pass chooses the weights again."""
    config = replace(CONFIG, num_hidden_layers=6, layer_types=CONFIG.layer_types[:2] * 3, num_kv_shared_layers=0)
    config = replace(config, hidden_size=256, intermediate_size=1024, use_double_wide_mlp=False)
    leaf = partial(jax.ShapeDtypeStruct, dtype="float32")
    tree = jax.tree.map(leaf, decoder.shapes(config), is_leaf=lambda x: isinstance(x, tuple))

    def number(table, tree):
        hidden, _ = decoder.forward(config, {**tree, "embed_tokens": table}, jnp.zeros((1, 4), jnp.int32), remat="dots")
        return (hidden**2).sum()

    used = jax.jit(jax.grad(number)).lower(tree["embed_tokens"], tree).compile().memory_analysis()
    assert used.temp_size_in_bytes < 4 * sum(x.size for x in jax.tree.leaves(tree["layers"])) * 4 / 6  # of six layers


@pytest.mark.long
def test_layer_scalars_do_not_learn():
    gradient = jax.jit(jax.grad(lambda params: loss(CONFIG, params, tokens_of(1, 1, 4))[0]))(weights(CONFIG))
    assert not np.asarray(gradient["layers"]["layer_scalar"]).any()
    assert np.asarray(gradient["layers"]["per_layer_projection"]).any()


@pytest.mark.parametrize("config", [CONFIG, FAMILIES["gemma4"]], ids=["shared", "keys for values"])
def test_bytes_of_slots_are_those_of_their_arrays(config):
    arrays = jax.eval_shape(partial(slots.empty, config, 4, 24))
    kept = jax.tree.leaves((arrays.keys, arrays.values, arrays.memories))
    assert slots.cache_bytes(config, 4, 20, 4) == sum(x.size * x.dtype.itemsize for x in kept)
    assert len(arrays.keys) == len(config.with_keys) < config.num_hidden_layers or config is not CONFIG


if __name__ == "__main__":
    found = {"long": theirs_of(CONFIG, "float32", LENGTH), "half": theirs_of(CONFIG, "bfloat16", 30)}
    found["half_experts"] = theirs_of(MIXED, "bfloat16", 30, rows=16)
    np.savez_compressed(GOLDEN, **{f"{name}/{key}": x for name, part in found.items() for key, x in part.items()})
