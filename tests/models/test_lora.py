"""Low-rank adapters: rows with policies of their own, merged and apart, against single products.

The long cases compile a model once for each assignment of policies.
"""

from functools import partial
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models import decoder, layers, lora
from jaxmarl_llm.models.lora import MAPS, Lora
from tests.support.families import CONFIG

PARAMS = decoder.init(CONFIG, jax.random.key(0))
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, CONFIG.vocab_size, (5, 6)), jnp.int32)
LORA = Lora(rank=3, alpha=12.0)
forward = jax.jit(partial(decoder.forward, CONFIG))


def adapter(seed: int, settings: Lora = LORA) -> dict:
    """An adapter whose b is not zero.

    The long cases compile a model once for each assignment of policies.
    """
    generator = np.random.default_rng(seed)
    shape = jax.eval_shape(partial(lora.init, lora=settings), jax.random.key(0), PARAMS)
    return jax.tree.map(lambda x: jnp.asarray(0.3 * generator.normal(size=x.shape), jnp.float32), shape)


def alone(one: dict, settings: Lora) -> np.ndarray:
    """Hidden states under W + (alpha / rank) B A, the definition, written out for each layer."""
    layers = dict(PARAMS["layers"])
    for name in one:
        change = np.stack([np.asarray(b) @ np.asarray(a) for a, b in zip(one[name]["a"], one[name]["b"], strict=True)])
        layers[name] = layers[name] + settings.alpha / settings.rank * change
    return forward({**PARAMS, "layers": layers}, TOKENS)[0]


@pytest.mark.parametrize(
    "loras",
    [
        (Lora(3, 12.0),) * 3,
        (Lora(2, 4.0, ("q_proj", "v_proj")), Lora(3, 1.0, ("*_proj",)), Lora(1, 3.0, ("gate*", "o_proj"))),
        (Lora(3, 12.0, ("k_proj",)), Lora(3, 12.0, ("q_proj",)), Lora(2, 12.0, ("down_proj", "up_proj"))),
    ],
)
def test_each_row_sees_its_own_adapter_alone(loras):
    several = [adapter(k, settings) for k, settings in enumerate(loras)]
    policy = jnp.asarray([2, 0, -1, 1, 0])
    joined = lora.concatenate(several, loras)
    hidden, _ = forward(PARAMS, TOKENS, adapters=joined, policy=policy)
    possible = {-1: forward(PARAMS, TOKENS)[0]}
    possible |= {k: alone(one, settings) for k, (one, settings) in enumerate(zip(several, loras, strict=True))}
    for row, owner in enumerate(policy.tolist()):
        np.testing.assert_allclose(hidden[row], possible[owner][row], atol=1e-5)
        others = [states[row] for k, states in possible.items() if k != owner]
        assert min(np.abs(hidden[row] - other).max() for other in others) > 1e-2


@pytest.mark.parametrize("settings", [LORA, Lora(2, 4.0, ("q_proj", "v_proj", "gate*", "o_proj"))])
@pytest.mark.parametrize(
    ("policy", "traced"), [([4, 1, -1, 1, 0], False), ([4, 1, 3, 2, 0], True), ([4, 1, 3, 2, 0], False)]
)
@pytest.mark.long
def test_rows_that_compute_with_their_own_adapter_are_rows_alone(settings, policy, traced, monkeypatch):
    several = [adapter(k, settings) for k in range(5)]
    policy = np.array(policy)
    given = jnp.asarray(policy) if traced else policy

    def loss(several):
        joined = lora.concatenate(several, (settings,) * 5)
        hidden = decoder.forward(CONFIG, PARAMS, TOKENS, adapters=joined, policy=given)[0]
        return jnp.tanh(hidden**3).sum(), hidden

    monkeypatch.setattr(layers, "COPIED", 10**9)
    masked = jax.grad(loss, has_aux=True)(several)
    monkeypatch.setattr(layers, "COPIED", 0)
    with mock.patch.object(layers, "own_adapter", wraps=layers.own_adapter) as used:
        gradient, hidden = jax.grad(loss, has_aux=True)(several)
    assert used.called
    for row, owner in enumerate(policy):
        one = forward(PARAMS, TOKENS)[0] if owner < 0 else alone(several[owner], settings)
        np.testing.assert_allclose(hidden[row], one[row], atol=3e-5)
    chex.assert_trees_all_close((gradient, hidden), masked, rtol=1e-3, atol=1e-3)
    for k in {*range(5)} - {*policy.tolist()}:
        assert not any(leaf.any() for leaf in jax.tree.leaves(gradient[k]))


def test_policies_of_unlike_ranks_are_masked():
    assert layers.alike([np.repeat(np.arange(4), 2), np.repeat(np.arange(4), 3)]) == 4
    assert layers.alike([np.array([0, 0, 1])]) == 0
    assert layers.alike([np.array([0, 1]), np.array([0])]) == 0
    assert layers.alike([np.array([1, 1, 2, 2])]) == 0


def test_rows_are_in_order_of_the_policies_where_all_have_as_many():
    joined = lora.concatenate([adapter(k, LORA) for k in range(4)], (LORA,) * 4)
    layer = decoder.prepare(CONFIG, PARAMS, joined)["layers"][0]
    assert layers.in_order(layer, np.array([3, 1, 2, 0]))
    for policy in (None, np.array([0, 0, 1, 2, 3]), np.array([0, 1, 2, -1]), jnp.arange(4)):
        assert not layers.in_order(layer, policy)  # packed, behind a mask
    assert not layers.in_order(decoder.prepare(CONFIG, PARAMS)["layers"][0], np.arange(4))


def test_targets_are_names_or_patterns():
    assert Lora().maps == MAPS
    assert Lora(targets=("v_proj", "q_*")).maps == ("q_proj", "v_proj", "global_q_proj", "global_v_proj")
    assert set(lora.init(jax.random.key(0), PARAMS, Lora(targets=("*p_proj",)))) == {"up_proj"}


def test_without_a_policy_every_row_sees_the_only_adapter():
    one = adapter(0)
    joined = lora.concatenate([one], [LORA])
    np.testing.assert_allclose(forward(PARAMS, TOKENS, adapters=joined)[0], alone(one, LORA), atol=1e-5)
    assert joined is not None
    merged = forward(lora.merge(PARAMS, joined), TOKENS)[0]
    np.testing.assert_allclose(merged, alone(one, LORA), atol=1e-5)


def test_a_new_adapter_is_the_base_and_can_learn():
    new = lora.init(jax.random.key(0), PARAMS, LORA)
    for name, part in new.items():
        layers, out, inner = PARAMS["layers"][name].shape
        assert part["a"].shape == (layers, LORA.rank, inner) and part["b"].shape == (layers, out, LORA.rank)
        assert 0.8 * inner**-0.5 < np.abs(part["a"]).max() <= inner**-0.5 and not part["b"].any()

    def loss(new):
        joined = lora.concatenate([new], [LORA])
        hidden = forward(PARAMS, TOKENS, adapters=joined, policy=jnp.zeros(5, jnp.int32))[0]
        return (hidden**3).sum(), hidden

    gradient, hidden = jax.grad(loss, has_aux=True)(new)
    np.testing.assert_array_equal(hidden, forward(PARAMS, TOKENS)[0])
    assert all(np.abs(part["b"]).max() > 0 for part in gradient.values())


def test_rows_of_one_policy_give_the_other_exactly_no_gradient():
    several = [adapter(0), adapter(1)]
    policy = jnp.asarray([0, 1, 0, 1, -1])

    def loss(several, which):
        hidden = forward(PARAMS, TOKENS, adapters=lora.concatenate(several, [LORA] * 2), policy=policy)[0]
        return jnp.where((policy == which)[:, None, None], hidden**3, 0).sum()

    for which, moved in [(0, [True, False]), (1, [False, True]), (-1, [False, False])]:
        gradient = jax.grad(loss)(several, which)
        for one, expected in zip(gradient, moved, strict=True):
            assert {bool((leaf != 0).any()) for leaf in jax.tree.leaves(one)} == {expected}


def test_no_adapters_join_to_none():
    assert lora.concatenate([], []) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rank": 0}, "got rank 0"),
        ({"rank": 1.5}, "got rank 1.5"),
        ({"alpha": 0.0}, "alpha 0.0"),
        ({"targets": ("q_proj", "lm_head")}, "'lm_head'"),
        ({"targets": ()}, "targets none"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValueError, match=f"LoRA needs rank >= 1, alpha > 0 and targets among q_proj, .*{said}"):
        Lora(**settings)
