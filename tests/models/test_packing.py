"""Chunks whose tokens in use are packed: the same hidden states and caches, fewer tokens computed.

The long and slow cases compile wider chunks or more blocks; the short ones check the same laws in narrow and sparse
ones.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models import decoder, lora, packing
from jaxmarl_llm.models.config import Config
from jaxmarl_llm.models.lora import Lora
from tests.support.families import FAMILIES

CONFIG = Config(50, 8, 16, 2, 2, 1, 4, 128)


def appended(config: Config, width: int, n: jax.Array) -> tuple[decoder.Cache, jax.Array]:
    """A chunk after two prompts of three rows each, a policy for every other row."""
    params = decoder.init(config, jax.random.key(0))
    settings = (Lora(2, 2.0), Lora(2, 2.0))
    adapters = [lora.init(jax.random.key(i), params, each) for i, each in enumerate(settings)]
    adapters = jax.tree.map(lambda x: x + 0.1, adapters)
    prepared = decoder.prepare(config, params, lora.concatenate(adapters, settings))
    prompts = jax.random.randint(jax.random.key(1), (2, 7), 0, config.vocab_size)
    before, _ = decoder.append(config, prepared, decoder.empty_cache(config, 2, 7), prompts, jnp.array([7, 5]))
    cache = decoder.empty_cache(config, 6, 3 + 2 * width, before)
    policy, tokens = jnp.arange(6) % 2, jax.random.randint(jax.random.key(2), (6, 3 + width), 0, config.vocab_size)
    cache, _ = decoder.append(config, prepared, cache, tokens[:, :3], jnp.array([3, 1, 0, 2, 3, 3]), policy)
    return decoder.append(config, prepared, cache, tokens[:, 3:], n, policy)


@cache
def program(config: Config, width: int, heavy: int):
    """`appended` with models of so many parameters as heavy ones: compiled once for all chunks of a width."""

    def append(n):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "HEAVY", heavy)
            return appended(config, width, n)

    return jax.jit(append)


@pytest.mark.parametrize(
    ("width", "n", "config"),
    [
        (4, [1, 0, 4, 0, 2, 0], CONFIG),  # less than half of what can be said
        (4, [4, 4, 4, 4, 0, 1], CONFIG),  # more
        (4, [0] * 6, CONFIG),
        pytest.param(4, [1, 0, 4, 0, 2, 0], FAMILIES["gemma4_shared"], marks=pytest.mark.slow),
        pytest.param(20, [20, 0, 3, 11, 0, 20], CONFIG, marks=pytest.mark.long),
        pytest.param(20, [20] * 6, CONFIG, marks=pytest.mark.long),
        pytest.param(20, [0, 0, 1, 0, 0, 0], CONFIG, marks=pytest.mark.long),
    ],
)
def test_packed_tokens_are_computed_as_padded_ones(width, n, config):
    (plain_cache, plain), (cache, hidden) = (
        jax.device_get(program(config, width, heavy)(jnp.array(n))) for heavy in (packing.HEAVY, 0)
    )
    np.testing.assert_array_equal(cache.length, plain_cache.length)
    for r, length in enumerate(n):
        np.testing.assert_allclose(hidden[r, :length], plain[r, :length], atol=1e-5)
        kept = int(cache.length[r])
        for layer in range(len(cache.keys)):
            np.testing.assert_allclose(
                cache.keys[layer][r, :, :, :kept], plain_cache.keys[layer][r, :, :, :kept], atol=1e-5
            )
            np.testing.assert_allclose(
                cache.values[layer][r, :, :kept], plain_cache.values[layer][r, :, :kept], atol=1e-5
            )


@pytest.mark.parametrize(  # of 100 the last block begins early
    ("rows", "width"),
    [
        (16, 1),
        pytest.param(30, 2, marks=pytest.mark.long),
        *(pytest.param(*size, marks=pytest.mark.slow) for size in ((30, 20), (5, 20))),
    ],
)
def test_as_many_are_computed_as_is_said(rows, width, monkeypatch):
    monkeypatch.setattr(packing, "HEAVY", 0)
    for used in range(0, rows * width + 1, 7 if rows * width > 100 else 1):
        n = jnp.clip(used - width * jnp.arange(rows), 0, width)
        calls = []

        def counted(x, calls=calls):
            jax.debug.callback(lambda size: calls.append(int(size)), jnp.int32(len(x)))
            return x + 1

        packed = packing.packing(CONFIG, n, width)
        x = jnp.arange(rows * width, dtype=jnp.float32).reshape(rows, width)
        found = packed.unpack(packed.map_rows(counted)(packed.pack(x)))
        jax.effects_barrier()
        inside = np.arange(width)[None] < np.asarray(n)[:, None]
        np.testing.assert_array_equal(np.asarray(found)[inside], np.asarray(x + 1)[inside])
        assert rows * width >= sum(calls) == packing.count_computed(CONFIG, rows, width, n.sum()) >= used
        assert sum(calls) < used + packing.HEARD or packing.dense(rows, width, n.sum())


def test_light_models_and_few_tokens_are_left_alone(monkeypatch):
    assert packing.packing(CONFIG, jnp.zeros(30, jnp.int32), 20).order is None
    assert packing.count_computed(CONFIG, 30, 20, jnp.int32(1)) == 600
    monkeypatch.setattr(packing, "HEAVY", 0)
    assert packing.packing(CONFIG, jnp.zeros(30, jnp.int32), 20).order is not None
    for rows in (1, 15):
        assert packing.packing(CONFIG, jnp.zeros(rows, jnp.int32), 1).order is None
        assert packing.count_computed(CONFIG, rows, 1, jnp.int32(0)) == rows
