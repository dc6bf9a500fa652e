"""One model from several that began as the same one: sums of what each has learnt, its task vector.

The task vector of a model is its weights less the base's. Weights are trees of arrays, alike in all models; sums of
them are float32, a result has the dtype of the first. Adapters on one base need none of this: `lora.concatenate` joins
them along the rank, and their sum is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree


def task_arithmetic(base: Any, models: Sequence[Any], scale: Any = 1.0) -> Any:
    """base + scale * sum of the task vectors; `scale` may be traced.

    Ilharco et al., Editing Models with Task Arithmetic (2022), https://arxiv.org/abs/2212.04089
    """
    add = lambda b, *own: b + scale * sum(x - b for x in own)  # noqa: E731
    return jax.tree.map(partial(_in_float32, add), base, *models)


def average(models: Sequence[Any]) -> Any:
    """The mean of the models' weights, whatever they began as. Raises ValueError if there is none."""
    if not models:
        raise ValueError("A mean needs one model at least: got none.")
    return jax.tree.map(partial(_in_float32, lambda *own: sum(own) / len(own)), *models)


def _in_float32(of: Callable, *x: jax.Array) -> jax.Array:
    """of(*x) in float32 at least, as the dtype of the first: bfloat16 keeps no small change of a large weight."""
    return of(*map(_wide, x)).astype(x[0].dtype)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def ties(base: Any, models: Sequence[Any], keep: float = 0.2, scale: Any = 1.0) -> Any:
    """base + scale * the task vectors' mean after trimming and electing a sign, weight by weight (TIES-Merging).

    Of each task vector the share `keep` of largest size stays, rounded up and one more as in the release; the rest is
    0. A weight's sign is the sign of the sum of what stays, where that is 0 the sign of most weights. The mean is over
    the entries of that sign.
    Raises ValueError unless 0 < keep <= 1.

    Yadav et al., TIES-Merging (2023), https://arxiv.org/abs/2306.01708
    """
    if not 0 < keep <= 1:
        raise ValueError(f"TIES keeps a share of each task vector, over 0 and 1 at most, got {keep}.")
    flat, unravel = ravel_pytree(base)
    vectors = task_vectors(base, models)
    dropped = int(flat.size * (1 - keep) + 1e-9)
    smallest = jnp.sort(jnp.abs(vectors), 1)[:, max(dropped - 1, 0), None]  # the largest of the dropped stays as well
    trimmed = jnp.where(jnp.abs(vectors) >= smallest, vectors, 0)
    sign = jnp.sign(trimmed.sum(0))
    sign = jnp.where(sign == 0, jnp.sign(sign.sum()), sign)
    agrees = trimmed * sign[None] > 0
    mean = jnp.where(agrees, trimmed, 0).sum(0) / jnp.maximum(agrees.sum(0), 1)
    return unravel((flat + scale * mean).astype(flat.dtype))


def task_vectors(base: Any, models: Sequence[Any]) -> jax.Array:
    """The models' weights less the base's, one after another in a row: [models, weights], float32 at least."""
    flat = _wide(ravel_pytree(base)[0])
    return jnp.stack([_wide(ravel_pytree(own)[0]) for own in models]) - flat[None]


def geometry(base: Any, models: Sequence[Any]) -> dict[str, jax.Array]:
    """How the task vectors of two models or more lie to each other; means over the models, or over their pairs.

    `cosine`: between two; `changed`: the share of the weights that a model has other than the base in bfloat16;
    `overlap`: of the weights that either of two has changed, the share that both have; `against`: of those that both
    have changed, the share with opposite signs. Raises ValueError for fewer than two models.
    """
    if len(models) < 2:
        raise ValueError(f"Task vectors are compared in pairs: got {len(models)} of two models or more.")
    vectors, coarse = task_vectors(base, models), [ravel_pytree(x)[0].astype(jnp.bfloat16) for x in (base, *models)]
    changed = jnp.stack(coarse[1:]) != coarse[0][None]
    unit = vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    pairs = [*combinations(range(len(models)), 2)]
    both = [changed[i] & changed[j] for i, j in pairs]
    either = [(changed[i] | changed[j]).sum() for i, j in pairs]
    opposed = [(each & (vectors[i] * vectors[j] < 0)).sum() for each, (i, j) in zip(both, pairs, strict=True)]
    mean = lambda x: jnp.stack(x).mean()  # noqa: E731
    return {
        "cosine": mean([unit[i] @ unit[j] for i, j in pairs]),
        "changed": changed.mean(),
        "overlap": mean([b.sum() / jnp.maximum(n, 1) for b, n in zip(both, either, strict=True)]),
        "against": mean([n / jnp.maximum(b.sum(), 1) for n, b in zip(opposed, both, strict=True)]),
    }
