"""Model merging: one model from several fine-tuned copies of a base, by sums of their task vectors.

The task vector of a model is its weights minus the base's. Weights are trees of arrays with the same structure in all
models. Sums are computed in float32 at least; a result has the dtype of the first model. Adapters on a shared base need
no merging: `lora.concatenate` joins them along the rank, and their sum is exact.
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
    add = lambda b, *tuned: b + scale * sum(x - b for x in tuned)
    return jax.tree.map(partial(_in_float32, add), base, *models)


def average(models: Sequence[Any]) -> Any:
    """The mean of the models' weights. Raises ValueError without models."""
    if not models:
        raise ValueError("A mean needs one model at least: got none.")
    return jax.tree.map(partial(_in_float32, lambda *x: sum(x) / len(x)), *models)


def _in_float32(function: Callable, *x: jax.Array) -> jax.Array:
    """function(*x) in float32 at least, as x[0]'s dtype: bfloat16 loses small changes of large weights."""
    return function(*map(_wide, x)).astype(x[0].dtype)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def ties(base: Any, models: Sequence[Any], keep: float = 0.2, scale: Any = 1.0) -> Any:
    """TIES-Merging: base + scale * the mean of the task vectors, after trimming and electing a sign for each weight.

    Trimming keeps the largest entries of each task vector, a share `keep` rounded up, and one more as in the authors'
    code; the rest is 0. The sign of a weight is that of the trimmed vectors' sum, or if it is 0, that of the
    majority of weights. The mean is over the entries with this sign.
    Raises ValueError unless 0 < keep <= 1.

    Yadav et al., TIES-Merging (2023), https://arxiv.org/abs/2306.01708
    """
    if not 0 < keep <= 1:
        raise ValueError(f"TIES keeps a share of each task vector, over 0 and 1 at most, got {keep}.")
    flat, unravel = ravel_pytree(base)
    vectors = task_vectors(base, models)
    dropped = int(flat.size * (1 - keep) + 1e-9)
    smallest = jnp.sort(jnp.abs(vectors), 1)[:, max(dropped - 1, 0), None]  # the largest dropped entry stays too
    trimmed = jnp.where(jnp.abs(vectors) >= smallest, vectors, 0)
    sign = jnp.sign(trimmed.sum(0))
    sign = jnp.where(sign == 0, jnp.sign(sign.sum()), sign)
    agrees = trimmed * sign[None] > 0
    mean = jnp.where(agrees, trimmed, 0).sum(0) / jnp.maximum(agrees.sum(0), 1)
    return unravel((flat + scale * mean).astype(flat.dtype))


def task_vectors(base: Any, models: Sequence[Any]) -> jax.Array:
    """The flat task vectors [models, weights], float32 at least."""
    flat = _wide(ravel_pytree(base)[0])
    return jnp.stack([_wide(ravel_pytree(model)[0]) for model in models]) - flat[None]


def geometry(base: Any, models: Sequence[Any]) -> dict[str, jax.Array]:
    """Relations between the task vectors of two or more models, as means over models or over pairs.

    - `cosine`: of a pair.
    - `changed`: the share of weights in which a model differs from the base in bfloat16.
    - `overlap`: weights changed by both models of a pair, over weights changed by either.
    - `against`: of the weights changed by both, the share with opposite signs.

    Raises ValueError for fewer than two models.
    """
    if len(models) < 2:
        raise ValueError(f"Task vectors are compared in pairs: got {len(models)} of two models or more.")
    vectors, coarse = task_vectors(base, models), [ravel_pytree(x)[0].astype(jnp.bfloat16) for x in (base, *models)]
    changed = jnp.stack(coarse[1:]) != coarse[0][None]
    unit = vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    pairs = [*combinations(range(len(models)), 2)]
    both = [changed[i] & changed[j] for i, j in pairs]
    either = [(changed[i] | changed[j]).sum() for i, j in pairs]
    opposed = [(shared & (vectors[i] * vectors[j] < 0)).sum() for shared, (i, j) in zip(both, pairs, strict=True)]
    mean = lambda x: jnp.stack(x).mean()
    return {
        "cosine": mean([unit[i] @ unit[j] for i, j in pairs]),
        "changed": changed.mean(),
        "overlap": mean([b.sum() / jnp.maximum(n, 1) for b, n in zip(both, either, strict=True)]),
        "against": mean([n / jnp.maximum(b.sum(), 1) for n, b in zip(opposed, both, strict=True)]),
    }
