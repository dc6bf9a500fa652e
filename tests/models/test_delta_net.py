"""Models with linear_attention: rows of several chunks, packed chunks, bfloat16, what is computed again and refused.

`python -m tests.models.test_delta_net` writes the golden file from what transformers computes; it needs torch.
"""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models import decoder, loading, lora, packing
from jaxmarl_llm.models.config import Dtypes
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.models.delta_rule import CHUNK
from jaxmarl_llm.models.hf_config import canonical
from jaxmarl_llm.models.lora import Lora
from jaxmarl_llm.serving import slots
from tests.support.families import FAMILIES, ODD, by_their_name, close, in_transformers, random, read_golden, weights

GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "delta_net.npz"
CONFIG = FAMILIES["qwen3_5"]
LORA = Lora(3, 6.0)
LENGTH = 2 * CHUNK + 21
append = jax.jit(decoder.append, static_argnums=0)


def tokens_of(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, CONFIG.vocab_size, shape), jnp.int32)


def loss(config, params, tokens, **options):
    scores = decoder.logits(config, params, decoder.forward(config, params, tokens, **options)[0])
    logp = jax.nn.log_softmax(scores[:, :-1])
    return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean(), scores


def theirs_of(dtype: str, length: int) -> dict[str, np.ndarray]:
    """Logits of a row, and the gradient of its loss by some weights, as transformers computes them."""
    import torch

    model, ours = in_transformers(CONFIG), by_their_name(CONFIG, weights(CONFIG))
    copied = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in ours.items():
            copied[name].copy_(torch.from_numpy(value.copy()))
    model = model.to(getattr(torch, dtype))
    tokens = torch.from_numpy(np.array(tokens_of(1, 1, length), np.int64))
    scores = model(tokens).logits.float()
    torch.nn.functional.cross_entropy(scores[0, :-1], tokens[0, 1:]).backward()
    found = {name: x.grad.float().numpy() for name, x in model.named_parameters() if ".linear_attn." in name}
    return {"logits": scores.detach().numpy()} | (found if dtype == "float32" else {})


golden = partial(read_golden, GOLDEN)


@pytest.mark.long
def test_parity_of_rows_of_several_chunks_with_transformers():
    gradient, scores = jax.jit(jax.grad(lambda params: loss(CONFIG, params, tokens_of(1, 1, LENGTH)), has_aux=True))(
        weights(CONFIG)
    )
    ours, expected = by_their_name(CONFIG, gradient) | {"logits": np.asarray(scores)}, golden("long")
    assert len(expected) == 1 + 2 * 9
    for name, theirs in expected.items():
        assert np.abs(ours[name] - theirs).max() <= 1e-3 * np.abs(theirs).max() > 0, name


@pytest.mark.long
def test_a_long_row_in_chunks_of_any_width_is_the_row():
    """A chunk of up to 8 tokens is computed token by token, a wider one by a triangular system for 64 tokens."""
    params, tokens = weights(CONFIG), tokens_of(1, 2, LENGTH)
    expected = jax.jit(lambda params: decoder.forward(CONFIG, params, tokens)[0])(params)
    prepared, cache, found = decoder.prepare(CONFIG, params), decoder.empty_cache(CONFIG, 2, LENGTH + 80), []
    for start, end in ((0, 80), (80, 81), (81, 89), (89, LENGTH)):
        cache, hidden = append(CONFIG, prepared, cache, tokens[:, start:end], jnp.full(2, end - start))
        found.append(hidden)
    close(jnp.concatenate(found, 1), expected, 5e-5)


def test_parity_in_bfloat16_is_about_as_close_to_float32_as_transformers():
    params, tokens = weights(CONFIG), tokens_of(1, 1, 30)
    exact = np.asarray(loss(CONFIG, params, tokens)[1])
    half = replace(CONFIG, dtypes=Dtypes("bfloat16", "bfloat16", "bfloat16"))
    rough = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    ours = np.asarray(jax.jit(lambda params: loss(half, params, tokens)[1])(rough))
    theirs = golden("half")["logits"]
    error = lambda scores: np.sqrt(np.square(scores - exact).mean()) / exact.std()
    assert 0 < error(ours) < 1.5 * error(theirs) < 0.05
    memory = decoder.empty_cache(half, 1, 4).memories[0]
    assert [x.dtype.name for x in memory] == ["bfloat16", "float32"]  # as transformers keeps them


@cache
def padded(packed: bool):
    """A program for ragged chunks, with and without packing, of rows behind shared prompts and with adapters."""
    params = weights(CONFIG)
    adapters = [random(jax.eval_shape(lambda: lora.init(jax.random.key(0), params, LORA)), i) for i in (1, 2)]
    joined, policy = lora.concatenate(adapters, (LORA, LORA)), jnp.arange(6) % 2

    def run(n):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "HEAVY", 0 if packed else packing.HEAVY)
            prepared = decoder.prepare(CONFIG, params, joined)
            start = decoder.empty_cache(CONFIG, 2, 7)
            before, _ = decoder.append(CONFIG, prepared, start, tokens_of(2, 2, 7), jnp.array([7, 5]))
            cache = decoder.empty_cache(CONFIG, 6, 12, before)
            cache, _ = decoder.append(
                CONFIG, prepared, cache, tokens_of(3, 6, 4), jnp.array([3, 1, 0, 2, 4, 3]), policy
            )
            return decoder.append(CONFIG, prepared, cache, tokens_of(4, 6, 4), n, policy)

    return jax.jit(run)


@pytest.mark.long
@pytest.mark.parametrize("n", [[1, 0, 4, 0, 2, 0], [4, 4, 4, 4, 0, 1]])
def test_packed_tokens_are_computed_as_padded_ones(n):
    (plain_cache, plain), (cache, hidden) = (padded(packed)(jnp.array(n)) for packed in (False, True))
    close(cache.memories, plain_cache.memories)
    for r, length in enumerate(n):
        np.testing.assert_allclose(hidden[r, :length], plain[r, :length], atol=1e-4)


def test_rows_without_a_token_keep_every_bit_of_their_memory():
    run = padded(False)
    still, _ = run(jnp.zeros(6, jnp.int32))
    after, _ = run(jnp.array([0, 4, 0, 1, 2, 0]))
    for a, b in zip(jax.tree.leaves(still.memories), jax.tree.leaves(after.memories), strict=True):
        np.testing.assert_array_equal(a[np.array([0, 2, 5])], b[np.array([0, 2, 5])])
        assert not (np.asarray(a[1]) == np.asarray(b[1])).all()


@pytest.mark.long
def test_what_is_computed_again_changes_neither_value_nor_gradient():
    config, prompts = ODD["qwen3_5_periods"], Prompts(tokens_of(5, 2, 5), jnp.array([5, 3, 2, 5]))  # by row
    run = jax.jit(
        jax.value_and_grad(lambda params, how: loss(config, params, tokens_of(6, 4, 6), prompts=prompts, remat=how)[0]),
        static_argnums=1,
    )
    expected = run(weights(config), "none")
    for remat in ("dots", "full"):
        close(run(weights(config), remat), expected, 1e-5)


@pytest.mark.long
def test_rows_that_continue_parts_of_a_prompt_are_whole_rows_in_value_and_gradient():
    params, length = weights(CONFIG), np.array([5, 2, 4, 1])
    prompts, rows = Prompts(tokens_of(5, 2, 5), jnp.asarray(length)), tokens_of(6, 4, 7)
    texts = [np.concatenate([prompts.tokens[r // 2, : length[r]], rows[r]]) for r in range(4)]
    whole = jnp.asarray(np.stack([np.pad(text, (0, 12 - len(text))) for text in texts]))
    mix = random(jax.ShapeDtypeStruct((4, 7, CONFIG.hidden_size), jnp.float32), 7)

    def parts(params):
        hidden = decoder.forward(CONFIG, params, rows, prompts)[0]
        return (hidden * mix).sum(), hidden

    def apart(params):
        hidden = decoder.forward(CONFIG, params, whole)[0]
        hidden = jnp.stack([hidden[r, length[r] : length[r] + 7] for r in range(4)])
        return (hidden * mix).sum(), hidden

    found, expected = (jax.jit(jax.value_and_grad(f, has_aux=True))(params) for f in (parts, apart))
    close(found, expected, 5e-5)


def test_a_cache_does_not_continue_a_part_of_a_prompt():
    prompt = decoder.empty_cache(CONFIG, 2, 8)
    with pytest.raises(ValueError, match="remembers the whole prompt"):
        decoder.empty_cache(CONFIG, 4, 8, prompt.replace(length=jnp.zeros(4, jnp.int32)))
    decoder.empty_cache(
        FAMILIES["qwen3"], 4, 8, decoder.empty_cache(FAMILIES["qwen3"], 2, 8).replace(length=jnp.zeros(4))
    )


def test_a_merged_adapter_decodes_and_is_saved_like_the_unmerged(tmp_path):
    params, tokens = weights(CONFIG), tokens_of(8, 2, 7)
    adapter = random(jax.eval_shape(lambda: lora.init(jax.random.key(0), params, LORA)), 3)
    of_linear = {f"in_proj_{name}" for name in ("qkv", "z", "b", "a")} | {"out_proj"}
    assert set(adapter) == {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")} | of_linear
    joined = lora.concatenate([adapter], [LORA])
    loading.save(tmp_path / "merged", canonical(CONFIG), params, adapter=(LORA, adapter))
    config, merged, _ = loading.load(tmp_path / "merged")
    run = lambda prepared: append(CONFIG, prepared, decoder.empty_cache(CONFIG, 2, 8), tokens, jnp.array([7, 4]))[1]
    expected = run(decoder.prepare(CONFIG, params, joined))
    for prepared in (decoder.prepare(CONFIG, params, joined, merged=True), decoder.prepare(config, merged)):
        close(run(prepared), expected, 2e-5)


def test_a_slot_without_a_token_has_no_memory():
    full = jax.tree.map(lambda x: x + 1, slots.empty(CONFIG, 4, 16))
    for at in (np.arange(4), np.array([2, 0])):
        cache, _ = slots._take_slots(full, jnp.asarray(at), jnp.asarray([3, 0, 1, 0][: len(at)]))
        for leaf in jax.tree.leaves(cache.memories):
            assert (leaf[0] == 1).all() and not np.asarray(leaf[1]).any()
    assert slots.cache_bytes(CONFIG, 2, 30, 10) == 2 * (40 * 2 * 2 * 8 * 4 + 2 * 4 * (3 * 44 + 4 * 6 * 5))


if __name__ == "__main__":
    found = {"long": theirs_of("float32", LENGTH), "half": theirs_of("bfloat16", 30)}
    np.savez_compressed(GOLDEN, **{f"{name}/{key}": x for name, part in found.items() for key, x in part.items()})
