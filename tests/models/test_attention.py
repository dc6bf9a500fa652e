"""Attention over parts, shared and own, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.models.attention import CHUNK, MANY, attention
from tests.support.families import close


@pytest.mark.parametrize(("length", "kind"), [(1, "plain"), (5, "plain"), (40, "plain"), (5, "fused"), (40, "fused")])
def test_attention_over_parts_equals_a_loop_in_value_and_gradient(length, kind):
    """One part is shared by two rows each, one is each row's own; few queries and many take different products."""
    random, rows, kv, dim = np.random.default_rng(length), 4, 2, 8
    normal = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
    q, shared_k, shared_v = normal(rows, length, 4, dim), normal(2, kv, dim, 6), normal(2, kv, 6, dim)
    own_k, own_v, weight = normal(rows, kv, dim, 7), normal(rows, kv, 7, dim), normal(rows, length, 4 * dim)
    shared_mask, own_mask = (jnp.asarray(random.random((rows, length, size)) < 0.6) for size in (6, 7))
    own_mask = own_mask.at[..., 0].set(True)

    def ours(q, shared_k, shared_v, own_k, own_v):
        seen = (shared_k, shared_v, shared_mask), (own_k, own_v, own_mask)
        return (attention(q, *seen, scale=dim**-0.5, fused=kind == "fused") * weight).sum()

    def loop(q, shared_k, shared_v, own_k, own_v):
        total = 0.0
        for r in range(rows):
            k = jnp.concatenate([shared_k[r // 2], own_k[r]], 2)
            v = jnp.concatenate([shared_v[r // 2], own_v[r]], 1)
            mask = jnp.concatenate([shared_mask[r], own_mask[r]], 1)
            for h in range(4):
                odds = jnp.where(mask, jnp.exp(q[r, :, h] @ k[h // 2] / dim**0.5), 0)
                mixed = odds @ v[h // 2] / odds.sum(1, keepdims=True)
                total += (mixed * weight[r, :, h * dim : (h + 1) * dim]).sum()
        return total

    inputs = q, shared_k, shared_v, own_k, own_v
    run = lambda f: jax.jit(jax.value_and_grad(f, (0, 1, 2, 3, 4)))(*inputs)
    close(run(ours), run(loop))


@pytest.mark.parametrize(
    ("used", "bound", "dtype"),
    [
        (1, None, "float32"),
        (64, None, "float32"),
        (65, None, "float32"),
        (200, 2.0, "float32"),
        (320, None, "float32"),
        (200, None, "bfloat16"),
    ],
)
def test_a_long_cache_is_read_as_far_as_it_is_used(used, bound, dtype):
    """Garbage lies behind, and rows see different parts of what is used, one of them nothing but the opening."""
    random, rows, kv, dim, length, slots = np.random.default_rng(used), 3, 2, 8, CHUNK, 320
    normal = lambda *shape: jnp.asarray(random.normal(size=shape), dtype)
    q, prompt = (
        normal(rows, length, 4, dim),
        (normal(1, kv, dim, 5), normal(1, kv, 5, dim), jnp.ones((rows, length, 5), bool)),
    )
    mask = jnp.asarray(random.random((rows, length, slots)) < 0.5).at[..., used:].set(False).at[1].set(False)
    k, v = normal(rows, kv, dim, slots).at[..., used:].set(1e30), normal(rows, kv, slots, dim)
    read = jax.jit(lambda used: attention(q, prompt, (k, v, mask), scale=1.0, used=used, bound=bound))
    assert slots > MANY and "while" in read.lower(jnp.int32(used)).as_text()
    found, whole = read(jnp.int32(used)), attention(q, prompt, (k, v, mask), scale=1.0, bound=bound)
    assert found.dtype == dtype
    close(found, whole, 1e-5 if dtype == "float32" else 0.02)
