"""Laws of the mixture of experts: all of its forms compute the same sum, and shapes alone select one."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.devices import sharding, target
from jaxmarl_llm.models import decoder, layers, mixture
from tests.support.families import FAMILIES, ODD, weights

E, K, D, I = 16, 2, 24, 12


def data(seed, tokens, tied=False):
    """Maps, tokens, weights and chosen experts; with `tied` the router prefers no expert."""
    random = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
    maps = normal(E, I, D), normal(E, I, D), normal(E, D, I)
    odds = jnp.ones((tokens, E)) / E if tied else jax.nn.softmax(normal(tokens, E), -1)
    best, chosen = jax.lax.top_k(odds, K)
    taken = (jax.nn.one_hot(chosen, E) * best[..., None]).sum(1)
    return maps, normal(tokens, D), taken, chosen


def expected(maps, rows, taken, chosen):
    """A loop over tokens and their experts in float64."""
    gate, up, down = (np.asarray(w, np.float64) for w in maps)
    y = np.zeros(rows.shape)
    for token, experts in enumerate(np.asarray(chosen)):
        for expert in experts:
            x = np.asarray(rows[token], np.float64)
            pre = gate[expert] @ x
            y[token] += float(taken[token, expert]) * down[expert] @ (pre / (1 + np.exp(-pre)) * (up[expert] @ x))
    return y


chosen_alone = jax.jit(partial(mixture.by_chosen, jax.nn.silu))


@pytest.mark.parametrize(("tokens", "tied"), [(1, False), (7, False), (5, True)])
def test_every_form_is_a_loop_over_tokens_and_their_experts(tokens, tied):
    given = data(tokens, tokens, tied)
    forms = jax.jit(lambda *x: [form(jax.nn.silu, *x) for form in (mixture.by_all, mixture.by_each)])
    for found in (*forms(*given[:3]), chosen_alone(*given)):
        np.testing.assert_allclose(found, expected(*given), rtol=1e-5, atol=1e-5)


def test_a_token_has_the_same_bits_alone_among_others_and_in_a_lane():
    maps, rows, taken, chosen = data(3, 7)
    together = chosen_alone(maps, rows, taken, chosen)
    for token in (0, 4):
        at = slice(token, token + 1)
        np.testing.assert_array_equal(together[at], chosen_alone(maps, rows[at], taken[at], chosen[at]))
    lanes = jax.jit(jax.vmap(partial(mixture.by_chosen, jax.nn.silu, maps)))
    np.testing.assert_array_equal(together, lanes(rows[:, None], taken[:, None], chosen[:, None])[:, 0])


def test_shapes_select_the_form(monkeypatch):
    """Only decoding of few float32 tokens on one CPU device leaves the form by all experts."""
    for name in ("by_all", "by_each", "by_chosen"):
        monkeypatch.setattr(mixture, name, lambda *_, name=name: name)

    def form(tokens=1, experts=128, chosen=8, width=2048, inner=768, dtype=jnp.float32, decoding=True):
        leaf = lambda *shape: jax.ShapeDtypeStruct(shape, dtype)
        maps = leaf(experts, inner, width), leaf(experts, inner, width), leaf(experts, width, inner)
        rows, taken, indices = leaf(tokens, width), leaf(tokens, experts), leaf(tokens, chosen)
        return mixture.mix(jax.nn.silu, maps, rows, taken, indices, decoding)

    assert [form(tokens) for tokens in (1, 8, 64, 65)] == ["by_chosen"] * 3 + ["by_all"]
    mixtral = partial(form, experts=8, chosen=2)
    assert [mixtral(tokens) for tokens in (1, 4, 5, 64, 65)] == ["by_chosen"] * 2 + ["by_each"] * 2 + ["by_all"]
    assert mixtral(width=4096) == mixtral(inner=14336) == "by_each"
    assert form(decoding=False) == form(dtype=jnp.bfloat16) == "by_all"
    with sharding.use(sharding.mesh("fsdp=2")):
        assert form() == "by_all"
    with target.as_on("accelerator"):
        assert form() == "by_all"


def test_an_update_never_decodes_by_chosen_experts():
    """It has no reverse-mode gradient, and an update takes the form that has one."""
    maps, rows, taken, chosen = data(0, 1)
    with pytest.raises(ValueError, match="reverse-mode"):
        jax.grad(lambda rows: mixture.by_chosen(jax.nn.silu, maps, rows, taken, chosen).sum())(rows)
    jax.eval_shape(jax.grad(lambda rows: mixture.mix(jax.nn.silu, maps, rows, taken, chosen).sum()), rows)


def test_decoding_asks_for_the_chosen_experts_and_scoring_for_all(monkeypatch):
    config, calls = replace(FAMILIES["qwen3_moe"], num_experts=16, num_experts_per_tok=2), []
    plain = mixture.by_chosen
    monkeypatch.setattr(mixture, "by_chosen", lambda *x: calls.append(len(x[2])) or plain(*x))
    params, tokens = weights(config), jnp.ones((3, 1), jnp.int32)
    of_cache = lambda: decoder.empty_cache(config, 3, 8)
    step = lambda: decoder.append(config, decoder.prepare(config, params), of_cache(), tokens, jnp.ones(3, jnp.int32))
    jax.eval_shape(step)
    assert calls == [3] * config.num_hidden_layers
    jax.eval_shape(lambda: decoder.forward(config, params, tokens))
    assert len(calls) == config.num_hidden_layers


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gemma4_moe_shared"])
def test_experts_in_decoding_are_those_of_an_update(family, monkeypatch):
    """Norms and scales of Gemma 4 too, in both forms for few tokens; the model has more experts than the family's."""
    config = replace((FAMILIES | ODD)[family], num_experts=16, num_experts_per_tok=3)
    layer = jax.tree.map(lambda leaf: leaf[0], weights(config)["layers"])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, config.hidden_size)), jnp.float32)
    of = lambda decoding: jax.jit(partial(layers.experts, config, decoding=decoding))(layer, x)
    exact = of(False)
    assert config.hidden_size < mixture.SHORT
    np.testing.assert_allclose(of(True), exact, rtol=2e-5, atol=2e-5)
    monkeypatch.setattr(mixture, "SHORT", 1)
    np.testing.assert_allclose(of(True), exact, rtol=2e-5, atol=2e-5)
