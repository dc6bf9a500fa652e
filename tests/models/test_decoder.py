"""The decoder: laws of its own, and every family against transformers.

`python -m tests.models.test_decoder` writes the golden file from what transformers computes; it needs torch.

The long cases compile gradients, several devices or further families; the short ones decode two families token by
token.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.devices import sharding
from jaxmarl_llm.models import decoder, layers, lora
from jaxmarl_llm.models.config import Config, Dtypes, Remat, Rope
from jaxmarl_llm.models.decoder import Prompts
from jaxmarl_llm.models.lora import Lora
from tests.support.families import CONFIG, FAMILIES, ODD, by_their_name, close, in_transformers, random, weights

GOLDEN = Path(__file__).parents[1] / "support" / "golden" / "families.npz"
LORA = Lora(rank=3, alpha=6.0)
append = jax.jit(decoder.append, static_argnums=0)
forward = jax.jit(decoder.forward, static_argnums=0)


def two_adapters(params: dict, settings: Lora = LORA) -> list[dict]:
    shape = jax.eval_shape(partial(lora.init, lora=settings), jax.random.key(0), params)
    return [random(shape, seed) for seed in (1, 2)]


def tokens_of(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(0, CONFIG.vocab_size, shape), jnp.int32)


def appended(config: Config, prepared: dict, tokens: jax.Array, policy, seed: int, prompt=None) -> np.ndarray:
    """Hidden states of rows fed in chunks of random width and raggedness, each followed by tokens that do not count."""
    generator = np.random.default_rng(seed)
    rows, size = tokens.shape
    filled = decoder.empty_cache(config, rows, size + 4, prompt)
    fed, hidden, appends = np.zeros(rows, int), np.zeros((*tokens.shape, config.hidden_size)), 0
    while (fed < size).any():
        width = int(generator.choice([1, 4]))
        n = np.minimum(generator.integers(0, width + 1, rows), size - fed)
        n[appends % rows] = 0
        chunk = generator.integers(0, config.vocab_size, (rows, width))
        for r in range(rows):
            chunk[r, : n[r]] = tokens[r, fed[r] : fed[r] + n[r]]
        filled, states = append(config, prepared, filled, jnp.asarray(chunk), jnp.asarray(n, jnp.int32), policy)
        for r in range(rows):
            hidden[r, fed[r] : fed[r] + n[r]] = states[r, : n[r]]
        fed, appends = fed + n, appends + 1
        np.testing.assert_array_equal(filled.length, fed)
    assert appends > 3
    return hidden


def test_a_loop_of_one_row_writes_its_cache_in_place():
    config, token = FAMILIES["llama3.1"], jnp.zeros((1, 1), jnp.int32)
    cache = jax.eval_shape(lambda: decoder.empty_cache(config, 1, 16_384))
    prepared = jax.eval_shape(lambda: decoder.prepare(config, weights(config)))

    def decode(prepared, cache, token):
        def step(_, carry):
            filled, hidden = decoder.append(config, prepared, *carry, n=jnp.ones(1, jnp.int32))
            return filled, hidden.argmax(-1).astype(jnp.int32)

        return jax.lax.fori_loop(0, 8, step, (cache, token))

    used = jax.jit(decode, donate_argnums=1).lower(prepared, cache, token).compile().memory_analysis()
    assert used.temp_size_in_bytes < cache.keys[0].size * 4  # scores and masks: no copy of a layer's keys


def test_a_decoded_token_computes_its_sines_and_cosines_once_for_all_layers():
    config, tokens, n = FAMILIES["llama3.1"], jnp.zeros((2, 1), jnp.int32), jnp.ones(2, jnp.int32)
    assert config.num_hidden_layers > 1
    given = jax.eval_shape(lambda: decoder.prepare(config, weights(config))), decoder.empty_cache(config, 2, 8)
    program = jax.jit(partial(decoder.append, config)).lower(*given, tokens, n).compile().as_text()
    assert [program.count(f" {name}(") for name in ("cosine", "sine")] == [1, 1]


SLOW = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("family", ["llama3.1", SLOW("qwen2"), SLOW("qwen3"), "gemma3", "qwen3_5", "gemma4_shared"])
def test_append_in_any_ragged_split_equals_the_full_forward(family):
    config, seed = FAMILIES[family], len(family) % 2
    params, tokens = weights(config), tokens_of(seed, 5, 13)
    joined, policy = lora.concatenate(two_adapters(params), (LORA, LORA)), jnp.asarray([0, 1, -1, 1, 0])
    full, opened = forward(config, params, tokens, adapters=joined, policy=policy)
    assert opened is None
    close(appended(config, decoder.prepare(config, params, joined), tokens, policy, seed), full)


@pytest.mark.long
@pytest.mark.parametrize("family", [SLOW("llama3.1"), "gemma3", "qwen3_5", "gemma4_shared"])
def test_rows_that_go_on_from_a_shared_opening_decode_like_whole_rows(family):
    config, length = FAMILIES[family], np.array([6, 3])
    params, begun, tokens = weights(config), tokens_of(5, 2, 6), tokens_of(6, 6, 9)
    policy = jnp.asarray([0, 0, 0, 1, 1, 1])
    prepared = decoder.prepare(config, params, lora.concatenate(two_adapters(params), (LORA, LORA)))
    cache = decoder.empty_cache(config, 2, 6)
    prompt, _ = append(config, prepared, cache, begun, jnp.asarray(length, jnp.int32), policy[::3])
    found = appended(config, prepared, tokens, policy, 1, prompt)
    for row in range(6):
        whole = jnp.concatenate([begun[row // 3, : length[row // 3]], tokens[row]])[None]
        cache = decoder.empty_cache(config, 1, whole.shape[1])
        _, hidden = append(config, prepared, cache, whole, jnp.asarray([whole.shape[1]]), policy[row : row + 1])
        close(found[row], hidden[0, length[row // 3] :])


@pytest.mark.long
@pytest.mark.parametrize(
    "family", ["gemma4_shared", "gemma4_moe_shared", "qwen3_5", SLOW("gemma4"), SLOW("qwen3_5_periods")]
)
def test_sampled_play_in_ragged_chunks_has_the_probabilities_of_whole_rows(family):
    config = (FAMILIES | ODD)[family]
    params, begun, count = weights(config), jnp.asarray([3, 9, 6]), 14
    text = tokens_of(4, 3, 9)

    @jax.jit
    def play(params):
        prepared = decoder.prepare(config, params)

        def say(carry, key):
            filled, chunk, n = carry
            filled, hidden = decoder.append(config, prepared, filled, chunk, n)
            last = jnp.take_along_axis(hidden, (n - 1)[:, None, None], 1)[:, 0]
            logp = jax.nn.log_softmax(decoder.logits(config, prepared, last))
            said = jax.random.categorical(key, logp).astype(jnp.int32)
            after = chunk.at[:, 0].set(said)  # the rest does not count
            return (filled, after, jnp.ones_like(n)), (said, jnp.take_along_axis(logp, said[:, None], 1)[:, 0])

        start = decoder.empty_cache(config, 3, 9 + 9 + count), text, begun
        return jax.lax.scan(say, start, jax.random.split(jax.random.key(0), count))[1]

    said, logp = (np.asarray(x).T for x in play(params))
    rows = np.zeros((3, 9 + count), np.int32)
    for r, n in enumerate(begun):
        rows[r, : n + count] = [*text[r, :n], *said[r]]
    scores = jax.nn.log_softmax(decoder.logits(config, params, forward(config, params, jnp.asarray(rows))[0]))
    for r, n in enumerate(begun):
        np.testing.assert_allclose(logp[r], scores[r, n - 1 + np.arange(count), said[r]], atol=1e-4)
    assert len(np.unique(said)) > 5


@pytest.mark.parametrize(("tokens", "into", "out"), [(3, 5, 7), (64, 5, 7), (65, 5, 7), (200, 5, 90), (200, 90, 5)])
def test_a_product_of_few_or_many_tokens_is_the_same_in_value_and_gradient(tokens, into, out):
    random = np.random.default_rng(tokens)
    x, weight, dy = (random.normal(size=shape) for shape in ((tokens, into), (out, into), (tokens, out)))
    narrow = [jnp.asarray(array, jnp.float32) for array in (x, weight, dy)]
    y, back = jax.vjp(jax.jit(layers.product), *narrow[:2])
    close((y, *back(narrow[2])), (x @ weight.T, dy @ weight, dy.T @ x))


@pytest.mark.parametrize("settings", [SLOW(LORA), Lora(2, 1.0, ("q_proj", "v_proj", "down_proj"))], ids=["all", "some"])
def test_adapters_merged_into_the_base_decode_like_the_unmerged(settings):
    params, tokens = weights(CONFIG), tokens_of(2, 3, 9)
    one = lora.concatenate(two_adapters(params, settings)[:1], (settings,))
    merged = decoder.prepare(CONFIG, params, one, merged=True)
    assert not any("a" in part for layer in merged["layers"] for part in layer.values() if isinstance(part, dict))
    found = appended(CONFIG, merged, tokens, None, 0)
    close(found, forward(CONFIG, params, tokens, adapters=one, policy=jnp.zeros(3, jnp.int32))[0])
    assert np.abs(forward(CONFIG, params, tokens)[0] - found).max() > 0.1


def shared_and_whole(config: Config):
    """Two functions (params, adapters) -> (a number, hidden states) of rows with openings, one knowing only whole rows.

    The states are those of all tokens of the openings, then of the rows.
    """
    length, policy = np.array([5, 2, 4]), jnp.asarray([0, 0, 1, 1, -1, -1])
    prompts, rows, group = Prompts(tokens_of(3, 3, 5), jnp.asarray(length)), tokens_of(4, 6, 7), 2
    texts = [np.concatenate([prompts.tokens[r // group, : length[r // group]], rows[r]]) for r in range(6)]
    whole = jnp.asarray(np.stack([np.pad(text, (0, 12 - len(text)), constant_values=1) for text in texts]))

    def number(opened, answered):
        states = jnp.concatenate([opened, answered.reshape(-1, config.hidden_size)])
        return (states * np.random.default_rng(0).normal(size=states.shape).astype(np.float32)).sum(), states

    def shared(params, ads):
        joined = lora.concatenate(ads, (LORA, LORA))
        hidden, opened = decoder.forward(config, params, rows, prompts, joined, policy)
        assert opened is not None
        return number(jnp.concatenate([opened[o, : length[o]] for o in range(3)]), hidden)

    def apart(params, ads):
        hidden, _ = decoder.forward(config, params, whole, None, lora.concatenate(ads, (LORA, LORA)), policy)
        begin = np.repeat(length, group)
        opened = jnp.concatenate([hidden[o * group, : length[o]] for o in range(3)])
        return number(opened, jnp.stack([hidden[r, begin[r] : begin[r] + 7] for r in range(6)]))

    return shared, apart


@pytest.mark.long
@pytest.mark.parametrize("family", [SLOW("llama3.1"), "gemma3", "qwen3_5_periods", "gemma4", "gemma4_shared"])
def test_shared_openings_equal_whole_rows_in_value_and_gradient(family):
    config = (FAMILIES | ODD)[family]
    shared, apart = shared_and_whole(config)
    params = weights(config)
    run = lambda f: jax.jit(jax.value_and_grad(f, (0, 1), has_aux=True))(params, two_adapters(params))
    (value, states), gradient = run(shared)
    (expected_value, expected_states), expected = run(apart)
    close((value, states), (expected_value, expected_states))
    close(gradient, expected, 1e-4 if family == "qwen3_5_periods" else 1e-5)  # chunks begin at other tokens


def test_rows_divide_over_openings():
    three = Prompts(tokens_of(11, 3, 4), jnp.asarray([4, 3, 1]))
    with pytest.raises(ValueError, match="4 rows do not divide over 3 prompts"):
        decoder.forward(CONFIG, weights(CONFIG), tokens_of(10, 4, 6), three)
    with pytest.raises(ValueError, match="4 rows do not divide over 3 prompts"):
        decoder.empty_cache(CONFIG, 4, 8, prompt=decoder.empty_cache(CONFIG, 3, 8))


@pytest.mark.long
@pytest.mark.parametrize("config", [CONFIG, SLOW(FAMILIES["gemma4_shared"])], ids=["llama2", "gemma4_shared"])
def test_what_is_computed_again_changes_neither_value_nor_gradient(config):
    params, rows = weights(config), tokens_of(10, 4, 6)
    prompts = Prompts(tokens_of(11, 2, 4), jnp.asarray([4, 3]))

    def loss(params, remat):
        return (decoder.forward(config, params, rows, prompts, remat=remat)[0] ** 3).sum()

    run = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    expected = run(params, "none")
    for remat in set(get_args(Remat)) - {"none"}:
        close(run(params, remat), expected, 1e-6)


def test_causality_by_gradient_is_exactly_zero():
    """Every position has a token of its own, so a row of the embedding is a position; D hidden numbers are mixed."""
    group, prompts, opening_size, size = 2, 2, 3, 4
    rows = prompts * group
    count = prompts * opening_size
    config = replace(CONFIG, vocab_size=count + rows * size)
    params = weights(config)
    opened = Prompts(jnp.arange(count).reshape(prompts, opening_size), jnp.asarray([3, 2]))
    tokens = count + jnp.arange(rows * size).reshape(rows, size)
    mix = jax.random.normal(jax.random.key(5), (config.hidden_size,))

    def states(embedding):
        hidden, prefix = decoder.forward(config, {**params, "embed_tokens": embedding}, tokens, opened)
        assert prefix is not None
        return jnp.concatenate([prefix.reshape(count, -1), hidden.reshape(rows * size, -1)]) @ mix

    moved = (
        np.abs(jax.jit(jax.jacrev(states))(params["embed_tokens"])).sum(-1) > 0
    )  # [position, position it depends on]
    length = np.asarray(opened.length)
    prompt = np.r_[np.repeat(np.arange(prompts), opening_size), np.repeat(np.arange(rows) // group, size)]
    row = np.r_[np.full(count, -1), np.repeat(np.arange(rows), size)]
    place = np.r_[np.tile(np.arange(opening_size), prompts), (length[prompt[count:]] + np.tile(np.arange(size), rows))]
    padding = (row < 0) & (place >= length[prompt])
    same_text = (prompt[:, None] == prompt[None]) & ((row[None] == row[:, None]) | (row[None] < 0))
    depends = same_text & (place[None] <= place[:, None]) & ~padding[None]
    np.testing.assert_array_equal(moved[~padding], depends[~padding])


def test_padding_of_an_opening_and_of_a_row_is_never_read():
    params, rows = weights(CONFIG), tokens_of(6, 4, 5)
    prompts = Prompts(tokens_of(7, 2, 6), jnp.asarray([4, 6]))
    other = prompts.replace(tokens=prompts.tokens.at[0, 4:].set((prompts.tokens[0, 4:] + 1) % CONFIG.vocab_size))
    hidden, opened = forward(CONFIG, params, rows, prompts)
    again, reopened = forward(CONFIG, params, rows.at[:, 3:].set(0), other)
    np.testing.assert_array_equal(hidden[:, :3], again[:, :3])
    np.testing.assert_array_equal(opened[0, :4], reopened[0, :4])
    assert not np.array_equal(opened[0, 4:], reopened[0, 4:])


def test_updates_alone_use_the_fused_kernel(monkeypatch):
    """A rollout would copy its caches for it."""
    config, params, tokens = replace(CONFIG, dtypes=Dtypes(attention="fused")), weights(CONFIG), tokens_of(3, 4, 9)
    expected, _ = decoder.forward(CONFIG, params, tokens)
    close(decoder.forward(config, params, tokens)[0], expected)
    monkeypatch.delattr(jax.nn, "dot_product_attention")
    close(appended(config, decoder.prepare(config, params), tokens, None, seed=0), np.asarray(expected))
    with pytest.raises(AttributeError):
        decoder.forward(config, params, tokens)


def test_bfloat16_is_close_and_its_logits_are_float32():
    params, tokens = weights(CONFIG), tokens_of(8, 3, 9)
    exact, _ = forward(CONFIG, params, tokens)
    half = replace(CONFIG, dtypes=Dtypes(compute="bfloat16", cache="bfloat16"))
    hidden, _ = forward(half, params, tokens)
    assert hidden.dtype == jnp.bfloat16 and decoder.empty_cache(half, 3, 9).keys[0].dtype == jnp.bfloat16
    cached = appended(half, decoder.prepare(half, params), tokens, None, 0)
    for rough in (np.asarray(hidden, np.float32), cached):
        assert 0 < np.square(rough - exact).mean() < 0.05**2 * np.square(exact).mean()
    for states in (hidden, exact):
        logits = decoder.logits(CONFIG, params, states)
        assert logits.dtype == jnp.float32 and logits.shape == (3, 9, CONFIG.vocab_size)


@pytest.mark.parametrize("tied", [True, False])
def test_random_weights_have_the_shapes_and_sizes_announced(tied):
    config = replace(CONFIG, tie_word_embeddings=tied, hidden_size=64, dtypes=Dtypes(parameters="bfloat16"))
    params = decoder.init(config, jax.random.key(0))
    announced = decoder.shapes(config)
    assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(
        tuple, announced, is_leaf=lambda x: isinstance(x, tuple)
    )
    assert ("lm_head" in params) != tied
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    assert (params["norm"] == 1).all() and (params["layers"]["input_layernorm"] == 1).all()
    maps = [name for name in lora.MAPS if name in params["layers"]]
    deviation = {name: float(np.std(np.asarray(params["layers"][name], np.float32))) for name in maps}
    for name, (_, _, inner) in ((name, announced["layers"][name]) for name in maps):
        assert deviation[name] == pytest.approx(inner**-0.5, rel=0.1)
    assert np.std(np.asarray(params["embed_tokens"], np.float32)) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("change", [{"num_key_value_heads": 3}, {"head_dim": 5}])
def test_heads_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError, match="must be a multiple of num_key_value_heads"):
        replace(CONFIG, **change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba"}, "model_type must be one of llama, mistral, mixtral, .*, got 'mamba'"),
        ({"hidden_act": "relu"}, "hidden_act must be one of silu, gelu, gelu_pytorch_tanh, got 'relu'"),
        ({"layer_types": ("full_attention",)}, "layer_types names 1 of 2 layers"),
        ({"layer_types": ("sliding_attention",) * 2}, "need a sliding_window"),
        ({"num_experts": 3}, "num_experts_per_tok must be from 1"),
        ({"attn_logit_softcapping": 5.0, "dtypes": Dtypes(attention="fused")}, "cannot bound scores"),
        ({"no_rope_layers": (1,)}, "no_rope_layers names 1 of 2 layers"),
    ],
)
def test_configurations_that_cannot_be_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        replace(CONFIG, **change)


def test_rows_past_the_original_context_of_longrope_are_refused():
    """Their angles would change for the tokens before it, which the cache holds rotated."""
    config = FAMILIES["phi3"]
    params = weights(config)
    prompts = Prompts(tokens_of(11, 1, 13), jnp.asarray([13]))
    for rows, opened in ((tokens_of(1, 1, 33), None), (tokens_of(1, 1, 20), prompts)):
        with pytest.raises(ValueError, match="Rows of up to 33 tokens pass the original context of 32"):
            decoder.forward(config, params, rows, opened)
    with pytest.raises(ValueError, match="Rows of up to 33 tokens"):
        decoder.empty_cache(config, 1, 33)
    rope = Rope(100.0, "longrope", 2.0, 16, short_factor=(1.0,) * 3, long_factor=(2.0,) * 3)
    sliding = replace(FAMILIES["gemma4"], rope_sliding=rope)
    assert (config.longest, sliding.longest, FAMILIES["gemma4"].longest) == (32, 16, None)


def test_experts_are_those_of_a_loop_over_tokens():
    config = FAMILIES["qwen3_moe"]
    layer = jax.tree.map(lambda leaf: leaf[0], weights(config)["layers"])
    x = np.random.default_rng(0).normal(size=(2, 3, config.hidden_size)).astype(np.float32)
    found = layers.experts(config, layer, jnp.asarray(x))
    gate, up, down = (np.asarray(layer[f"experts_{name}"], np.float64) for name in ("gate", "up", "down"))
    expected = np.zeros(x.shape)
    for place in np.ndindex(2, 3):
        token = x[place].astype(np.float64)
        odds = np.exp(np.asarray(layer["router"], np.float64) @ token)
        odds /= odds.sum()
        for expert in np.argsort(-odds)[: config.num_experts_per_tok]:
            pre = gate[expert] @ token
            expected[place] += odds[expert] * down[expert] @ (pre / (1 + np.exp(-pre)) * (up[expert] @ token))
    close(found, expected)


@pytest.mark.long
def test_experts_on_several_devices_are_those_on_one():
    """Each device holds some of the experts, and none holds all, in an update as in a rollout."""
    config, tokens = replace(FAMILIES["qwen3_moe"], num_experts=8), tokens_of(3, 4, 5)
    params, mesh = weights(config), sharding.mesh("fsdp=2,tensor=2")
    placed = sharding.place(params, mesh)
    assert placed["layers"]["experts_up"].sharding.shard_shape((2, 8, 12, 16)) == (2, 2, 12, 16)

    def run(params):
        cache, n = decoder.empty_cache(config, 4, 8), jnp.full(4, 5, jnp.int32)
        _, hidden = decoder.append(config, decoder.prepare(config, params), cache, tokens, n)
        return hidden, jax.grad(lambda params: (decoder.forward(config, params, tokens)[0] ** 3).sum())(params)

    expected = jax.jit(run)(params)
    with sharding.use(mesh):
        hidden, gradient = jax.jit(run)(placed)
    close(hidden, expected[0])
    close(gradient, expected[1], 1e-4)


@pytest.mark.long
@pytest.mark.parametrize("axes", ["data=4", SLOW("fsdp=2,tensor=2"), "fsdp=4", "tensor=2"])
def test_a_model_with_a_state_on_several_devices_is_that_on_one(axes):
    config = replace(FAMILIES["qwen3_5"], linear_value_head_dim=4)
    params, tokens, mesh = weights(config), tokens_of(3, 4, 9), sharding.mesh(axes)
    adapters, policy = two_adapters(params), np.array([0, 0, 1, 1])
    prompts = Prompts(tokens_of(4, 4, 5), jnp.asarray([4, 3, 5, 4]))
    placed = sharding.place({"params": params, "adapters": adapters}, mesh)
    if axes == "tensor=2":
        assert placed["params"]["layers"]["in_proj_z"].sharding.shard_shape((2, 16, 16)) == (2, 8, 16)

    def run(tree):
        params, adapters = tree["params"], lora.concatenate(tree["adapters"], (LORA, LORA))
        prepared, n = decoder.prepare(config, params, adapters), jnp.asarray([9, 5, 0, 7])
        empty = jax.tree.map(sharding.split_cache, decoder.empty_cache(config, 4, 5))
        prompt, _ = decoder.append(config, prepared, empty, prompts.tokens, prompts.length, policy)
        cache = jax.tree.map(sharding.split_cache, decoder.empty_cache(config, 4, 16, prompt))
        cache, hidden = decoder.append(config, prepared, cache, tokens, n, policy)
        hidden = jnp.where((jnp.arange(9)[None] < n[:, None])[..., None], hidden, 0)

        def loss(tree):
            adapters = lora.concatenate(tree["adapters"], (LORA, LORA))
            return (decoder.forward(config, tree["params"], tokens, prompts, adapters, policy, "full")[0] ** 3).sum()

        return hidden, cache.memories, jax.grad(loss)(tree)

    expected = jax.jit(run)({"params": params, "adapters": adapters})
    with sharding.use(mesh):
        found = jax.jit(run)(placed)
    close(found[:2], expected[:2], 1e-4)
    close(found[2], expected[2], 1e-4)


def ours_of(config: Config) -> dict[str, np.ndarray]:
    """Logits of a text, what greedy play adds to it, and the gradient of a loss in transformers' names."""
    params, tokens = weights(config), tokens_of(9, 3, 11)

    def loss(params):
        logits = decoder.logits(config, params, decoder.forward(config, params, tokens)[0])
        logp = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean(), logits

    gradient, logits = jax.jit(jax.grad(loss, has_aux=True))(params)

    begun = jnp.asarray([4, 7, 10])  # tokens of the first chunk, a row each; the second holds the rest

    @jax.jit
    def greedy(params):
        prepared = decoder.prepare(config, params)
        rest = jax.vmap(lambda row, n: jnp.roll(row, -n))(tokens, begun)

        def add(carry, first):
            cache, chunk, n = carry
            cache, hidden = decoder.append(config, prepared, cache, chunk, n)
            last = jnp.take_along_axis(hidden, (n - 1)[:, None, None], 1)
            said = decoder.logits(config, params, last).argmax(-1).astype(jnp.int32)
            after = jnp.where(first, rest, chunk.at[:, :1].set(said))  # what follows what is said does not count
            return (cache, after, jnp.where(first, 11 - begun, 1)), said[:, 0]

        start = decoder.empty_cache(config, 3, 32), tokens, begun
        return jax.lax.scan(add, start, jnp.arange(9) == 0)[1][1:].T

    return {"logits": np.asarray(logits), "greedy": np.asarray(greedy(params)), **by_their_name(config, gradient)}


def theirs_of(config: Config) -> dict[str, np.ndarray]:
    import torch

    theirs, ours = in_transformers(config), by_their_name(config, weights(config))
    scalars = {name: x for name, x in theirs.named_buffers() if name.endswith("layer_scalar")}
    copied = dict(theirs.named_parameters()) | scalars
    assert set(copied) == set(ours)
    with torch.no_grad():
        for name, value in ours.items():
            copied[name].copy_(torch.from_numpy(value.copy()))
    tokens = torch.from_numpy(np.array(tokens_of(9, 3, 11), np.int64))
    logits = theirs(tokens).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    greedy = theirs.generate(
        tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=8, pad_token_id=0
    )[:, 11:]
    found = {"logits": logits.detach().numpy(), "greedy": greedy.numpy()}
    zero = {name: np.zeros(1, np.float32) for name in scalars}  # as they are not trained
    return found | {name: copied[name].grad.numpy() for name in ours if name not in scalars} | zero


def agree(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert set(ours) == set(theirs)
    np.testing.assert_array_equal(ours["greedy"], theirs["greedy"])
    assert len(np.unique(ours["greedy"])) > 1
    for name, expected in theirs.items():
        assert np.abs(expected).max() > 1e-5 or name.endswith("layer_scalar"), name  # every parameter matters
        tolerance = 1e-4 if name == "logits" else 1e-3
        assert np.abs(ours[name] - expected).max() <= tolerance * np.abs(expected).max(), name


LONG = partial(pytest.param, marks=pytest.mark.long)


LATER = ("mistral", "mixtral", "olmo2", "smollm3", "granite", *ODD)


@pytest.mark.parametrize("family", [LONG(family) if family in LATER else family for family in FAMILIES | ODD])
def test_parity_of_logits_greedy_play_and_gradients_with_transformers(family):
    """Against the golden file, and with torch against transformers itself."""
    config = (FAMILIES | ODD)[family]
    ours = ours_of(config)
    with np.load(GOLDEN) as golden:
        agree(ours, {k.partition("/")[2]: golden[k] for k in golden.files if k.partition("/")[0] == family})
    pytest.importorskip("torch")
    agree(ours, theirs_of(config))


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("llama2", {"rope": Rope(10001.0 * 2)}),
        ("llama3.1", {"rope": replace(FAMILIES["llama3.1"].rope, factor=4.0)}),
        ("qwen2", {"rope": replace(FAMILIES["qwen2"].rope, attention_factor=1.0)}),
        ("qwen2", {"sliding_window": 5}),
        ("gemma3", {"rope_sliding": None}),
        ("gemma3", {"query_pre_attn_scalar": None}),
        ("gemma3", {"layer_types": ("sliding_attention", "full_attention", "sliding_attention")}),
        ("mixtral", {"norm_topk_prob": False}),
        ("qwen3_moe", {"num_experts_per_tok": 2}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("phi3", {"rope": replace(FAMILIES["phi3"].rope, attention_factor=1.0)}),
        ("phi3", {"rope": replace(FAMILIES["phi3"].rope, short_factor=FAMILIES["phi3"].rope.long_factor)}),
        ("smollm3", {"no_rope_layers": ()}),
        ("qwen3_5", {"rope": Rope(1000.0)}),
        ("qwen3_5", {"rms_norm_eps": 1e-2}),
        ("granite", {"residual_multiplier": 1.0}),
        ("granite", {"attention_multiplier": None}),
        ("gemma4", {"attention_multiplier": None}),
        ("gemma4", {"rope": replace(FAMILIES["gemma4"].rope, partial_rotary_factor=0.5)}),
        ("gemma4_shared", {"rope_sliding": None}),
    ],
)
def test_a_setting_that_is_off_does_not_pass_for_parity(family, change):
    with np.load(GOLDEN) as golden:
        expected = golden[f"{family}/logits"]
    wrong = replace(FAMILIES[family], **change)
    logits = decoder.logits(wrong, weights(wrong), forward(wrong, weights(wrong), tokens_of(9, 3, 11))[0])
    assert np.abs(logits - expected).max() > 1e-3 * np.abs(expected).max()


def test_a_dropped_bias_or_permuted_keys_do_not_pass_for_parity():
    config, params = FAMILIES["llama3.1"], weights(FAMILIES["llama3.1"])
    with np.load(GOLDEN) as golden:
        expected = golden["llama3.1/logits"]
    layers = params["layers"]
    interleaved = layers["k_proj"].reshape(2, 2, 2, 3, -1).swapaxes(2, 3).reshape(layers["k_proj"].shape)
    for change in ({"v_proj_bias": 0 * layers["v_proj_bias"]}, {"k_proj": interleaved}):
        wrong = {**params, "layers": {**layers, **change}}
        logits = decoder.logits(config, wrong, forward(config, wrong, tokens_of(9, 3, 11))[0])
        assert np.abs(logits - expected).max() > 1e-3 * np.abs(expected).max()


if __name__ == "__main__":
    found = {name: theirs_of(config) for name, config in (FAMILIES | ODD).items()}
    np.savez_compressed(GOLDEN, **{f"{name}/{key}": x for name, part in found.items() for key, x in part.items()})
